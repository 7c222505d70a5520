"""Reads a trace for a replay: arrays with the operations of its records, in order, which player.py plays without further checks.

A file is a trace (native/records.py) or a memory snapshot of PyTorch (torch_trace.py); both readers give tuples with the fields of struct record.
This module adds a free at the end for each block that is never freed, so that each repetition begins with the same state. It turns the allocations
of blocks that another stream uses into TENSOR_ALLOC, and computes peaks. It keeps only what a replay needs, of at most MOST records.
"""
import os
import sys
import zlib
from array import array
from typing import Callable, Iterator, NamedTuple, Optional

from cenote.base import inputs
from cenote.native.records import BATCH, MOST, MOST_DEVICES, RECORD, A, BrokenTrace, F, Reader, Record, U

# Operations of player.py. TENSOR_...: the block is a tensor of PyTorch, because another stream uses it. DEVICE changes the current device.
ALLOC, FREE, TENSOR_ALLOC, TENSOR_FREE, USE, STEP, DEVICE = range(7)

MOST_BYTES = 1 << 40  # of a block: as much as the largest simulated card has
SAMPLES = 600  # points of a picture: so many to twice as many

Progress = Callable[[int], None]  # is called with the number of records that were read


class Trace(NamedTuple):
    """A file that was read. The four arrays have one entry for each operation."""

    name: str  # of the file, without folder and endings
    records: int  # in the file
    live_peak: int  # the most requested bytes of live blocks at one time, on all devices together
    devices: int
    streams: list[tuple[int, int]]  # device and number; `stream` below is an index of this list
    blocks: int  # all of `block` are less than this
    every: int  # records that each sample of `live` covers
    live: list[int]  # the most live bytes within these records
    op: bytearray
    block: "array[int]"
    size: "array[int]"
    stream: "array[int]"


def name_of(path: str) -> str:
    return os.path.basename(path).partition(".csv")[0].removesuffix(".pickle").removesuffix(".pkl")


def load(path: str, progress: Optional[Progress] = None) -> Trace:
    """Raises BrokenTrace if the file cannot be read, or has an error."""
    try:
        with inputs.opened(path) as found:
            if found.kind == inputs.PYTORCH:
                from cenote.replay import torch_trace
                return build(path, torch_trace.records(path, found.file), progress)
            return build(path, read(found.path, path), progress)
    except (EOFError, OSError, ValueError, zlib.error) as problem:
        raise BrokenTrace(f"{path}: {getattr(problem, 'strerror', None) or problem}") from None


def read(path: str, title: str) -> Iterator[Record]:
    with Reader(path, title, MOST) as reader:
        for batch in reader.batches():
            yield from RECORD.iter_unpack(batch)


# --- from records to arrays

class Builder:
    """Takes the records of one file, in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.records = self.live = self.peak = self.devices = self.blocks = 0
        self.device = -1  # of the last allocation
        self.places: dict[tuple[int, int], int] = {}  # device and stream -> number
        self.born: dict[int, int] = {}  # live block -> index of its allocation
        self.samples: list[int] = []
        self.every, self.sample_peak = 1, 0  # the most live bytes since the last sample
        self.op, self.block, self.size, self.stream = bytearray(), array("I"), array("Q"), array("I")

    def append(self, op: int, block: int, size: int, stream: int) -> None:
        self.op.append(op)
        self.block.append(block)
        self.size.append(size)
        self.stream.append(stream)

    def place(self, device: int, stream: int) -> int:
        return self.places.setdefault((device, stream), len(self.places))

    def alloc(self, block: int, size: int, device: int, stream: int) -> None:
        if size > MOST_BYTES:
            raise BrokenTrace(f"{self.path}: record {self.records} asks for {size} bytes, more than any card has")
        if device != self.device:
            if device >= MOST_DEVICES:
                raise BrokenTrace(f"{self.path}: record {self.records} is of device {device}; the simulated machine has {MOST_DEVICES} at most")
            self.append(DEVICE, device, 0, 0)
            self.device = device
            self.devices = max(self.devices, device + 1)
        self.born[block] = len(self.op)
        self.blocks = max(self.blocks, block + 1)
        self.append(ALLOC, block, size, self.place(device, stream))
        self.live += size
        if self.peak < self.live:
            self.peak = self.live

    def free(self, block: int) -> None:
        at = self.born.pop(block)
        self.append(FREE if self.op[at] == ALLOC else TENSOR_FREE, block, self.size[at], 0)
        self.live -= self.size[at]

    def use(self, block: int, device: int, stream: int) -> None:
        at = self.born[block]
        place = self.place(device, stream)
        if place != self.stream[at]:  # a use on the block's own stream needs no record_stream
            self.op[at] = TENSOR_ALLOC
        self.append(USE, block, 0, place)

    def take(self, record: Record) -> None:
        self.records += 1
        _, op, _, size, stream, device, _, block, _, _ = record
        if op == A:
            self.alloc(block, size, device, stream)
        elif op == F:
            self.free(block)
        elif op == U:
            self.use(block, device, stream)
        else:
            self.append(STEP, 0, 0, 0)
        if self.sample_peak < self.live:
            self.sample_peak = self.live
        if self.records % self.every == 0:
            self.sample()

    def sample(self) -> None:
        """Ends a sample. If there are twice SAMPLES of them, each two become one."""
        self.samples.append(self.sample_peak)
        self.sample_peak = self.live
        if len(self.samples) == 2 * SAMPLES:
            self.samples, self.every = [max(pair) for pair in zip(self.samples[::2], self.samples[1::2])], self.every * 2

    def build(self) -> Trace:
        if not self.devices:
            raise BrokenTrace(f"{self.path}: there is no allocation in it")
        for block in list(self.born):
            self.free(block)
        return Trace(name_of(self.path), self.records, self.peak, self.devices, list(self.places), self.blocks, self.every, self.samples,
                     self.op, self.block, self.size, self.stream)


def build(path: str, records: Iterator[Record], progress: Optional[Progress] = None) -> Trace:
    builder = Builder(path)
    take = builder.take
    for record in records:
        take(record)
        if builder.records % BATCH == 0 and progress is not None:
            progress(builder.records)
        if builder.records > MOST:
            raise BrokenTrace(f"{path}: more than {MOST} records: record fewer of them (max_entries)")
    return builder.build()


# --- from one process to another

def save(trace: Trace, path: str) -> None:
    with open(path, "wb") as file:
        file.write(trace.op)
        for part in (trace.block, trace.size, trace.stream):
            part.tofile(file)


def restore(path: str, count: int) -> tuple[bytes, "array[int]", "array[int]", "array[int]"]:
    """The arrays op, block, size and stream of a file that `save` wrote, with `count` operations."""
    with open(path, "rb") as file:
        op = file.read(count)
        parts = (array("I"), array("Q"), array("I"))
        for part in parts:
            part.fromfile(file, count)
    return (op, *parts)


assert sys.byteorder == "little"
