"""Which step, which line and which holder makes memory grow: what `cenote.growth()` begins.

After each step the live blocks are compared with those of the step before. What a step leaves behind is its cohort, and a program that grows has
cohort after cohort that lives on: four of the same holder, or from the same line, are a cause. Parameters and an optimizer's state are of one
step, gradients and variables are gone a step later, a queue holds as many cohorts at the end as in the middle. Only when cohorts pile up is more
asked: PyTorch's history for lines (it has the stack of each live block), holders.py for who holds them. A history of autograd that goes back
over four steps is a cause of its own, also where only the host's memory grows.

Where no optimizer steps, as in evaluation, each call of the module that the program calls first is a step.

The program must not notice: an error here ends the watching and is told in the report. LOCKING: one lock; a step that finds it taken is skipped.
"""
import collections
import ctypes
import struct
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Callable, Iterable, NamedTuple, Optional, Union

from cenote import bindings, holders, places_in_code, quantity, stepping
from cenote.bindings import Error
from cenote.holders import Findings, Link, Path
from cenote.places_in_code import Line, Place

COHORTS = 4  # that live on make a cause
COHORTS_KEYED = 16  # in a dictionary: a cache grows while it meets something new
COHORTS_UNHELD = 8  # of which nothing is known but the line
COHORTS_FIRST = 12  # where no step was ever seen: calls of a module may be parts of one
WINDOW = 32  # cohorts looked at
BLOCKS = 20_000  # looked for in one search: the latest
LEAST = 64 << 10  # bytes a step
PAUSE_MOST = 256  # steps between two searches that find nothing new
CHEAP = 0.01  # part of the time that looking for histories may take
HISTORY_OBJECTS, HISTORY_OPERATIONS = 1500, 500
PIECE = struct.Struct("=QQ40xII8xQ8x")  # of PieceStruct: address, size, state, tag, born. Unpacked by the thousand


class Block(NamedTuple):
    """A block that has outlived the step it was born in."""

    address: int
    size: int
    tag: int
    device: int
    cohort: int


@dataclass
class Cause:
    """Something that grows. `str` of it is the text of the alarm."""

    key: tuple[Any, ...]
    holder: str
    hint: str
    per_step: int
    steps: int  # over which it is told
    since: int
    device: int
    kept: tuple[Line, ...] = ()
    sites: list[tuple[str, int]] = field(default_factory=list)  # with bytes a step
    stacks: list[str] = field(default_factory=list)
    has_history: bool = False

    def __str__(self) -> str:
        return ("cenote: memory grows: " if self.per_step else "cenote: ") + "\n    ".join(self.lines())

    def lines(self) -> list[str]:
        text = [f"+{size_text(self.per_step)} a step over the last {self.steps}, {self.holder}" if self.per_step else self.holder]
        text += [f"kept at {line}" for line in self.kept[:3]]
        text += [f"allocated at {site}" + (f" (+{size_text(bytes)})" if len(self.sites) > 1 else "") for site, bytes in self.sites[:3]]
        return text + ([self.hint] if self.hint else [])


def size_text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}" if unit == 1 << 30 else f"{size / unit:.1f} {name}"
    return f"{size} B"


