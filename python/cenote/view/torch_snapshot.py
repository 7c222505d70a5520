"""Reads a memory snapshot of PyTorch (base/torch_pickle.py) for `cenote view`.

A snapshot has the blocks of its moment, and a trace of the last events before that moment. A block was live before the trace began if the trace does
not have its allocation, and frees it or leaves it live at the end.
"""
from __future__ import annotations

import ctypes
import gc
import os
import re
from array import array
from itertools import accumulate
from typing import IO, Any, Iterable

from cenote.base import torch_pickle
from cenote.base.torch_pickle import LIVE_STATES, SEGMENT_GROWS, SEGMENT_SHRINKS
from cenote.view.history import FOR_EVER, Broken, History

LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[.0-9]*/|^<")
BACKWARD = re.compile(r"(\w*Backward\w*)::apply")
NO_LINE = "no line of Python"
KEPT = {"alloc", "free_completed", *SEGMENT_GROWS, *SEGMENT_SHRINKS}  # of the events; after `free_requested` the block is still in use
MOST_ALIKE = 64  # stacks that are compared with one
MOST_STACKS = 1 << 16  # whose lines are kept: some hundred megabytes at most
TAKES_MEMORY = re.compile(r"\?\?|_?start|torch::(unwind|CapturedTraceback)|c10::|at::(detail|empty|TensorIterator|_ops)|at::native::empty|std::")


