"""How much time does a training step lose when memory is given back (by trims at every step, decay, torch.cuda.empty_cache()), compared with
PyTorch's own allocator?

    python bench/torch/trim.py [--steps N] [--warm-up N] [--rounds N] [--only WORD] [--json] [--check]

Runs two programs of examples/torch on a simulated GPU, each in every way below, in a process of its own, in rounds that alternate, so that a
disturbance hits all ways. The simulated driver keeps the host busy as long as its calls would on a real one (sim/machine/cost.def, spend_cost). A
simulated step runs no kernels: the program sleeps for the assumed time of a step (PROGRAMS), and driver calls come on top. In the steps after the
warm-up the benchmark measures driver time by the model; CPU time of all threads, with the driver's; wall time; and the CPU time of cenote_pool_step,
without the driver's. --check ends with status 1 if trim_every:1 or decay_ms take MOST of a step or more, in driver time beyond what the program takes
without them or in CPU time, or if empty_cache() at every step costs more under cenote than under PyTorch's allocator.
"""
import argparse
import datetime
import json
import os
import pathlib
import runpy
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = "80GiB"
SHAPE = f"capacity:{SIM},spend_cost:1"
MOST = 0.01
NOISE = 0.05  # two runs of the same program differ by this part of the CPU time of a step on a busy machine


class Program(NamedTuple):
    name: str
    step_ns: int  # on an A100


class Way(NamedTuple):
    name: str
    allocator: str
    conf: str = ""
    empties: bool = False


# GPT-2: driver_time.py explains the time of its step. LSTM: 103 million parameters, 6 operations for each of them and each of some 12,500 words, at
# the peak of an A100 in TF32, 156 TFLOPS; real steps take longer, so that the share is smaller.
PROGRAMS = (
    Program("gpt2_train.py", round(8 * (128 + 1024) / 2 / (524288 / 0.820 / 8) * 1e9)),
    Program("lstm.py", round(103e6 * 6 * 12500 / 156e12 * 1e9)),
)
WAYS = (
    Way("native", "native"),
    Way("cenote", "cenote"),
    Way("trim_every:1", "cenote", "trim_every:1"),
    Way("decay_ms:1000", "cenote", "decay_ms:1000"),
    Way("decay_ms:1000,background:1", "cenote", "decay_ms:1000,background:1"),
    Way("native, empty_cache", "native", empties=True),
    Way("cenote, empty_cache", "cenote", empties=True),
    Way("cenote, empty_cache, harvest_budget:off", "cenote", "harvest_budget:off", empties=True),  # without a budget: releases everything
)


def play(program: Program, count: int, warm_up: int, empties: bool) -> dict[str, Any]:
    """Runs in a process of its own, on the simulated GPU."""
    sys.path[:0] = [str(ROOT / "tests" / "torch"), str(ROOT / "examples" / "torch")]
    import torch

    import figures
    import simulated
    hand = simulated.Hand()
    is_cenote = torch.cuda.get_allocator_backend() == "cenote"
    if is_cenote:
        import cenote
    steps_of: dict[str, list[int]] = {name: [] for name in ("driver_ns", "cpu_ns", "wall_ns", "step_cpu_ns", "used")}

    def clocks() -> tuple[int, int, int]:
        return hand.books().cost_ns, time.process_time_ns(), time.monotonic_ns()

    def finish_step() -> int:
        """CPU time of cenote_pool_step itself."""
        cost, begin = hand.books().cost_ns, time.thread_time_ns()
        if is_cenote:
            cenote.step()
        spent = time.thread_time_ns() - begin
        return max(spent - (hand.books().cost_ns - cost), 0)

    def steps(_: int) -> Iterator[int]:
        for step in range(count):
            begin = clocks()
            yield step
            steps_of["step_cpu_ns"].append(finish_step())
            if empties:
                torch.cuda.empty_cache()
            cost, _, now = clocks()
            time.sleep(max(program.step_ns - (now - begin[2]) + (cost - begin[0]), 0) / 1e9)
            for name, then, after in zip(("driver_ns", "cpu_ns", "wall_ns"), begin, clocks()):
                steps_of[name].append(after - then)
            steps_of["used"].append(hand.books().used)  # not PyTorch's counters: a read makes cenote do its deferred trims

    figures.steps = steps
    figures.report = lambda _: None
    runpy.run_path(str(ROOT / "examples" / "torch" / program.name), run_name="__main__")
    late = {name: values[warm_up:] for name, values in steps_of.items()}
    return {"torch": torch.__version__, "reserved_peak": torch.cuda.max_memory_reserved(), **late}


