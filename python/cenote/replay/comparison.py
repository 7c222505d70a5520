"""`cenote replay`: how much memory would a recorded program take under cenote, PyTorch's own allocator and its expandable segments?

All traces and snapshots are read and checked before the first replay (trace_file.py). Then each is played through the real PyTorch on the simulated
GPU. Each allocator has a process (player.py), which imports torch once and forks for each replay. report.py prints the results.
"""
import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, NamedTuple, Optional, Sequence

from cenote import places
from cenote.base import quantity
from cenote.base.mistake import Mistake, visible
from cenote.base.progress import Bar
from cenote.launch import command_line, environment, python, run
from cenote.launch.environment import Wish
from cenote.replay import recorded, report, trace_file
from cenote.replay.trace_file import Trace

ALLOCATORS = ("cenote", "native", "expandable")
PAGES = (1, 2, 4, 8, 16, 32)  # MiB: the values of page_mib in include/cenote/options.def
CAPACITY = 80 << 30
SEARCH_DISTANCE = 64 << 20  # how near to the smallest card the search comes; or 1 %, if that is more
UNIT = 2 << 20  # capacities that the search tries are multiples of this
FAILED = 1

# Variables that would change the result of a replay are left out. CENOTE_CONF stays: users compare options of cenote.
LEFT_OUT = ("CENOTE", "CENOTE_SIM", "CENOTE_HOST", "CENOTE_LABELS", "CENOTE_TRACE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")

USAGE = "cenote replay [OPTION...] TRACE..."
ABOUT = """Plays recorded allocations through PyTorch on a simulated GPU, under each allocator, and prints how much memory each would have held.
A TRACE is a file of cenote.save_trace, cenote_pool_record_save or CENOTE_TRACE (docs/traces.md), plain or gzip, or a memory snapshot of PyTorch
(torch.cuda.memory._dump_snapshot)."""
EXAMPLES = """examples:
  cenote replay training.csv.gz                          the three allocators on a card of 80 GiB
  cenote replay --smallest snapshot.pickle               the smallest card on which each of them gets through
  cenote replay --sim 24GiB,16GiB --repeat 4 *.csv.gz    two cards; four times over, in the same pools
  cenote replay --under cenote --page 2,8 --lag 0,5% training.csv.gz
  cenote replay --json out.json --plot out.png traces/*.csv.gz
  cenote replay --recorded --plot out.png snapshot.pickle  do the models hold what PyTorch held on the card?

CENOTE_CONF sets options of cenote; settings of PyTorch's allocators in the environment are ignored. If memory runs out, the replay ends, and the
table names the record. Exit status: 0 done, 1 a replay failed, 2 an argument is wrong, a file is broken, or PyTorch or a library is missing."""


class Failed(Exception):
    """A replay failed; the text says why, in one line."""


class Variant(NamedTuple):
    """One way to replay a trace."""

    allocator: str
    page_mib: Optional[int]  # None: cenote chooses, or the allocator has no pages
    capacity: int
    lag: float  # how far the GPU is behind, as a part of the records
    prices: str = environment.PRICES[0]


# --- processes

