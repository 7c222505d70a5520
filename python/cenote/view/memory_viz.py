"""Converts the files of cenote_pool_snapshot and cenote_pool_record_save to the format of torch.cuda.memory._snapshot(), for PyTorch's viewer.

    python -m cenote.memory_viz SNAPSHOT.json PICTURE.pickle [TRACE.csv]

This is for programs without PyTorch, and imports no torch. The user drops the picture on https://docs.pytorch.org/memory_viz, or gives it to
torch.cuda._memory_viz. docs/snapshot.md says what is in a snapshot, docs/traces.md what is in a trace.
"""
import gzip
import os
import sys
import zlib
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Union
from urllib.parse import unquote

from cenote.base import inputs, outputs, torch_pickle
from cenote.native import records
from cenote.view import pool_snapshot
from cenote.view.history import Broken, rounded

Path = Union[str, "os.PathLike[str]"]
Table = dict[str, Any]

STATES = {"live": "active_allocated", "pending": "active_pending_free", "free": "inactive"}
DEVICES_MOST = 64


class Event(NamedTuple):
    """An allocation or a free of a trace."""

    is_alloc: bool
    time_us: int
    device: int
    stream: int
    address: int
    size: int
    tag: str


# --- files

UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error, inputs.TooMuch)


def read_snapshot(path: Path) -> Table:
    """Reads a file of cenote_pool_snapshot."""
    name = os.fspath(path)
    try:
        with inputs.opened(name) as found:
            return pool_snapshot.load(name, found.file)
    except UNREADABLE as problem:
        raise Broken(f"{name} is no snapshot: {problem}") from None


def read_trace(path: Path) -> Iterator[Event]:
    """Reads a file of cenote_pool_record_save. A trace without addresses is Broken."""
    name = os.fspath(path)
    try:
        with inputs.opened(name) as found:
            if found.kind != inputs.TRACE:
                raise Broken(f"{name} is no trace")
            with records.Reader(found.path, name) as reader:
                yield from _read(name, reader)
    except records.BrokenTrace as problem:
        raise Broken(str(problem)) from None
    except UNREADABLE as problem:
        raise Broken(f"{name} is no trace: {problem}") from None


