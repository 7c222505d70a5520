"""`cenote.growth()`: finds the step, the line and the variable that make memory grow.

After each step the live blocks are compared with those of the step before. The blocks that outlive the step in which they were allocated are its
cohort. If memory grows, cohort after cohort lives on: four cohorts of the same holder, or from the same line, are a cause. Ordinary programs have
no such series: parameters and an optimizer's state come from one step, gradients and variables are gone a step later, and a queue holds as many
cohorts at the end as in the middle. Only when cohorts pile up does this module ask PyTorch's history for the stack of each live block, and
finder.py for their holders. A history of autograd that goes back over four steps is a cause, too, even if only the host's memory grows.

If no optimizer steps, as in evaluation, each call of the module that the program calls first is a step.

The program must not notice: an error in this module ends the watching, and the report has its text. LOCKING: one lock; if it is taken at the end
of a step, the step is skipped.
"""
import collections
import ctypes
import inspect
import os
import struct
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any, Callable, Iterable, Optional, Union

from cenote.base import lock, quantity, source
from cenote.holders import finder
from cenote.holders.causes import COHORTS, Block, Cause, Judge, Stack, hint_for, keys, lines_for, owner, size_text, variable_of, words
from cenote.holders.finder import Link
from cenote.labels import hooks, step_counter
from cenote.native import bindings
from cenote.native.bindings import Error
from cenote.torch import features, patches, seams

COHORTS_FIRST = 12  # if no optimizer has stepped yet: several calls of a module may be parts of one step
WINDOW = 32  # the newest cohorts, which are compared
BLOCKS = 20_000  # blocks in one search, the newest
LEAST = 64 << 10  # bytes per step
PAUSE_MAX = 256  # steps between two searches that find nothing new
CHEAP = 0.01  # part of the program's time that the search for histories may take
HISTORY_OBJECTS, HISTORY_OPERATIONS = 1500, 500
PIECE = struct.Struct("=QQ40xII8xQ")  # of PieceStruct: address, size, state, tag, born. Unpacked by the thousand


class Books:
    """The live blocks of one device, with the step at whose end each was first seen."""

    def __init__(self, device: int, pool: int) -> None:
        self.device, self.pool = device, pool
        self.first: dict[tuple[int, ...], int] = {}  # step, by the fields of PIECE
        self.room = 1024
        self.piled: collections.deque[tuple[int, int]] = collections.deque(maxlen=WINDOW)  # step, bytes of all earlier cohorts
        self.cohorts: dict[int, int] = {}  # live bytes, by step
        self.live = 0
        self.ends: collections.deque[tuple[int, int, int]] = collections.deque(maxlen=COHORTS + 1)  # step, live, peak (0: unknown)

    def pieces(self) -> Iterable[tuple[int, ...]]:
        """The fields of PIECE, of each block and of free pieces."""
        count = ctypes.c_size_t()
        while True:
            buffer = (bindings.PieceStruct * self.room)()
            bindings.call("cenote_pool_pieces", self.pool, None, buffer, self.room, ctypes.byref(count), PIECE.size)
            if count.value <= self.room:
                return PIECE.iter_unpack(memoryview(buffer).cast("B")[: count.value * PIECE.size])
            self.room = count.value + count.value // 4

    def look(self, step: int) -> None:
        """Compares the live blocks with those of the last call. Step 0 is for blocks that were live before the watching began."""
        before, live = self.first, bindings.LIVE
        now = {piece: before.get(piece, step) for piece in self.pieces() if piece[2] == live}
        cohorts = collections.Counter[int]()
        for piece, first in now.items():
            if first:
                cohorts[first] += piece[1]
        self.first, self.cohorts, self.live = now, cohorts, sum(piece[1] for piece in now)
        self.piled.append((step, sum(bytes for first, bytes in cohorts.items() if first < step)))

    def add_end(self, step: int, is_counted: bool) -> None:
        """Keeps the figures of a step's end. The library has the peak if it counted the step."""
        found, count = bindings.StepStruct(), ctypes.c_size_t()
        if is_counted:
            bindings.call("cenote_pool_steps", self.pool, ctypes.byref(found), 1, ctypes.byref(count), ctypes.sizeof(found))
        self.ends.append((step, self.live, found.peak))

    def blocks(self, step: int) -> list[Block]:
        """Blocks of the last WINDOW steps that outlived their step."""
        return [Block(address, size, tag, self.device, first) for (address, size, _, tag, _), first in self.first.items()
                if step - WINDOW <= first < step and first]

    def is_growing(self, step: int, cohorts: int) -> bool:
        """Whether each of the last `cohorts` steps has left live blocks, and their sum grows."""
        return all(first in self.cohorts for first in range(step - cohorts, step)) and self.has_piled_up(step, cohorts)

    def has_piled_up(self, step: int, cohorts: int) -> bool:
        """The same, but steps between may have left none."""
        living = [first for first in self.cohorts if step - WINDOW <= first < step]
        now, then = self.piled[-1][1], self.piled[max(0, len(self.piled) - 1 - cohorts)][1]
        return len(living) >= cohorts and now > then


