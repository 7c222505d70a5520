"""The records in a memory snapshot of PyTorch's: the file that torch.cuda.memory._dump_snapshot() writes after _record_memory_history().

A snapshot has the events of the time that was recorded, the last so many, and the blocks that were there when it was taken. So the blocks that were
live before the first event are known: those whose free is in the events but not their allocation, and those that are there at the end and whose
allocation is not in them. They come first, in the order of their addresses.

A block is free where PyTorch says `free_completed`: between `free_requested` and that another stream was still using it. Which one is not said,
so that nothing but the moment is known of uses. Sizes are as they were asked for. Segments, pools and frames are the old allocator's business.

A pickle may run code when it is read. This one may not: dicts, lists, strings and numbers is all there is in a snapshot.
"""
import heapq
import pickle
from typing import IO, Any, Iterable, Iterator, NamedTuple

from cenote.base.inputs import Bounded, TooMuch
from cenote.native.records import MOST_DEVICES, A, BrokenTrace, F, Record

LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
Table = dict[str, Any]


class Event(NamedTuple):
    at: int  # us
    device: int
    is_alloc: bool
    address: int
    size: int
    stream: int


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot is made of dicts, lists, strings and numbers")


def load(path: str, file: IO[bytes]) -> Table:
    try:
        snapshot = Plain(Bounded(file)).load()
    except TooMuch as problem:
        raise BrokenTrace(f"{path}: a snapshot of {problem}; record fewer events (max_entries), without stacks "
                          "(stacks='python', context=None)") from None
    except (OSError, MemoryError) as problem:
        raise BrokenTrace(f"{path}: cannot be read: {problem or 'no host memory'}") from None
    except Exception as problem:  # an unpickler raises whatever the bytes make it raise
        raise BrokenTrace(f"{path}: this pickle is broken or no memory snapshot: {' '.join(str(problem).split())[:200]}") from None
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list) or not isinstance(snapshot.get("segments"), list):
        raise BrokenTrace(f"{path}: this pickle is no memory snapshot of PyTorch's: device_traces and segments are missing")
    return snapshot


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
    """By device, the allocations and frees."""
    for device, trace in enumerate(traces):
        found: list[Event] = []
        for i, table in enumerate(trace if isinstance(trace, list) else [trace]):
            try:
                if table["action"] in ("alloc", "free_completed"):
                    found.append(event(table, device))
            except (TypeError, KeyError, AttributeError, ValueError) as problem:
                raise BrokenTrace(f"{path}: event {i} of device {device} is broken: {problem}") from None
        yield found


# --- blocks that were there before

def blocks_at_the_end(path: str, segments: list[Any], device: int) -> Iterator[Event]:
    for segment in segments:
        try:
            if segment["device"] != device:
                continue
            address = number(segment, "address")
            for block in segment["blocks"]:
                at = number(block, "address") if "address" in block else address
                if block["state"] in LIVE:
                    yield Event(0, device, True, at, number(block, "requested_size" if "requested_size" in block else "size"),
                                number(segment, "stream"))
                address = at + number(block, "size")
        except (TypeError, KeyError, AttributeError, ValueError) as problem:
            raise BrokenTrace(f"{path}: a segment of device {device} is broken: {problem}") from None


def blocks_before(events: Iterable[Event], at_the_end: Iterable[Event]) -> list[Event]:
    """Live before the first of the events."""
    before: dict[int, Event] = {}
    known: set[int] = set()  # addresses of which there has been an event
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
    """As the reader of traces has them."""
    snapshot = load(path, file)
    traces, segments = snapshot["device_traces"], snapshot["segments"]
    if len(traces) > MOST_DEVICES:
        raise BrokenTrace(f"{path}: {len(traces)} devices; the simulated machine has {MOST_DEVICES} at most")
    by_device = list(events_of(path, traces))
    if not any(by_device):
        raise BrokenTrace(f"{path}: no allocation was recorded in it; call torch.cuda.memory._record_memory_history() before the program begins")
    old = [e for device, events in enumerate(by_device) for e in blocks_before(events, blocks_at_the_end(path, segments, device))]
    first = min(events[0].at for events in by_device if events)
    yield from number_blocks(path, old, heapq.merge(*by_device, key=lambda e: e.at), first)


def number_blocks(path: str, old: list[Event], events: Iterator[Event], first: int) -> Iterator[Record]:
    """Blocks and streams by small numbers."""
    live: dict[tuple[int, int], tuple[int, int]] = {}  # device and address -> block, size
    spare: list[int] = []
    streams: dict[int, int] = {0: 0}
    now = 0
    for i, e in enumerate([*old, *events]):
        now = max(now, (e.at - first) * 1000) if i >= len(old) else 0
        place = (e.device, e.address)
        if e.is_alloc:
            if place in live:
                raise BrokenTrace(f"{path}: event {i - len(old)} allocates {e.address:#x}, which is live")
            block = spare.pop() if spare else len(live) + 1
            live[place] = block, e.size
            yield now, A, block, e.size, streams.setdefault(e.stream, len(streams)), e.device, 0, block, 0, 0
        else:
            if place not in live:
                raise BrokenTrace(f"{path}: event {i - len(old)} frees {e.address:#x}, which is not live")
            block, size = live.pop(place)
            spare.append(block)
            yield now, F, block, size, streams.setdefault(e.stream, len(streams)), e.device, 0, block, 0, 0
