"""Replays public traces on the simulated GPU and compares what is reserved with the limits below; prints a line for each replay."""
import json
import os
import pathlib
import subprocess
import sys

REPLAY = pathlib.Path(os.environ["CENOTE_BIN"]) / "cenote-replay"
SMALLEST = 600e6  # live bytes; below that, one page more or less is a percent

LAGS = {"0": 1.025, "0.05": 1.04, "1": 1.04}  # GPU lag -> most reserved over live, pages of 2 MiB
LARGE_PAGES = {"tl_vllm_piecewise": 1.06}  # pages of 8 MiB
LARGE_PAGES_ELSE = 1.04
ADDRESSES = 5.0  # times live
STILL_TRACES, FEW_CALLS = 5, 2000  # without lag: so many traces end without driver calls, the others with fewer than this

# What PyTorch's native allocator reserves: memory that cannot move must not cost more.
NATIVE = {
    "hta_v100_train": 1.093,
    "tl_h100_owlv2": 1.091,
    "tl_mi300_owlv2": 1.091,
    "tl_h100_qwen15": 1.230,
    "tl_mi300_qwen15": 1.230,
    "tl_h100_timesformer": 1.468,
    "tl_vllm_piecewise": 1.533,
}


class Limits:
    def __init__(self) -> None:
        self.broken: list[str] = []

    def hold(self, what: str, value: float, most: float) -> None:
        if value > most:
            self.broken.append(f"{what}: {value:.4f} is more than {most:.4f}")


def replay(path: pathlib.Path, *arguments: str) -> dict:
    done = subprocess.run([REPLAY, "--json", "--repeat", "4", *arguments, path], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{path.name} {' '.join(arguments)}: {done.stderr}")
    got = json.loads(done.stdout)
    got["ratio"] = got["reserved_peak_bytes"] / got["live_peak_bytes"]
    default = got["reserved_peak_default_budget_bytes"] / got["live_peak_bytes"]
    print(
        f"{got['trace']:22} {' '.join(arguments):50} {got['ratio']:.4f} default budget {default:.4f}"
        f" addresses {got['address_peak_bytes'] / got['live_peak_bytes']:.2f} calls {got['driver_calls_first']}"
        f" ... {got['driver_calls_last']} waits {got['waits']} ooms {got['ooms']}",
        flush=True,
    )
    return got


def check_vmm(paths: list[pathlib.Path], limits: Limits) -> None:
    calls = []
    for path in paths:
        for lag, most in LAGS.items():
            got = replay(path, "--page-mib", "2", "--harvest-budget", "off", "--gpu-lag", lag)
            what = f"{got['trace']} with lag {lag}"
            limits.hold(f"{what}: reserved", got["ratio"], most)
            limits.hold(f"{what}: addresses", got["address_peak_bytes"] / got["live_peak_bytes"], ADDRESSES)
            limits.hold(f"{what}: out of memory", got["ooms"], 0)
            if lag == "0":
                calls.append(got["driver_calls_last"])
        got = replay(path, "--page-mib", "8", "--harvest-budget", "off")
        limits.hold(f"{got['trace']} with 8 MiB pages", got["ratio"], LARGE_PAGES.get(got["trace"], LARGE_PAGES_ELSE))
    limits.hold("traces that do not end without driver calls", sum(c > 0 for c in calls), max(0, len(paths) - STILL_TRACES))
    limits.hold("driver calls in a last repetition", max(calls), FEW_CALLS)


def check_others(paths: list[pathlib.Path], limits: Limits) -> None:
    for path in paths:
        for provider in ("async", "plain"):
            got = replay(path, "--provider", provider)
            if got["trace"] in NATIVE:
                limits.hold(f"{got['trace']} with provider {provider}", got["ratio"], NATIVE[got["trace"]])


def main(folder: str) -> int:
    limits = Limits()
    paths = [path for path in sorted(pathlib.Path(folder).glob("*.csv.gz")) if replay(path)["live_peak_bytes"] > SMALLEST]
    check_vmm(paths, limits)
    check_others(paths, limits)
    print("\n".join(limits.broken) or "all within their limits")
    return 1 if limits.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