class Patience:
    """Decides when to search again: the pause doubles as long as searches find nothing new."""

    def __init__(self) -> None:
        self.pause = self.due = 0

    def is_due(self, step: int) -> bool:
        return step >= self.due

    def found(self, step: int, something_new: bool) -> None:
        self.pause = COHORTS if something_new else max(1, min(self.pause * 2, PAUSE_MAX))
        self.due = step + self.pause


class Thread(threading.local):
    has_no_inductor = False


_thread = Thread()


def hiding(inside: Any) -> Any:
    def look_up(name: str) -> Any:
        if name == "_inductor" and _thread.has_no_inductor:
            raise AttributeError(name)
        return inside(name)
    return look_up


class Stacks:
    """PyTorch's history, which has the stack of each live block. It is most of the cost of watching: so it is on for the first steps, and when two
    steps in a row have left live blocks. The program may have switched it on itself."""

    def __init__(self) -> None:
        self.is_recording = seams.find("torch._C._cuda_isHistoryEnabled")
        self.record = seams.find("torch.cuda.memory._record_memory_history")
        self.is_ours, self.until = False, 0

    def want(self, step: int, is_suspicious: bool) -> None:
        if is_suspicious or step == 0:
            self.until = step + 2 * COHORTS
            if not self.is_recording():
                self.record(enabled="state", stacks="python")
                self.is_ours = True
        elif step > self.until:
            self.end()

    def take(self) -> dict[int, Stack]:
        """By address, innermost first."""
        return {block["address"]: block.get("frames") or [] for segment in self.snapshot()["segments"] for block in segment["blocks"]}

    def snapshot(self) -> dict[str, Any]:
        """PyTorch's _snapshot would import all of torch._inductor, for seconds, to translate lines of compiled code. If the program has not imported
        it, there is no compiled code: so this thread does not find it meanwhile."""
        undo = patches.replace("growth", "torch.__getattr__", hiding)  # PyTorch imports it by that
        _thread.has_no_inductor = True
        try:
            return seams.find("torch.cuda.memory._snapshot")()  # type: ignore[no-any-return]
        finally:
            _thread.has_no_inductor = False
            undo()

    def end(self) -> None:
        """Switches the history off if this class switched it on. If it has more than one entry, the program has switched it on meanwhile."""
        if self.is_ours and all(len(trace) <= 1 for trace in self.snapshot()["device_traces"]):
            self.record(enabled=None)
        self.is_ours = False


# --- watching

