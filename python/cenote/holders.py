"""Who holds a block of device memory: the variable, attribute or container by which a program still reaches it, or an autograd history.

`find` goes forward from all that has a name (variables of running functions, of modules, of frames that exceptions keep) and looks for tensors
that lie in the blocks; what no tensor of Python's has may be saved in a graph, and the graphs of all tensors that were met are walked after that.
It says nothing about which block should be there: growth.py decides that.

The program under it must not notice. Objects are read through descriptors of Python and PyTorch themselves: no property, `__getattr__`, `__len__`
or `__repr__` of the program runs, no hook of a saved tensor, no kernel, nothing waits for the device. References are held while it searches and
no longer. It is bounded in objects and seconds, and says when it gave up.
"""
import collections
import functools
import gc
import heapq
import sys
import threading
import time
import types
from bisect import bisect_right
from itertools import count
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from cenote import places_in_code
from cenote.places_in_code import Place

Part = tuple[str, str, Any]  # how it is reached, the name there, what it is

OBJECTS = 400_000  # looked at in one search
OPERATIONS = 200_000  # of graphs, in one search
SECONDS = 3.0  # for each of the two
SECONDS_LIGHT = 0.02
LEAF = 1 << 63  # sequence numbers from here on are of leaves, which are not operations


class Link(NamedTuple):
    """One step on the way to a tensor."""

    how: str  # variable, attribute, index, key, element, inside, exception, history
    name: str
    leads_to: str  # name of the type
    place: Optional[Place] = None  # of a variable: its function or module
    bound: Optional[int] = None  # what it leads to holds at most so many
    codes: tuple[types.CodeType, ...] = ()  # which may have put something there


Path = tuple[Link, ...]


class Findings(NamedTuple):
    """What a search found."""

    paths: dict[int, Path]  # by the block's address
    lengths: dict[Path, int]  # operations in a history
    with_history: set[int]  # blocks: the tensor there has one, or it is what one keeps
    gave_up: str  # empty: it saw all there is


# --- reading objects

ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, types.CodeType, types.BuiltinFunctionType, range, slice, type(Ellipsis),
         types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType, property)
NESTED = ("_modules", "_parameters", "_buffers")  # of torch.nn.Module: attributes to everybody else


def own_dict(obj: Any) -> dict[str, Any]:
    """`obj.__dict__`, unless the program made that something of its own."""
    getter = dict_getter(type(obj))
    found = getter(obj) if getter else None
    return found if type(found) is dict else {}


@functools.lru_cache(maxsize=4096)
def dict_getter(kind: type) -> Optional[Callable[[Any], Any]]:
    for base in type.__dict__["__mro__"].__get__(kind):
        found = vars(base).get("__dict__")
        if found is not None:
            return found.__get__ if isinstance(found, types.GetSetDescriptorType) else None  # type: ignore[no-any-return]
    return None


@functools.lru_cache(maxsize=4096)
def slots(kind: type) -> tuple[tuple[str, Any], ...]:
    bases = type.__dict__["__mro__"].__get__(kind)
    return tuple((name, found) for base in bases for name, found in vars(base).items() if type(found) is types.MemberDescriptorType)


def attributes(obj: Any) -> Iterator[Part]:
    for name, value in list(own_dict(obj).items()):
        yield "attribute", str(name), value
    for name, slot in slots(type(obj)):
        try:
            yield "attribute", name, slot.__get__(obj)
        except AttributeError:
            continue


