"""libcenote for Python: its functions by ctypes, its structs, and its errors as exceptions.

If a libcenote is in the process, as with PyTorch's adapter, it is used; else the one of this package is loaded. Tables of the headers (counters.def,
kinds.def, phases.def) are read from the files; the structs are repeated here, and a test compares them with the compiler's. The only state is the
library and the pools. Does not import torch, but uses it if the program has imported it.
"""
import ctypes
import os
import re
import sys
from functools import cache
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional, Sequence, TypeVar, Union

from cenote import places

SONAME = "libcenote.so.0"
MOST_DEVICES = 1 << 16  # the library refuses a smaller number if there is no such device
ROW = re.compile(r"^(\w+)\((.*)\)\s*$", re.MULTILINE)

Device = Union[None, int, str, Any]  # None: the current one; 1, "cuda:1", torch.device("cuda", 1)
Address = Optional[int]


class Error(RuntimeError):
    """An error of libcenote. The text says what is wrong and what to do; `name` is from errors.def: "INVALID", "OUT_OF_MEMORY"."""

    def __init__(self, message: str, code: int = 1, name: str = "INVALID") -> None:
        super().__init__(message)
        self.code = code
        self.name = name


# --- tables of the headers

@cache
def table(name: str) -> list[tuple[str, ...]]:
    """The rows of a table in include/cenote: macro and arguments. A text in quotes may have commas."""
    with open(os.path.join(places.include_folder(), "cenote", name), encoding="utf-8") as file:
        rows = ROW.findall(re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL))
    split = [(macro, *(part.strip() for part in re.split(r",(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", arguments))) for macro, arguments in rows]
    return [tuple(part.strip('"') for part in row) for row in split]


@cache
def kinds() -> list[str]:
    """Names of kinds, by number: "other", "parameters", ..."""
    return [row[2] for row in table("kinds.def")]


@cache
def phases() -> list[str]:
    return [row[3] for row in table("phases.def")]


def kind_number(constant: str) -> int:
    """The value of CENOTE_KIND_<constant>."""
    return [row[1] for row in table("kinds.def")].index(constant)


def phase_number(constant: str) -> int:
    return [row[1] for row in table("phases.def")].index(constant)


# --- structs of cenote.h, report.h and sleep.h

class LevelStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("current", "peak", "total_in", "total_out")]
    current: int
    peak: int
    total_in: int
    total_out: int


class RowStruct(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 192), ("key", ctypes.c_uint64), ("group", ctypes.c_void_p), ("stream", ctypes.c_void_p),
                ("allocated", LevelStruct), ("blocks", ctypes.c_uint64), ("at_peak", ctypes.c_uint64), ("reserved", ctypes.c_uint64)]
    name: bytes
    key: int
    group: Address
    stream: Address
    allocated: LevelStruct
    blocks: int
    at_peak: int
    reserved: int


class StepStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("step", "ns", "live", "reserved", "peak")]
    step: int
    ns: int
    live: int
    reserved: int
    peak: int


class PieceStruct(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("size", ctypes.c_uint64), ("requested", ctypes.c_uint64), ("segment", ctypes.c_uint64),
                ("group", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("stream_id", ctypes.c_uint64), ("state", ctypes.c_uint32),
                ("tag", ctypes.c_uint32), ("site", ctypes.c_uint32), ("kind", ctypes.c_uint8), ("phase", ctypes.c_uint8),
                ("lent", ctypes.c_uint8), ("came_whole", ctypes.c_uint8), ("born", ctypes.c_uint64),
                ("word", ctypes.c_uint64)]
    address: int
    size: int
    requested: int
    segment: int
    group: Address
    stream: Address
    stream_id: int
    state: int
    tag: int
    site: int
    kind: int
    phase: int
    lent: int
    came_whole: int
    born: int


class MomentStruct(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64), ("phase", ctypes.c_int32), ("keeps_history", ctypes.c_int32),
                ("training_peak", ctypes.c_uint64), ("gradients", ctypes.c_uint64)]
    bytes: int
    phase: int
    keeps_history: int
    training_peak: int
    gradients: int