def _read(name: str, reader: records.Reader) -> Iterator[Event]:
    """The events of a trace. A free has the size, stream and tag with which its block was allocated."""
    live: dict[int, Event] = {}
    for batch in reader.batches():
        if batch and not reader.tells("address"):
            raise Broken(f"{name}: no column address; a trace that cenote_pool_record_save wrote has it")
        for t_ns, op, _, size, stream, device, tag, block, address, _ in records.RECORD.iter_unpack(batch):
            if op == records.A:
                address = 0 if address == records.NOT_TOLD else address
                live[block] = Event(True, t_ns // 1000, device, stream, address, size, unquote(reader.label(tag) or ""))
                yield live[block]
            elif op == records.F:
                yield live.pop(block)._replace(is_alloc=False, time_us=t_ns // 1000)


# --- segments

def _tag_frames(tag: str) -> list[Table]:
    """A frame for each part of a tag, for the outer end of a block's stack: the viewer groups blocks by their stacks, and so shows the tags."""
    return [{"name": name, "filename": "tag", "line": 0} for name in reversed(tag.split("/"))] if tag else []


def _site_frames(site: str) -> list[Table]:
    """The frames of a text like "inner+0x1c (program+0x12ab) < outer+0x20 (program+0x34cd)"."""
    calls = [call.partition(" (") for call in site.split(" < ")] if site else []
    return [{"name": name, "filename": place.rstrip(")") or name, "line": 0} for name, _, place in calls]


class _Names:
    """The tags and sites that pieces name by number."""

    def __init__(self, snapshot: Table) -> None:
        self.tags = {row["key"]: row["name"] for row in snapshot["rows"]["tag"] if row["key"]}
        self.sites = snapshot["sites"]

    def frames(self, piece: Table) -> list[Table]:
        return _site_frames(self.sites.get(str(piece["site"]), "")) + _tag_frames(self.tags.get(piece["tag"], ""))


def _block(piece: Table, names: _Names) -> Table:
    return {"address": piece["address"], "size": piece["size"], "requested_size": piece["requested"], "state": STATES[piece["state"]],
            "frames": names.frames(piece)}


def _blocks(pieces: Iterable[Table], names: _Names) -> list[Table]:
    """The blocks of a segment. Adjacent free pieces are one block."""
    blocks: list[Table] = []
    for piece in pieces:
        if piece["state"] == "free" and blocks and blocks[-1]["state"] == "inactive":
            blocks[-1]["size"] += piece["size"]
        else:
            blocks.append(_block(piece, names))
    return blocks


def _segment(snapshot: Table, segment: Table, names: _Names) -> Table:
    pieces = [dict(zip(snapshot["piece_columns"], piece)) for piece in segment["pieces"]]
    sizes = {state: sum(rounded(piece["requested"]) for piece in pieces if piece["state"] == state) for state in STATES}
    return {"device": snapshot["pool"]["device"], "address": segment["address"], "total_size": sum(piece["size"] for piece in pieces),
            "allocated_size": sizes["live"], "active_size": sizes["live"] + sizes["pending"],
            "requested_size": sum(piece["requested"] for piece in pieces if piece["state"] == "live"), "stream": segment["stream"],
            "segment_type": "large", "segment_pool_id": (segment["group"], 0), "is_expandable": snapshot["pool"]["provider"] == "vmm",
            "frames": [], "blocks": _blocks(pieces, names)}


# --- events

def _event(action: str, event: Event) -> Table:
    return {"action": action, "addr": event.address, "size": rounded(event.size), "stream": event.stream, "time_us": event.time_us,
            "frames": _tag_frames(event.tag)}


def _events(trace: Iterable[Event], device: int, waiting: set[int]) -> list[Table]:
    """The trace's events of one device, in the viewer's form. A block is free as soon as the trace frees it, except the blocks that are still
    pending, whose addresses are in `waiting`: their last free is only requested."""
    events: list[Table] = []
    for event in trace:
        if event.device == device:
            events += [_event(action, event) for action in (("alloc",) if event.is_alloc else ("free_requested", "free_completed"))]
    seen: set[int] = set()  # addresses of later events
    kept: list[Table] = []
    for table in reversed(events):
        is_last = table["addr"] not in seen
        if table["action"] != "free_completed" or not is_last or table["addr"] not in waiting:
            kept.append(table)
        if table["action"] != "free_completed":
            seen.add(table["addr"])
    return kept[::-1]


# --- the picture

def to_memory_viz(snapshot: Table, trace: Optional[Iterable[Event]] = None) -> Table:
    """The pool in the format of torch.cuda.memory._snapshot(). `trace`, for the viewer's time lines: of the same pool, saved just before."""
    device = snapshot["pool"]["device"]
    if not 0 <= device < DEVICES_MOST:
        raise Broken(f"device {str(device)[:40]} of the snapshot does not exist")
    names = _Names(snapshot)
    segments = [_segment(snapshot, segment, names) for segment in snapshot["segments"] if segment["address"]]
    waiting = {block["address"] for segment in segments for block in segment["blocks"] if block["state"] == "active_pending_free"}
    traces: list[list[Table]] = [[] for _ in range(device + 1)]
    traces[device] = _events(trace or (), device, waiting)
    return {"segments": sorted(segments, key=lambda segment: segment["address"]), "device_traces": traces, "external_annotations": [],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
                                   "expandable_segments": snapshot["pool"]["provider"] == "vmm", "pinned_num_register_threads": 1,
                                   "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False, "roundup_power2_divisions": {}}}


def write_memory_viz(snapshot: Path, picture: Path, trace: Optional[Path] = None) -> None:
    """Reads a snapshot and perhaps a trace, and writes the picture."""
    try:
        data = to_memory_viz(read_snapshot(snapshot), read_trace(trace) if trace is not None else None)
    except Broken:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as problem:
        files = os.fspath(snapshot) + (f" or {os.fspath(trace)}" if trace is not None else "")
        raise Broken(f"{files} is incomplete: {type(problem).__name__}: {str(problem)[:80]}") from None
    with outputs.whole(os.fspath(picture)) as file:
        torch_pickle.dump(data, file)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        print("usage: python -m cenote.memory_viz SNAPSHOT.json PICTURE.pickle [TRACE.csv]", file=sys.stderr)
        return 2
    try:
        write_memory_viz(*arguments)
    except (OSError, Broken) as problem:
        print(f"cenote.memory_viz: {problem}", file=sys.stderr)
        return 1
    return 0