def run(program: Program, way: Way, options: argparse.Namespace) -> dict[str, Any]:
    others = ("CENOTE", "CENOTE_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    environ = {name: value for name, value in os.environ.items() if name not in others}
    environ["CENOTE_SIM"] = SHAPE
    if way.conf:
        environ["CENOTE_CONF"] = way.conf
    command = [sys.executable, "-m", "cenote", "run", "--prices", options.prices, "--allocator", way.allocator, "--", sys.executable, __file__]
    command += ["--play", program.name]
    command += ["--steps", str(options.steps), "--warm-up", str(options.warm_up), *(["--empties"] if way.empties else [])]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def line_of(program: Program, way: Way, runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The figures of all rounds. CPU and wall time are those of the fastest round."""
    def least(figure: str, of: Callable[[list[int]], float]) -> float:
        return min(of(r[figure]) for r in runs)

    driver = [ns for r in runs for ns in r["driver_ns"]]
    return {
        "date": str(datetime.date.today()), "gpu": f"simulated, {SIM}", "prices": options.prices, "torch": runs[0]["torch"],
        "program": program.name, "way": way.name,
        "steps": options.steps, "warm_up": options.warm_up, "rounds": len(runs), "step_ms_assumed": round(program.step_ns / 1e6, 1),
        "driver_ms_mean": round(statistics.mean(driver) / 1e6, 4), "driver_ms_median": round(statistics.median(driver) / 1e6, 4),
        "driver_ms_most": round(max(driver) / 1e6, 3), "cpu_ms_mean": round(least("cpu_ns", statistics.mean) / 1e6, 3),
        "wall_ms_mean": round(least("wall_ns", statistics.mean) / 1e6, 3), "step_cpu_us_mean": round(least("step_cpu_ns", statistics.mean) / 1e3, 2),
        "used_mean": round(statistics.mean(runs[0]["used"])), "reserved_peak": runs[0]["reserved_peak"],
    }


def judge(program: Program, lines: dict[str, dict[str, Any]]) -> list[str]:
    """Messages about figures above their limits."""
    wrong = []
    for name in ("trim_every:1", "decay_ms:1000", "decay_ms:1000,background:1"):
        if name not in lines or "cenote" not in lines:
            continue
        more = {figure: lines[name][figure] - lines["cenote"][figure] for figure in ("driver_ms_mean", "step_cpu_us_mean")}
        driver = more["driver_ms_mean"] / lines[name]["wall_ms_mean"]  # the measured step, because cenote's budget is a share of wall time
        cpu = more["step_cpu_us_mean"] * 1e3 / program.step_ns
        for what, share in (("the driver's calls", driver), ("cenote_pool_step", cpu)):
            if share >= MOST:
                wrong.append(f"{program.name}, {name}: {what} take {100 * share:.2f} % of a step; less than {100 * MOST:.0f} % is demanded")
    native, ours = lines.get("native, empty_cache"), lines.get("cenote, empty_cache")
    for figure, most in (("driver_ms_mean", 1.0), ("cpu_ms_mean", 1 + NOISE), ("wall_ms_mean", 1 + NOISE)):
        if native and ours and ours[figure] > most * native[figure]:
            wrong.append(f"{program.name}, empty_cache at every step: {figure} is {ours[figure]} under cenote, {native[figure]} under native")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="what giving memory back costs a training step")
    parser.add_argument("--steps", metavar="N", type=int, default=120)
    parser.add_argument("--warm-up", metavar="N", type=int, default=50)
    parser.add_argument("--rounds", metavar="N", type=int, default=2)
    parser.add_argument("--prices", metavar="LIST", default="a100", help="as cenote run --prices has it")
    parser.add_argument("--only", metavar="WORD", default="", help="only programs and ways with WORD in `program way`")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of words")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a figure is above its limit")
    parser.add_argument("--play", metavar="PROGRAM", help=argparse.SUPPRESS)
    parser.add_argument("--empties", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        program = next(program for program in PROGRAMS if program.name == options.play)
        print("\n" + json.dumps(play(program, options.steps, options.warm_up, options.empties)))
        return 0
    wrong = []
    for program in PROGRAMS:
        ways = [way for way in WAYS if options.only in f"{program.name} {way.name}"]
        runs: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                runs[way.name].append(run(program, way, options))
        lines = {way.name: line_of(program, way, runs[way.name], options) for way in ways}
        for name, line in lines.items():
            if options.json:
                print(json.dumps(line))
            else:
                print(f"{program.name}, {name}: {line['driver_ms_mean']:.3f} ms of driver calls in a step (median {line['driver_ms_median']:.3f}, "
                      f"at most {line['driver_ms_most']:.1f}), {line['cpu_ms_mean']:.1f} ms CPU, {line['wall_ms_mean']:.1f} ms wall, "
                      f"cenote_pool_step {line['step_cpu_us_mean']:.1f} us; {line['used_mean'] / 1e9:.1f} GB of the device in use between steps, "
                      f"{line['reserved_peak'] / 1e9:.1f} reserved at most")
        sys.stdout.flush()
        wrong += judge(program, lines)
    for words in wrong if options.check else []:
        print(f"bench/torch: {words}", file=sys.stderr)
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
