"""The library plugins/names: which blocks are live, or were at the peak, where each was allocated, and what holds it.

`begin` compiles and loads it, and connects it to PyTorch's allocator: cenote's adapter, or PyTorch's own allocator with or without expandable
segments. It is compiled as the adapter is. Where it cannot be made, labels work without it, more slowly, and blocks have no names.

States: none -> on <-> off. The library stays connected; while it is off it hears of blocks and forgets them.
"""
import atexit
import ctypes
import os
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

from cenote.base import source
from cenote.labels.naming import Naming
from cenote.native import adapter, bindings
from cenote.native.adapter import NotMade
from cenote.torch import features, seams

UNNAMED = (1 << 28) - 1
KIND_SHIFT = 28
INPUTS = 7  # beside the kinds of kinds.def
HOLDERS_MAX = 1 << 20


class BlockStruct(ctypes.Structure):
    """struct Block of ledger.h."""

    _fields_ = [("at", ctypes.c_uint64), ("size", ctypes.c_uint64), ("born", ctypes.c_uint64), ("place", ctypes.c_uint32),
                ("holder", ctypes.c_uint32), ("device", ctypes.c_int32), ("unused", ctypes.c_uint32)]


class LoggedStruct(ctypes.Structure):
    _fields_ = [("block", BlockStruct), ("came", ctypes.c_uint64), ("went", ctypes.c_uint64), ("came_us", ctypes.c_double),
                ("went_us", ctypes.c_double), ("came_reserved", ctypes.c_uint64), ("went_reserved", ctypes.c_uint64)]


class LevelsStruct(ctypes.Structure):
    _fields_ = [("now", ctypes.c_uint64), ("peak", ctypes.c_uint64), ("blocks", ctypes.c_uint64), ("peak_place", ctypes.c_uint32),
                ("unused", ctypes.c_uint32)]


class RulesStruct(ctypes.Structure):
    _fields_ = [("ours", ctypes.c_char_p), ("begins", ctypes.c_char_p), ("parts", ctypes.c_char_p)]


class PlaceStruct(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("phase", ctypes.c_uint32), ("inner", ctypes.c_void_p), ("own", ctypes.c_void_p),
                ("inner_line", ctypes.c_int32), ("own_line", ctypes.c_int32), ("node", ctypes.c_char_p), ("is_workspace", ctypes.c_int32)]


class Holder(NamedTuple):
    """A tensor that has a name: a parameter or a buffer of a module, or a tensor of an optimizer's state."""

    root: int  # of Naming; -1: it belongs to no module
    name: str
    shape: str
    of: int = -1  # of an optimizer's state: the number of the parameter


class Place(NamedTuple):
    path: int
    phase: int
    inner: tuple[str, int]  # file and line; "": none
    own: tuple[str, int]
    node: str
    is_workspace: bool


def file_of(code: Optional[int]) -> str:
    return str(ctypes.cast(code, ctypes.py_object).value.co_filename) if code else ""


def lines(texts: Any) -> bytes:
    return b"".join(os.fsencode(text) + b"\n" for text in texts)