class Worker:
    """A process that has imported torch with one allocator, and replays traces."""

    def __init__(self, allocator: str, preload: str) -> None:
        self.allocator = allocator
        self.ready = False
        self.log = tempfile.TemporaryFile()
        old = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        wish = Wish(CAPACITY, None, None, None if allocator == "cenote" else allocator)
        variables = environment.prepare(wish, old, preload)
        variables[environment.ON_OOM] = "off"  # that memory runs out is an answer here
        if not places.is_installed():
            variables["CENOTE_BUILD"] = places.build_folder()
        command = python.of_ours("cenote.replay.player", allocator)
        self.process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)

    def receive(self) -> dict[str, Any]:
        """The next answer of the process. Raises Failed if the process ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process that replays under {self.allocator} ended with status {self.process.wait()}{self.last_line()}")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def last_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        return f": {lines[-1].strip()[:200]}" if lines else ""

    def play(self, job: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
        """Replays one trace and returns its figures. Calls `progress` with the number of operations played so far."""
        if not self.ready:
            answer = self.receive()
            if "failed" in answer:
                raise Mistake(f"PyTorch under {self.allocator}: {answer['failed']}")
            self.ready = True
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        done: Optional[dict[str, Any]] = None
        while True:
            answer = self.receive()
            if "played" in answer:
                progress(answer["played"])
            elif "failed" in answer:
                raise Failed(f"under {self.allocator}: {answer['failed']}")
            elif "done" in answer:
                done = answer["done"]
            elif done is None:
                raise Failed(f"the replay under {self.allocator} ended with status {answer.get('ended')}{self.last_line()}")
            else:
                return done

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


class Stage:
    """The workers, and the folder with the traces that the workers read."""

    def __init__(self, folder: str, repeat: int, bar: Bar) -> None:
        self.folder, self.repeat, self.bar = folder, repeat, bar
        self.workers: dict[str, Worker] = {}

    def begin(self, allocators: Sequence[str]) -> None:
        preload = run.preload_library()
        for allocator in allocators:
            self.workers[allocator] = Worker(allocator, preload)

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()

    def play(self, trace: Trace, number: int, variant: Variant) -> dict[str, Any]:
        """Replays trace `number` in one variant. Returns the run."""
        shape = f"capacity:{quantity.write_size(variant.capacity)},devices:{trace.devices},manual_clock:1,prices:{variant.prices}"
        variables = {"CENOTE_SIM": shape}
        if variant.page_mib is not None:
            variables["CENOTE_CONF"] = ",".join(filter(None, [os.environ.get("CENOTE_CONF"), f"page_mib:{variant.page_mib}"]))
        count = len(trace.op)
        job = {"file": os.path.join(self.folder, str(number)), "count": count, "records": trace.records, "devices": trace.devices,
               "blocks": trace.blocks, "streams": trace.streams, "allocator": variant.allocator, "lag": variant.lag, "repeat": self.repeat,
               "progress": self.bar.is_shown, "environment": variables}
        self.bar.begin(f"{trace.name}, {variant.allocator}, {quantity.write_size(variant.capacity)}")
        done = self.workers[variant.allocator].play(job, lambda played: self.bar.show(played, count))
        self.bar.clear()
        return describe(trace, variant, self.repeat, done)


def describe(trace: Trace, variant: Variant, repeat: int, done: dict[str, Any]) -> dict[str, Any]:
    """A run: the fields that --json writes, and fields for the picture, whose names begin with an underscore."""
    oom = done["oom"]
    waste = None if oom or not trace.live_peak else round(100 * (done["reserved_peak_bytes"] / trace.live_peak - 1), 2)
    return {
        "trace": trace.name, "records": trace.records, "allocator": variant.allocator, "page_bytes": done["page_bytes"],
        "capacity_bytes": variant.capacity, "devices": trace.devices, "lag": variant.lag, "prices": variant.prices, "repeat": repeat,
        "requested_peak_bytes": trace.live_peak,
        "reserved_peak_bytes": done["reserved_peak_bytes"], "waste_percent": waste, "address_bytes": done["address_bytes"],
        "driver_calls_first": done["driver_calls_first"], "driver_calls_last": done["driver_calls_last"], "driver_ns": done["driver_ns"],
        "cpu_ns_per_record": done["cpu_ns_per_record"], "loop_ns_per_record": done["loop_ns_per_record"],
        "oom_record": oom and oom["record"], "oom_bytes": oom and oom["bytes"], "torch": done["torch"], "_samples": done["samples"],
    }


# --- the smallest card

def smallest(play: Callable[[int], dict[str, Any]], least: int, start: int) -> Optional[tuple[int, dict[str, Any]]]:
    """The smallest capacity with which `play` does not run out of memory, to 1 % or 64 MiB, and its run; None if the largest card is too small.

    The search begins at `start`; `least` is known to be too small. A card may suffice where a larger one does not: so the result suffices, and some
    card just below it does not, but a still smaller card might.
    """
    good, done = start, play(start)
    bad = least
    while done["oom_record"] is not None:
        if good >= command_line.MOST_CAPACITY:
            return None
        bad, good = good, min(good * 2, command_line.MOST_CAPACITY)
        done = play(good)
    while good - bad > max(good // 100, SEARCH_DISTANCE):
        middle = (good + bad) // 2 // UNIT * UNIT
        tried = play(middle)
        if tried["oom_record"] is None:
            good, done = middle, tried
        else:
            bad = middle
    return good, done


def find_smallest(stage: Stage, trace: Trace, number: int, variant: Variant) -> dict[str, Any]:
    # One of the cards has to hold at least this part of the peak, and its context takes memory too: so a card of this size is too small.
    least = max(trace.live_peak // trace.devices // UNIT * UNIT, UNIT)
    found = smallest(lambda capacity: stage.play(trace, number, variant._replace(capacity=capacity)), least, max(variant.capacity, least + UNIT))
    if found is None:
        done = stage.play(trace, number, variant._replace(capacity=command_line.MOST_CAPACITY))
        return {**done, "smallest_bytes": None}
    return {**found[1], "smallest_bytes": found[0]}


# --- the command

def listed(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A reader for an option with several values, separated by commas. A value that comes twice is used once."""
    def read_all(text: str) -> list[Any]:
        return list(dict.fromkeys(read(part) for part in text.split(",")))
    return read_all


