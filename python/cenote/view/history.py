"""The allocations and frees of one device: the form in which the readers of `cenote view` hand a file to what draws it.

A record is an allocation or a free. A moment is the number of records before it: moment 0 is before the first record. A block is live from moment
`born` until before moment `gone`. All columns are arrays of numbers: a million records take some 60 MB. The history of a snapshot has blocks, but no
records.
"""
from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

FOR_EVER = 0xFFFFFFFF  # `gone` of a block that is never freed
MOST_STEPS = 1 << 15  # steps that a history keeps; the HTML page has fewer
SIZE_LIMITS = (1 << 20, 8 << 20, 32 << 20, 128 << 20, 512 << 20)  # of the division "size"
ROUND = 512  # a block counts in units of this many bytes in "allocated", here as in the pool's counters


class Broken(ValueError):
    """The file is of another kind, or damaged; the message says why, in one line."""


def rounded(size: int) -> int:
    """What a block of this size counts in "allocated"."""
    return (size + ROUND - 1) // ROUND * ROUND


@dataclass
class Names:
    """Gives each name a number, in the order in which the names come."""
    names: list[str] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)

    def number(self, key: Any, name: Optional[str] = None) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.names)
            self.names.append(str(key) if name is None else name)
        return self.numbers[key]

    def rename(self, key: Any, name: str) -> None:
        self.names[self.number(key)] = name


class History:
    def __init__(self, title: str, device: int) -> None:
        self.title, self.device = title, device
        self.notes: list[str] = []  # sentences for the reader: what the file does not tell
        self.unit = "requested"  # or "allocated": what a block's `size` counts
        # records
        self.time = array("d")  # microseconds
        self.change = array("q")  # change of the live bytes
        self.block = array("L")  # number of the block that is allocated or freed
        # blocks
        self.born, self.gone = array("L"), array("L")
        self.size = array("Q")
        self.address: Optional[array[int]] = array("Q")
        self.groups: dict[str, tuple[Names, array[int]]] = {}  # division -> names, and a number for each block
        # steps
        self.steps = array("L")  # the moment at which every `every`-th step ended
        self.all_steps, self.every = 0, 1
        # memory held from the driver
        self.reserved: Optional[array[int]] = None  # bytes after each record; None if the file does not tell
        self.reserved_first = 0
        self.ranges: list[tuple[int, int, int, int]] = []  # address, size, from moment, until moment
        self.live_first = 0  # live bytes at moment 0
        self.moment: Optional[dict[str, Any]] = None  # of a snapshot: pages, steps, figures
        self.limits: dict[str, int] = {}  # bytes that the device has, or that may be reserved, by what that is
        self.words: list[str] = []  # sentences that stand above all: what to do
        self.sources: dict[str, str] = {}  # the text of a name of the division "line"
        self.marks: list[tuple[int, str]] = []  # a moment, and what happened then: memory ran out
        self.known_peak: Optional[tuple[int, int]] = None  # its moment and live bytes, if the file states them: it may lack blocks

    def division(self, name: str) -> tuple[Names, array[int]]:
        if name not in self.groups:
            self.groups[name] = (Names(), array("L"))
        return self.groups[name]

    def allocate(self, size: int, address: int, time: Optional[float]) -> int:
        """Adds a block and returns its number. `time` is None if the block is older than the first record.

        The caller then appends, in each division, the number of the block's name.
        """
        block = len(self.size)
        if time is None:
            self.born.append(0)
            self.live_first += size
        else:
            self.time.append(time)
            self.change.append(size)
            self.block.append(block)
            self.born.append(len(self.time))
        self.gone.append(FOR_EVER)
        self.size.append(size)
        if self.address is not None:
            self.address.append(address)
        return block

    def free(self, block: int, time: float) -> None:
        self.time.append(time)
        self.change.append(-self.size[block])
        self.block.append(block)
        self.gone[block] = len(self.time)

    def step(self, times: int = 1) -> None:
        """Ends `times` steps. Whenever there are MOST_STEPS of them, every second one is dropped."""
        for _ in range(times):
            self.all_steps += 1
            if self.all_steps % self.every == 0:
                self.steps.append(len(self.time))
                if len(self.steps) == MOST_STEPS:
                    self.steps = self.steps[1::2]
                    self.every *= 2

    def is_moment(self) -> bool:
        return self.moment is not None

    def divide_by_size(self) -> None:
        names, numbers = self.division("size")
        for i, name in enumerate(("under 1 MiB", "1 to 8 MiB", "8 to 32 MiB", "32 to 128 MiB", "128 to 512 MiB", "512 MiB and more")):
            names.number(i, name)
        numbers.extend(array("L", map(partial(bisect_right, SIZE_LIMITS), self.size)))

    def drop_plain_divisions(self, keep: str = "size") -> None:
        """Drops each division that has the same name for all blocks, except the division `keep`."""
        for name in list(self.groups):
            if name != keep and len(set(self.groups[name][1])) < 2:
                del self.groups[name]