class Names:
    """The library, and the names that it asks for."""

    def __init__(self, torch: ModuleType, library: ctypes.CDLL) -> None:
        self.torch, self.library = torch, library
        self.types = torch.Tensor, torch.nn.Parameter  # kept as long as the library may use them
        library.cenote_names_function.restype = ctypes.py_object
        self.enter, self.leave, self.name, self.number_of, self.hold, self.lacks_module, self.lacks_gradients, self.lacks_state, self.inputs = (
            library.cenote_names_function(name) for name in
            (b"enter", b"leave", b"name", b"number_of", b"hold", b"lacks_module", b"lacks_gradients", b"lacks_state", b"inputs"))
        library.cenote_names_blocks.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        library.cenote_names_blocks.restype = ctypes.c_size_t
        library.cenote_names_here.argtypes = library.cenote_names_log.argtypes = [ctypes.c_size_t]
        library.cenote_names_logged.restype = ctypes.c_size_t
        library.cenote_names_play.restype = ctypes.c_int64

    def start(self) -> bool:
        self.naming = Naming(self.torch)
        self.holders: list[Holder] = []
        self.numbers: dict[Holder, int] = {}
        set_kind: Any = bindings.function("cenote_block_set_kind") if bindings.is_torchs(self.torch) else None
        kind = ctypes.cast(set_kind, ctypes.c_void_p) if set_kind is not None else None
        begins = (*source.PYTHON, *source.GENERATED)
        rules = RulesStruct(lines((source.OURS,)), lines(begins), lines(source.INSTALLED))
        tensor, parameter, give = map(ctypes.py_object, (*self.types, self.naming.give))
        return not self.library.cenote_names_begin(tensor, parameter, give, kind, ctypes.byref(rules))

    def stop(self) -> None:
        self.library.cenote_names_end()

    def set_phase(self, phase: int) -> None:
        self.library.cenote_names_phase(phase)

    def log(self, most: int) -> None:
        """Keeps what a page over time needs: at most so many blocks that are no more."""
        self.library.cenote_names_log(most)

    def record(self, is_scratch: Optional[int]) -> None:
        """From now on records what is allocated and freed. `is_scratch`: the address of a function of a size; None: no size may differ on a card."""
        self.library.cenote_names_record(ctypes.c_void_p(is_scratch))

    def emptied(self) -> None:
        self.library.cenote_names_emptied()

    def mark(self, is_first: bool) -> None:
        """Tokens lie between marks in the recording."""
        self.library.cenote_names_mark(is_first)

    def period(self) -> int:
        """After how many tokens the program does the same again; 0: it does not."""
        return int(self.library.cenote_names_period())

    def play(self, tokens: int) -> int:
        """Lets the allocator do what so many more tokens would: the program must end then. The result is for how many it had memory."""
        return int(self.library.cenote_names_play(ctypes.c_int64(tokens)))

    def save(self, device: int, path: str) -> bool:
        return not self.library.cenote_names_save(device, os.fsencode(path))

    # --- names of tensors

    def number(self, holder: Holder) -> int:
        found = self.numbers.get(holder)
        if found is None:
            if len(self.holders) >= HOLDERS_MAX:
                return UNNAMED
            found = self.numbers[holder] = len(self.holders)
            self.holders.append(holder)
            self.naming.has_parts(holder.root)
        return found

    def holder(self, number: int) -> Optional[Holder]:
        return self.holders[number] if number < len(self.holders) else None

    # --- what it has seen

    def levels(self, device: int) -> LevelsStruct:
        found = LevelsStruct()
        self.library.cenote_names_levels(device, ctypes.byref(found))
        return found

    def blocks(self, device: int, at_peak: bool) -> list[BlockStruct]:
        room = 1024
        while True:
            found = (BlockStruct * room)()
            count: int = self.library.cenote_names_blocks(device, at_peak, found, room)
            if count <= room:
                return list(found[:count])
            room = count + count // 4

    def block_bytes(self, device: int) -> memoryview:
        """The live blocks, as the library has them: for thousands of blocks at each step."""
        room = 1024
        while True:
            found = (BlockStruct * room)()
            count: int = self.library.cenote_names_blocks(device, False, found, room)
            if count <= room:
                return memoryview(found).cast("B")[:count * ctypes.sizeof(BlockStruct)]
            room = count + count // 4

    def stack(self, number: int) -> list[dict[str, Any]]:
        """The lines of a place that are known, innermost first, as PyTorch has frames."""
        found = PlaceStruct()
        if self.library.cenote_names_place_at(number, ctypes.byref(found)):
            return []
        spots = dict.fromkeys(((found.inner, found.inner_line), (found.own, found.own_line)))
        return [{"filename": file_of(code), "line": line, "name": ctypes.cast(code, ctypes.py_object).value.co_name} for code, line in spots if code]

    def place(self, number: int) -> Place:
        found = PlaceStruct()
        if self.library.cenote_names_place_at(number, ctypes.byref(found)):
            return Place(0, 0, ("", 0), ("", 0), "", False)
        return Place(found.path, found.phase, (file_of(found.inner), found.inner_line), (file_of(found.own), found.own_line),
                     operation(found.node or b""), bool(found.is_workspace))

    def here(self, size: int) -> Place:
        """Where this thread is."""
        return self.place(self.library.cenote_names_here(size))

    def adopt(self) -> None:
        """Blocks that were live before the library was connected."""
        if not self.torch.cuda.is_initialized():
            return
        self.library.cenote_names_adopting(1)
        try:
            for device, found in live_blocks(self.torch).items():
                words = (ctypes.c_uint64 * (2 * len(found)))(*(word for block in found for word in block))
                self.library.cenote_names_adopt(device, words, ctypes.c_size_t(len(found)))
        finally:
            self.library.cenote_names_adopting(0)


def operation(node: bytes) -> str:
    """`AddmmBackward0` from the name that the compiler gives its type, in which each part has its length before it: N5torch...14AddmmBackward0E."""
    text, last = node.decode(errors="replace").lstrip("N"), ""
    while text[:1].isdigit():
        digits = len(text) - len(text.lstrip("0123456789"))
        size = int(text[:digits])
        last, text = text[digits:digits + size], text[digits + size:]
    return last


def live_blocks(torch: ModuleType) -> dict[int, list[tuple[int, int]]]:
    if bindings.is_torchs(torch):
        return {device: [(piece.address, piece.size) for piece in bindings.pieces(device) if piece.state == bindings.LIVE]
                for device in bindings.pools()}
    found: dict[int, list[tuple[int, int]]] = {}
    for segment in torch.cuda.memory_snapshot():
        found.setdefault(segment["device"], []).extend((block["address"], block["size"]) for block in segment["blocks"]
                                                       if block["state"] == "active_allocated")
    return found


_names: Optional[Names] = None
_refused = False


def connect(torch: ModuleType, library: ctypes.CDLL) -> bool:
    """False: PyTorch's allocator has no way to tell of its blocks."""
    if not bindings.is_torchs(torch):
        if torch.cuda.get_allocator_backend() != "native":
            return False
        if not features.is_whole("names"):
            return False
        seams.get("torch.cuda._lazy_call")(library.cenote_names_track)  # a device has an allocator from its first use on
        return True
    ours = adapter.active
    if ours is None:
        return False
    functions = (ctypes.c_void_p * 3)()
    library.cenote_names_watchers(functions)
    ours.cenote_torch_watch_blocks(*(ctypes.c_void_p(function) for function in functions))
    return True


def begin(torch: ModuleType, say: Callable[[str], None] = lambda text: None) -> Optional[Names]:
    """None: there are no names, and why was said."""
    global _names, _refused
    if _refused:
        return None
    if _names is None:
        try:
            library = ctypes.PyDLL(adapter.loaded(adapter.describe(torch), say, adapter.NAMES)[1]._name)
        except (NotMade, OSError) as why:
            _refused = True
            say(f"cenote: memory has no labels: {why}")
            return None
        made = Names(torch, library)
        if not made.start() or not connect(torch, library):
            made.stop()
            _refused = True
            return None
        atexit.register(library.cenote_names_python_ends)
        _names = made
    else:
        _names.start()
    _names.adopt()
    return _names