def abandon(thing: Any) -> None:
    """Keeps `thing` until the process ends. To free millions of events takes a second; the system takes their memory back at once."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    gc.freeze()  # what Python looks for at its end is not among them


def read(title: str, file: IO[bytes], is_last: bool = False) -> list[History]:
    """A history for each device. `is_last`: the process ends soon afterwards, so that the snapshot is not freed."""
    try:
        snapshot = torch_pickle.load(title, file)
    except torch_pickle.BrokenPickle as problem:
        raise Broken(str(problem)) from None
    if is_last:
        abandon(snapshot)
    try:
        traces = snapshot["device_traces"]
        devices = sorted({segment["device"] for segment in snapshot["segments"]} | {device for device, trace in enumerate(traces) if trace})
        histories = [Builder(title, device, snapshot).history for device in devices]
    except Exception as problem:  # a value of an unexpected type can raise any exception
        raise Broken(f"{title} is damaged or no memory snapshot of PyTorch: {type(problem).__name__}: {str(problem)[:100]}") from None
    if not any(history.born for history in histories):
        raise Broken(f"{title} has no block and no event: there is nothing to draw")
    return histories


def place(frames: Any) -> str:
    """The innermost line of the program's own files. If the stack has none, as in autograd's threads: the innermost function that does more than
    take memory."""
    known = [frame for frame in frames or () if frame.get("filename") not in (None, "", "??")]
    for frame in known:
        file = str(frame["filename"])
        if file.endswith(".py") and not LIBRARY.search(file):
            return f"{os.path.basename(file)}:{frame['line']} {frame['name']}"
    names = [str(frame["name"]) for frame in known]
    if known and known[0]["filename"] == "tag":  # a tag, as cenote.memory_viz writes it
        return names[0]
    backward = next((match[1] for name in names if (match := BACKWARD.search(name))), None)
    return backward or next((name.partition("(")[0][:100] for name in names if not TAKES_MEMORY.match(name)), NO_LINE)


class Ranges:
    """The address ranges held from the driver, and from which record until which."""

    def __init__(self) -> None:
        self.open: list[tuple[int, int, int]] = []  # first address, end, since which record
        self.closed: list[tuple[int, int, int, int]] = []

    def grow(self, address: int, size: int, now: int) -> None:
        self.open.append((address, address + size, now))

    def cut(self, address: int, end: int, now: int) -> list[tuple[int, int]]:
        """Closes [address, end). Returns the parts of it that were not open: these were held before the trace began."""
        rest, missing = [], [(address, end)]
        for first, last, since in self.open:
            if last <= address or first >= end:
                rest.append((first, last, since))
                continue
            low, high = max(first, address), min(last, end)
            self.closed.append((low, high - low, since, now))
            rest += [piece for piece in ((first, low, since), (high, last, since)) if piece[0] < piece[1]]
            missing = [part for a, b in missing for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]]
        self.open = rest
        return missing

    def shrink(self, address: int, size: int, now: int) -> None:
        self.closed += [(a, b - a, 0, now) for a, b in self.cut(address, address + size, now)]

    def finish(self, segments: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
        """All ranges. `segments`: address and size of what is held at the end."""
        self.closed += [(a, b - a, 0, FOR_EVER) for address, size in segments for a, b in self.cut(address, address + size, FOR_EVER)]
        return self.closed + [(first, last - first, since, FOR_EVER) for first, last, since in self.open]


class Builder:
    """Makes the history of one device."""

    def __init__(self, title: str, device: int, snapshot: dict[str, Any]) -> None:
        self.history = History(title, device)
        self.history.unit = "allocated"
        self.live: dict[int, int] = {}  # address -> number of the block
        assert self.history.address is not None
        self.addresses = self.history.address
        self.ranges = Ranges()
        self.growth: dict[int, int] = {}  # record -> bytes taken from the driver just before
        self.lines, self.streams = self.history.division("line"), self.history.division("stream")
        self.alike: dict[tuple[int, ...], list[tuple[Any, int]]] = {}  # some frames of a stack, which stay where they are -> stacks and their lines
        self.stacks = 0  # in `alike`
        traces = snapshot["device_traces"]
        self.take(traces[device] if device < len(traces) else [])
        self.finish([segment for segment in snapshot["segments"] if segment["device"] == device])
        self.history.notes.append("A snapshot of PyTorch has allocated bytes (rounded up), not requested ones, and no steps.")

    def line(self, frames: Any) -> int:
        """The number of the line of a stack. Millions of events have some thousand stacks, made of the same frames, and lists of the same objects
        are compared at once: five frames choose the few stacks to compare with."""
        if not frames:
            return self.lines[0].number(NO_LINE)
        last = len(frames) - 1
        few = (last, id(frames[0]), id(frames[last >> 2]), id(frames[last >> 1]), id(frames[last - (last >> 2)]), id(frames[last]))
        alike = self.alike.get(few)
        if alike is None:
            alike = self.alike[few] = []
        for stack, line in alike:
            if stack == frames:
                return line
        if self.stacks == MOST_STACKS:
            self.alike, self.stacks = {few: alike}, 0
        if len(alike) == MOST_ALIKE:
            alike.clear()
        line = self.lines[0].number(place(frames))
        alike.append((frames, line))
        self.stacks += 1
        return line

    def add(self, size: int, address: int, frames: Any, stream: Any) -> int:
        """A block from before the trace."""
        self.lines[1].append(self.line(frames))
        self.streams[1].append(self.stream(stream))
        return self.history.allocate(size, address, None)

    def stream(self, stream: Any) -> int:
        return self.streams[0].number(stream, f"stream {stream:#x}")

    def take(self, trace: Iterable[dict[str, Any]]) -> None:
        """Millions of events come here. So this is allocate() and free() of the history in one loop, which looks nothing up twice."""
        history, live, line, line_of, stream_of = self.history, self.live, self.line, self.lines[1].append, self.streams[1].append
        sizes, gone, size_of, address_of = history.size, history.gone, history.size.append, self.addresses.append
        time_of, change_of, block_of = history.time.append, history.change.append, history.block.append
        born_of, gone_of = history.born.append, gone.append
        streams: dict[Any, int] = {}
        now, record, began = 0, 0, 0
        for event in trace:
            action = event["action"]
            if action not in KEPT:
                if action == "oom":
                    history.marks.append((record, "memory ran out"))
                continue
            address, size, time = event["addr"], event["size"], event.get("time_us", 0)
            if time > now:
                now = time
            if not record:
                began = now  # times count from the first record
            if action == "alloc":
                block = live[address] = len(sizes)
                record += 1
                time_of(now - began), change_of(size), block_of(block), born_of(record)
                size_of(size), gone_of(FOR_EVER), address_of(address)
                stream = event.get("stream", 0)
                if stream not in streams:
                    streams[stream] = self.stream(stream)
                stream_of(streams[stream]), line_of(line(event.get("frames")))
            elif action == "free_completed":
                old = live.pop(address, None)
                block = self.add(size, address, None, event["stream"]) if old is None else old
                record += 1
                time_of(now - began), change_of(-sizes[block]), block_of(block)
                gone[block] = record
            else:
                self.remap(address, size, action in SEGMENT_GROWS)

    def remap(self, address: int, size: int, grows: bool) -> None:
        record = len(self.history.time)
        (self.ranges.grow if grows else self.ranges.shrink)(address, size, record)
        self.growth[record] = self.growth.get(record, 0) + (size if grows else -size)

    def finish(self, segments: list[dict[str, Any]]) -> None:
        """Adds what the snapshot's moment has and the trace did not bring: it was there before the trace began."""
        history = self.history
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                at = block.get("address", address)
                if block["state"] in LIVE_STATES and at not in self.live:
                    self.add(block["size"], at, block.get("frames"), segment["stream"])
                address += block["size"]
        history.ranges = self.ranges.finish([(segment["address"], segment["total_size"]) for segment in segments])
        held = history.reserved_first = sum(segment["total_size"] for segment in segments) - sum(self.growth.values())
        grown = array("q", bytes(8 * len(history.time)))
        for record, size in self.growth.items():
            if record < len(grown):
                grown[record] = size
        history.reserved = array("q", accumulate(grown, initial=held))[1:]
        if history.time and len(history.time) in self.growth:
            history.reserved[-1] += self.growth[len(history.time)]
        if not history.time:
            history.moment = {"steps": [], "figures": {"allocated": history.live_first, "reserved": held}}
            history.notes.append("No trace was recorded with this snapshot (torch.cuda.memory._record_memory_history): it shows one moment.")
        history.divide_by_size()
        history.drop_plain_divisions()