class Books:
    """The blocks of one device, by the step after which they were first seen."""

    def __init__(self, device: int, pool: int) -> None:
        self.device, self.pool = device, pool
        self.first: dict[tuple[int, ...], int] = {}  # by PIECE
        self.room = 1024
        self.piled: collections.deque[tuple[int, int]] = collections.deque(maxlen=WINDOW)  # step, bytes of all cohorts but its own
        self.cohorts: dict[int, int] = {}  # bytes that live on
        self.live = 0
        self.ends: collections.deque[tuple[int, int, int]] = collections.deque(maxlen=COHORTS + 1)  # step, live, peak where it is known

    def pieces(self) -> memoryview:
        count = ctypes.c_size_t()
        while True:
            buffer = (bindings.PieceStruct * self.room)()
            bindings.call("cenote_pieces", self.pool, None, buffer, self.room, ctypes.byref(count))
            if count.value <= self.room:
                return memoryview(buffer).cast("B")[: count.value * PIECE.size]
            self.room = count.value + count.value // 4

    def look(self, step: int) -> None:
        """Step 0: what was there before."""
        before, live = self.first, bindings.LIVE
        now = {piece: before.get(piece, step) for piece in PIECE.iter_unpack(self.pieces()) if piece[2] == live}
        cohorts = collections.Counter[int]()
        for piece, first in now.items():
            if first:
                cohorts[first] += piece[1]
        self.first, self.cohorts, self.live = now, cohorts, sum(piece[1] for piece in now)
        self.piled.append((step, sum(bytes for first, bytes in cohorts.items() if first < step)))

    def note_end(self, step: int, is_counted: bool) -> None:
        """The library knows the peak of the steps that it counts."""
        note, count = bindings.StepStruct(), ctypes.c_size_t()
        if is_counted:
            bindings.call("cenote_steps", self.pool, ctypes.byref(note), 1, ctypes.byref(count))
        self.ends.append((step, self.live, note.peak))

    def blocks(self, step: int) -> list[Block]:
        """What outlived its step, the latest WINDOW steps."""
        return [Block(address, size, tag, self.device, first) for (address, size, _, tag, _), first in self.first.items()
                if step - WINDOW <= first < step and first]

    def is_near(self, step: int, cohorts: int) -> bool:
        """As many cohorts live on, one of them young, and together they become more."""
        living = [first for first in self.cohorts if step - WINDOW <= first < step]
        if len(living) < cohorts or max(living) < step - cohorts:
            return False
        now, then = self.piled[-1][1], self.piled[max(0, len(self.piled) - 1 - cohorts)][1]
        return now > then


class Stacks:
    """PyTorch's history of the blocks that live, which has the stack of each. The program may have it on for itself."""

    def __init__(self) -> None:
        self.memory: Any = sys.modules["torch"].cuda.memory
        self.is_ours = not sys.modules["torch"]._C._cuda_isHistoryEnabled()
        if self.is_ours:
            self.memory._record_memory_history(enabled="state", stacks="python")

    def take(self) -> dict[int, list[dict[str, Any]]]:
        """By address, innermost first."""
        return {block["address"]: block.get("frames") or [] for segment in self.snapshot()["segments"] for block in segment["blocks"]}

    def snapshot(self) -> dict[str, Any]:
        """PyTorch would import all of torch._inductor, for seconds, to look whether a compiled line has one behind it."""
        torch: Any = sys.modules["torch"]
        nothing = None if "_inductor" in vars(torch) or "torch._inductor" in sys.modules else object()
        if nothing is not None:
            torch._inductor = nothing
        try:
            return self.memory._snapshot()  # type: ignore[no-any-return]
        finally:
            if nothing is not None and vars(torch).get("_inductor") is nothing:
                del torch._inductor

    def end(self) -> None:
        """Whoever switched it on meanwhile asked for entries, which we do not."""
        if self.is_ours and not any(self.snapshot()["device_traces"]):
            self.memory._record_memory_history(enabled=None)


def site_of(frames: Iterable[dict[str, Any]]) -> str:
    """The innermost line of the program's own."""
    own = [frame for frame in frames if not places_in_code.is_library(frame["filename"])]
    if not own:
        return ""
    frame = own[0]
    line = Line(frame["filename"], frame["line"], False)
    place, _, text = str(line).partition(": ")
    return f"{place} in {frame['name']}" + (f": {text}" if text else "")


# --- words for a path

def words(path: Path) -> str:
    """`model.encoder.mean`, `outputs[3]`; what exceptions hold has places in between."""
    text = ""
    for link in path:
        if link.how in ("variable", "closure"):
            text = f"{text}{link.name}" if not text or text.endswith(" ") else f"{text}, variable {link.name}"
        elif link.how == "attribute":
            text += f".{link.name}"
        elif link.how in ("index", "key"):
            text += f"[{link.name}]"
        elif link.how == "inside":
            text += f" ({link.name})" if link.name else " (inside)"
        elif link.how == "element":
            text += " (an element)"
        elif link.how == "unnamed":
            text = f"{link.name or 'something'} that no variable leads to"
    return text


