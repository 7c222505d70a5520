"""`cenote dry-run`: will it fit? Runs a script, unchanged, on simulated GPUs of the given size, and gives a verdict.

The program runs as a child, as with `cenote run`, and reports what it held in files in a folder (inside/fit_report.py). If it does not fit, it runs
again: on the largest simulated GPU, to learn what it needs, and under PyTorch's own allocators, if one of them could make it fit. verdict.py writes
the verdict, search.py finds the largest value that fits.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Callable, Optional, Sequence, Union

from cenote.base import outputs, quantity, switch
from cenote.base.mistake import Mistake
from cenote.fit import advice, cards, copies, from_config, job, limit, number, replays, rows, screen, several, stall, verdict
from cenote.fit import search as searching
from cenote.fit.outcome import Outcome, idle
from cenote.fit.verdict import Answer
from cenote.guard import changes, kernel
from cenote.guard.choice import Guard
from cenote.launch import command_line, environment, processes, ranks, run
from cenote.launch.environment import Wish
from cenote.launch.keeper import Keeper
from cenote.places import NotBuilt
from cenote.remedies import table
from cenote.view import html_page

FITS, FITS_NOT, BAD_USE, UNKNOWN, CAUGHT, DEPENDS, GROWS, ABOVE_LIMIT, ABOVE_BASELINE = range(9)
STATUSES = {"fits": FITS, "grows": GROWS, "fits not": FITS_NOT, "unknown": UNKNOWN, "caught": CAUGHT, "depends": DEPENDS}
STEPS = 5  # the optimizer's state is complete from the second on; the others are for shapes that vary
STEPS_MAX = 10**9
SECONDS_MAX = 10**7
PARTING = 10  # s that a program has to end after an interrupt
QUIET = 30  # s without a step, after which it is said where the program is; later after twice as long
COMPARED = ("native", "expandable", "cenote")
PYTORCHS = ("native", "expandable")  # a script can choose between them itself
UNKNOWN_VALUES = ("zero", "typical", "largest", "off")
Run = Union["subprocess.Popen[bytes]", copies.Run]
Start = Callable[[dict[str, str], Any], Run]  # its variables, and where its output goes
TAIL = 2000  # if a second run fails, so many bytes of its output are shown

USAGE = """cenote dry-run [--gpu SIZE] [OPTION...] SCRIPT.py [ARGUMENT...]
       cenote dry-run [--gpu SIZE] [OPTION...] -m MODULE [ARGUMENT...]
       cenote dry-run [--gpu SIZE] [OPTION...] -c CODE [ARGUMENT...]
       cenote dry-run [--gpu SIZE] [OPTION...] -- PROGRAM [ARGUMENT...]
       cenote dry-run [--gpu SIZE] [OPTION...] --model CONFIG (--train full|lora | --serve) --batch N --seq N"""
ABOUT = "Will it fit? Runs a script, unchanged, on a simulated GPU for a few steps, and says what memory it would hold, or where it runs out."
MORE = """examples:
  cenote dry-run --gpu 80GiB train.py --batch-size 64
  cenote dry-run --gpu 24GiB --steps 20 --allocators -m my.training --config small.yaml
  cenote dry-run --gpu 80GiB --search batch-size=8..512 train.py
  cenote dry-run --gpu a100-80gb,l40,rtx4090 --allocator cenote train.py
  cenote dry-run train.py
  cenote dry-run --gpu 80GiB --devices 4 -- torchrun --nproc-per-node 4 train.py
  cenote dry-run --gpu 80GiB --world 1024 --rank 0,511,1023 train.py

The answer is for the allocator that the script would have: cenote with CENOTE=on, expandable segments if PYTORCH_CUDA_ALLOC_CONF says so, else
PyTorch's own. --allocator NAME answers for another one.

--search: if the command line has --NAME N, --NAME=N or NAME=N (- and _ are alike), that number is replaced. If not: the number in the script that
is assigned to NAME or passed as NAME=N, in memory; else NAME in capitals is an environment variable, and for any other --NAME N is added.
2=LOW..HIGH is the second argument. LOW..HIGH alone is the one number in the command line, or the batch of the DataLoader or Trainer. The search
assumes that a larger value needs more memory.

