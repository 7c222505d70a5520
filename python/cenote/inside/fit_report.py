"""Runs in a program that `cenote dry-run` started: counts steps, and writes figures and out-of-memory errors to a file that fit/dry_run.py reads.

hook.py calls `begin` when torch is imported and CENOTE_DRY_RUN names a folder. Each process that uses a GPU, and the first process in any case, has
one file there, PID.json. It is written anew at each step and whenever memory runs out, so that a file remains if the process is killed. Workers of
a DataLoader use no GPU and write none.

After the last step that was asked for, the process ends at once by os._exit, and no more code of the program runs. Exceptions in this
module are dropped: they must not change what the program does.
"""
import atexit
import faulthandler
import json
import linecache
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, Iterator, Optional

from cenote.base import outputs, source
from cenote.inside import holdings, late_state, recording, rise, searches, seen, values
from cenote.inside.moment import Moment
from cenote.inside.tokens import Tokens
from cenote.labels import hooks, step_counter
from cenote.labels.names import Names
from cenote.launch import environment
from cenote.native import bindings
from cenote.remedies.program import Remedies
from cenote.torch import features, patches, seams

FOLDER, STEPS = environment.DRY_RUN, environment.DRY_STEPS
FAILURES_MAX = 8  # out-of-memory errors that are kept with their stacks; more are only counted
FRAMES_MAX = 60
TEXT_MAX = 500
REMOTE = "Traceback (most recent call last):"  # in the text of an error: that of a rank that mp.spawn has started, or of a worker
REMOTE_FRAME = re.compile(r'^ +File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
UNLABELLED = {("kind", "other"): "outside of modules", ("phase", "none"): holdings.NO_PHASE}  # what libcenote calls so, in a user's words
watch: Optional["Watch"] = None  # of this process


def frames(frame: Optional[FrameType]) -> Iterator[tuple[str, int, str]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name
        frame = frame.f_back


def stack_of(innermost_first: Iterator[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """The stack, innermost frame first, without frames of cenote and of Python's start of a script."""
    found = []
    for file, line, function in innermost_first:
        if source.is_ours(file) or file.startswith("<frozen"):
            continue
        found.append({"file": file, "line": line, "function": function, "text": linecache.getline(file, line).strip()[:TEXT_MAX],
                      "is_own": not source.is_library(file) and not (file == "<string>" and multiprocessing.parent_process() is not None)})
    return found


def shortened(stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most FRAMES_MAX frames: the middle of a longer stack is left out."""
    half = FRAMES_MAX // 2
    return stack if len(stack) <= FRAMES_MAX else stack[:half] + stack[-half:]


def remote(text: str) -> tuple[str, list[tuple[str, int, str]]]:
    """The error of another process whose traceback is the text of one here: its own line, and its frames, innermost first."""
    inner = text.rpartition(REMOTE)[2]
    lines = [line for line in inner.splitlines() if line.strip() and not line.startswith(" ")]
    return lines[0] if lines else "", [(file, int(line), name) for file, line, name in reversed(REMOTE_FRAME.findall(inner))]


def is_out_of_memory(error: BaseException, torch: ModuleType) -> bool:
    """Or it was raised while the program handled one that is. `raise e from e` makes an error its own cause."""
    seen: set[int] = set()
    one: Optional[BaseException] = error
    while one is not None and id(one) not in seen:
        if says_out_of_memory(one, torch):
            return True
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    return False


def says_out_of_memory(error: BaseException, torch: ModuleType) -> bool:
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or (REMOTE in text and remote(text)[0].startswith("torch.OutOfMemoryError: ")):
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in text or "ALLOC_FAILED" in text) and "DefaultCPUAllocator" not in text


def limiting(inside: Any) -> Any:
    def limit_unless_in_the_way(fraction: float, device: int) -> None:
        if not os.environ.get(environment.DRY_UNLIMITED):
            inside(fraction, device)
    return limit_unless_in_the_way


class Watch:
    """Steps, errors and peaks of this process so far."""

    def __init__(self, torch: ModuleType, folder: str, steps: int) -> None:
        self.torch, self.folder, self.steps_most = torch, folder, steps
        self.values: Optional[values.Values] = None
        self.names: Optional[Names] = None
        self.remedies: Optional[Remedies] = None
        self.moment = Moment(torch)
        self.seen = seen.Seen(torch, self.note, self.called)
        self.tokens: Optional[Tokens] = None
        self.rises = rise.Rises(folder, steps, lambda: self.write(""), late_state.LateState(torch, lambda: self.seen.optimizers))
        self.settings = {name: os.environ[name] for name in (*environment.ALLOCATOR_VARIABLES, environment.CENOTE) if os.environ.get(name)}
        self.threads = len(os.listdir("/proc/self/task"))  # once torch is imported
        self.forget()

    def forget(self) -> None:
        """For a new process, and for a forked child, which inherits its parent's figures."""
        self.steps = 0
        self.calls = 0  # of modules
        self.optimizers = 0
        self.cannot = ""  # why this process says nothing of memory
        self.failures: list[dict[str, Any]] = []
        self.failures_count = 0
        self.devices: dict[int, dict[str, Any]] = {}
        self.rises.forget()
        self.seen.forget()
        if self.tokens is not None:
            self.tokens.forget()

    # --- hooks

    def start(self) -> None:
        features.begin("seen", self.seen.start)
        patches.around("dry-run", "torch._C._cuda_resetPeakMemoryStats", lambda device: self.note(), patches.nothing)
        patches.replace("dry-run", "torch._C._cuda_setMemoryFraction", limiting)
        patches.around("dry-run", "torch.optim.Optimizer.__init__", self.built, patches.nothing)
        step_counter.watch(self.torch)
        step_counter.on_step(self.stepped)
        seams.get("torch.cuda._lazy_call")(self.attach)
        os.register_at_fork(after_in_child=self.forget)
        atexit.register(self.ended)
        self.tokens = Tokens(self.names, lambda: self.steps_most > 0 and not self.optimizers, self.play_tokens)
        self.tokens.start()

    def called(self, module: Any) -> None:
        """The program calls a module. A server's processes make no step, and may be killed: their figures are written at the calls 1, 2, 4, ... Not
        those of the program's own process, whose models have no names yet in their first calls."""
        self.rises.call(module)
        self.calls += 1
        if not self.steps and not self.calls & (self.calls - 1) and multiprocessing.parent_process() is not None:
            self.note()
            self.write("")
        if self.tokens is not None:
            self.tokens.called(module)

    def built(self, *args: Any) -> None:
        self.optimizers += 1
        self.seen.built(args[0])

    def tell_stacks(self) -> None:
        """From now on a signal of fit/stall.py makes the main thread write its stack. A thread that wrote the stacks of others every few seconds read
        frames that were changing, and now and then ended the program."""
        if multiprocessing.parent_process() is not None:
            return
        self.stacks = open(os.path.join(self.folder, f"{os.getpid()}{environment.DRY_STACKS}"), "w", encoding="utf-8")
        faulthandler.register(environment.DRY_ASK, file=self.stacks, all_threads=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(environment.DRY_TELL, self.tell)

    def tell(self, *signal_and_frame: Any) -> None:
        """The time of a program is over that makes no step, and has written no report."""
        try:
            self.note()
            self.write("")
        except Exception:
            return

    def attach(self) -> None:
        """Called at the program's first use of a GPU. An earlier call would initialise CUDA, and forked children could not use it any more."""
        if self.torch.cuda.get_allocator_backend() == "pluggable":  # plugin.py could make no adapter and has said why
            self.cannot = f"a dry run under cenote needs the adapter to PyTorch {self.torch.__version__}, which could not be made (see above)"
            self.write("exit")
            leave(1)
        with suppress(RuntimeError):  # cudaMallocAsync has none: there the error that ends the program tells
            seams.get("torch._C._cuda_attach_out_of_memory_observer")(self.ran_out)
        searches.begin()
        recording.begin()
        self.rises.begin(self.names)

    def stepped(self) -> None:
        try:
            self.steps += 1
            if self.values is not None:
                self.values.stepped()
            self.note()
            self.seen.stepped()
            self.rises.after_step(self.devices, self.seen.step_peaks)
            is_last = 0 < self.steps_most <= self.steps and not self.rises.goes_on()
            if is_last:
                self.rises.conclude()
            self.write("steps" if is_last else "")
        except Exception:
            return
        if is_last:
            leave()

    def play_tokens(self, left: int) -> None:
        """The tokens of generate() repeat: the allocator gets the calls of the rest, and the process ends."""
        tokens, names = self.tokens, self.names
        assert tokens is not None and names is not None
        self.note()
        live = {device: self.figures(device)["live"] for device in self.devices}
        tokens.found = {"run": tokens.run, "of": tokens.run + left, "computed": 0, "per_token": 0}
        computed = names.play(left)
        if computed == left:
            tokens.found["per_token"] = max((self.figures(device)["live"] - before) // left for device, before in live.items())
        elif computed >= 0 and self.failures:
            self.failures[-1]["token"] = tokens.run + computed + 1
        tokens.found["computed"] = computed
        self.note()
        self.write("steps" if computed == left else "")
        leave(computed != left)

    def ran_out(self, device: int, size: int, total: int, free: int) -> None:
        try:
            self.failures_count += 1
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(self.failure(device, size))
            self.note()
            self.write("")
        except Exception:
            return

    def failure(self, device: int, size: int) -> dict[str, Any]:
        try:
            frame: Optional[FrameType] = sys._getframe(2)
        except ValueError:  # a thread of autograd without a Python frame
            frame = None
        keeps = self.torch.is_grad_enabled()
        phase = self.moment.phase(frame, self.moment.frames.outermost_module(frame), keeps)
        stack = stack_of(frames(frame))
        if not any(one["is_own"] for one in stack):
            stack += stack_of(frames(self.caller_of_backward()))
        figures = self.figures(device)
        return {"device": device, "bytes": size, "step": self.steps + 1, "phase": holdings.phase_name(phase), "stack": shortened(stack),
                "live": figures["live"], "reserved": figures["reserved"], "limit": self.limit(device),
                **self.held(device, False), "place": holdings.here(self.names, size)}

    def held(self, device: int, at_peak: bool) -> dict[str, Any]:
        """What holds the memory, now or at the peak: by kind, by phase and, if blocks have names, by name."""
        if self.names is None:
            which = "at_peak" if at_peak else "live"
            return {"kinds": self.division("kind", device, which), "phases": self.division("phase", device, which)}
        hooks.settle(device)
        found = holdings.at_peak(self.names, device) if at_peak else holdings.now(self.names, device)
        return {"kinds": found["kinds"], "phases": found["phases"], "names": found}

    def caller_of_backward(self) -> Optional[FrameType]:
        """The frame of a thread that called backward: an autograd thread has no frames of its own."""
        for frame in sys._current_frames().values():
            if self.moment.frames.has(frame, self.moment.frames.engine):
                return frame
        return None

    def place_in_backward(self) -> tuple[str, int]:
        """File and line of the operation of forward that this thread of autograd goes back through, or else of the call of backward."""
        place = self.names.here(0) if self.names is not None else None
        if place is not None and place.own[0]:
            return place.own
        return next(((file, line) for file, line, _ in frames(self.caller_of_backward()) if not source.is_library(file)), ("", 0))

    # --- figures

    def figures(self, device: int) -> dict[str, int]:
        try:
            stats = self.torch.cuda.memory_stats(device)
            return {"live": stats["allocated_bytes.all.current"], "reserved": stats["reserved_bytes.all.current"],
                    "live_peak": stats["allocated_bytes.all.peak"], "reserved_peak": stats["reserved_bytes.all.peak"],
                    "requested_peak": stats["requested_bytes.all.peak"]}
        except RuntimeError:  # an allocator without memory_stats: cenote without its adapter
            found = __import__("cenote").stats(device)
            live, reserved = found["allocated"], found["reserved"]
            return {"live": live.current, "reserved": reserved.current, "live_peak": live.peak, "reserved_peak": reserved.peak,
                    "requested_peak": live.peak}

    def limit(self, device: int) -> int:
        """The bytes that the program lets its allocator hold (set_per_process_memory_fraction, or an option of cenote's); 0: any."""
        try:
            fraction = self.torch.cuda.get_per_process_memory_fraction(device)
        except RuntimeError:  # an allocator that has no limit
            return 0
        return int(fraction * self.torch.cuda.mem_get_info(device)[1]) if fraction < 1 else 0

    def division(self, by: str, device: int, which: str) -> dict[str, int]:
        if not bindings.is_torchs(self.torch):
            return {}
        from cenote.inside import reports
        sizes = {UNLABELLED.get((by, row.name), row.name): getattr(row, which) for row in reports.rows(by, device)}
        return {name: size for name, size in sizes.items() if size}

    def note(self) -> None:
        """Updates the peaks. They stay even if the program resets PyTorch's peaks."""
        if not self.torch.cuda.is_initialized():
            return
        for device in range(self.torch.cuda.device_count()):
            now = self.figures(device)
            if not now["reserved_peak"]:
                continue
            known = self.devices.setdefault(device, {"live_peak": 0, "reserved_peak": 0, "requested_peak": 0, "peak_step": 1})
            is_higher = now["live_peak"] > known["live_peak"]
            known["live_peak"] = max(known["live_peak"], now["live_peak"])
            known["reserved_peak"] = max(known["reserved_peak"], now["reserved_peak"])
            known["requested_peak"] = max(known["requested_peak"], now["requested_peak"])
            free, total = self.torch.cuda.mem_get_info(device)
            known["capacity"], known["others"] = total, max(total - free - now["reserved"], known.get("others", 0))
            known["live"], known["reserved"], known["limit"] = now["live"], now["reserved"], self.limit(device)
            known["searched"] = searches.most(device)
            if is_higher:
                known["peak_step"] = max(self.steps, 1)
                known.update(self.held(device, True))  # last: figures stand even where names cannot be made

    # --- the file

    def write(self, end: str) -> None:
        """`end`: empty while the program runs; "steps" if this module ends it after its last step; "exit" if Python ends."""
        is_initialized = self.torch.cuda.is_initialized()
        if not is_initialized and multiprocessing.parent_process() is not None:
            return
        content = {"pid": os.getpid(), "rank": os.environ.get("RANK"), "ranks": os.environ.get("LOCAL_WORLD_SIZE"),
                   "torch": self.torch.__version__, "end": end, "steps": self.steps,
                   "optimizers": self.optimizers, "optimizer_steps": step_counter.seen(), "cannot": self.cannot,
                   "used_gpu": is_initialized, "allocator": self.torch.cuda.get_allocator_backend(), "devices": self.devices,
                   "failures": self.failures, "failures_count": self.failures_count, "error": self.error() if end == "exit" else None,
                   "growth": self.rises.report(), "seen": self.seen.report(), "values": self.values.report() if self.values is not None else None,
                   "remedies": self.remedies.report() if self.remedies is not None else None,
                   "tokens": self.tokens.found if self.tokens is not None else None, "settings": self.settings,
                   "recordings": recording.save(self.folder, list(self.devices)) if end else {},
                   "page": recording.save_page(self.folder, list(self.devices)) if end else ""}
        path = os.path.join(self.folder, f"{os.getpid()}.json")
        outputs.write(path, json.dumps(content).encode())

    def error(self) -> Optional[dict[str, Any]]:
        """The exception that ended the program."""
        error = getattr(sys, "last_value", None)
        if error is None:
            return None
        walked = traceback.walk_tb(error.__traceback__)
        places = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in reversed(list(walked))]
        text = str(error)
        if REMOTE in text:
            text, inner = remote(text)
            places = inner + places
        stack = stack_of(iter(places))
        return {"type": type(error).__name__, "text": text.strip()[:TEXT_MAX], "is_out_of_memory": is_out_of_memory(error, self.torch),
                "stack": shortened(stack)}

    def ended(self) -> None:
        try:
            self.note()
        except Exception:  # a context that is lost
            pass
        self.seen.something_begins()
        try:
            self.write("exit")
        except Exception:
            pass


def leave(status: int = 0) -> None:
    """Ends the process, and the workers that it has started."""
    try:
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def begin(torch: ModuleType) -> None:
    folder, steps = os.environ.get(FOLDER, ""), os.environ.get(STEPS, "0")
    if torch.version.cuda and os.path.isdir(folder):
        features.begin("dry-run", lambda: watch_program(torch, folder, int(steps)))


def watch_program(torch: ModuleType, folder: str, steps: int) -> None:
    global watch
    watch = Watch(torch, folder, steps)
    watch.names = hooks.label_names(torch, say)
    recording.prepare(torch, watch.names)
    watch.tell_stacks()  # also while a library is compiled
    watch.values = values.begin(torch, say)
    if watch.values is not None:
        watch.values.place_in_backward = watch.place_in_backward
    watch.start()
    wanted = os.environ.get(environment.DRY_REMEDIES)
    if wanted:
        remedies = Remedies(torch)
        if features.begin("remedies", lambda: remedies.start(wanted)):
            watch.remedies = remedies