class MarkedStruct(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 64), ("live", ctypes.c_uint64), ("kinds", ctypes.c_uint64 * 16)]
    name: bytes
    live: int
    kinds: Sequence[int]


class SleepStruct(ctypes.Structure):
    _fields_ = [("group", ctypes.c_void_p), ("blocks", ctypes.c_void_p), ("count", ctypes.c_uint64), ("contents", ctypes.c_uint32),
                ("unused", ctypes.c_uint32), *((name, ctypes.c_uint64) for name in ("pages", "kept", "discarded", "awake", "ns"))]
    group: Address
    blocks: Address
    count: int
    contents: int
    pages: int
    kept: int
    discarded: int
    awake: int
    ns: int


FREE, LIVE, PENDING = range(3)  # PieceStruct.state


@cache
def stats_struct() -> type[ctypes.Structure]:
    """cenote_stats, from counters.def."""
    types: dict[str, Any] = {"CENOTE_LEVEL": LevelStruct, "CENOTE_COUNT": ctypes.c_uint64, "CENOTE_GAUGE": ctypes.c_uint64}
    fields = [(name, ctypes.c_uint64) for name in ("page_bytes", "capacity", "limit")]
    fields += [(row[1], types[row[0]]) for row in table("counters.def")]
    return type("StatsStruct", (ctypes.Structure,), {"_fields_": fields})


# --- functions of cenote.h, report.h, share.h and sleep.h. Those that take a struct take its size as their last argument

_block, _stream = ctypes.c_void_p, ctypes.c_void_p
_pool, _out, _size, _count = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "cenote_message": (ctypes.c_char_p, []),
    "cenote_error_name": (ctypes.c_char_p, [ctypes.c_int]),
    "cenote_options_default": (ctypes.c_int, [_out, _size]),
    "cenote_options_parse": (ctypes.c_int, [_out, ctypes.c_char_p, _size]),
    "cenote_pool_default": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)]),
    "cenote_pool_create": (ctypes.c_int, [ctypes.c_int, _out, ctypes.POINTER(ctypes.c_void_p), _size]),
    "cenote_pool_grant": (ctypes.c_int, [_pool, ctypes.c_int]),
    "cenote_alloc": (ctypes.c_int, [_pool, ctypes.c_size_t, _stream, ctypes.POINTER(ctypes.c_void_p)]),
    "cenote_free": (ctypes.c_int, [_block]),
    "cenote_free_on": (ctypes.c_int, [_block, _stream]),
    "cenote_use": (ctypes.c_int, [_block, _stream]),
    "cenote_use_on_device": (ctypes.c_int, [_block, ctypes.c_int, _stream]),
    "cenote_pool_sync_begin": (ctypes.c_int, [_pool, ctypes.POINTER(ctypes.c_uint64)]),
    "cenote_pool_sync_end": (ctypes.c_int, [_pool, ctypes.c_uint64]),
    "cenote_export": (ctypes.c_int, [_block, _out]),
    "cenote_import": (ctypes.c_int, [_out, ctypes.c_size_t, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)]),
    "cenote_pool_import": (ctypes.c_int, [_pool, _out, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]),
    "cenote_import_close": (ctypes.c_int, [_block]),
    "cenote_import_range": (ctypes.c_int, [_block, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)]),
    "cenote_pool_stats": (ctypes.c_int, [_pool, _out, _size]),
    "cenote_pool_trim": (ctypes.c_int, [_pool, ctypes.c_uint64, ctypes.c_uint]),
    "cenote_pool_pause": (ctypes.c_int, [_pool, _out, _size]),
    "cenote_pool_resume": (ctypes.c_int, [_pool, _out, _size]),
    "cenote_pool_lend": (ctypes.c_int, [_pool, _out, ctypes.POINTER(ctypes.c_void_p), _size]),
    "cenote_loan_end": (ctypes.c_int, [ctypes.c_void_p, _out, _size]),
    "cenote_block_read_asleep": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, _size]),
    "cenote_pool_step": (ctypes.c_int, [_pool]),
    "cenote_pool_steps": (ctypes.c_int, [_pool, _out, _size, _count, _size]),
    "cenote_tag_push": (ctypes.c_int, [ctypes.c_char_p]),
    "cenote_tag_pop": (ctypes.c_int, []),
    "cenote_tag_share": (ctypes.c_int, [ctypes.c_int]),
    "cenote_phase_set": (ctypes.c_int, [ctypes.c_int]),
    "cenote_phase_now": (ctypes.c_int, []),
    "cenote_block_set_kind": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "cenote_pool_rows": (ctypes.c_int, [_pool, ctypes.c_int, _out, _size, _count, _size]),
    "cenote_pool_pieces": (ctypes.c_int, [_pool, ctypes.c_void_p, _out, _size, _count, _size]),
    "cenote_pool_mark": (ctypes.c_size_t, [_pool, ctypes.c_char_p, _out, _out, _size, _size]),
    "cenote_pool_explain": (ctypes.c_size_t, [_pool, ctypes.c_uint64, _out, _size]),
    "cenote_pool_record": (ctypes.c_int, [_pool, ctypes.c_uint64]),
    "cenote_pool_record_save": (ctypes.c_int, [_pool, ctypes.c_char_p]),
    "cenote_pool_snapshot": (ctypes.c_int, [_pool, ctypes.c_char_p]),
    "cenote_on_moment": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, _size]),
    "cenote_site_text": (ctypes.c_size_t, [ctypes.c_uint32, _out, _size]),
}
WAIT = 1  # CENOTE_TRIM_WAIT
KEEP, DISCARD, DISCARD_ALL, CONSTANT = range(4)  # enum cenote_contents
DIVISIONS = ("arena", "group", "class", "tag", "phase", "kind")  # enum cenote_division


