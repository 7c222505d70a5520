"""The page of `cenote run --report`: what `cenote view` draws, with each block's kind, module and line.

Under cenote the blocks come from its trace, and their names from the ledger of plugins/names: the last allocations at an address in the one are
the last ones there in the other. Under PyTorch's own allocators the ledger is all there is.
"""
import collections
import ctypes
from array import array
from typing import Any, Iterable, Sequence

from cenote.inside.holdings import Reader
from cenote.labels.names import LoggedStruct, Names
from cenote.view import moments
from cenote.view.history import History

UNKNOWN = "not known"
PARTS_MAX = 4  # of a module's name: the page stacks by name, and one for each part of each layer is too many


HELD = ("parameters", "gradients", "optimizer state", "buffers")  # kinds whose name ends with the module that has them


def short(name: str) -> str:
    """Layers that differ in their numbers alone are one."""
    return moments.fold(".".join(name.split(".")[:PARTS_MAX]))


def names_of(reader: Reader, block: Any) -> dict[str, str]:
    row = reader.row(block)
    module = row.name.rpartition(" of ")[2].rpartition(".")[0] if row.kind in HELD else ""
    module = module or reader.names.naming.text(reader.place(block.place).path)
    return {"kind": row.kind, "module": short(module) or "outside of modules", "line": row.line or UNKNOWN, "name": moments.name_of("name", row.name),
            "source": row.text}


def divide(history: History, names: Names, logged: Sequence[LoggedStruct]) -> None:
    """Gives the blocks of a trace's history their names."""
    if history.address is None:
        return
    reader = Reader(names)
    by_address: dict[int, list[LoggedStruct]] = collections.defaultdict(list)
    for one in sorted(logged, key=lambda each: each.came):
        by_address[one.block.at].append(one)
    found: list[Any] = [None] * len(history.size)
    for block in range(len(history.size) - 1, -1, -1):
        there = by_address.get(history.address[block])
        if there:
            found[block] = there.pop().block
    put(history, (names_of(reader, block) if block is not None else {} for block in found))


def put(history: History, all_names: Iterable[dict[str, str]]) -> None:
    divisions = {name: history.division(name) for name in ("kind", "module", "line", "name")}
    for found in all_names:
        if found.get("source"):
            history.sources[found["line"]] = found["source"]
        for division, (names, numbers) in divisions.items():
            name = found.get(division, UNKNOWN)
            numbers.append(names.number(name, name))
    front = {name: history.groups.pop(name) for name in ("kind", "module", "line", "name")}
    rest = dict(history.groups)
    history.groups.clear()
    history.groups.update({**front, **rest})


def add_end(history: History, error: Any) -> None:
    """Marks where memory ran out, if that ended the program: after it memory is only given back. And its advice."""
    text = str(error) if error is not None else ""
    if "out of memory" not in text.lower():
        return
    last = next((moment for moment in range(len(history.change), 0, -1) if history.change[moment - 1] > 0), 0)
    history.marks.append((last, "memory ran out"))
    history.words += advice(text)


def advice(text: str) -> list[str]:
    """The lines of advice in the message of an error."""
    return [f"Memory ran out. {line.partition(':')[2].strip()}" for line in text.splitlines() if line.startswith(("Advice:", "    or:"))]


def from_ledger(title: str, device: int, names: Names, logged: Sequence[LoggedStruct]) -> History:
    """The history of a device whose allocator records nothing."""
    history = History(title, device)
    history.unit = "allocated"
    history.reserved = array("q")
    history.notes.append("Under this allocator the page knows no streams; reserved memory is that of each moment at which a block came or went.")
    reader, blocks = Reader(names), list(logged)
    if len(blocks) >= LOG_MAX:
        history.notes.append(f"Of blocks that are no more, the page knows the last {LOG_MAX // 2:,} or more; older ones are left out.")
    events = sorted([(one.went, at) for at, one in enumerate(blocks) if one.went] + [(one.came, at) for at, one in enumerate(blocks)])
    began = min((one.came_us for one in blocks), default=0.0)  # the clock of the system counts from its start
    numbers: dict[int, int] = {}
    rows = []
    for event, at in events:
        one = blocks[at]
        if event == one.came:
            numbers[at] = history.allocate(one.block.size, one.block.at, one.came_us - began)
            rows.append(names_of(reader, one.block))
        else:
            history.free(numbers[at], one.went_us - began)
        history.reserved.append(one.came_reserved if event == one.came else one.went_reserved)
    put(history, rows)
    history.divide_by_size()
    return history


LOG_MAX = 1 << 20  # blocks of the past for each device


def logged(names: Names, device: int) -> Sequence[LoggedStruct]:
    room = 4096
    while True:
        found = (LoggedStruct * room)()
        count: int = names.library.cenote_names_logged(device, found, ctypes.c_size_t(room))
        if count <= room:
            return found[:count]
        room = count + count // 4
