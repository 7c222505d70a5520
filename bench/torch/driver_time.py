"""What share of a training step would the driver's memory calls take, in a program whose shapes vary?

    python bench/torch/driver_time.py [--allocator NAME] [--prices LIST] [--steps N] [--warm-up N] [--json] [--check]

Runs examples/torch/gpt2_train.py (GPT-2 355M, 8 sequences of 128 to 1024 tokens) on a simulated GPU, which adds up what the driver's calls would cost
on a real one (sim/machine/cost.def), and divides the sum by the time of a real step. A simulated step runs no kernels, so that its time is assumed:
TOKENS_PER_SECOND is what llm.c, written in CUDA and training in bf16, reaches with this model on one A100: 524,288 tokens in 820 ms on eight
(karpathy/llm.c, scripts/run_gpt2_350M.sh). PyTorch without a compiler is slower, so that the real share is smaller. --check ends with status 1 if the
share after the warm-up is MOST or more.
"""
import argparse
import datetime
import json
import os
import pathlib
import runpy
import statistics
import sys
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "torch" / "gpt2_train.py"
SIM = "80GiB"
TOKENS_PER_SECOND = 524288 / 0.820 / 8
TOKENS = 8 * (128 + 1024) / 2  # in a step, on average
STEP_NS = TOKENS / TOKENS_PER_SECOND * 1e9
MOST = 0.01


def begin_again_on_the_simulated_gpu(allocator: str, prices: str) -> None:
    """Replaces this process with `cenote run` of this program."""
    environ = {name: value for name, value in os.environ.items() if name not in ("CENOTE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    command = [sys.executable, "-m", "cenote", "run", "--sim", SIM, "--prices", prices, "--allocator", allocator]
    command += ["--", sys.executable, *sys.argv]
    os.execve(sys.executable, command, environ)


def play(count: int) -> list[int]:
    """The modelled ns of the driver's calls in each step; the first figure is for everything before the second step."""
    sys.path[:0] = [str(ROOT / "tests" / "torch"), str(PROGRAM.parent)]
    import figures
    import simulated
    hand = simulated.Hand()
    marks = [0]

    def steps(_: int) -> Iterator[int]:
        for step in range(count):
            yield step
            marks.append(hand.books().cost_ns)

    figures.steps = steps
    figures.report = lambda _: None
    runpy.run_path(str(PROGRAM), run_name="__main__")
    return [after - before for before, after in zip(marks, marks[1:])]


def main() -> int:
    parser = argparse.ArgumentParser(description="the share of a training step that the driver's memory calls would take")
    parser.add_argument("--allocator", default="cenote", help="as of cenote run --allocator")
    parser.add_argument("--prices", metavar="LIST", default="a100", help="as cenote run --prices has it")
    parser.add_argument("--steps", metavar="N", type=int, default=200)
    parser.add_argument("--warm-up", metavar="N", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="a line of JSON instead of words")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if the share is too large")
    options = parser.parse_args()
    if "libcenote_sim.so" not in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"):
        begin_again_on_the_simulated_gpu(options.allocator, options.prices)
    import torch
    ns = play(options.steps)
    late = ns[options.warm_up :]
    share = statistics.mean(late) / STEP_NS
    if options.json:
        print(json.dumps({
            "date": str(datetime.date.today()), "gpu": f"simulated, {SIM}", "torch": torch.__version__, "program": PROGRAM.name,
            "prices": options.prices, "allocator": torch.cuda.get_allocator_backend() if options.allocator != "expandable" else "expandable",
            "steps": options.steps, "warm_up": options.warm_up, "warm_up_driver_ms": round(sum(ns[: options.warm_up]) / 1e6, 1),
            "step_ms_assumed": round(STEP_NS / 1e6, 1), "step_driver_ms_mean": round(statistics.mean(late) / 1e6, 4),
            "step_driver_ms_median": round(statistics.median(late) / 1e6, 4), "step_driver_ms_most": round(max(late) / 1e6, 3),
            "steps_without": sum(n == 0 for n in late), "share": round(share, 5),
        }))
    else:
        warm_up = sum(ns[: options.warm_up]) / 1e6
        print(f"{PROGRAM.name} under {options.allocator}: {warm_up:.0f} ms of modelled driver calls in {options.warm_up} steps of warm-up; then "
              f"{statistics.mean(late) / 1e6:.3f} ms in a step on average, {max(late) / 1e6:.2f} at most: {100 * share:.3f} % of the "
              f"{STEP_NS / 1e6:.1f} ms that a step would take on an A100")
    if options.check and share >= MOST:
        print(f"bench/torch: the driver's calls take {100 * share:.2f} % of a step; it has to be less than {100 * MOST:.0f} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
