"""The records in a memory snapshot of PyTorch (base/torch_pickle.py), for `cenote replay`.

A snapshot has the blocks of its moment, and the last events before that moment: as many as _record_memory_history() was told to keep. A block was
live before the first event if the events have its free but not its allocation, or if it is live at the end and no event allocates it. The records
begin with the allocations of such blocks, ordered by address.

A block is free at its `free_completed`; from `free_requested` until then another stream used it. The snapshot does not say which stream, so the
records have no uses. Sizes are the requested ones. Segments, pools and frames describe the allocator that was recorded, and are not read.
"""
import heapq
from typing import IO, Any, Iterable, Iterator, NamedTuple

from cenote.base import torch_pickle
from cenote.base.torch_pickle import LIVE_STATES
from cenote.native.records import MOST_DEVICES, A, BrokenTrace, F, Record

BLOCK_EVENTS = ("alloc", "free_completed")
Table = dict[str, Any]


class Event(NamedTuple):
    time_us: int
    device: int
    is_alloc: bool
    address: int
    size: int
    stream: int


def load(path: str, file: IO[bytes]) -> Table:
    try:
        return torch_pickle.load(path, file)
    except torch_pickle.BrokenPickle as problem:
        raise BrokenTrace(str(problem)) from None


# --- events

def number(table: Table, name: str) -> int:
    value = table.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {ascii(value)[:40]}, not a whole number from 0 to 2^63 - 1")
    return value


def event(table: Table, device: int) -> Event:
    return Event(number(table, "time_us"), device, table["action"] == "alloc", number(table, "addr"), number(table, "size"),
                 number(table, "stream"))


def events_of(path: str, traces: list[Any]) -> Iterator[list[Event]]:
    """The allocations and frees of each device, in the order of their events."""
    for device, trace in enumerate(traces):
        found: list[Event] = []
        for i, table in enumerate(trace if isinstance(trace, list) else [trace]):
            try:
                if table["action"] in BLOCK_EVENTS:
                    found.append(event(table, device))
            except (TypeError, KeyError, AttributeError, ValueError) as problem:
                raise BrokenTrace(f"{path}: event {i} of device {device} is broken: {problem}") from None
        yield found


# --- blocks that were live before the first event

def blocks_at_the_end(path: str, segments: list[Any], device: int) -> Iterator[Event]:
    for segment in segments:
        try:
            if segment["device"] != device:
                continue
            address = number(segment, "address")
            for block in segment["blocks"]:
                at = number(block, "address") if "address" in block else address
                if block["state"] in LIVE_STATES:
                    yield Event(0, device, True, at, number(block, "requested_size" if "requested_size" in block else "size"),
                                number(segment, "stream"))
                address = at + number(block, "size")
        except (TypeError, KeyError, AttributeError, ValueError) as problem:
            raise BrokenTrace(f"{path}: a segment of device {device} is broken: {problem}") from None


def blocks_before(events: Iterable[Event], at_the_end: Iterable[Event]) -> list[Event]:
    """An allocation for each block that was live before the first event, ordered by address."""
    before: dict[int, Event] = {}
    known: set[int] = set()  # addresses of earlier events
    for e in events:
        if e.address not in known and not e.is_alloc:
            before[e.address] = e._replace(is_alloc=True)
        known.add(e.address)
    for e in at_the_end:
        if e.address not in known:
            before[e.address] = e
    return [before[address] for address in sorted(before)]


# --- records

def records(path: str, file: IO[bytes]) -> Iterator[Record]:
    """The records of a snapshot, in the form of native/records.py."""
    snapshot = load(path, file)
    traces, segments = snapshot["device_traces"], snapshot["segments"]
    if len(traces) > MOST_DEVICES:
        raise BrokenTrace(f"{path}: {len(traces)} devices; the simulated machine has {MOST_DEVICES} at most")
    by_device = list(events_of(path, traces))
    if not any(by_device):
        raise BrokenTrace(f"{path}: no allocation was recorded in it; call torch.cuda.memory._record_memory_history() before the program begins")
    old = [e for device, events in enumerate(by_device) for e in blocks_before(events, blocks_at_the_end(path, segments, device))]
    first_us = min(events[0].time_us for events in by_device if events)
    yield from number_blocks(path, old, heapq.merge(*by_device, key=lambda e: e.time_us), first_us)


def number_blocks(path: str, old: list[Event], events: Iterator[Event], first_us: int) -> Iterator[Record]:
    """Makes records of the events, with small numbers instead of addresses and stream handles."""
    live: dict[tuple[int, int], tuple[int, int]] = {}  # device and address -> block, size
    spare: list[int] = []
    streams: dict[int, int] = {0: 0}
    now_ns = 0
    for i, e in enumerate([*old, *events]):
        now_ns = max(now_ns, (e.time_us - first_us) * 1000) if i >= len(old) else 0
        place = (e.device, e.address)
        if e.is_alloc:
            if place in live:
                raise BrokenTrace(f"{path}: event {i - len(old)} allocates {e.address:#x}, which is live")
            block = spare.pop() if spare else len(live) + 1
            live[place] = block, e.size
            yield now_ns, A, block, e.size, streams.setdefault(e.stream, len(streams)), e.device, 0, block, 0, 0
        else:
            if place not in live:
                raise BrokenTrace(f"{path}: event {i - len(old)} frees {e.address:#x}, which is not live")
            block, size = live.pop(place)
            spare.append(block)
            yield now_ns, F, block, size, streams.setdefault(e.stream, len(streams)), e.device, 0, block, 0, 0