def owner(path: Path) -> str:
    """The function or module whose variable it is."""
    place = path[0].place if path else None
    if place is None:
        return ""
    return f" in {place.function}()" if place.function else f" of {places_in_code.shown(place.file)}"


def before_exception(path: Path) -> int:
    return next((at for at, link in enumerate(path) if link.how == "exception"), len(path))


def describe(prefix: Path, whole: Path, count: int, length: int, has_history: bool) -> str:
    """Who holds what: `prefix` is what all of it has in common, `whole` an example."""
    named = tuple(link for link in prefix if link.how != "history")
    at = before_exception(whole)
    cut = named[:before_exception(named)]
    kind = cut[-1].leads_to if cut else "object"
    if at < len(whole):
        frame, inner = whole[at].place, words(tuple(link for link in whole[at + 1:] if link.how not in ("exception", "history")))
        place = f"{places_in_code.shown(frame.file)}:{frame.line}" if frame is not None else "?"
        keeper = f"list `{words(cut)}`" if kind == "list" else f"`{words(cut)}`"
        function = f"{frame.function}()" if frame is not None and frame.function else "a module"
        return f"held by exceptions in {keeper}{owner(cut)}: their tracebacks keep the variables of {function}, left at {place}, as `{inner}`"
    operations = f", {length:,} operations long" if length else ""
    if prefix and prefix[-1].how == "history":
        return f"held by the autograd history of `{words(named)}`{owner(named)}{operations}"
    what = f"{kind} `{words(named)}`{owner(named)}" if kind in ("list", "dict", "set", "deque", "tuple") else f"`{words(named)}`{owner(named)}"
    return f"held by {what}: {count} blocks" + (", with the autograd history of its tensors" if has_history else "")


def hint_for(whole: Path, has_history: bool) -> str:
    if before_exception(whole) < len(whole):
        return "keep str(error) instead, or error.with_traceback(None)"
    if has_history:
        return "keep .item() of numbers and .detach() of tensors; evaluate under torch.no_grad()"
    return ""


def lines_for(path: Path) -> tuple[Line, ...]:
    """Where the program puts something there."""
    for link in reversed(path[:before_exception(path)]):
        if link.how in ("variable", "attribute", "closure") and link.codes:
            return places_in_code.keeping(link.codes, link.name, link.how == "attribute")
    return ()


def keys(path: Path) -> list[tuple[Any, ...]]:
    """Of each beginning of a path, something that is the same in the next search."""
    made: list[tuple[Any, ...]] = []
    key: tuple[Any, ...] = ()
    for link in path:
        key = (*key, link.how, link.name, link.place.file + link.place.function if link.place is not None else "")
        made.append(key)
    return made


# --- causes

