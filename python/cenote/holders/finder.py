"""Finds what holds a block of device memory: the variable, attribute or container by which the program reaches it, or an autograd history.

`find` starts at everything that has a name (variables of running functions, of modules, of frames that exceptions keep), follows references, and
looks for tensors in the blocks. Then it searches the graphs of all tensors that it met, for blocks that only an operation keeps. It does not decide
which blocks should be gone: growth.py does.

The program must not notice a search: none of its code runs (parts.py, graphs.py), no kernel runs, and nothing waits for the device. References are
held only during the search. A search has limits of objects and seconds, and says if it gave up.
"""
import collections
import gc
import sys
import threading
import time
import types
from bisect import bisect_right
from typing import Any, Iterable, NamedTuple, Optional

from cenote.base import source
from cenote.base.source import NAME, Place
from cenote.holders.graphs import LEAF, OPERATIONS, Reader, inputs_of, length_of, reaches_back_to
from cenote.holders.parts import ATOM_IDS, forget_types, own_dict, readers
from cenote.labels import engine
from cenote.torch import seams

OBJECTS = 400_000  # limit for one search
SECONDS = 3.0  # for objects, and again for histories
SECONDS_LIGHT = 0.02


class Link(NamedTuple):
    """One reference on the way from a name to a tensor."""

    how: str  # variable, attribute, index, key, element, inside, exception, history
    name: str
    leads_to: str  # type name of the object that it leads to
    place: Optional[Place] = None  # of a variable: its function or module
    bound: Optional[int] = None  # most items of the container that it leads to, if that is bounded
    codes: tuple[types.CodeType, ...] = ()  # code that may have stored the object there


Path = tuple[Link, ...]


class Findings(NamedTuple):
    """The result of a search."""

    paths: dict[int, Path]  # by the block's address
    lengths: dict[Path, int]  # operations in a history
    with_history: set[int]  # blocks whose tensor has a history, or that a history keeps
    gave_up: str  # why the search ended early; empty if it did not


class Search:
    """A breadth-first search, so that it finds the shortest name. It lives for one call, because it holds all objects that it met."""

    def __init__(self, blocks: Iterable[tuple[int, int]], objects: int, seconds: float) -> None:
        self.blocks = sorted(blocks)
        self.starts = [start for start, _ in self.blocks]
        self.reader = Reader()
        self.objects, self.until = objects, time.monotonic() + seconds
        self.met: dict[int, Any] = {}
        self.ways: dict[int, tuple[int, str, str]] = {}  # parent, how, name
        self.queue: collections.deque[Any] = collections.deque()
        self.found: dict[int, int] = {}  # block: the tensor
        self.histories: list[tuple[int, Any]] = []  # tensor, its operation
        self.gave_up = ""

    def forget(self) -> None:
        forget_types()
        for held in (self.met, self.ways, self.queue, self.histories):
            held.clear()

    def block_at(self, address: int) -> Optional[int]:
        at = bisect_right(self.starts, address) - 1
        return self.starts[at] if at >= 0 and address < self.blocks[at][1] else None

    def meet(self, obj: Any, parent: int, how: str, name: str) -> None:
        me, kind = id(obj), type(obj)
        if me in self.met or id(kind) in ATOM_IDS:
            return
        is_tensor = issubclass(kind, self.reader.tensor)
        if not is_tensor and not gc.is_tracked(obj) and kind is not types.FrameType and not issubclass(kind, self.reader.storage):
            return  # it refers to no object. (Frames of running functions are not tracked, but refer to objects.)
        self.met[me], self.ways[me] = obj, (parent, how, name)
        if is_tensor:
            self.look(obj)
        elif issubclass(kind, self.reader.storage):
            self.match(obj.data_ptr() if obj.device.type == "cuda" else 0, me)
        else:
            self.queue.append(obj)

    def match(self, address: int, me: int) -> None:
        block = self.block_at(address) if address else None
        if block is not None:
            self.found.setdefault(block, me)

    def look(self, tensor: Any) -> None:
        if not self.blocks:  # histories only
            node = self.reader.grad_fn(tensor)
            if node is not None:
                self.histories.append((id(tensor), node))
            return
        self.match(self.reader.address_of(tensor), id(tensor))
        try:
            node, grad = self.reader.grad_fn(tensor), self.reader.gradient_of(tensor)
        except RuntimeError:
            node, grad = None, None
        if node is not None:
            self.histories.append((id(tensor), node))
        if grad is not None:
            self.meet(grad, id(tensor), "attribute", "grad")
        if own_dict(tensor) or type(tensor) is not self.reader.tensor:
            self.queue.append(tensor)

    def has_room(self) -> bool:
        if len(self.met) >= self.objects:
            self.gave_up = f"after {self.objects:,} objects"
        elif time.monotonic() > self.until:
            self.gave_up = "for lack of time"
        return not self.gave_up

    def run(self) -> None:
        """Searches on after all blocks are found, because the histories of all tensors are needed."""
        while self.queue and self.has_room():
            obj = self.queue.popleft()
            for read in readers(type(obj)):
                try:
                    for how, name, part in read(obj):
                        self.meet(part, id(obj), how, name)
                except (RuntimeError, ReferenceError, AttributeError):
                    continue  # changed by another thread meanwhile

    def path(self, me: int) -> Path:
        links: list[Link] = []
        while me in self.ways:
            parent, how, name = self.ways[me]
            obj, owner = self.met[me], self.met.get(parent)
            if how == "exception":
                links.append(Link(how, "", "", source.of_frame(obj)))
            elif how != "same":
                links.append(self.link(how, name, obj, owner))
            me = parent
        return tuple(reversed(links))

    def link(self, how: str, name: str, obj: Any, owner: Any) -> Link:
        kind = type(obj)
        if kind is types.CellType:
            try:
                obj, kind = obj.cell_contents, type(obj.cell_contents)
            except ValueError:
                pass
        place: Optional[Place] = None
        codes: tuple[types.CodeType, ...] = ()
        if how == "variable" and type(owner) is types.FrameType:
            place, codes = source.of_frame(owner), (owner.f_code,)
        elif how == "variable" and owner is not None:
            place, codes = source.of_module(owner), source.codes_of_module(owner)
        elif how == "attribute" and owner is not None:
            codes = source.codes_of_class(type(owner))
        return Link(how, name, str(NAME(kind)), place, bound_of(obj, owner), codes)


