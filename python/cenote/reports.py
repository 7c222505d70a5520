"""What a device's memory is for, in words and figures: one function of libcenote behind each of these. No state but what marks compare with."""
import os
import sys
from typing import Any, NamedTuple, Union

from cenote import bindings
from cenote.bindings import WAIT, Device, Error, Level, LevelStruct, RowStruct

MOST = (1 << 64) - 1
Path = Union[str, "os.PathLike[str]"]


class Row(NamedTuple):
    """One part of the allocated bytes of a device. The rows of one division add up to what is allocated."""

    name: str
    live: int  # bytes allocated now
    peak: int  # the most it ever was
    at_peak: int  # when that of the whole device was at its highest
    blocks: int  # live ones
    reserved: int  # of an arena or a group: physical memory that lies in it; else 0
    key: int


class Mark(NamedTuple):
    """What cenote.mark printed."""

    name: str
    device: int
    live: int
    change: int  # of `live` since the mark before
    peak: int  # of `live` since the memory was first used, or peaks were reset
    kinds: dict[str, int]  # live bytes of each kind that holds any


_last: dict[int, int] = {}  # by device: live bytes at the last mark


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


def size_text(size: int) -> str:
    for unit, digits in ((30, 2), (20, 1), (10, 1)):
        if abs(size) >= 1 << unit:
            return f"{size / (1 << unit):.{digits}f} {' KMG'[unit // 10]}iB"
    return f"{size} B"


# --- figures

def stats(device: Device = None) -> dict[str, Union[int, Level]]:
    found = bindings.stats_struct()()
    found.struct_size = bindings.size_of(found)  # type: ignore[attr-defined]
    bindings.call("cenote_pool_stats", bindings.pool(device), bindings.reference(found))
    values = {name: getattr(found, name) for name, *_ in found._fields_ if name != "struct_size"}
    return {name: bindings.level(value) if isinstance(value, LevelStruct) else value for name, value in values.items()}


def row(struct: RowStruct) -> Row:
    return Row(struct.name.decode(errors="replace"), struct.allocated.current, struct.allocated.peak, struct.at_peak, struct.blocks,
               struct.reserved, struct.key)


def rows(by: str = "tag", device: Device = None) -> list[Row]:
    if by not in bindings.DIVISIONS:
        raise Error(f"memory is divided by {', '.join(bindings.DIVISIONS)}, not by {by!r:.40}")
    found = bindings.all_of("cenote_rows", RowStruct, bindings.pool(device), bindings.DIVISIONS.index(by))
    return sorted(map(row, found), key=lambda row: -row.live)


def mark(name: str, device: Device = None) -> Mark:
    if not isinstance(name, str):
        raise TypeError(f"the name of a mark is a str, not {type(name).__name__}")
    at = bindings.device_number(device)
    parts = rows("kind", at)
    live, level = sum(part.live for part in parts), stats(at)["allocated"]
    assert isinstance(level, Level)
    made = Mark(name, at, live, live - _last.get(at, 0), level.peak, {part.name: part.live for part in parts if part.live})
    _last[at] = live
    kinds = ", ".join(f"{kind} {size_text(size)}" for kind, size in made.kinds.items())
    sign = "-" if made.change < 0 else "+"
    shown = "".join(c if c.isprintable() else "?" for c in name)
    print(f"cenote: {shown}: {size_text(live)} live, {sign}{size_text(abs(made.change))}" + (f" ({kinds})" if kinds else ""), file=sys.stderr)
    return made


def explain(device: Device = None, bytes: int = 0) -> str:
    return bindings.text_of("cenote_explain", bindings.pool(device), number(bytes, "bytes"))


# --- files

def snapshot(path: Path, device: Device = None) -> None:
    text = path_of(path)
    if text.endswith(".json"):
        bindings.call("cenote_snapshot", bindings.pool(device), os.fsencode(text))
    elif text.endswith(".pickle"):
        from cenote import memory_viz
        bindings.pool(device)
        memory_viz.write(text)
    else:
        raise Error(f"{text!r:.80}: a snapshot is a .json or, for PyTorch's memory_viz, a .pickle")


def record(records: int, device: Device = None) -> None:
    number(records, "the number of records")
    for pool in ([bindings.pool(device)] if device is not None else bindings.pools().values() or [bindings.pool()]):
        bindings.call("cenote_record", pool, records)


def save_trace(path: Path, device: Device = None) -> None:
    bindings.call("cenote_record_save", bindings.pool(device), os.fsencode(path_of(path)))


# --- giving back

def trim(keep: int = 0, wait: bool = True, device: Device = None) -> None:
    number(keep, "keep")
    flags = WAIT if wait else 0
    for pool in ([bindings.pool(device)] if device is not None else bindings.pools().values() or [bindings.pool()]):
        bindings.call("cenote_trim", pool, keep, flags)
