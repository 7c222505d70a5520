"""Reads what PyTorch took from each device out of a memory snapshot (base/torch_pickle.py), for `cenote replay --recorded`.

A snapshot has the segments and blocks of its moment, and the last events before that moment. Going back over the events gives the segments and the
blocks that were there before the first event. A model of the allocator (tools/replay/torch.c) can start from them and play the same events as the
card. After each event the model should hold as many bytes as the card, and a new block should lie at the card's address.

The result is two traces (docs/traces.md). One is for the model of the allocator that was recorded, as tools/replay/torch.c describes it. The other
begins with the live blocks alone and is for all other allocators. This module compares nothing; recorded.py does.
"""
from __future__ import annotations

import bisect
from typing import IO, Any, NamedTuple, Optional

from cenote.base.torch_pickle import SEGMENT_GROWS, SEGMENT_SHRINKS
from cenote.native.records import BrokenTrace
from cenote.replay import torch_trace
from cenote.replay.torch_trace import BLOCK_EVENTS, Event, Table, number

MIB = 1 << 20
SMALL_SEGMENT = 2 * MIB  # of PyTorch's native allocator
LARGE_PAGE = 20 * MIB  # of PyTorch's expandable segments
SMALL_REQUEST_MAX = MIB  # larger requests are served by the large pool
REMAINDER_MAX = MIB  # the native allocator leaves a remainder of up to this size with a large block
ROUNDING = 512
COLUMNS = "t_us,op,id,bytes,stream,device,tag,address,reserved\n"
END = {"action": "end"}  # follows the last event
# Settings that the models do not have, with the values that the models assume.
DEFAULTS = {"max_split_size": -1, "garbage_collection_threshold": 0.0}


class Range(NamedTuple):
    """Memory that PyTorch held: a segment, or mapped pages of an expandable one."""

    address: int
    size: int
    stream: int
    is_large: bool


class Moment(NamedTuple):
    """The card after a record of the model's trace."""

    event: int  # index of the snapshot's event; for a step, of the event before it
    reserved: int
    live: int  # bytes asked for
    address: Optional[int]  # of the block, if the record is an allocation
    changes: int  # segment events since the record before


class Recording(NamedTuple):
    title: str
    device: int
    is_expandable: bool
    events: list[Table]
    reserved_before: int
    model_setup: int  # records at the beginning of `model`: the memory before the first event
    plain_setup: int  # records at the beginning of `plain`: the blocks before the first event
    model: list[str]  # trace for the model of the recorded allocator: the setup, then one line for each of `moments`
    plain: list[str]  # trace for other allocators: no steps, because they say when the recorded allocator gave segments back
    moments: list[Moment]
    notes: list[str]  # sentences: settings that the models do not have


# --- memory before the first event

def ranges_of(path: str, segments: list[Any], device: int) -> list[Range]:
    found = []
    for segment in segments:
        try:
            if segment["device"] == device:
                if segment["segment_type"] not in ("large", "small"):
                    raise ValueError(f"segment_type is {ascii(segment['segment_type'])[:40]}")
                found.append(Range(number(segment, "address"), number(segment, "total_size"), number(segment, "stream"),
                                   segment["segment_type"] == "large"))
        except (TypeError, KeyError, ValueError) as problem:
            raise BrokenTrace(f"{path}: a segment of device {device} is broken: {problem}") from None
    return sorted(found)


def ranges_without(ranges: list[Range], address: int, end: int) -> list[Range]:
    """The ranges, less [address, end)."""
    rest = []
    for r in ranges:
        pieces = [r] if r.address + r.size <= address or r.address >= end else [
            r._replace(size=address - r.address), r._replace(address=end, size=r.address + r.size - end)]
        rest += [piece for piece in pieces if piece.size > 0]
    return rest


def join_pages(ranges: list[Range]) -> list[Range]:
    """Makes one range of adjacent pages of an expandable segment, because a block may cross pages."""
    found: list[Range] = []
    for r in sorted(ranges):
        last = found[-1] if found else None
        if last and (last.address + last.size, last.stream, last.is_large) == (r.address, r.stream, r.is_large):
            found[-1] = last._replace(size=last.size + r.size)
        else:
            found.append(r)
    return found


def was_large(address: int, size: int, events: list[Table], is_expandable: bool) -> bool:
    """Whether memory that PyTorch had given back by the end belonged to the large pool."""
    if not is_expandable:
        return size != SMALL_SEGMENT
    block = next((e for e in events if e["action"] in BLOCK_EVENTS and address <= number(e, "addr") < address + size), None)
    return number(block, "size") > SMALL_REQUEST_MAX if block else size % LARGE_PAGE == 0


