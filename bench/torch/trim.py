"""What does giving memory back cost a training step: trims at every step, decay, torch.cuda.empty_cache(), under cenote and under PyTorch's allocator?

    python bench/torch/trim.py [--steps N] [--warm-up N] [--rounds N] [--only WORD] [--json] [--check]

Runs two programs of examples/torch on a simulated GPU, each in every way below, a process for each, in rounds that alternate, so that a disturbance hits
all ways or is voted out. Driver time is what the simulated driver's calls would cost on a real one (sim/cost.def), per step after the warm-up. A
simulated step has no kernels, so the share of a step takes that for granted which driver_time.py does. CPU time is that of all threads, the simulated
driver's work included; `step_ns` is the CPU time of cenote_step alone. --check ends with status 1 where trim_every:1 or decay_ms take 1 % of a step or more, in
driver time or CPU time, or where empty_cache() at every step is dearer under cenote than under PyTorch's allocator.
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
from typing import Any, Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIM = "80GiB"
MOST = 0.01
NOISE = 0.05  # of the CPU time of a step: what two runs of the same program differ by on a busy machine


class Program(NamedTuple):
    name: str
    step_ns: float  # on an A100


class Way(NamedTuple):
    name: str
    allocator: str
    conf: str = ""
    empties: bool = False


# GPT-2: driver_time.py says where its step comes from. The LSTM's is not known; nothing is said of its share.
PROGRAMS = (
    Program("gpt2_train.py", 8 * (128 + 1024) / 2 / (524288 / 0.820 / 8) * 1e9),
    Program("lstm.py", 0),
)
WAYS = (
    Way("native", "native"),
    Way("cenote", "cenote"),
    Way("trim_every:1", "cenote", "trim_every:1"),
    Way("decay_ms:1000", "cenote", "decay_ms:1000"),
    Way("decay_ms:1000,background:1", "cenote", "decay_ms:1000,background:1"),
    Way("native, empty_cache", "native", empties=True),
    Way("cenote, empty_cache", "cenote", empties=True),
)


def play(program: str, count: int, warm_up: int, empties: bool) -> dict[str, Any]:
    """In a process of its own, on the simulated GPU."""
    sys.path[:0] = [str(ROOT / "tests" / "torch"), str(ROOT / "examples" / "torch")]
    import torch

    import figures
    import simulated
    hand = simulated.Hand()
    is_cenote = torch.cuda.get_allocator_backend() == "cenote"
    if is_cenote:
        import cenote
    driver: list[int] = []
    cpu: list[int] = []
    wall: list[int] = []
    in_step: list[int] = []
    reserved: list[int] = []

    def steps(_: int) -> Iterator[int]:
        for step in range(count):
            before = hand.books().cost_ns, time.process_time_ns(), time.monotonic_ns()
            yield step
            begin = time.thread_time_ns()
            if is_cenote:
                cenote.step()
            in_step.append(time.thread_time_ns() - begin)
            if empties:
                torch.cuda.empty_cache()
            for figure, then, now in zip((driver, cpu, wall), before, (hand.books().cost_ns, time.process_time_ns(), time.monotonic_ns())):
                figure.append(now - then)
            reserved.append(torch.cuda.memory_reserved())

    figures.steps = steps
    figures.report = lambda: None
    runpy.run_path(str(ROOT / "examples" / "torch" / program), run_name="__main__")
    return {
        "torch": torch.__version__, "backend": torch.cuda.get_allocator_backend(), "driver_ns": driver[warm_up:], "cpu_ns": cpu[warm_up:],
        "wall_ns": wall[warm_up:], "step_ns": in_step[warm_up:], "reserved": reserved[warm_up:], "reserved_peak": torch.cuda.max_memory_reserved(),
    }


def run(program: Program, way: Way, options: argparse.Namespace) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name not in ("CENOTE", "CENOTE_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    if way.conf:
        environ["CENOTE_CONF"] = way.conf
    command = [sys.executable, "-m", "cenote", "run", "--sim", SIM, "--allocator", way.allocator, "--", sys.executable, __file__, "--play", program.name]
    command += ["--steps", str(options.steps), "--warm-up", str(options.warm_up), *(["--empties"] if way.empties else [])]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def line_of(program: Program, way: Way, runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The rounds together: of what the model says they do not differ, of CPU and wall time the least disturbed counts."""
    driver = runs[0]["driver_ns"]
    cpu = min(statistics.median(r["cpu_ns"]) for r in runs)
    step = min(statistics.mean(r["step_ns"]) for r in runs)
    return {
        "date": str(datetime.date.today()), "gpu": f"simulated, {SIM}", "torch": runs[0]["torch"], "program": program.name, "way": way.name,
        "steps": options.steps, "warm_up": options.warm_up, "rounds": len(runs),
        "driver_ms_mean": round(statistics.mean(statistics.mean(r["driver_ns"]) for r in runs) / 1e6, 4),
        "driver_ms_median": round(statistics.median(driver) / 1e6, 4), "driver_ms_most": round(max(driver) / 1e6, 3),
        "cpu_ms_median": round(cpu / 1e6, 3), "wall_ms_median": round(min(statistics.median(r["wall_ns"]) for r in runs) / 1e6, 3),
        "step_us_mean": round(step / 1e3, 2), "reserved_mean": round(statistics.mean(runs[0]["reserved"])), "reserved_peak": runs[0]["reserved_peak"],
    }