The script really runs, on files of its own: what was there before stays, and what it writes is gone at the end, but for caches. After its last step
the script is ended at once, as by a power cut.
Exit status: 0 it fits, 1 it does not, 2 a mistake in the options, 3 no verdict: the script failed by itself, or used no GPU, 4 it fits after it
caught an out of memory, 5 it depends on values that cannot be known, 6 it fits for now, and memory grows at each step,
7 it fits, and its peak is above --limit, 8 above that of --baseline."""


def steps(text: str) -> int:
    return command_line.count(text, STEPS_MAX)


def devices(text: str) -> int:
    number = command_line.count(text, command_line.MOST_DEVICES)
    if not number:
        raise argparse.ArgumentTypeError("0 devices: a dry run needs 1 or more")
    return number


def gpus(text: str) -> list[cards.Card]:
    if text == "list":
        print(cards.known())
        sys.exit(0)
    return cards.read_list(text)


def seconds(text: str) -> int:
    return command_line.count(text, SECONDS_MAX) or command_line.refuse("0 seconds: the script needs more")


def search(text: str) -> number.Search:
    try:
        return number.read(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from None


def advised(text: str) -> dict[str, int]:
    try:
        return advice.read(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from None


def make_parser() -> command_line.Parser:
    parser = command_line.Parser("cenote dry-run", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", "--sim", dest="cards", metavar="SIZE", type=gpus, default=[],
                        help="memory of each simulated GPU: 80GiB, 24576MiB, 80GB (10^9), 80g (GiB); or a card's name, or several of both for a "
                        "table: a100-80gb,rtx4090,16GiB; l4x2: two of them; list: prints the names that are known; without it the answer is the "
                        "smallest known card on which the script fits, and the two above it")
    parser.add_argument("--devices", metavar="N", type=devices, help=f"how many, 1 to {command_line.MOST_DEVICES} (default 1)")
    job.add_options(parser)
    parser.add_argument("--prices", metavar="LIST", help=command_line.PRICES_HELP)
    parser.add_argument("--per-hour", metavar="LIST", type=cards.per_hour, help="with several cards, or none: what they cost to rent (akash)")
    parser.add_argument("--steps", metavar="N", type=steps, default=STEPS,
                        help=f"end each process after N steps of its optimizer (default {STEPS}); 0: run to the end")
    parser.add_argument("--allocator", metavar="NAME", type=command_line.allocator,
                        help="PyTorch's allocator: " + ", ".join(environment.ALLOCATORS) + " (default: what the environment chooses, as the "
                        "script would have it; with nothing set native, PyTorch's own)")
    parser.add_argument("--allocators", action="store_true", help="run under " + ", ".join(COMPARED) + ", and compare")
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="end the script if it still runs after so long; no verdict then")
    parser.add_argument("--unknown", metavar="NAME", choices=UNKNOWN_VALUES, default="typical",
                        help="what values are that cannot be known without a GPU: zero, typical, largest (counts: all that the shape allows), "
                        "or off: kernels compute nothing, and the program reads back what is in memory (default typical)")
    parser.add_argument("--search", metavar="NAME=LOW..HIGH", type=search,
                        help="find the largest value that fits, of an argument, a number in the script or an environment variable; without NAME= "
                        "of the batch; LOW..HIGH:STEP leaves out numbers between, 8,16,32 lists them")
    parser.add_argument("--advise", metavar="NAME,...", nargs="?", const={}, type=advised,
                        help="also run it with each change that may save memory, and say what each gives; --advise=NAME,... tries only these: "
                        + ", ".join(table.BY_NAME) + ", and fsdp=K for K GPUs")
    parser.add_argument("--limit", metavar="SIZE", type=command_line.capacity, help="for CI: exit status 7 if it fits and its peak is above SIZE")
    parser.add_argument("--baseline", metavar="FILE",
                        help="for CI: the difference to the run whose --json FILE is; exit status 8 if it is more than 1 %%")
    parser.add_argument("--json", metavar="FILE", help="write the verdict and all figures to FILE as well")
    parser.add_argument("--report", metavar="FILE", help="write a page to FILE, NAME.html: all lines of the verdict, and memory over time by name")
    parser.add_argument("--writes", metavar="PATH", action="append", default=[], help="the script may really change this file or folder")
    parser.add_argument("--keep-files", metavar="DIR", help="copy what the script wrote in the first run to DIR")
    parser.add_argument("--unprotected", action="store_true",
                        help="let the script change any file, where the system does not let cenote mount an overlay")
    parser.add_argument("-v", "--verbose", action="store_true", help="all lines of the verdict: phases, each holder with its lines, values, files")
    parser.add_argument("--quiet", action="store_true", help="do not show what the script prints")
    from_config.add_options(parser)
    return parser


def say(text: str) -> None:
    print(f"cenote dry-run: {text}", file=sys.stderr, flush=True)


# --- running

class Stage:
    """What all runs of one command share."""

    def __init__(self, options: argparse.Namespace, program: Sequence[str], keeper: Keeper) -> None:
        self.options, self.keeper = options, keeper
        self.preload = run.preload_library()
        self.prices = environment.prices(options.prices, self.preload)
        self.runs = self.copied = self.most_steps = 0
        self.seconds = 0.0  # of the last run
        kernel.adopt()
        self.guard = Guard(options.writes, options.unprotected, os.environ, keeper.folder)
        self.refused: list[str] = []
        is_search_of_argument = options.search is not None and options.search.begins_at_copy
        has_several = is_search_of_argument or len(options.cards) != 1 or options.advise is not None
        has_copies = has_several and program[0] != "--" and job.read(options, program) is None
        self.copies = copies.Copies() if has_copies else None  # for later runs

    def variables(self, capacity: int, allocator: str, more: dict[str, str], devices: Optional[int]) -> dict[str, str]:
        old = {**os.environ, **more}
        new = environment.prepare(Wish(capacity, devices, None, allocator, prices=self.prices), old, self.preload)
        new[environment.CENOTE] = switch.FALLBACK if allocator == "cenote" else "off"  # fit_report.py refuses the fallback in words of its own
        new.pop(environment.LABELS, None)  # inside/fit_report.py switches labels on
        return new

    def play(self, capacity: int, allocator: str, program: Sequence[str], more: Optional[dict[str, str]] = None,
             unknown: Optional[str] = None, world: Optional[int] = None) -> Outcome:
        """One run, to its end or to its last step. The first one has our standard streams; what others print is kept back. A later one may begin
        at the copy that the first has left: without a verdict it is no evidence, and the run is repeated from the start. `world`: as rank 0 of so
        many."""
        asked = job.read(self.options, program) if world is None else job.of(world, program)
        variables = self.variables(capacity, allocator, more or {}, asked[0].node if asked else self.options.devices)
        variables[environment.DRY_RECORDS] = "on"
        if self.options.report is not None:
            variables[environment.DRY_PAGE] = "on"
        variables[environment.DRY_UNKNOWN], variables[environment.DRY_STEPS] = unknown or self.options.unknown, str(self.options.steps)
        run.prepare_plugin(not self.runs and program[0] != "--", variables)
        is_first, self.runs, is_doubtful = not self.runs, self.runs + 1, False
        if self.copies is not None and not is_first and asked is None and self.copies.can_begin(program, variables):
            is_doubtful = True
            with suppress(copies.Gone):
                found = self.watched(self.again(program), capacity, allocator, variables, asked)
                if found.verdict != "unknown" and found.has_its_capacity:
                    self.copied += 1
                    return found
        passed = self.copies.offer(program, variables) if self.copies is not None and is_first else []
        is_shown = is_first and not self.options.quiet and self.options.search is None and len(self.options.cards) == 1
        def start(variables: dict[str, str], output: Any) -> "subprocess.Popen[bytes]":
            line = ranks.line(asked[0], variables[environment.DRY_RUN], asked[1]) if asked else run.command_line(program)

            def enter() -> None:
                self.keeper.began(os.getpid())
                self.guard.entrance()
            return begin(line, passed, variables, output, enter)
        found = self.watched(start, capacity, allocator, variables, asked, is_shown)
        if self.copies is not None and is_doubtful and found.verdict != "unknown":
            self.copies.close("a run from there ended without a verdict")
        return found

    def again(self, program: Sequence[str]) -> Start:
        copies = self.copies
        assert copies is not None

        def start(variables: dict[str, str], output: Any) -> Run:
            self.keeper.began(copies.pid)  # which forks the run
            return copies.begin(program, variables, output)
        return start

    def kept(self) -> dict[str, Any]:
        """In the JSON."""
        return {"files": self.guard.content()}

    def kept_lines(self) -> list[str]:
        """In the verdict."""
        return [*self.refused, *changes.lines(self.guard.found, "" if self.guard.problem else self.options.keep_files or "")]

    def why_from_the_start(self) -> str:
        """Why runs after the first did not begin at a copy; empty if they did, or if there were none."""
        if self.copies is None:
            return "only a script whose arguments differ can begin where the first run has read them"
        return self.copies.why_not if self.runs > 1 and not self.copies.is_there else ""

    def watched(self, start: Start, capacity: int, allocator: str, variables: dict[str, str],
                asked: Optional[tuple[ranks.Job, list[str]]], is_shown: bool = False) -> Outcome:
        with tempfile.TemporaryDirectory(dir=self.keeper.folder, ignore_cleanup_errors=True) as folder, (
                tempfile.TemporaryFile()) as output:
            variables = {**variables, environment.DRY_RUN: folder}
            self.guard.begin(variables)
            others = processes.children(os.getpid())  # than those of this run, the keeper among them
            began = time.monotonic()
            child = start(variables, None if is_shown else output)
            status, stopped = execute(child, folder, self.options.timeout, others)
            self.seconds = time.monotonic() - began
            leaves_copy = self.runs == 1 and self.copies is not None and self.copies.has_one()
            if leaves_copy and self.copies is not None and self.copies.pid is not None:
                others.append(self.copies.pid)
            processes.end(folder, [os.getpid()], others)  # workers of a compiler, which a program leaves behind, write to the folder as they end
            self.keeper.over()
            self.guard.ended(self.options.keep_files or "", not leaves_copy)
            reports = read_reports(folder)
            recordings, pages = self.keep_recordings(folder, reports)
            output.seek(max(output.tell() - TAIL, 0))
            tail = output.read().decode(errors="replace")
        found = Outcome(capacity, ran_under(allocator, reports), child.pid, status, reports, tail, stopped, variables[environment.DRY_UNKNOWN],
                        asked[0].node if asked else self.options.devices or 1, asked[0].size if asked else None)
        worst = found.worst()
        if worst is not None:
            found = found._replace(recording=recordings.get((worst[0]["pid"], worst[2]), ""), page=pages.get(worst[0]["pid"], ""))
        if found.verdict == "unknown":
            self.refused = self.refused or self.guard.hint([error["text"] + error["type"] for error in found.errors] + [tail])
        self.most_steps = max(self.most_steps, found.steps)
        return idle(found, self.most_steps)

    def keep_recordings(self, folder: str, reports: list[dict[str, Any]]) -> tuple[dict[tuple[int, str], str], dict[int, str]]:
        """Paths of recordings by process and device, and of pages by process, outside of the folder, which goes. A search plays no recording: there
        they are for generate() (inside/tokens.py)."""
        def kept(name: str) -> str:
            os.replace(os.path.join(folder, name), os.path.join(self.keeper.folder, name))
            return os.path.join(self.keeper.folder, name)
        all_recorded = [(report["pid"], report.pop("recordings", {})) for report in reports]
        recordings = {(pid, device): kept(name) for pid, recorded in all_recorded for device, name in recorded.items() if self.options.search is None}
        return recordings, {report["pid"]: kept(name) for report in reports if (name := report.pop("page", ""))}


def begin(line: Sequence[str], passed: Sequence[int], variables: dict[str, str], output: Any,
          enter: Callable[[], None]) -> "subprocess.Popen[bytes]":
    """A run from the start, which inherits the files of these numbers. `enter`: what it does before it becomes the program."""
    sys.stdout.flush()
    try:
        return subprocess.Popen(line, env=variables, stdin=subprocess.DEVNULL if output else None, stdout=output, stderr=output, pass_fds=passed,
                                preexec_fn=enter)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Mistake(f"{line[0]!r}: {getattr(error, 'strerror', None) or error}") from None


def execute(child: Run, folder: str, timeout: Optional[int], others: Sequence[int]) -> tuple[int, str]:
    """Exit status, and where it was if it ran for too long. An interrupt from the keyboard goes to the program, too; we wait for what it makes of
    it, and then end what is left: ranks of torchrun have sessions of their own, and get no signal of the keyboard."""
    try:
        stopped = attend(child, folder, timeout)
        return child.wait(), stopped
    except BaseException:
        try:
            with suppress(KeyboardInterrupt):
                processes.wait(child, PARTING)
        finally:
            processes.end(folder, [os.getpid(), child.pid], others)
            child.wait()
        raise


def attend(child: Run, folder: str, timeout: Optional[int]) -> str:
    """Waits for the program, and says where it is if it makes no step for long. Ends it after `timeout`, and returns where it was then."""
    began, wall = time.monotonic(), time.time()
    quiet: float = QUIET
    while True:
        left = began + timeout - time.monotonic() if timeout is not None else quiet
        if processes.wait(child, min(quiet, left)) is not None:
            return ""
        places = stall.where(folder)
        if timeout is not None and time.monotonic() >= began + timeout:
            stall.reports(folder)
            processes.end(folder, [child.pid])
            return "; ".join(places[:4]) or "where it was is not known: no process of it tells before it has imported PyTorch"
        silent = time.time() - (stall.last_report(folder) or wall)
        if silent >= quiet:
            for place in places[:4]:
                say(f"no step for {silent:.0f} s{'' if timeout else ' (--timeout SECONDS ends it)'}: {place}")
            quiet *= 2


def read_reports(folder: str) -> list[dict[str, Any]]:
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.append(json.load(file))
    return sorted(found, key=lambda report: (int(report["rank"] or 0) if str(report["rank"] or 0).isdecimal() else 0, report["pid"]))


def ran_under(allocator: str, reports: list[dict[str, Any]]) -> str:
    """A script may choose another one itself, before it imports PyTorch."""
    settings = [report.pop("settings") for report in reports]
    own = next((one for one in settings if one), None)
    return environment.chosen(own) if own and allocator in PYTORCHS else allocator


# --- the question

def compare(stage: Stage, outcome: Outcome, program: Sequence[str]) -> list[Outcome]:
    """The same under the other allocators."""
    found = []
    for name in COMPARED:
        if name != outcome.allocator:
            say(f"again under {name}")
            try:
                found.append(stage.play(outcome.capacity, name, program))
            except Mistake as why:
                say(f"not under {name}: {why}")
    return found


def other_answer(stage: Stage, outcome: Outcome, program: Sequence[str]) -> Optional[Outcome]:
    """If sizes depended on values that cannot be known: the run with the sizes that could change the verdict."""
    if not outcome.may_differ or stage.options.unknown != "typical" or outcome.verdict == "unknown":
        return None
    unknown = "largest" if outcome.fits else "zero"
    say(f"it read back values that cannot be known, and may decide sizes; again with --unknown {unknown}")
    return stage.play(outcome.capacity, outcome.allocator, program, unknown=unknown)


def ask(stage: Stage, program: Sequence[str]) -> Answer:
    """The run that was asked for, one on the largest GPU if it does not fit, one with other values, and those under other allocators."""
    options = stage.options
    more = searching.LOOK if options.advise is not None else None
    outcome = stage.play(options.sim, options.allocator, program, more)
    largest, others = None, []
    other = other_answer(stage, outcome, program)
    if outcome.failure is not None and outcome.verdict != "unknown" and options.sim < command_line.MOST_CAPACITY:
        say(f"memory ran out; again on {quantity.write_size(command_line.MOST_CAPACITY)}, to see what it needs")
        largest = stage.play(command_line.MOST_CAPACITY, options.allocator, program, {**(more or {}), environment.DRY_UNLIMITED: "on"})
    evidence = largest if largest is not None and largest.fits else outcome
    played = replays.of(evidence) if evidence.fits else {}
    context = evidence.needed() - evidence.held()
    is_hopeless = largest is not None and (largest.failure is not None or largest.fits and (
        outcome.missing(largest)[0] > 0 or all_need_more(played, options.sim - context)))
    if options.allocators or (outcome.failure is not None and not is_hopeless):
        others = compare(stage, outcome, program) if outcome.verdict != "unknown" else []
    return Answer(idle(outcome, stage.most_steps), largest, others, other, played)


def all_need_more(played: replays.Replays, room: int) -> bool:
    return bool(played) and all(one.least > room for one in played.values())


def write_json(path: Optional[str], content: dict[str, Any]) -> None:
    if path is not None:
        outputs.write(path, (json.dumps(content, indent=1) + "\n").encode())


def write_page(path: Optional[str], evidence: Optional[Outcome], short: Sequence[str], whole: Sequence[str]) -> None:
    """The verdict, its first lines and all of them. Without a run that left a page there is none, and a line says so."""
    if path is None:
        return
    if evidence is None or not evidence.page:
        say(f"{path} is not written: no run told of its blocks")
        return
    with open(evidence.page, encoding="utf-8") as file:
        outputs.write(path, html_page.below("\n".join(short).strip(), "\n".join(whole).strip(), file.read()).encode())
    say(f"{path}: open it in a browser")


def check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:  # PyTorch cannot be imported there either
        raise Mistake("the current folder has been removed: change to one that is there") from None


def dry_run(options: argparse.Namespace, program: list[str], keeper: Keeper) -> int:
    run.command_line(program)  # Mistake if there is none
    check_folder()
    if program[0] == "-":
        raise Mistake("a script from standard input cannot be run a second time; write it to a file")
    asked = job.read(options, program)  # Mistake if the options contradict each other
    if options.search is not None:
        options.search = number.chosen(options.search, program)
        if asked is not None and options.search.kind == number.CONSTANT:
            raise Mistake("--search changes a number in the script of one process, not of --world: make it an argument of the script")
    command_line.check_output(options.json)
    command_line.check_output(options.report)
    baseline = limit.read(options.baseline, options.allocator) if options.baseline is not None else None
    stage = Stage(options, program, keeper)
    from cenote.simulated import demands
    demands.warn(os.path.dirname(stage.preload))
    try:
        status = tell(stage, options, program, baseline)
    finally:
        stage.guard.close()
    if stage.guard.problem:
        raise Mistake(stage.guard.problem)
    return status


def tell(stage: Stage, options: argparse.Namespace, program: list[str], baseline: Optional[limit.Baseline]) -> int:
    """Runs, prints and writes the answer, and returns the exit status."""
    if options.search is not None:
        return tell_search(stage, options, searching.find(stage, options.search, program))
    if len(options.cards) != 1:
        found = several.ask(stage, options.cards, program) if options.cards else several.smallest(stage, program)
        print("\n".join([several.text(program, found, options.allocator, not options.cards, options.verbose), *stage.kept_lines(),
                         *cards.price_lines([row.card for row in found.rows], options.per_hour), *several.hint(found, *options.line)]), flush=True)
        write_json(options.json, {**several.content(program, found), **stage.kept()})
        write_page(options.report, found.needed, [several.text(program, found, options.allocator, not options.cards, False)],
                   [several.text(program, found, options.allocator, not options.cards, True), *stage.kept_lines()])
        return STATUSES[found.verdict]
    answer = ask(stage, program)
    given = advice.ask(stage, answer, program, options.advise) if options.advise is not None else None
    judged = limit.judge(answer, options.limit, baseline)
    advised = advice.hint(answer, *options.line) if given is None else []
    whole = [verdict.text(program, answer, options.devices or 1, options.cards[0].full_title), *cards.caveats(options.cards)]
    short = [screen.text(program, answer, options.devices or 1, options.cards[0], advised)]
    more = [*stage.kept_lines(), *judged.lines, *(rows.lines(given) if given is not None else [])]
    print("\n".join([*whole, *more, *advised] if options.verbose else [*short, *more]), flush=True)
    write_page(options.report, answer.evidence, [*short, *more], [*whole, *more, *advised])
    write_json(options.json, {**verdict.content(program, answer), **judged.content, **stage.kept(),
                              **({"advice": rows.content(given)} if given is not None else {})})
    if answer.verdict in ("fits", "grows") and (judged.is_above_limit or judged.is_above_baseline):
        return ABOVE_LIMIT if judged.is_above_limit else ABOVE_BASELINE
    return STATUSES[answer.verdict]


def tell_search(stage: Stage, options: argparse.Namespace, results: list[searching.Found]) -> int:
    def text(has_all: bool) -> str:
        is_one = len(options.cards) == 1
        return searching.text(results[0], options.cards, has_all) if is_one else searching.table(results, options.cards, has_all)

    print("\n".join([text(options.verbose), *stage.kept_lines()]), flush=True)
    contents = [searching.content(result) for result in results]
    write_json(options.json, {**(contents[0] if len(options.cards) == 1 else {"searches": contents}), **stage.kept()})
    best = max((result for result in results if result.best is not None), key=lambda result: result.capacity, default=None)
    write_page(options.report, best.tried[best.best] if best is not None and best.best is not None else None, [text(False)], [text(True)])
    if any(result.changed_nothing for result in results):
        return BAD_USE
    if any(result.failed is not None for result in results):
        return UNKNOWN
    if any(result.best is None for result in results):
        return FITS_NOT
    return max(STATUSES[result.tried[result.best].verdict] for result in results if result.best is not None)


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    ours, program = command_line.split(arguments, parser)
    options = parser.parse_args(ours)
    if options.report is not None and not options.report.endswith(".html"):
        parser.error(f"--report writes a page, and {options.report[-40:]!r} does not end in .html: name a .html")
    try:
        options.devices = cards.devices(options.cards, options.devices)
    except argparse.ArgumentTypeError as why:
        parser.error(str(why))
    try:
        options.allocator = options.allocator or environment.chosen(os.environ)
        from_config.check(options, program)
    except Mistake as mistake:
        parser.error(str(mistake))
    options.sim, options.line = options.cards[0].capacity if options.cards else command_line.MOST_CAPACITY, (ours, program)
    for_one = options.allocators or options.limit is not None or options.baseline is not None or options.advise is not None
    if len(options.cards) != 1 and for_one:
        parser.error("--allocators, --advise, --limit and --baseline are for one card: name one with --gpu")
    if not options.cards and options.search is not None:
        parser.error("--search is for cards: name one or more with --gpu")
    if (len(options.cards) == 1 or options.search is not None) and options.per_hour is not None:
        parser.error("--per-hour is for a verdict on several cards: name them with --gpu, or none")
    if options.search is not None and (options.limit is not None or options.baseline is not None or options.advise is not None):
        parser.error("--search has its own answer: leave out --limit, --baseline and --advise")
    try:
        with Keeper() as keeper:
            return dry_run(options, program if options.model is None else from_config.program(options, keeper.folder), keeper)
    except (Mistake, NotBuilt) as mistake:
        parser.error(str(mistake))
    except OSError as problem:
        parser.error(f"{problem.strerror or problem}{': ' + str(problem.filename) if problem.filename else ''}")
    except KeyboardInterrupt:
        return 130