def bound_of(obj: Any, owner: Any) -> Optional[int]:
    """The most items that a container takes; None if it is not bounded."""
    if issubclass(type(obj), collections.deque):
        length = vars(collections.deque)["maxlen"].__get__(obj)
        if length is not None:
            return int(length)
        most = own_dict(owner).get("maxsize") if owner is not None else None  # queue.Queue keeps its items in a deque
        return most if type(most) is int and most > 0 else None
    return None


def running() -> list[types.FrameType]:
    """Frames of all threads, this thread's first, without frames of cenote: those refer to the search, and a cycle would keep all objects that it
    met."""
    frames: list[types.FrameType] = []
    here = threading.get_ident()
    tops = sys._current_frames()
    for thread in (here, *(thread for thread in tops if thread != here)):
        walker: Optional[types.FrameType] = tops[thread]
        while walker is not None:
            if not source.is_ours(walker.f_code.co_filename):
                frames.append(walker)
            walker = walker.f_back
    tops.clear()
    return frames


def roots(search: Search) -> None:
    """Starts at everything that has a name: running functions, inner ones first, the program's modules, the last exception, frames of libraries."""
    frames = running()
    own = [frame for frame in frames if not source.is_library(frame.f_code.co_filename)]
    for frame in own:
        search.meet(frame, 0, "same", "")
    for module in list(sys.modules.values()):
        if type(module) is types.ModuleType and source.is_programs(module):
            search.meet(module, 0, "same", "")
    for name in ("last_value", "last_exc"):
        if hasattr(sys, name):
            search.meet(getattr(sys, name), 0, "variable", f"sys.{name}")
    for frame in frames:
        search.meet(frame, 0, "same", "")


def search_backwards(search: Search) -> None:
    """For tensors that no name leads to: finds the type of an object that refers to each. Only for a few, because each takes a pass over all objects.
    """
    missing = set(search.starts) - set(search.found)
    questions = 8
    everything = gc.get_objects()
    for obj in everything:
        if not missing or time.monotonic() > search.until + SECONDS:
            break
        if not issubclass(type(obj), search.reader.tensor):
            continue
        block = search.block_at(search.reader.address_of(obj))
        if block is not None and block in missing:
            missing.discard(block)
            search.met[id(obj)] = obj
            name = holder_type(obj, {id(everything), id(search.met)}) if questions > 0 else ""
            questions -= 1
            if name:
                search.ways.setdefault(id(obj), (0, "unnamed", name))
                search.found[block] = id(obj)


def holder_type(obj: Any, ours: set[int]) -> str:
    """The type name of an object that refers to `obj`."""
    for referrer in gc.get_referrers(obj):
        if type(referrer) is not types.FrameType and id(referrer) not in ours and not source.is_ours_object(referrer):
            return str(NAME(type(referrer)))
    return ""


