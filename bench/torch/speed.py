"""What does a block cost PyTorch under its native allocator, and under cenote?

    python bench/torch/speed.py [--json] [--check] [--rounds N] [--recording]

Both run in one process, on a simulated GPU, in rounds that alternate, so that a disturbance hits both, or one round that the median leaves out. The
cases: one block of one size allocated and freed, random churn over many live blocks, tensors made and dropped. Times are CPU time of PyTorch, the
allocators and the simulated driver, which a warm allocator does not call. --check ends with status 1 if cenote is not as many times faster as CASES
demands. With --recording both record what they do: PyTorch its history, without stacks, cenote the records of a trace. The loops are C++ (speed.cpp),
compiled as cenote's adapter is; `torch.empty` from Python is there for information.
"""
import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any, Callable, NamedTuple, Optional

HERE = pathlib.Path(__file__).resolve().parent
SIM = "80GiB"
ROUNDS = 31
KIB, MIB = 1 << 10, 1 << 20
CHURN = (2000, 512, 16 * MIB)  # live blocks, smallest and largest size: each doubling equally likely
RECORDS = 1_000_000  # records that are kept, with --recording


class Case(NamedTuple):
    name: str
    least: Optional[float]  # has to be so many times faster than native; None: for information
    turns: int  # turns in a round
    play: Callable[[Any, int, int], float]  # (loops, which allocator, turns) -> ns of a turn


def pair(size: int) -> Callable[[Any, int, int], float]:
    return lambda loops, which, turns: loops.speed_pair(which, size, turns)


def pair_in_use(size: int) -> Callable[[Any, int, int], float]:
    """In a heap that churn has left full of holes, where the freed block is seldom the best fit for the next one."""

    def play(loops: Any, which: int, turns: int) -> float:
        loops.speed_churn(which, *CHURN, 5000)
        return loops.speed_pair(which, size, turns)

    return play


def churn(loops: Any, which: int, turns: int) -> float:
    return loops.speed_churn(which, *CHURN, turns)


def tensor(size: int) -> Callable[[Any, int, int], float]:
    def play(loops: Any, which: int, turns: int) -> float:
        loops.speed_use(which)
        return loops.speed_empty(size, turns)

    return play


def python_tensor(loops: Any, which: int, turns: int) -> float:
    import torch
    loops.speed_use(which)
    begin = time.thread_time_ns()
    for _ in range(turns):
        torch.empty(4 * KIB, dtype=torch.uint8, device="cuda")
    return (time.thread_time_ns() - begin) / turns


CASES = (
    Case("pair 512 B", 3, 20000, pair(512)),
    Case("pair 4 KiB", 3, 20000, pair(4 * KIB)),
    Case("pair 32 KiB", 3, 20000, pair(32 * KIB)),
    Case("pair 256 KiB", 3, 20000, pair(256 * KIB)),
    Case("pair 2 MiB", 3, 20000, pair(2 * MIB)),
    Case("pair 64 MiB", 3, 20000, pair(64 * MIB)),
    Case("churn, 2,000 live", 4, 20000, churn),
    Case("pair 256 KiB in use", None, 10000, pair_in_use(256 * KIB)),
    Case("pair 2 MiB in use", None, 10000, pair_in_use(2 * MIB)),
    Case("at::empty 4 KiB", 1.25, 10000, tensor(4 * KIB)),
    Case("at::empty 2 MiB", 1.25, 10000, tensor(2 * MIB)),
    Case("torch.empty 4 KiB", None, 5000, python_tensor),
)