def allocator(text: str) -> str:
    if text not in ALLOCATORS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no allocator; choose from {', '.join(ALLOCATORS)}")
    return text


def page(text: str) -> int:
    try:
        size = quantity.read_size(text)
    except ValueError:
        size = 0
    mib = size if text.isdecimal() else size / (1 << 20)
    if mib not in PAGES:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no size of a page; choose from {', '.join(map(str, PAGES))} MiB")
    return int(mib)


def lag(text: str) -> float:
    digits, percent = text.removesuffix("%").strip(), text.endswith("%")
    try:
        part = float(digits) if digits.replace(".", "", 1).isdecimal() and digits.isascii() else -1.0
    except ValueError:
        part = -1.0
    part = part / 100 if percent else part
    if not 0 <= part <= 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no part of a trace: write 0 to 1, or 0% to 100%")
    return part


def times(text: str) -> int:
    number = command_line.count(text, 1000)
    if not number:
        raise argparse.ArgumentTypeError("0 times is no replay: write 1 or more")
    return number


def make_parser() -> command_line.Parser:
    made = command_line.Parser("cenote replay", usage=USAGE, description=ABOUT, epilog=EXAMPLES, allow_abbrev=False,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("traces", metavar="TRACE", nargs="*", help=argparse.SUPPRESS)
    made.add_argument("--under", metavar="NAME,...", type=listed(allocator), default=list(ALLOCATORS),
                      help="allocators: " + ", ".join(ALLOCATORS) + " (default all)")
    made.add_argument("--sim", metavar="SIZE,...", type=listed(command_line.capacity), default=[CAPACITY],
                      help="memory of each simulated GPU (default 80GiB)")
    made.add_argument("--page", metavar="MIB,...", type=listed(page), default=[None],
                      help="size of cenote's pages (default: the size that cenote chooses for the card)")
    made.add_argument("--lag", metavar="PART,...", type=listed(lag), default=[0.0],
                      help="how far the GPU is behind the program, as a part of the records: 0.05 or 5%% (default 0)")
    made.add_argument("--prices", metavar="LIST,...", type=listed(str), default=[environment.PRICES[0]], help=command_line.PRICES_HELP)
    made.add_argument("--repeat", metavar="N", type=times, default=1, help="play each trace N times in a row, in the same pools (default 1)")
    made.add_argument("--recorded", action="store_true", help="the files are memory snapshots of PyTorch on a card: compare what PyTorch "
                      "took from the card with models of its allocators, event by event")
    made.add_argument("--smallest", action="store_true", help="find the smallest card, to 1 %% or 64 MiB; --sim is the size that is tried first")
    made.add_argument("--json", metavar="FILE", help="write all figures to FILE; if FILE is -, to standard output instead of the table")
    made.add_argument("--plot", metavar="FILE.png", help="draw requested and held memory over the records (needs matplotlib)")
    return made


def variants(options: argparse.Namespace) -> list[Variant]:
    return [Variant(name, page, capacity, lag, prices) for capacity in options.sim for lag in options.lag for prices in options.prices
            for name in options.under for page in (options.page if name == "cenote" else [None])]


def check_outputs(options: argparse.Namespace) -> None:
    """Raises Mistake, before the first replay, if the results could not be written."""
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise Mistake("--plot needs matplotlib: pip install matplotlib")
    for path in (options.json, options.plot):
        if path != "-":
            command_line.check_output(path)


def check_prices(options: argparse.Namespace) -> None:
    preload = run.preload_library()
    options.prices = [environment.prices(text, preload) for text in options.prices]


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise Mistake(f"torch is not installed for {sys.executable}: pip install torch, or `make run` for .venv/bin/cenote; "
                      "the program cenote-replay needs no torch, but replays under cenote only")


def load_all(paths: Sequence[str], folder: str, bar: Bar) -> list[Trace]:
    """Reads all traces, and saves each in `folder` for the workers."""
    loaded = []
    for i, path in enumerate(paths):
        bar.begin(f"reading {os.path.basename(path)}")
        trace = trace_file.load(path, bar.count)
        trace_file.save(trace, os.path.join(folder, str(i)))
        loaded.append(trace)
    bar.clear()
    return loaded


def replay_recorded(options: argparse.Namespace) -> int:
    defaults = {"under": list(ALLOCATORS), "page": [None], "lag": [0.0], "prices": [environment.PRICES[0]], "repeat": 1, "smallest": False}
    for name, value in defaults.items():
        if getattr(options, name) != value:
            raise Mistake(f"--recorded plays what was recorded, once: leave out --{name}")
    if len(options.sim) > 1:
        raise Mistake("--recorded takes one size in --sim, the capacity of the card for cenote")
    recorded.run(options)
    return 0


def replay(options: argparse.Namespace) -> int:
    check_outputs(options)
    if options.recorded:
        return replay_recorded(options)
    check_prices(options)
    check_torch()
    bar = Bar()
    # SIGTERM raises an exception, so that the workers end and the folder is removed.
    old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return replay_all(options, bar)
    finally:
        signal.signal(signal.SIGTERM, old)


def replay_all(options: argparse.Namespace, bar: Bar) -> int:
    with tempfile.TemporaryDirectory(prefix="cenote-replay-") as folder:
        stage = Stage(folder, options.repeat, bar)
        try:
            traces = load_all(options.traces, folder, bar)
            stage.begin(options.under)
            runs = []
            for i, trace in enumerate(traces):
                for variant in variants(options):
                    done = (find_smallest if options.smallest else Stage.play)(stage, trace, i, variant)
                    runs.append({**done, "_number": i})
        finally:
            bar.clear()
            stage.end()
    report.write(options, traces, runs)
    return 0


def main(arguments: Sequence[str]) -> int:
    made = make_parser()
    options = made.parse_intermixed_args(list(arguments))
    if not options.traces:
        made.error("no trace; `cenote replay --help` shows how to name one")
    try:
        return replay(options)
    except (Mistake, places.NotBuilt) as mistake:
        made.error(str(mistake))
    except Failed as problem:
        print(f"cenote replay: {visible(str(problem))}", file=sys.stderr)
        return FAILED
    except OSError as problem:
        print(f"cenote replay: {problem.strerror or problem}{': ' + visible(str(problem.filename)) if problem.filename else ''}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130