@cache
def loaded() -> ctypes.CDLL:
    """The libcenote that is in the process or, if there is none, that of this package."""
    try:
        return ctypes.CDLL(SONAME, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
    except OSError:
        return ctypes.CDLL(places.library(), mode=ctypes.RTLD_GLOBAL)


@cache
def function(name: str) -> Callable[..., Any]:
    """A function of the library, with its types."""
    try:
        found = getattr(loaded(), name)
    except AttributeError:
        raise Error(f"this libcenote has no {name}: it is older than the Python package; install both again", 8, "NOT_SUPPORTED") from None
    found.restype, found.argtypes = FUNCTIONS[name]
    return found  # type: ignore[no-any-return]


def message() -> str:
    return str(function("cenote_message")().decode(errors="replace"))


def error(code: int) -> Error:
    """The Error for the result of the thread's last failing call."""
    return Error(message(), code, function("cenote_error_name")(code).decode().removeprefix("CENOTE_"))


def check(code: int) -> None:
    """Raises Error for a result of the library other than CENOTE_OK."""
    if code:
        raise error(code)


def call(name: str, *arguments: Any) -> None:
    check(function(name)(*arguments))


def text_bytes(text: str, what: str) -> bytes:
    """The text for C, in UTF-8. Refuses a NUL, at which C would end the text."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise Error(f"{what} is no Unicode text: {ascii(text)[:60]}") from None
    if b"\0" in encoded:
        raise Error(f"{what} has a NUL in it: {ascii(text)[:60]}")
    return encoded


Struct = TypeVar("Struct", bound=ctypes.Structure)


def all_of(name: str, struct: type[Struct], *arguments: Any) -> Sequence[Struct]:
    """All items of a function that fills an array and returns their number: called again with a larger array until all fit."""
    room, count = 256, ctypes.c_size_t()
    while True:
        items = (struct * room)()
        call(name, *arguments, items, room, ctypes.byref(count), ctypes.sizeof(struct))
        if count.value <= room:
            return items[:count.value]
        room = count.value + count.value // 8


def text_of(name: str, *arguments: Any) -> str:
    """The text of a function that prints like snprintf."""
    room = 4096
    while True:
        text = ctypes.create_string_buffer(room)
        length = function(name)(*arguments, text, room)
        if length < room:
            return text.value.decode(errors="replace")
        room = length + 1


# --- pools

def torch_with_gpu() -> Optional[ModuleType]:
    """torch, if the program has imported it completely and it is built with CUDA."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "cuda") and hasattr(torch.cuda, "is_initialized") and torch.version.cuda else None


_stands_in = False


def stands_in() -> None:
    """To be called when cenote is PyTorch's allocator without the adapter: PyTorch names its backend "pluggable" then, as for any other library."""
    global _stands_in
    _stands_in = True


def is_torchs(torch: ModuleType) -> bool:
    """Whether cenote is PyTorch's allocator, with or without the adapter."""
    return _stands_in or torch.cuda.get_allocator_backend() == "cenote"


def device_number(device: Device) -> int:
    """The number of a device as users write it. Does not check that the device exists."""
    torch = torch_with_gpu()
    if device is None:
        return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    number: Any = device
    if isinstance(device, str):
        kind, _, digits = device.rpartition(":")
        if device == "cuda":
            return device_number(None)
        if kind not in ("", "cuda") or not (digits.isascii() and digits.isdecimal()):
            raise Error(f"{device[:40]!r} is no device: write 1, 'cuda:1' or torch.device('cuda', 1)", 7, "NO_DEVICE")
        number = int(digits[:9])
    elif hasattr(device, "type") and hasattr(device, "index"):  # torch.device
        if device.type != "cuda":
            raise Error(f"{device} is no CUDA device: write 1, 'cuda:1' or torch.device('cuda', 1)", 7, "NO_DEVICE")
        return device_number(None) if device.index is None else int(device.index)
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"a device is a number, 'cuda:1' or a torch.device, not {type(device).__name__}")
    if not 0 <= number < MOST_DEVICES:
        raise Error(f"there is no device {number}: the first is 0", 7, "NO_DEVICE")
    return number