def begin_again_on_the_simulated_gpu() -> None:
    """Replaces this process with `cenote run` of this program, with PyTorch's own allocator."""
    environ = {name: value for name, value in os.environ.items() if name not in ("CENOTE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    os.execve(sys.executable, [sys.executable, "-m", "cenote", "run", "--sim", SIM, "--", sys.executable, *sys.argv], environ)


def compile_loops() -> Any:
    import torch
    from cenote.native import adapter
    here, tool = adapter.describe(torch), adapter.compiler()
    if tool is None:
        raise SystemExit("bench/torch needs a C++ compiler: install g++, or name one in CXX")
    folder = os.path.join(here.folder, "lib")
    source = HERE / "speed.cpp"
    kept = adapter.own_folder("bench-" + adapter.digest(source.read_bytes(), repr(here).encode(), tool.says.encode()), print)
    target = os.path.join(kept.path, "speed.so")
    if not os.path.exists(target):
        includes = [f"-isystem{path}" for path in (os.path.join(here.folder, "include"), adapter.cuda_include(here))]
        flags = [*adapter.FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(here.has_new_abi)}"]
        libraries = [f"-L{folder}", "-ltorch_cpu", "-lc10_cuda", "-lc10"]
        adapter.run([*tool.command, *flags, *includes, "-shared", str(source), *libraries, "-o", target], kept)
    loops = ctypes.CDLL(target)
    number, size = ctypes.c_int, ctypes.c_size_t
    arguments = {"know": [number], "begin": [number], "use": [number], "give_back": [number], "pair": [number, size, number], "empty": [size, number],
                 "churn": [number, size, size, size, number]}
    for name, types in arguments.items():
        function = getattr(loops, "speed_" + name)
        function.argtypes, function.restype = types, ctypes.c_double
    return loops


def begin_both(loops: Any) -> None:
    """Installs cenote first, because that is impossible once the native allocator has begun."""
    import cenote
    import torch
    loops.speed_know(0)
    cenote.install()
    loops.speed_know(1)
    torch.cuda.init()
    if cenote.status().allocator != "cenote":
        raise SystemExit("bench/torch measures the adapter, which could not be compiled: `cenote doctor` says why")
    for which in range(2):
        loops.speed_begin(which)


def record_both(loops: Any) -> None:
    import cenote
    import torch
    loops.speed_use(0)
    torch.cuda.memory._record_memory_history(context=None, max_entries=RECORDS)
    loops.speed_use(1)
    cenote.record(RECORDS)


def measure(case: Case, loops: Any, rounds: int) -> list[float]:
    """The median time of each, in ns."""
    for which in range(2):
        case.play(loops, which, case.turns)
    ns = [[case.play(loops, which, case.turns) for which in range(2)] for _ in range(rounds)]
    for which in range(2):
        loops.speed_give_back(which)
    return [statistics.median(column) for column in zip(*ns)]


def machine() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description="what a block costs PyTorch under its native allocator, and under cenote")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if cenote is slower than it has to be")
    parser.add_argument("--rounds", metavar="N", type=int, default=ROUNDS)
    parser.add_argument("--recording", action="store_true", help="record the history under both allocators")
    parser.add_argument("--only", metavar="WORD", default="", help="cases whose name begins with WORD")
    options = parser.parse_args()
    if "libcenote_sim.so" not in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"):
        begin_again_on_the_simulated_gpu()
    import torch
    loops = compile_loops()
    begin_both(loops)
    if options.recording:
        record_both(loops)
    if options.json:
        print(json.dumps({"date": str(datetime.date.today()), "machine": machine(), "gpu": f"simulated, {SIM}", "torch": torch.__version__,
                          "rounds": options.rounds, "recording": options.recording}))
    else:
        print(f"torch {torch.__version__}, simulated GPU; ns of CPU time, median of {options.rounds} rounds.\n"
              f"{'case':<20} {'native':>8} {'cenote':>8} {'times':>7} {'at least':>9}")
    slow = 0
    for case in CASES:
        if not case.name.startswith(options.only):
            continue
        native, ours = measure(case, loops, options.rounds)
        times = native / ours
        if options.json:
            print(json.dumps({"case": case.name, "native_ns": round(native, 1), "cenote_ns": round(ours, 1), "times": round(times, 2),
                              "least": case.least}))
        else:
            print(f"{case.name:<20} {native:8.1f} {ours:8.1f} {times:7.2f} {case.least or '':>9}")
        sys.stdout.flush()
        if options.check and case.least and times < case.least:
            print(f"bench/torch: {case.name}: {times:.2f} times faster than native; it has to be at least {case.least}", file=sys.stderr)
            slow += 1
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