def walk_histories(search: Search, missing: set[int], before: int) -> tuple[dict[int, int], dict[int, int]]:
    """The blocks that operations keep, each with the tensor whose history has the operation; and the lengths of the histories. Histories that reach
    back before sequence number `before` are read first: if two have the same operation, such a one is the cause."""
    def rank(entry: tuple[int, Any]) -> tuple[bool, bool, int]:
        lowest, _ = reaches_back_to(entry[1], 400, before)
        return lowest >= before, not is_carried(search.path(entry[0])), entry[1]._sequence_nr() if lowest < before else 0

    found: dict[int, int] = {}
    lengths: dict[int, int] = {}
    seen: dict[int, Any] = {}
    until = time.monotonic() + SECONDS
    candidates = search.histories if len(search.histories) > 2000 else sorted(search.histories, key=rank)
    for tensor, head in candidates:
        stack, before_this = [head], len(seen)
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            if len(seen) >= OPERATIONS or (len(seen) % 256 == 0 and time.monotonic() > until):
                search.gave_up = f"after {len(seen):,} operations of histories"
                return found, lengths
            for saved in search.reader.saved_by(node):
                block = search.block_at(search.reader.address_of(saved))
                if block in missing:
                    found.setdefault(block, tensor)
            stack.extend(inputs_of(node))
        lengths[tensor] = len(seen) - before_this
    return found, lengths


def is_carried(path: Path) -> bool:
    """Whether the program computes the variable from its old value: `total += loss`, `h = f(x, h)`."""
    named = [link for link in path if link.how in ("variable", "attribute", "closure")]
    return bool(named) and any(line.is_from_itself for line in source.keeping(named[-1].codes, named[-1].name, named[-1].how == "attribute"))


def find(blocks: Iterable[tuple[int, int]], before: int = 0, objects: int = OBJECTS, seconds: float = SECONDS) -> Findings:
    """Finds what holds the blocks, given as start and end."""
    search = Search(blocks, objects, seconds)
    try:
        with seams.find("torch._C.DisableTorchFunctionSubclass")():
            return find_with(search, before)
    finally:
        search.forget()


def find_with(search: Search, before: int) -> Findings:
    with engine.at_rest() as rests:
        search.reader.rests = rests
        search.reader.may_read_gradients = rests and engine.learns_alone()
        found = look(search, before)
    if not rests:
        return found._replace(gave_up=found.gave_up or "without histories and gradients, because another thread is in backward")
    if not search.reader.may_read_gradients:
        return found._replace(gave_up=found.gave_up or "without gradients, because another thread has run backward")
    return found


def look(search: Search, before: int) -> Findings:
    roots(search)
    search.run()
    missing = set(search.starts) - set(search.found)
    kept, lengths = walk_histories(search, missing, before) if search.histories else ({}, {})
    if len(search.found) + len(kept) < len(search.starts):
        search.found.update(dict.fromkeys(kept, 0))
        search_backwards(search)
    paths = {block: search.path(tensor) for block, tensor in search.found.items() if tensor}
    of_history = Link("history", "", "")
    paths.update({block: (*search.path(tensor), of_history) for block, tensor in kept.items()})
    names = {(*search.path(tensor), of_history): length for tensor, length in lengths.items()}
    with_history = {tensor for tensor, _ in search.histories}
    has_history = {block for block, tensor in search.found.items() if tensor in with_history} | set(kept)
    return Findings(paths, names, has_history, search.gave_up)


class Carried(NamedTuple):
    """A history that goes on from step to step."""

    path: Path
    lowest: int  # sequence number of the oldest operation that was seen
    length: int


def carried_histories(frame: Optional[types.FrameType], since: int, before: int, objects: int, operations: int) -> list[Carried]:
    """Histories that grow from step to step: they were continued after sequence number `since`, go back before `before`, and belong to a variable
    that is computed from itself. Only variables near the running functions are searched: this is cheap enough for many steps of a program."""
    search = Search((), objects, SECONDS_LIGHT)
    try:
        with seams.find("torch._C.DisableTorchFunctionSubclass")():
            return carried(search, frame, since, before, operations)
    finally:
        search.forget()


def carried(search: Search, frame: Optional[types.FrameType], since: int, before: int, operations: int) -> list[Carried]:
    while frame is not None:
        if not source.is_library(frame.f_code.co_filename):
            search.meet(frame, 0, "same", "")
            module = sys.modules.get(frame.f_globals.get("__name__", ""))
            if type(module) is types.ModuleType:
                search.meet(module, 0, "same", "")
        frame = frame.f_back
    search.run()
    found, left = [], 4 * operations
    for tensor, node in search.histories:
        if not since <= node._sequence_nr() < LEAF or left <= 0:
            continue
        lowest, looked = reaches_back_to(node, min(left, operations), before)
        left -= looked
        if lowest < before and is_carried(search.path(tensor)):
            found.append(Carried(search.path(tensor), lowest, length_of(node)))
    return found