@cache
def _default(number: int) -> int:
    found = ctypes.c_void_p()
    call("cenote_pool_default", number, ctypes.byref(found))
    return found.value or 0


_used: dict[int, int] = {}  # by device
_has_all = False  # `_used` has all devices of PyTorch


def pool(device: Device = None) -> int:
    """The handle of a device's pool. Error if the program uses PyTorch with another allocator than cenote."""
    torch = torch_with_gpu()
    if torch is not None:
        if not is_torchs(torch):
            raise Error(f"cenote is not PyTorch's allocator here, {torch.cuda.get_allocator_backend()} is: call cenote.install() before the "
                        "first use of a GPU, or set CENOTE=on", 8, "NOT_SUPPORTED")
        if not torch.cuda.is_initialized():
            raise Error("PyTorch has not used a GPU in this process yet, so that there are no figures: call this after the first tensor on a GPU", 8,
                        "NOT_SUPPORTED")
    number = device_number(device)
    _used[number] = _default(number)
    return _used[number]


def pools() -> dict[int, int]:
    """The pools of this process, by device: of all devices once PyTorch has used one. Empty before that; never an Error."""
    global _has_all
    if _has_all:
        return _used
    torch = torch_with_gpu()
    if torch is not None and torch.cuda.is_initialized() and is_torchs(torch):
        for number in range(torch.cuda.device_count()):
            try:
                _used[number] = _default(number)
            except Error:
                continue
        _has_all = True
    return _used


# --- results of the library as Python objects

class Level(NamedTuple):
    """A quantity that goes up and down."""

    current: int
    peak: int
    total_in: int
    total_out: int


def level(struct: LevelStruct) -> Level:
    return Level(struct.current, struct.peak, struct.total_in, struct.total_out)


def pieces(device: Device = None) -> Sequence[PieceStruct]:
    """The pieces of a device: live, free and pending blocks."""
    return all_of("cenote_pool_pieces", PieceStruct, pool(device), None)
