"""What is held when memory runs out for the first time, written down without having been asked for: a page, a snapshot, the last records, the text.

CENOTE_ON_OOM names a folder, or is off; without it the folder is that of the user's state. Each run of a program has a folder there, which its ranks
share; RUNS_MOST of them are kept. CENOTE_ON_SIGNAL=SIGUSR2 writes the same of a program that runs, whenever it gets that signal.

The program is about to handle an error: nothing here raises another, and what cannot be written is said in the error's last line.
"""
import atexit
import ctypes
import os
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any, Callable, Optional

from cenote.base import outputs
from cenote.inside import reports
from cenote.labels import hooks
from cenote.launch import environment
from cenote.native import bindings
from cenote.torch.features import say

RUNS_MOST = 5
RECORDS = 1 << 20  # of all devices together: 42 MB
RUN = re.compile(r".+-(\d{8}-\d{6}-\d+|job-.+)")  # how the folder of a run is named; others are left alone
OURS = re.compile(r"(rank\d+\.)?(oom|signal\d+)\.(txt|html|gpu\d+\.(snapshot\.json|csv\.gz))")
UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_kept: list[Any] = []  # the function, kept alive as long as the adapter may call it


def root() -> str:
    """The folder of all runs; empty: nothing is written."""
    named = os.environ.get(environment.ON_OOM, "")
    if named.lower() in ("off", "0", "no", "false"):
        return ""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(named if named.lower() not in ("", "on", "1", "yes", "true") else os.path.join(state, "cenote"))