class Judge:
    """Turns blocks that live on, their holders and their stacks into causes."""

    def __init__(self, step: int, blocks: list[Block], findings: Findings, stacks: dict[int, list[dict[str, Any]]]) -> None:
        self.step, self.findings, self.stacks = step, findings, stacks
        self.blocks = blocks
        self.steps = step - min((block.cohort for block in blocks), default=step)

    def causes(self) -> list[Cause]:
        groups: dict[tuple[Any, ...], list[Block]] = {}
        prefixes: dict[tuple[Any, ...], Path] = {}
        for block in self.blocks:
            path = self.findings.paths.get(block.address, ())
            for at, key in enumerate(keys(path)):
                groups.setdefault(key, []).append(block)
                prefixes.setdefault(key, path[:at + 1])
        grown = {key for key, members in groups.items() if self.is_growing(members, COHORTS)}
        inner = {key for key in grown if not any(len(other) > len(key) and other[:len(key)] == key for other in grown)}
        causes, explained = [], set()
        for key in inner:
            explained.update(block.address for block in groups[key])
            cause = self.of_holder(key, prefixes[key], groups[key])
            if cause is not None:
                causes.append(cause)
        causes += self.of_lines([block for block in self.blocks if block.address not in explained])
        return sorted(causes, key=lambda cause: -cause.per_step)

    def is_growing(self, members: list[Block], needed: int) -> bool:
        cohorts = {block.cohort for block in members}
        return len(cohorts) >= needed and max(cohorts) >= self.step - needed

    def rate(self, members: list[Block]) -> tuple[int, int]:
        """Bytes a step, and over how many steps."""
        steps = self.step - min(block.cohort for block in members)
        return sum(block.size for block in members) // steps, steps

    def of_holder(self, key: tuple[Any, ...], prefix: Path, members: list[Block]) -> Optional[Cause]:
        paths = [self.findings.paths[block.address] for block in members]
        if any(link.bound is not None for link in prefix):
            return None  # it holds so many and no more
        is_keyed = prefix[-1].how != "history" and any(len(path) > len(prefix) and path[len(prefix)].how == "key" for path in paths)
        if is_keyed and not self.is_growing(members, COHORTS_KEYED):
            return None
        whole = max(paths, key=lambda path: before_exception(path) < len(path))
        has_history = any(block.address in self.findings.with_history for block in members)
        length = self.findings.lengths.get(prefix, 0)
        per_step, steps = self.rate(members)
        holder = describe(prefix, whole, len(members), length, has_history)
        return Cause(key, holder, hint_for(whole, has_history), per_step, steps, self.step - steps, members[0].device, lines_for(prefix),
                     self.sites(members, steps), self.short_stacks(members), has_history)

    def sites(self, members: list[Block], steps: int) -> list[tuple[str, int]]:
        sums: collections.Counter[str] = collections.Counter()
        for block in members:
            sums[site_of(self.stacks.get(block.address, ()))] += block.size
        named = [(site, bytes // steps) for site, bytes in sums.most_common() if site]
        return named or [("a thread of autograd or of a library: no line of Python's", sum(sums.values()) // steps)]

    def short_stacks(self, members: list[Block]) -> list[str]:
        block = max(members, key=lambda member: member.size)
        frames = [frame for frame in self.stacks.get(block.address, ()) if not places_in_code.is_library(frame["filename"])]
        return [f"{places_in_code.shown(frame['filename'])}:{frame['line']} in {frame['name']}" for frame in frames[:8]]

    def of_lines(self, blocks: list[Block]) -> list[Cause]:
        """Of blocks that nobody is known to hold."""
        groups: dict[str, list[Block]] = {}
        for block in blocks:
            if block.address not in self.findings.paths:
                groups.setdefault(site_of(self.stacks.get(block.address, ())), []).append(block)
        causes = []
        for site, members in groups.items():
            if self.is_growing(members, COHORTS_UNHELD):
                per_step, steps = self.rate(members)
                why = f"the search ended {self.findings.gave_up}" if self.findings.gave_up else "a library may hold it"
                causes.append(Cause(("line", site), f"held by nothing that Python sees ({why})", "", per_step, steps, self.step - steps,
                                    members[0].device, (), self.sites(members, steps), self.short_stacks(members)))
        return causes

    def exceptions(self) -> list[Cause]:
        """What one step left behind in an exception: no growth yet, and never meant."""
        causes = {}
        for block in self.blocks:
            path = self.findings.paths.get(block.address, ())
            at = before_exception(path)
            if at < len(path):
                key = (*keys(path)[at], "exception")
                members = [other for other in self.blocks if self.findings.paths.get(other.address, ())[:at + 1] == path[:at + 1]]
                holder = describe(path[:at], path, len(members), 0, False)
                size = size_text(sum(member.size for member in members))
                causes[key] = Cause(key, f"{size} of step {block.cohort} stays, {holder}", hint_for(path, False), 0, 0, block.cohort,
                                    block.device, lines_for(path), self.sites(members, 1), self.short_stacks(members))
        return list(causes.values())


# --- watching

class Growth:
    """Watches from when it is made until `close`, or to the end of a `with`. See cenote.growth."""

    def __init__(self, alarm: Optional[Callable[[Any], object]] = print, least: Union[int, str] = LEAST) -> None:
        if alarm is not None and not callable(alarm):
            raise TypeError(f"alarm is a function that takes what is to be told, or None, not {type(alarm).__name__}")
        self.least = bytes_of(least)
        torch: Any = bindings.torch_with_gpu()
        if torch is None or torch.cuda.get_allocator_backend() != "cenote":
            backend = "no PyTorch with CUDA is imported" if torch is None else f"PyTorch's allocator is {torch.cuda.get_allocator_backend()}"
            raise Error(f"cenote.growth needs cenote as PyTorch's allocator (CENOTE=on, or cenote.install()): {backend}", 8, "NOT_SUPPORTED")
        self.alarm = alarm
        self.lock = threading.RLock()
        self.step = 0
        self.books: dict[int, Books] = {}
        self.ends: collections.deque[tuple[int, int]] = collections.deque(maxlen=WINDOW)  # autograd's sequence number when each step ended
        self.told: dict[tuple[Any, ...], Cause] = {}
        self.trouble = ""
        self.pause, self.next_search = 1, 0
        self.stayed, self.next_search_stayed = 0, 0
        self.stepped = self.ever_stepped = False
        self.top: Optional[weakref.ref[Any]] = None
        self.calls = self.calls_usual = 0  # of other modules since the top one was called, and the most there were
        self.began, self.spent = time.monotonic(), 0.0
        self.torch = torch
        self.stacks: Optional[Stacks] = Stacks()
        self.read()
        self.undo = [stepping.on_step(self.step_is_over),
                     torch.nn.modules.module.register_module_forward_pre_hook(self.module_is_called).remove]

    def __enter__(self) -> "Growth":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watching; reports are of what was seen until then. A second call changes nothing."""
        with self.lock:
            for undo in self.undo:
                undo()
            self.undo = []
            stacks, self.stacks = self.stacks, None
            if stacks is not None:
                stacks.end()

    # steps

    def step_is_over(self) -> None:
        self.stepped = self.ever_stepped = True
        self.pulse(is_counted=True)

    def module_is_called(self, module: Any, _: Any) -> None:
        """Of a module that the program calls itself, again, with no step since: an iteration without a step is over."""
        top = self.top() if self.top is not None else None
        if module is not top:
            self.calls += 1
            if top is not None and self.calls <= 2 * self.calls_usual + 16 or self.torch.compiler.is_compiling() or not is_outermost():
                return
            self.top, self.calls, self.calls_usual = weakref.ref(module), 0, 0
            self.stepped = True  # this call begins an iteration: none is over
        self.calls, self.calls_usual = 0, max(self.calls, self.calls_usual)
        stepped, self.stepped = self.stepped, False
        if not stepped and not self.torch.compiler.is_compiling() and not (module.training and self.ever_stepped):
            self.pulse()

    def pulse(self, is_counted: bool = False) -> None:
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self.undo:
                self.step += 1
                self.read()
                for books in self.books.values():
                    books.note_end(self.step, is_counted)
                self.judge()
        except Exception as error:  # the program's step must not fail for our sake
            self.fail(error)
        finally:
            self.lock.release()

    def fail(self, error: Exception) -> None:
        self.trouble = f"the watching ended at step {self.step}: {type(error).__name__}: {error}"
        for undo in self.undo:
            undo()
        self.undo = []
        print(f"cenote.growth: {self.trouble}", file=sys.stderr)

    def read(self) -> None:
        for device, pool in bindings.pools().items():
            if device not in self.books:
                self.books[device] = Books(device, pool)
            self.books[device].look(self.step)
        self.ends.append((self.step, self.torch._C._autograd._get_sequence_nr()))

    # judgement

    def judge(self) -> None:
        needed = COHORTS if self.ever_stepped or self.step > COHORTS_FIRST or not self.is_training() else COHORTS_FIRST
        if self.step >= self.next_search and any(books.is_near(self.step, needed) for books in self.books.values()):
            new = self.tell(self.search().causes())
            self.wait(new)
        elif self.step >= self.next_search_stayed and any(self.has_stayed(books) for books in self.books.values()):
            self.tell(self.search().exceptions())
            self.stayed += 1
            self.next_search_stayed = self.step + min(2 ** self.stayed, PAUSE_MOST)
        began = time.monotonic()
        if self.step <= 2 * COHORTS or self.spent < CHEAP * (began - self.began):
            self.tell(self.histories())
            self.spent += time.monotonic() - began

    def is_training(self) -> bool:
        top = self.top() if self.top is not None else None
        return top is None or bool(top.training)

    def wait(self, found: bool) -> None:
        self.pause = 1 if found else min(self.pause * 2, PAUSE_MOST)
        self.next_search = self.step + self.pause * COHORTS

    def has_stayed(self, books: Books) -> bool:
        """Something of the step before last, and of none beside it, when the program should be settled."""
        cohort = self.step - 2
        return cohort > 2 and books.cohorts.get(cohort, 0) >= self.least and not (cohort - 1 in books.cohorts or cohort + 1 in books.cohorts)

    def search(self) -> Judge:
        blocks = sorted((block for books in self.books.values() for block in books.blocks(self.step)), key=lambda block: -block.cohort)[:BLOCKS]
        findings = holders.find(((block.address, block.address + block.size) for block in blocks), self.end_of(self.step - 1))
        return Judge(self.step, blocks, findings, self.stacks.take() if self.stacks is not None else {})

    def end_of(self, step: int) -> int:
        return next((number for at, number in self.ends if at == step), 0)

    def histories(self) -> list[Cause]:
        """Histories that go back over COHORTS steps, and were carried on in this one."""
        numbers = dict(self.ends)
        old, last = numbers.get(self.step - COHORTS), numbers.get(self.step - 1)
        if self.step <= COHORTS or old is None or last is None or numbers[self.step] == last:
            return []
        causes = {}
        for path, lowest, length in holders.carried_histories(own_frame(), last, old, HISTORY_OBJECTS, HISTORY_OPERATIONS):
            whole = (*path, Link("history", "", ""))
            goes_back = sum(number >= lowest for number in numbers.values())
            holder = f"the autograd history of `{words(path)}`{owner(path)} grows, in the host's memory: {length:,} operations, back over " \
                     f"at least {goes_back} steps"
            key = keys(whole)[-1]
            causes[key] = Cause(key, holder, hint_for(whole, True), 0, COHORTS, self.step - COHORTS, 0, lines_for(path), has_history=True)
        return list(causes.values())

    def tell(self, causes: list[Cause]) -> bool:
        """Alarms for what is new. Small growth is for reports, unless each of its tensors has a graph behind it."""
        found = False
        for cause in causes:
            if cause.key in self.told or (0 < cause.per_step < self.least and not cause.has_history):
                continue
            self.told[cause.key] = cause
            found = True
            if self.alarm is not None:
                self.alarm(cause)
        return found

    # report

    def report(self, stacks: bool = False) -> str:
        """What grew, by step, holder, line and tag, in words. With `stacks` the lines that led to each allocation, as far as they are the program's."""
        with self.lock:
            text = [f"cenote.growth: {self.trouble}"] if self.trouble else []
            if self.step < COHORTS + 1:
                text.append(f"cenote.growth: {self.step} steps seen; it takes {COHORTS + 1} to tell what grows")
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
        head = f"device {books.device}, step {self.step}: live {size_text(books.live)} ({'+' if rate >= 0 else ''}{size_text(rate)} a step over the " \
               f"last {len(piled) - 1})"
        return [head, *(f"  step {step}: live {size_text(live)} at its end" + (f", {size_text(peak)} at its peak" if peak else "")
                        for step, live, peak in books.ends)]

    def tag_report(self, judge: Judge) -> list[str]:
        """Tags by what their blocks of the window add each step."""
        sums: collections.Counter[tuple[int, int]] = collections.Counter()
        for block in judge.blocks:
            if block.tag:
                sums[block.device, block.tag] += block.size
        names = {device: tag_names(self.books[device].pool) for device, _ in sums}
        return [f"  tag {names[device].get(tag, tag)}: +{size_text(bytes // judge.steps)} a step" for (device, tag), bytes in sums.most_common(10)]


def tag_names(pool: int) -> dict[int, str]:
    rows = bindings.all_of("cenote_rows", bindings.RowStruct, pool, bindings.DIVISIONS.index("tag"))
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
    """The innermost frame that is not ours."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and places_in_code.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_outermost() -> bool:
    """No module calls the one that is being called."""
    calls = 0
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        calls += frame.f_code.co_name == "_wrapped_call_impl"
        frame = frame.f_back
    return calls <= 1