class Growth:
    """Watches from its construction until `close`, or to the end of a `with`. See cenote.growth."""

    def __init__(self, alarm: Optional[Callable[[Any], object]] = print, least: Union[int, str] = LEAST) -> None:
        if alarm is not None and not callable(alarm):
            raise TypeError(f"alarm is a function that takes a cause, or None, not {type(alarm).__name__}")
        self.least = bytes_of(least)
        if lock.is_off():
            raise Error(f"cenote.growth {lock.WORDS}", 8, "NOT_SUPPORTED")
        torch: Any = bindings.torch_with_gpu()
        self.check(torch)
        why = features.why_not("growth")
        if why:
            raise Error(why, 8, "NOT_SUPPORTED")
        self.call = inspect.unwrap(torch.nn.Module.__call__).__code__
        self.sequence_number = seams.find("torch._C._autograd._get_sequence_nr")
        self.alarm = alarm
        self.lock, self.pid, self.is_busy = threading.RLock(), os.getpid(), False
        self.step = 0
        self.books: dict[int, Books] = {}
        self.ends: collections.deque[tuple[int, int]] = collections.deque(maxlen=WINDOW)  # autograd's sequence number when each step ended
        self.told: dict[tuple[Any, ...], Cause] = {}
        self.trouble = ""
        self.each_step, self.now_and_then, self.once = Patience(), Patience(), Patience()
        self.stepped = self.ever_stepped = False
        self.top: Optional[weakref.ref[Any]] = None
        self.calls = self.calls_usual = 0  # calls of other modules since the last of the top module, and the most there were
        self.began, self.spent = time.monotonic(), 0.0
        self.torch = torch
        self.stacks: Any = self.open_stacks()  # None once it is closed
        self.stacks.want(0, False)
        self.read()
        self.undo = [hooks.guard_graphs(torch), *self.listen()]

    def check(self, torch: Any) -> None:
        if torch is None or torch.cuda.get_allocator_backend() != "cenote":
            backend = "no PyTorch with CUDA is imported" if torch is None else f"PyTorch's allocator is {torch.cuda.get_allocator_backend()}"
            raise Error(f"cenote.growth needs cenote as PyTorch's allocator (CENOTE=on, or cenote.install()): {backend}", 8, "NOT_SUPPORTED")

    def open_stacks(self) -> Any:
        return Stacks()

    def open_books(self) -> list[int]:
        """Books for devices that came into use. Returns all devices that are in use."""
        for device, pool in bindings.pools().items():
            if device not in self.books:
                self.books[device] = Books(device, pool)
        return list(bindings.pools())

    def listen(self) -> list[Callable[[], Any]]:
        """From now on steps and calls of modules reach this object; returns the functions that end that."""
        called = self.torch.nn.modules.module.register_module_forward_pre_hook(self.module_is_called)
        return [step_counter.on_step(self.step_is_over), called.remove]

    def __enter__(self) -> "Growth":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        found = "nothing grows" if not self.told else "; ".join(cause.holder for cause in self.told.values())
        return f"<cenote.growth: {self.step} steps{'' if self.undo else ', closed'}: {found}; print() shows all>"

    def close(self) -> None:
        """Ends the watching; reports cover the time until then. A second call changes nothing."""
        with self.lock:
            undo, self.undo = self.undo, []
            for take_away in undo:
                take_away()
            stacks, self.stacks = self.stacks, None
            if stacks is not None:
                stacks.end()

    # steps

    def step_is_over(self) -> None:
        self.stepped = self.ever_stepped = True
        self.pulse(is_counted=True)

    def module_is_called(self, module: Any, _: Any) -> None:
        """Ends an iteration without an optimizer's step: if the program itself calls the same module again, and no optimizer stepped in between."""
        top = self.top() if self.top is not None else None
        if module is not top:
            self.calls += 1
            if top is not None and self.calls <= 2 * self.calls_usual + 16 or self.torch.compiler.is_compiling() or not self.is_outermost():
                return
            self.top, self.calls, self.calls_usual = weakref.ref(module), 0, 0
            self.stepped = True  # the first call of this module: no iteration has ended
        self.calls, self.calls_usual = 0, max(self.calls, self.calls_usual)
        stepped, self.stepped = self.stepped, False
        if not stepped and not self.torch.compiler.is_compiling() and not (module.training and self.ever_stepped):
            self.pulse()

    def is_outermost(self) -> bool:
        """Whether no other module calls the module that is being called."""
        calls = 0
        frame: Optional[FrameType] = sys._getframe()
        while frame is not None:
            calls += frame.f_code is self.call
            frame = frame.f_back
        return calls <= 1

    def pulse(self, is_counted: bool = False) -> None:
        if not self.undo or self.pid != os.getpid() or not self.lock.acquire(blocking=False):
            return
        try:
            if not self.is_busy:  # the program's alarm may end a step
                self.is_busy = True
                self.look(is_counted)
        except Exception as error:  # the program's step must not fail because of this
            self.trouble = f"the watching ended at step {self.step}: {type(error).__name__}: {error}"
            print(f"cenote.growth: {self.trouble}", file=sys.stderr)
            self.close()
        finally:
            self.is_busy = False
            self.lock.release()

    def look(self, is_counted: bool) -> None:
        self.step += 1
        self.read()
        for books in self.books.values():
            books.add_end(self.step, is_counted)
        if self.stacks is not None:
            self.stacks.want(self.step, any(books.is_growing(self.step, 2) for books in self.books.values()))
        self.judge()

    def read(self) -> None:
        for device in self.open_books():
            self.books[device].look(self.step)
        self.ends.append((self.step, self.sequence_number()))

    # judgement

    def judge(self) -> None:
        needed = COHORTS if self.ever_stepped or self.step > COHORTS_FIRST or not self.is_training() else COHORTS_FIRST
        all_books = self.books.values()
        if any(books.is_growing(self.step, needed) for books in all_books):
            if self.each_step.is_due(self.step):
                self.each_step.found(self.step, self.tell(self.search().causes()))
        elif any(books.has_piled_up(self.step, needed) for books in all_books):
            if self.now_and_then.is_due(self.step):
                self.now_and_then.found(self.step, self.tell(self.search().causes()))
        elif any(self.has_stayed(books) for books in all_books) and self.once.is_due(self.step):
            self.once.found(self.step, self.tell(self.search().exceptions()))
        began = time.monotonic()
        if self.step <= 2 * COHORTS or self.spent < CHEAP * (began - self.began):
            self.tell(self.histories())
            self.spent += time.monotonic() - began

    def is_training(self) -> bool:
        top = self.top() if self.top is not None else None
        return top is None or bool(top.training)

    def has_stayed(self, books: Books) -> bool:
        """Whether the step before last has left live blocks, its neighbours have not, and the first steps are over."""
        cohort = self.step - 2
        return cohort > 2 and books.cohorts.get(cohort, 0) >= self.least and not (cohort - 1 in books.cohorts or cohort + 1 in books.cohorts)

    def search(self) -> Judge:
        blocks = sorted((block for books in self.books.values() for block in books.blocks(self.step)), key=lambda block: -block.cohort)[:BLOCKS]
        findings = finder.find(((block.address, block.address + block.size) for block in blocks), self.end_of(self.step - 1))
        return Judge(self.step, blocks, findings, self.stacks.take() if self.stacks is not None else {})

    def end_of(self, step: int) -> int:
        return next((number for at, number in self.ends if at == step), 0)

    def histories(self) -> list[Cause]:
        """Histories that were continued in this step and go back over COHORTS steps."""
        numbers = dict(self.ends)
        old, last = numbers.get(self.step - COHORTS), numbers.get(self.step - 1)
        if self.step <= COHORTS or old is None or last is None or numbers[self.step] == last:
            return []
        causes = {}
        for path, lowest, length in finder.carried_histories(own_frame(), last, old, HISTORY_OBJECTS, HISTORY_OPERATIONS):
            whole = (*path, Link("history", "", ""))
            goes_back = sum(number >= lowest for number in numbers.values())
            holder = f"the autograd history of `{words(path)}`{owner(path)} grows, in the host's memory: {length:,} operations, back over " \
                     f"at least {goes_back} steps"
            key = keys(whole)[-1]
            causes[key] = Cause(key, holder, hint_for(whole, True), 0, COHORTS, self.step - COHORTS, 0, lines_for(path), has_history=True,
                                variable=variable_of(path))
        return list(causes.values())

    def tell(self, causes: list[Cause]) -> bool:
        """Calls the alarm for each new cause; for small growth only if its tensors have a history. True if there was a new cause."""
        found = False
        for cause in causes:
            if cause.key in self.told or (0 < cause.per_step < self.least and not cause.has_history):
                continue
            if cause.has_history and any(cause.variable and cause.variable == other.variable for other in self.told.values() if other.has_history):
                continue  # the same variable, such as h and c of one state
            self.told[cause.key] = cause
            found = True
            if self.alarm is not None:
                self.alarm(cause)
        return found

    # report

    def report(self, stacks: bool = False) -> str:
        """The growth by step, holder, line and tag, as text. `stacks`: with the program's own lines of the stack of an allocation."""
        with self.lock:
            text = [f"cenote.growth: {self.trouble}"] if self.trouble else []
            if self.step < COHORTS + 1:
                text.append(f"cenote.growth: {self.step} steps seen since the watching began; it takes {COHORTS + 1} to tell what grows")
            for books in self.books.values():
                if books.live or books.cohorts:
                    text += self.device_report(books)
            judge = self.search() if self.step and self.undo else None
            causes = judge.causes() + self.histories() if judge is not None else list(self.told.values())
            now = {cause.key for cause in causes}
            for cause in causes:
                text.append("  " + "\n      ".join([*cause.lines(), *(f"  {line}" for line in cause.stacks if stacks)]))
            text += [f"  no longer: {cause.holder}" for key, cause in self.told.items() if key not in now]
            if not causes:
                text.append("  nothing grows")
            if judge is not None:
                text += self.tag_report(judge)
                if judge.findings.gave_up:
                    text.append(f"  the search for holders ended {judge.findings.gave_up}")
            return "\n".join(text)

    def device_report(self, books: Books) -> list[str]:
        piled = [bytes for _, bytes in books.piled][-COHORTS - 1:]
        rate = (piled[-1] - piled[0]) // max(1, len(piled) - 1)
        sign = "+" if rate >= 0 else ""
        change = f"{sign}{size_text(rate)} a step over the last {len(piled) - 1}"
        head = f"device {books.device}, step {self.step}: live {size_text(books.live)} ({change})"
        return [head, *(f"  step {step}: live {size_text(live)} at its end" + (f", {size_text(peak)} at its peak" if peak else "")
                        for step, live, peak in books.ends)]

    def tag_report(self, judge: Judge) -> list[str]:
        """The tags whose blocks grow most per step."""
        sums: collections.Counter[tuple[int, int]] = collections.Counter()
        for block in judge.blocks:
            if block.tag:
                sums[block.device, block.tag] += block.size
        names = {device: tag_names(self.books[device].pool) for device, _ in sums}
        return [f"  tag {names[device].get(tag, tag)}: +{size_text(bytes // judge.steps)} a step" for (device, tag), bytes in sums.most_common(10)]


def tag_names(pool: int) -> dict[int, str]:
    rows = bindings.all_of("cenote_pool_rows", bindings.RowStruct, pool, bindings.DIVISIONS.index("tag"))
    return {row.key: row.name.decode(errors="replace") for row in rows}


def bytes_of(least: Union[int, str]) -> int:
    try:
        size = quantity.read_size(least) if isinstance(least, str) else least
    except ValueError:
        size = -1
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"least is bytes a step, 0 or more, as in 65536 or '64KiB', not {str(least)[:40]!r}")
    return size


def own_frame() -> Optional[FrameType]:
    """The innermost frame that is not of cenote."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and source.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