def held_before(path: str, ranges: list[Range], events: list[Table], is_expandable: bool) -> list[Range]:
    """The ranges before the first event: undoes the segment events, from the last to the first. `ranges`: those at the end."""
    for i in range(len(events) - 1, -1, -1):
        table = events[i]
        if table["action"] not in SEGMENT_GROWS + SEGMENT_SHRINKS:
            continue
        address, size = number(table, "addr"), number(table, "size")
        covered = sum(min(r.address + r.size, address + size) - max(r.address, address) for r in ranges
                      if r.address < address + size and address < r.address + r.size)
        if covered != (size if table["action"] in SEGMENT_GROWS else 0):
            raise BrokenTrace(f"{path}: event {i} ({table['action']}) does not agree with the segments at the end: the snapshot is damaged")
        if table["action"] in SEGMENT_GROWS:
            ranges = ranges_without(ranges, address, address + size)
        else:
            ranges = ranges + [Range(address, size, number(table, "stream"), was_large(address, size, events, is_expandable))]
    return join_pages(ranges) if is_expandable else sorted(ranges)


def rounded(size: int) -> int:
    return max(-(-size // ROUNDING) * ROUNDING, ROUNDING)


def remainders_of(blocks: list[Event], events: list[Event]) -> dict[int, int]:
    """The remainder that stayed with each native large block, by the block's address, as far as the events show.

    A block takes all of a free piece that is up to REMAINDER_MAX larger, and the snapshot has only the bytes asked for. If a new block is allocated
    behind a block that is still live, the live block ends where the first such block begins."""
    live = sorted(block.address for block in blocks)
    ends = {block.address: block.address + rounded(block.size) for block in blocks}
    found: dict[int, int] = {}
    for e in events:
        i = bisect.bisect(live, e.address) - 1
        if i < 0:
            continue
        if not e.is_alloc and live[i] == e.address:
            del live[i]
        elif e.is_alloc and live[i] not in found:
            remainder = e.address - ends[live[i]]
            found[live[i]] = remainder if 0 <= remainder <= REMAINDER_MAX else 0
    return found


# --- traces

class Writer:
    """Makes the lines of both traces."""

    def __init__(self, path: str, ranges: list[Range], is_expandable: bool, remainders: dict[int, int]) -> None:
        self.path, self.is_expandable = path, is_expandable
        self.ranges, self.remainders = ranges, remainders  # before the first event
        self.model: list[str] = []
        self.plain: list[str] = []
        self.streams: dict[int, int] = {0: 0}
        self.live: dict[int, tuple[int, int]] = {}  # address -> id, bytes asked for
        self.ids = self.reserved = self.live_bytes = 0
        self.first_us: Optional[int] = None  # the time of the first event
        self.now_us = 0

    def stream(self, handle: int) -> int:
        return self.streams.setdefault(handle, len(self.streams))

    def new(self, address: int, size: int) -> int:
        self.ids += 1
        self.live[address] = self.ids, size
        self.live_bytes += size
        return self.ids

    def add_setup(self, r: Range, address: int, size: int, block: int) -> None:
        self.model.append(f"0,a,{block},{size},{self.stream(r.stream)},0,{int(r.is_large)},{address},{self.reserved}\n")

    def set_up_range(self, r: Range, blocks: list[Event]) -> list[int]:
        """Allocates the blocks and the free pieces of a range, in the order of their addresses. Returns the ids of the free pieces."""
        gaps = []
        at, end = r.address, r.address + r.size
        self.reserved += r.size
        for i, block in enumerate([*blocks, Event(0, 0, True, end, 0, 0)]):
            if block.address < at or (block.address >= end and i < len(blocks)):
                raise BrokenTrace(f"{self.path}: the block at {block.address:#x} lies in another: the snapshot is damaged")
            if block.address > at:
                self.ids += 1
                gaps.append(self.ids)
                self.add_setup(r, at, block.address - at, self.ids)
            if i == len(blocks):
                break
            following = blocks[i + 1].address if i + 1 < len(blocks) else end
            at = block.address + rounded(block.size)
            if r.is_large and not self.is_expandable and at < following:
                at = following if following - at <= REMAINDER_MAX else min(at + self.remainders.get(block.address, 0), following)
            self.add_setup(r, block.address, at - block.address, self.new(block.address, block.size))
        return gaps

    def set_up(self, blocks: list[Event]) -> int:
        """Writes the beginning of both traces: the memory before the first event. Returns the number of blocks."""
        starts, within = [r.address for r in self.ranges], [[] for _ in self.ranges]  # type: tuple[list[int], list[list[Event]]]
        for block in blocks:
            i = bisect.bisect(starts, block.address) - 1
            if i < 0 or block.address + block.size > starts[i] + self.ranges[i].size:
                raise BrokenTrace(f"{self.path}: the block at {block.address:#x} lies in no segment: "
                                  "the snapshot is damaged, or of another allocator")
            within[i].append(block)
        gaps = [gap for r, inside in zip(self.ranges, within) for gap in self.set_up_range(r, inside)]
        self.model += [f"0,f,{gap},,0,0,0,,{self.reserved}\n" for gap in gaps]
        for block in blocks:
            self.plain.append(f"0,a,{self.live[block.address][0]},{block.size},{self.stream(block.stream)},0,0,,\n")
        return len(blocks)

    def add(self, e: Event, event: int) -> None:
        self.first_us = e.time_us if self.first_us is None else self.first_us
        self.now_us = max(self.now_us, e.time_us - self.first_us)
        stream = self.stream(e.stream)
        if e.is_alloc:
            if e.address in self.live:
                raise BrokenTrace(f"{self.path}: event {event} allocates {e.address:#x}, which is live")
            block = self.new(e.address, e.size)
            self.plain.append(f"{self.now_us},a,{block},{max(e.size, 1)},{stream},0,0,,\n")
            self.model.append(f"{self.now_us},a,{block},{max(e.size, 1)},{stream},0,0,{e.address},{self.reserved}\n")
        else:
            if e.address not in self.live:
                raise BrokenTrace(f"{self.path}: event {event} frees {e.address:#x}, which is not live")
            block, size = self.live.pop(e.address)
            self.live_bytes -= size
            self.plain.append(f"{self.now_us},f,{block},,{stream},0,0,,\n")
            self.model.append(f"{self.now_us},f,{block},,{stream},0,0,,{self.reserved}\n")

    def step(self) -> None:
        self.model.append(f"{self.now_us},s,,,0,0,0,,{self.reserved}\n")


def notes_on(snapshot: Table, segments: list[Any]) -> list[str]:
    settings = snapshot.get("allocator_settings")
    settings = settings if isinstance(settings, dict) else {}
    notes = [f"recorded with {name}:{settings[name]}, which the models do not have" for name, value in DEFAULTS.items()
             if settings.get(name, value) != value]
    rounding = settings.get("roundup_power2_divisions")
    if isinstance(rounding, dict) and any(rounding.values()):
        notes.append("recorded with roundup_power2_divisions, which the models do not have")
    if any(isinstance(s, dict) and tuple(s.get("segment_pool_id") or (0, 0)) != (0, 0) for s in segments):
        notes.append("the snapshot has private pools (CUDA graphs, MemPool), which the models do not have")
    return notes


def recording_of(path: str, snapshot: Table, device: int, events: list[Table]) -> Recording:
    segments = snapshot["segments"]
    ranges = ranges_of(path, segments, device)
    is_expandable = any(e["action"] in ("segment_map", "segment_unmap") for e in events) or any(s.get("is_expandable") for s in segments)
    of_blocks = [torch_trace.event(e, device) for e in events if e["action"] in BLOCK_EVENTS]
    blocks = torch_trace.blocks_before(of_blocks, torch_trace.blocks_at_the_end(path, segments, device))
    writer = Writer(path, held_before(path, ranges, events, is_expandable), is_expandable, remainders_of(blocks, of_blocks))
    plain_setup = writer.set_up(blocks)
    model_setup, reserved_before = len(writer.model), writer.reserved
    moments: list[Moment] = []
    given = taken = 0  # segment events since the last record
    for i, table in enumerate([*events, END]):
        action = table["action"]
        if given and action in (*SEGMENT_GROWS, *BLOCK_EVENTS, "end"):
            writer.step()
            moments.append(Moment(i - 1, writer.reserved, writer.live_bytes, None, given))
            given = 0
        if action in SEGMENT_SHRINKS:
            writer.reserved -= number(table, "size")
            given += 1
        elif action in SEGMENT_GROWS:
            writer.reserved += number(table, "size")
            taken += 1
        elif action in BLOCK_EVENTS:
            e = torch_trace.event(table, device)
            writer.add(e, i)
            moments.append(Moment(i, writer.reserved, writer.live_bytes, e.address if e.is_alloc else None, taken))
            taken = 0
    return Recording(path, device, is_expandable, events, reserved_before, model_setup, plain_setup, writer.model, writer.plain, moments,
                     notes_on(snapshot, segments))


def recordings(path: str, file: IO[bytes]) -> list[Recording]:
    """One recording for each device with events. Raises BrokenTrace if the file is no snapshot, is damaged, or has no history."""
    snapshot = torch_trace.load(path, file)
    found = []
    for device, events in enumerate(snapshot["device_traces"]):
        try:
            if any(e["action"] in BLOCK_EVENTS for e in events):
                found.append(recording_of(path, snapshot, device, events))
        except (TypeError, KeyError, AttributeError, ValueError) as problem:
            raise BrokenTrace(f"{path}: the history of device {device} is broken: {problem}") from None
    if not found:
        raise BrokenTrace(f"{path}: no allocation was recorded in it; call torch.cuda.memory._record_memory_history() before the program begins")
    return found