def run_name() -> str:
    """The same in all ranks of a run: that of the job, or the time and number of the process that started the ranks."""
    program = UNFIT.sub("_", os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python")[:60]
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job != "none":
        return f"{program}-job-{UNFIT.sub('_', job)[:60]}"
    first = os.getppid() if os.environ.get("RANK") else os.getpid()
    return f"{program}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(began(first)))}-{first}"


def began(process: int) -> float:
    """When it began, by the clock of the day; now, if the system does not tell."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="utf-8") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return time.time()


class Writer:
    """Writes what is held, in files that begin with one word."""

    def __init__(self, folder: str, word: str) -> None:
        rank = os.environ.get("RANK", "")
        self.folder, self.word = folder, f"rank{rank}.{word}" if rank.isdigit() else word
        self.written: list[str] = []
        self.trouble = self.grows = ""

    def path(self, ending: str) -> str:
        return os.path.join(self.folder, f"{self.word}.{ending}")

    def attempt(self, ending: str, work: Callable[[str], None]) -> None:
        try:
            work(self.path(ending))
            self.written.append(f"{self.word}.{ending}")
        except MemoryError:
            self.trouble = self.trouble or "there is not enough host memory"
        except OSError as problem:
            self.trouble = self.trouble or problem.strerror or str(problem)
        except Exception as problem:
            self.trouble = self.trouble or " ".join(str(problem).split())[:200]

    def write(self, devices: list[int], text: str) -> None:
        self.attempt("txt", lambda path: outputs.write(path, text.encode(errors="replace")))
        for device in devices:
            self.attempt(f"gpu{device}.snapshot.json", lambda path, device=device: reports.snapshot(path, device))  # type: ignore[misc]
            self.attempt(f"gpu{device}.csv.gz", lambda path, device=device: reports.save_trace(path, device))  # type: ignore[misc]
        self.attempt("html", lambda path: self.page(path, devices, text))

    def page(self, path: str, devices: list[int], text: str) -> None:
        from cenote.inside import report_page  # not as a program starts
        from cenote.view import leak as leaks
        from cenote.view import viewer
        histories = []
        for device in devices:
            found = viewer.read(self.path(f"gpu{device}.csv.gz"))
            snapshots = viewer.read(self.path(f"gpu{device}.snapshot.json"))
            for history in found:
                name(history, device)
                history.limits = dict(snapshots[0].limits)
                history.words += report_page.advice(text) if self.word.endswith("oom") else []
                history.marks += [(len(history.time), "memory ran out")] if self.word.endswith("oom") else []
                leak = leaks.of(history)
                if leak is not None and leak.division == "line":
                    self.grows = leaks.words(leak, history)
            histories += found + snapshots
        outputs.write(path, viewer.draw(histories, path))

    def told(self) -> str:
        if not self.written:
            return f"What is held could not be written to {self.folder}: {self.trouble}. CENOTE_ON_OOM names another folder."
        grows = self.grows + "\n" if self.grows else ""
        rest = f" The rest could not be written: {self.trouble}." if self.trouble else ""
        page = f"{self.word}.html" in self.written
        return f"{grows}What is held, and the last allocations before: {self.path('html') if page else self.folder + os.sep}{rest}"


def name(history: Any, device: int) -> None:
    """With labels, the blocks that live have a kind, a module and a line."""
    names = hooks.names()
    if names is None:
        return
    from cenote.inside import report_page
    from cenote.labels.names import LoggedStruct
    with suppress(Exception):  # a page without names
        hooks.settle(device)
        report_page.divide(history, names, [LoggedStruct(block=block) for block in names.blocks(device, False)])


def stack(frame: Optional[FrameType]) -> str:
    """The stack of the program, without cenote's own frames."""
    from cenote.base import source
    found = [one for one in traceback.extract_stack(frame) if not source.is_ours(one.filename)] if frame is not None else []
    return "".join(traceback.format_list(found))


def make_folder(path: str) -> None:
    """For this user alone: the names of lines, and commands of processes, are in the files."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def prune(folder: str, own: str) -> None:
    """Removes our files of all runs but the last ones. A folder with other files in it stays."""
    runs = [entry for entry in os.scandir(folder) if RUN.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and entry.name != own]
    for entry in sorted(runs, key=lambda entry: -entry.stat(follow_symlinks=False).st_mtime)[RUNS_MOST - 1:]:
        with suppress(OSError):
            for file in os.listdir(entry.path):
                if OURS.fullmatch(file):
                    os.unlink(os.path.join(entry.path, file))
            os.rmdir(entry.path)


def write(folder: str, word: str, devices: list[int], text: str) -> str:
    """Returns a sentence about it. Raises nothing."""
    run = run_name()
    writer = Writer(os.path.join(folder, run), word)
    try:
        make_folder(writer.folder)
    except OSError as problem:
        writer.trouble = problem.strerror or str(problem)
        return writer.told()
    try:
        writer.write(devices, text)
        prune(folder, run)
    except Exception as problem:
        writer.trouble = writer.trouble or " ".join(str(problem).split())[:200]
    if not writer.written:
        with suppress(OSError):
            os.rmdir(writer.folder)
    return writer.told()


class Watch:
    def __init__(self) -> None:
        self.signals, self.has_run_out = 0, False
        self.write, self.frame_of = write, sys._getframe  # looked up now: Python may be ending when memory runs out

    def ran_out(self, device: int, text: bytes, line: Any, room: int) -> None:
        """The adapter calls it; the program is about to get the error."""
        try:
            if self.has_run_out:
                return
            self.has_run_out = True
            whole = f"{text.decode(errors='replace')}\n\n{stack(self.caller())}"
            told = f"{self.write(root(), 'oom', [device], whole)} (CENOTE_ON_OOM=off writes nothing)".encode(errors="replace")[:room - 1]
            ctypes.memmove(line, told + b"\0", len(told) + 1)
        except BaseException:  # the caller is C++, and has an error of its own
            pass

    def caller(self) -> Optional[FrameType]:
        """None: a thread of autograd in which no Python runs."""
        try:
            return self.frame_of(2)
        except ValueError:
            return None

    def signalled(self, number: int, frame: Optional[FrameType]) -> None:
        try:
            devices = [device for device in sorted(bindings.pools()) if has_been_used(device)]
            if not devices:
                print("cenote: nothing is written, because the program has not used a GPU yet", file=sys.stderr, flush=True)
                return
            self.signals += 1
            whole = "\n\n".join([*map(reports.explain, devices), stack(frame)])
            text = self.write(root() or os.getcwd(), f"signal{self.signals}", devices, whole)
            print(f"cenote: {text}", file=sys.stderr, flush=True)
        except Exception as problem:
            with suppress(Exception):
                print(f"cenote: what is held could not be written: {' '.join(str(problem).split())[:200]}", file=sys.stderr, flush=True)


def has_been_used(device: int) -> bool:
    reserved: Any = reports.stats(device)["reserved"]
    return bool(reserved.peak)


def records() -> int:
    """0 if the program records by itself: its own recording goes on."""
    asks = os.environ.get(environment.TRACE) or "record:" in "".join(os.environ.get("CENOTE_CONF", "").split())
    return 0 if asks else RECORDS


def watch(adapter: ctypes.CDLL) -> None:
    if os.environ.get(environment.DRY_RUN):  # a dry run says it all
        return
    asked = os.environ.get(environment.ON_SIGNAL, "")
    state = Watch()
    if root():
        function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)(state.ran_out)
        adapter.cenote_torch_on_ran_out(function, ctypes.c_ulonglong(records()))
        _kept.append(function)
        atexit.register(adapter.cenote_torch_on_ran_out, None, ctypes.c_ulonglong(0))
    if asked:
        listen(state, asked)


def listen(state: Watch, asked: str) -> None:
    try:
        signal.signal(signal.Signals[asked], state.signalled)
    except (KeyError, ValueError, OSError) as problem:
        why = "there is no such signal" if isinstance(problem, KeyError) else str(problem)
        say(f"cenote: {environment.ON_SIGNAL}={asked[:40]}: {why}; SIGUSR2 is one")