def variables(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame. Up to Python 3.12 the frame would keep the dictionary, and what is in it, as long as it lives."""
    found = frame.f_locals
    if type(found) is not dict and sys.version_info < (3, 13):
        return {}  # a class body with a namespace of its own
    copy = dict(found)
    code = frame.f_code
    if sys.version_info < (3, 13) and code.co_flags & 1:  # CO_OPTIMIZED: the dictionary is a copy
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy


def key_name(key: Any) -> str:
    if type(key) is str:
        return repr(key if len(key) <= 40 else key[:37] + "...")
    return str(key) if type(key) in (int, bool, float) else f"<{type(key).__name__}>"


def of_dict(obj: Any) -> Iterator[Part]:
    for key, value in list(dict.items(obj)):
        yield "key", key_name(key), value
        if type(key) not in ATOMS:
            yield "key", "<a key>", key


def of_sequence(obj: Any) -> Iterator[Part]:
    items = list.copy(obj) if isinstance(obj, list) else list(tuple.__iter__(obj))
    for number, value in enumerate(items):
        yield "index", str(number), value


def of_deque(obj: Any) -> Iterator[Part]:
    for number, value in enumerate(list(collections.deque.__iter__(obj))):
        yield "index", str(number), value


def of_set(obj: Any) -> Iterator[Part]:
    for value in list((set if isinstance(obj, set) else frozenset).__iter__(obj)):
        yield "element", "", value


def of_function(obj: types.FunctionType) -> Iterator[Part]:
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or ()):
        yield "closure", name, cell
    for value in obj.__defaults__ or ():
        yield "inside", "a default argument of", value
    for name, value in {**(obj.__kwdefaults__ or {}), **obj.__dict__}.items():
        yield "attribute", str(name), value


def of_cell(obj: Any) -> Iterator[Part]:
    try:
        yield "same", "", obj.cell_contents
    except ValueError:
        return


def of_method(obj: types.MethodType) -> Iterator[Part]:
    yield "attribute", "__self__", obj.__self__
    yield "same", "", obj.__func__


def of_exception(obj: BaseException) -> Iterator[Part]:
    base = vars(BaseException)
    trace = base["__traceback__"].__get__(obj)
    while trace is not None:
        yield "exception", "", trace.tb_frame
        trace = trace.tb_next
    for name in ("__cause__", "__context__", "args"):
        yield "attribute", name, base[name].__get__(obj)
    yield from attributes(obj)


def of_traceback(obj: types.TracebackType) -> Iterator[Part]:
    trace: Optional[types.TracebackType] = obj
    while trace is not None:
        yield "exception", "", trace.tb_frame
        trace = trace.tb_next


def of_frame(obj: types.FrameType) -> Iterator[Part]:
    if not places_in_code.is_ours(obj.f_code.co_filename):
        for name, value in variables(obj).items():
            yield "variable", name, value


def of_generator(obj: Any) -> Iterator[Part]:
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        descriptor = vars(type(obj)).get(name)
        frame = descriptor.__get__(obj) if descriptor else None
        if frame is not None:
            yield "inside", "suspended", frame


def of_module(obj: types.ModuleType) -> Iterator[Part]:
    if places_in_code.is_programs(obj):
        for name, value in list(own_dict(obj).items()):
            yield "variable", name, value


def of_class(obj: type) -> Iterator[Part]:
    module = sys.modules.get(vars(obj).get("__module__", ""))
    if module is not None and places_in_code.is_programs(module):
        for name, value in list(vars(obj).items()):
            yield "attribute", str(name), value


def of_object(obj: Any) -> Iterator[Part]:
    yield from attributes(obj)
    if not type(obj).__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: no class of Python's, and it may hold what only it knows
        for value in gc.get_referents(obj):
            yield "inside", "", value


def of_torch_module(obj: Any) -> Iterator[Part]:
    own = own_dict(obj)
    for name, value in list(own.items()):
        if name in NESTED and isinstance(value, dict):
            for inner, part in list(dict.items(value)):
                yield "attribute", str(inner), part
        elif not (name.endswith("_hooks") and not value):
            yield "attribute", str(name), value


def of_nothing(_: Any) -> Iterator[Part]:
    return iter(())


READERS: list[tuple[type, Callable[[Any], Iterator[Part]]]] = [
    (dict, of_dict), (list, of_sequence), (tuple, of_sequence), (collections.deque, of_deque), (set, of_set), (frozenset, of_set),
    (types.FunctionType, of_function), (types.CellType, of_cell), (types.MethodType, of_method), (BaseException, of_exception),
    (types.TracebackType, of_traceback), (types.FrameType, of_frame), (types.GeneratorType, of_generator), (types.CoroutineType, of_generator),
    (types.AsyncGeneratorType, of_generator), (types.ModuleType, of_module), (type, of_class)]


@functools.lru_cache(maxsize=16384)
def readers(kind: type) -> tuple[Callable[[Any], Iterator[Part]], ...]:
    """How the parts of objects of a type are read."""
    if kind in ATOMS or kind.__module__.startswith(("cenote.", "weakref", "_weakref", "numpy")):
        return ()
    torch = sys.modules["torch"]
    if issubclass(kind, torch.nn.Module):
        return (of_torch_module,)
    for base, reader in READERS:
        if issubclass(kind, base):
            is_plain = kind is base or not kind.__flags__ & (1 << 9) or base in (type, BaseException, types.ModuleType)
            return (reader,) if is_plain else (reader, attributes)
    return (attributes,) if issubclass(kind, torch.Tensor) else (of_object,)


# --- reading tensors and graphs

class Reader:
    """PyTorch's own ways to read a tensor, past whatever a subclass makes of them."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        base = vars(torch._C.TensorBase)
        self.tensor = torch.Tensor
        self.storage = torch.UntypedStorage
        self.is_cuda, self.is_leaf, self.grad_fn, self.grad = (base[name].__get__ for name in ("is_cuda", "is_leaf", "grad_fn", "grad"))
        self.address = base.get("const_data_ptr", base["data_ptr"])
        self.untyped = base["untyped_storage"]
        self.saved_type = torch._C._autograd.SavedTensor

    def address_of(self, tensor: Any) -> int:
        """Where its memory is, 0: nowhere that is known."""
        try:
            return int(self.address(tensor) or self.untyped(tensor).data_ptr()) if self.is_cuda(tensor) else 0
        except (RuntimeError, NotImplementedError, TypeError):
            return 0  # sparse, fake, functional: what they consist of is found by itself, or is nowhere

    def gradient_of(self, tensor: Any) -> Any:
        return self.grad(tensor) if self.is_leaf(tensor) else None

    def saved_by(self, node: Any) -> Iterator[Any]:
        """Tensors that an operation of a graph keeps for its backward, while they live."""
        for name in saved_names(type(node)):
            try:
                raw = getattr(node, "_raw" + name)
                has_hooks = any(one.unpack_hook is not None for one in (raw if isinstance(raw, (tuple, list)) else (raw,)))
                if not has_hooks:
                    value = getattr(node, name if name != "_saved_tensors" else "saved_tensors")  # under the lock that backward takes
                else:  # what a hook made of it: unpacking would run the program's code, or a checkpoint's forward
                    value = [one.data for one in (raw if isinstance(raw, (tuple, list)) else (raw,))]
            except (RuntimeError, AttributeError):
                continue  # freed by backward, or changed in place
            yield from self.tensors_in(value)
        yield from self.tensors_in(own_dict(node))
        leaf = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
        if leaf is not None:
            yield leaf
            if self.gradient_of(leaf) is not None:
                yield self.gradient_of(leaf)

    def tensors_in(self, value: Any, depth: int = 3) -> Iterator[Any]:
        kind = type(value)
        if issubclass(kind, self.tensor):
            yield value
        elif depth and kind in (tuple, list):
            for item in value:
                yield from self.tensors_in(item, depth - 1)
        elif depth and kind is dict:
            for item in list(value.values()):
                yield from self.tensors_in(item, depth - 1)


@functools.lru_cache(maxsize=4096)
def saved_names(kind: type) -> tuple[str, ...]:
    """`_saved_self`, `_saved_result`... of a type of operations; `_saved_tensors` of those written in Python."""
    return tuple(name[4:] for name in dir(kind) if name.startswith("_raw_saved_"))


def inputs_of(node: Any) -> list[Any]:
    return [source for source, _ in node.next_functions if source is not None]


def length_of(node: Any) -> int:
    """Operations in a history, up to OPERATIONS of them."""
    seen, stack = {id(node): node}, [node]
    while stack and len(seen) < OPERATIONS:
        for source in inputs_of(stack.pop()):
            if id(source) not in seen:
                seen[id(source)] = source
                stack.append(source)
    return len(seen)


def reaches_back_to(node: Any, room: int, enough: int = -1) -> tuple[int, int]:
    """The lowest sequence number in a history that is seen within `room` operations, the oldest known first, or the first below `enough`; and how
    many were looked at."""
    lowest, order = LEAF, count()
    heap = [(node._sequence_nr(), next(order), node)]
    seen, looked = {id(node)}, 0
    while heap and looked < room and lowest >= enough:
        number, _, node = heapq.heappop(heap)
        lowest, looked = min(lowest, number), looked + 1
        for source in inputs_of(node):
            if id(source) not in seen:
                seen.add(id(source))
                number = source._sequence_nr()
                if number < LEAF:
                    heapq.heappush(heap, (number, next(order), source))
    return lowest, looked


# --- the search

class Search:
    """Breadth first, so that the shortest name is found. Lives for one call: it holds all that it has met."""

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
        for held in (self.met, self.ways, self.queue, self.histories):
            held.clear()

    def block_at(self, address: int) -> Optional[int]:
        at = bisect_right(self.starts, address) - 1
        return self.starts[at] if at >= 0 and address < self.blocks[at][1] else None

    def meet(self, obj: Any, parent: int, how: str, name: str) -> None:
        me, kind = id(obj), type(obj)
        if me in self.met or kind in ATOMS:
            return
        is_tensor = issubclass(kind, self.reader.tensor)
        if not is_tensor and not gc.is_tracked(obj) and kind is not types.FrameType and not issubclass(kind, self.reader.storage):
            return  # it holds nothing. Frames of functions that run are not tracked either
        self.met[me], self.ways[me] = obj, (parent, how, name)
        if is_tensor:
            self.look(obj)
        elif issubclass(kind, self.reader.storage):
            self.note(obj.data_ptr() if obj.device.type == "cuda" else 0, me)
        else:
            self.queue.append(obj)

    def note(self, address: int, me: int) -> None:
        block = self.block_at(address) if address else None
        if block is not None:
            self.found.setdefault(block, me)

    def look(self, tensor: Any) -> None:
        if not self.blocks:  # histories only
            node = self.reader.grad_fn(tensor)
            if node is not None:
                self.histories.append((id(tensor), node))
            return
        self.note(self.reader.address_of(tensor), id(tensor))
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

    def is_done(self) -> bool:
        if len(self.found) == len(self.blocks):
            return True
        if len(self.met) >= self.objects:
            self.gave_up = f"after {self.objects:,} objects"
        elif len(self.met) % 256 == 0 and time.monotonic() > self.until:
            self.gave_up = "for lack of time"
        return bool(self.gave_up)

    def run(self, is_for_all: bool = False) -> None:
        """Until the blocks are found; or, for all that has a history, until there is nothing more."""
        while self.queue and (not self.is_done() or (is_for_all and not self.gave_up)):
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
                links.append(Link(how, "", "", places_in_code.of_frame(obj)))
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
        place, codes = None, ()
        if how == "variable" and isinstance(owner, types.FrameType):
            place, codes = places_in_code.of_frame(owner), (owner.f_code,)
        elif how == "variable":
            place, codes = places_in_code.of_module(owner), places_in_code.codes_of_module(owner)
        elif how == "attribute" and owner is not None:
            codes = places_in_code.codes_of_class(type(owner))
        return Link(how, name, kind.__name__, place, bound_of(obj, owner), codes)


def bound_of(obj: Any, owner: Any) -> Optional[int]:
    """How many items a container takes at most, where it is made that way."""
    if isinstance(obj, collections.deque):
        if obj.maxlen is not None:
            return obj.maxlen
        most = own_dict(owner).get("maxsize") if owner is not None else None  # queue.Queue keeps its items in a deque
        return most if type(most) is int and most > 0 else None
    return None


def running() -> list[types.FrameType]:
    """Frames of all threads, this one's first, but for ours: with one that lies below this function it would be a cycle, and keep what was met."""
    frames: list[types.FrameType] = []
    here = threading.get_ident()
    tops = sys._current_frames()
    for thread in (here, *(thread for thread in tops if thread != here)):
        walker: Optional[types.FrameType] = tops[thread]
        while walker is not None:
            if not places_in_code.is_ours(walker.f_code.co_filename):
                frames.append(walker)
            walker = walker.f_back
    tops.clear()
    return frames


def roots(search: Search) -> None:
    """All that has a name: functions that run, inner ones first, then the program's modules, then what is left of exceptions, then libraries."""
    frames = running()
    own = [frame for frame in frames if not places_in_code.is_library(frame.f_code.co_filename)]
    for frame in own:
        search.meet(frame, 0, "same", "")
    for module in list(sys.modules.values()):
        if type(module) is types.ModuleType and places_in_code.is_programs(module):
            search.meet(module, 0, "same", "")
    for name in ("last_value", "last_exc"):
        if hasattr(sys, name):
            search.meet(getattr(sys, name), 0, "variable", f"sys.{name}")
    for frame in frames:
        search.meet(frame, 0, "same", "")


def search_backwards(search: Search) -> None:
    """For tensors that nothing named leads to, from their side: who refers to them, and to those."""
    missing = set(search.starts) - set(search.found)
    for obj in gc.get_objects():
        if not missing or time.monotonic() > search.until:
            break
        if not issubclass(type(obj), search.reader.tensor):
            continue
        block = search.block_at(search.reader.address_of(obj))
        if block in missing:
            missing.discard(block)
            search.met[id(obj)] = obj
            search.ways.setdefault(id(obj), (0, "unnamed", holder_type(obj, search)))
            search.found[block] = id(obj)


def holder_type(obj: Any, search: Search) -> str:
    """In words, what refers to an object that no name leads to."""
    ours = {id(search.met), id(vars(search))}
    for referrer in gc.get_referrers(obj):
        if type(referrer) is types.FrameType or id(referrer) in ours or places_in_code.is_ours_object(referrer):
            continue
        if isinstance(referrer, list) and len(referrer) > 10_000:
            continue  # gc.get_objects above
        return type(referrer).__name__
    return ""


def walk_histories(search: Search, missing: set[int], before: int) -> tuple[dict[int, int], dict[int, int]]:
    """Blocks that operations keep, with the tensor whose history it is; and the lengths of those histories. Histories that reach back before
    sequence number `before` come first: of two that have an operation, the one that carries it along is the reason."""
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
    """The program computes it from what it was: `total += loss`, `h = f(x, h)`."""
    named = [link for link in path if link.how in ("variable", "attribute", "closure")]
    return bool(named) and any(line.is_from_itself for line in places_in_code.keeping(named[-1].codes, named[-1].name, named[-1].how == "attribute"))


def find(blocks: Iterable[tuple[int, int]], before: int = 0, objects: int = OBJECTS, seconds: float = SECONDS) -> Findings:
    """Who holds the blocks, given as start and end."""
    torch: Any = sys.modules["torch"]
    search = Search(blocks, objects, seconds)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return find_with(search, before)
    finally:
        search.forget()


def find_with(search: Search, before: int) -> Findings:
    roots(search)
    search.run(is_for_all=True)
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
    """Histories of what the running functions reach in a few steps that were continued after sequence number `since`, go back to before `before`
    and are of something that is computed from itself: a look that is cheap enough for many steps of a program."""
    search = Search((), objects, SECONDS_LIGHT)
    while frame is not None:
        if not places_in_code.is_library(frame.f_code.co_filename):
            search.meet(frame, 0, "same", "")
            module = sys.modules.get(frame.f_globals.get("__name__", ""))
            if type(module) is types.ModuleType:
                search.meet(module, 0, "same", "")
        frame = frame.f_back
    search.run(is_for_all=True)
    found, left = [], 4 * operations
    for tensor, node in search.histories:
        if not since <= node._sequence_nr() < LEAF or left <= 0:
            continue
        lowest, looked = reaches_back_to(node, min(left, operations), before)
        left -= looked
        if lowest < before and is_carried(search.path(tensor)):
            found.append(Carried(search.path(tensor), lowest, length_of(node)))
    search.forget()
    return found