def judge(program: Program, lines: dict[str, dict[str, Any]]) -> list[str]:
    """What is dearer than it may be."""
    wrong = []
    for name in ("trim_every:1", "decay_ms:1000", "decay_ms:1000,background:1"):
        line = lines.get(name)
        if not line:
            continue
        share = line["driver_ms_mean"] * 1e6 / program.step_ns if program.step_ns else 0
        if share >= MOST:
            wrong.append(f"{program.name}, {name}: the driver's calls take {100 * share:.2f} % of a step; less than {100 * MOST:.0f} % is demanded")
        if line["step_us_mean"] >= MOST * line["cpu_ms_median"] * 1000:
            wrong.append(f"{program.name}, {name}: cenote_step takes {line['step_us_mean']:.0f} us of the {line['cpu_ms_median']:.1f} ms of a step's CPU time")
    native, ours = lines.get("native, empty_cache"), lines.get("cenote, empty_cache")
    for figure, most in (("driver_ms_mean", 1.0), ("cpu_ms_median", 1 + NOISE), ("wall_ms_median", 1 + NOISE)):
        if native and ours and ours[figure] > most * native[figure]:
            wrong.append(f"{program.name}, empty_cache at every step: {figure} is {ours[figure]} under cenote and {native[figure]} under PyTorch's allocator")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="what giving memory back costs a training step")
    parser.add_argument("--steps", metavar="N", type=int, default=80)
    parser.add_argument("--warm-up", metavar="N", type=int, default=30)
    parser.add_argument("--rounds", metavar="N", type=int, default=2)
    parser.add_argument("--only", metavar="WORD", default="", help="only programs and ways with WORD in `program way`")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of words")
    parser.add_argument("--check", action="store_true", help="status 1 where something is too dear")
    parser.add_argument("--play", metavar="PROGRAM", help=argparse.SUPPRESS)
    parser.add_argument("--empties", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        print("\n" + json.dumps(play(options.play, options.steps, options.warm_up, options.empties)))
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
                print(f"{program.name}, {name}: {line['driver_ms_mean']:.3f} ms of driver calls in a step (median {line['driver_ms_median']:.3f}), "
                      f"{line['cpu_ms_median']:.1f} ms CPU, {line['wall_ms_median']:.1f} ms wall, cenote_step {line['step_us_mean']:.1f} us; "
                      f"{line['reserved_mean'] / 1e9:.1f} GB reserved between steps, {line['reserved_peak'] / 1e9:.1f} at most")
        sys.stdout.flush()
        wrong += judge(program, lines)
    for words in wrong if options.check else []:
        print(f"bench/torch: {words}", file=sys.stderr)
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
