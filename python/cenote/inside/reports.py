"""The reports of `import cenote`; each calls one function of libcenote. The only state is the last mark of each device."""
import ctypes
import os
import sys
from typing import NamedTuple, Union

from cenote.base import outputs, torch_pickle
from cenote.native import bindings
from cenote.native.bindings import WAIT, Device, Error, Level, LevelStruct, RowStruct
from cenote.torch import features, seams

MOST = (1 << 64) - 1
Path = Union[str, "os.PathLike[str]"]


class Row(NamedTuple):
    """One part of the allocated bytes of a device. The rows of a division add up to all allocated bytes."""

    name: str
    live: int  # bytes allocated now
    peak: int  # most bytes allocated at one time
    at_peak: int  # bytes allocated when the whole device was at its peak
    blocks: int  # live blocks
    reserved: int  # of an arena or a group: physical memory in it; else 0
    key: int


class Mark(NamedTuple):
    """The figures that cenote.mark printed."""

    name: str
    device: int
    live: int
    change: int  # of `live` since the last mark on this device; at the first mark, `live`
    kinds: dict[str, int]  # live bytes of each kind that has any


LINE = 4096
_last: dict[int, bindings.MarkedStruct] = {}  # the last mark, by device


def number(value: int, what: str, most: int = MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {type(value).__name__}")
    if not 0 <= value <= most:
        raise Error(f"{what} is from 0 to {most}, not {str(value)[:40]}")
    return value


def path_of(path: Path) -> str:
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise Error(f"{text!r:.80} is no path of a file")
    return text


# --- figures

def stats(device: Device = None) -> dict[str, Union[int, Level]]:
    found = bindings.stats_struct()()
    bindings.call("cenote_pool_stats", bindings.pool(device), ctypes.byref(found), ctypes.sizeof(found))
    values = {name: getattr(found, name) for name, *_ in found._fields_}
    return {name: bindings.level(value) if isinstance(value, LevelStruct) else value for name, value in values.items()}


def row(struct: RowStruct) -> Row:
    return Row(struct.name.decode(errors="replace"), struct.allocated.current, struct.allocated.peak, struct.at_peak, struct.blocks,
               struct.reserved, struct.key)


def rows(by: str = "tag", device: Device = None) -> list[Row]:
    if by not in bindings.DIVISIONS:
        raise Error(f"memory is divided by {', '.join(bindings.DIVISIONS)}, not by {by!r:.40}")
    found = bindings.all_of("cenote_pool_rows", RowStruct, bindings.pool(device), bindings.DIVISIONS.index(by))
    return sorted(map(row, found), key=lambda row: -row.live)


def mark(name: str, device: Device = None) -> Mark:
    encoded = bindings.text_bytes(name, "the name of a mark")
    at = bindings.device_number(device)
    pool, last = bindings.pool(at), _last.setdefault(at, bindings.MarkedStruct())
    before = last.live if last.name else 0
    text = ctypes.create_string_buffer(LINE)
    if not bindings.function("cenote_pool_mark")(pool, encoded, ctypes.byref(last), text, LINE, ctypes.sizeof(last)):
        raise Error(bindings.message())
    print("cenote: " + text.value.decode(errors="replace"), file=sys.stderr)
    live: int = last.live
    kinds = dict(zip(bindings.kinds(), last.kinds))
    return Mark(name, at, live, live - before, {kind: size for kind, size in kinds.items() if size})


def explain(device: Device = None, bytes: int = 0) -> str:
    return bindings.text_of("cenote_pool_explain", bindings.pool(device), number(bytes, "bytes"))


# --- files

def snapshot(path: Path, device: Device = None) -> None:
    text = path_of(path)
    pool = bindings.pool(device)
    if text.endswith(".json"):
        bindings.call("cenote_pool_snapshot", pool, os.fsencode(text))
    elif text.endswith(".pickle"):
        draw(text, pool)
    else:
        raise Error(f"{text!r:.80}: a snapshot is a .json or, for PyTorch's memory_viz, a .pickle")


def draw(path: str, pool: int) -> None:
    """PyTorch's own snapshot of all devices, with its history if one is recorded. Without PyTorch, or without the adapter, that of the one device."""
    torch = bindings.torch_with_gpu()
    if torch is not None and torch.cuda.get_allocator_backend() == "cenote" and features.is_whole("snapshot"):
        with outputs.whole(path) as file:  # not by torch.cuda.memory._dump_snapshot: an error in it would leave half a file
            torch_pickle.dump(seams.get("torch.cuda.memory._snapshot")(), file)
        return
    import tempfile

    from cenote.view import memory_viz
    with tempfile.TemporaryDirectory(prefix="cenote-") as folder:
        picture = os.path.join(folder, "snapshot.json")
        bindings.call("cenote_pool_snapshot", pool, os.fsencode(picture))
        memory_viz.write_memory_viz(picture, path)


def record(records: int, device: Device = None) -> None:
    number(records, "the number of records")
    for pool in ([bindings.pool(device)] if device is not None else bindings.pools().values() or [bindings.pool()]):
        bindings.call("cenote_pool_record", pool, records)


def save_trace(path: Path, device: Device = None) -> None:
    bindings.call("cenote_pool_record_save", bindings.pool(device), os.fsencode(path_of(path)))


# --- trimming

def trim(keep: int = 0, wait: bool = True, device: Device = None) -> None:
    number(keep, "keep")
    flags = WAIT if wait else 0
    for pool in ([bindings.pool(device)] if device is not None else bindings.pools().values() or [bindings.pool()]):
        bindings.call("cenote_pool_trim", pool, keep, flags)
