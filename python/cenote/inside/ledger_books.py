"""The books of holders/growth.py where cenote does not allocate: the ledger of plugins/names has the live blocks, and where each was allocated."""
import struct
from typing import Any, Iterable

from cenote.holders.causes import Stack
from cenote.holders.growth import Books
from cenote.labels.names import Names
from cenote.native import bindings

BLOCK = struct.Struct("=QQQI12x")  # of struct Block of ledger.h: address, size, born, place


class LedgerBooks(Books):
    def __init__(self, device: int, names: Names) -> None:
        super().__init__(device, 0)
        self.names = names

    def pieces(self) -> Iterable[tuple[int, ...]]:
        return ((at, size, bindings.LIVE, 0, born) for at, size, born, _ in BLOCK.iter_unpack(self.names.block_bytes(self.device)))

    def add_end(self, step: int, is_counted: bool) -> None:
        self.ends.append((step, self.live, 0))


class LedgerStacks:
    """In place of PyTorch's history: a block has at most two lines there, the innermost one and the program's own."""

    def __init__(self, names: Names, books: "dict[int, Any]") -> None:
        self.names, self.books = names, books

    def want(self, step: int, is_suspicious: bool) -> None:
        pass

    def take(self) -> dict[int, Stack]:
        stacks: dict[int, Stack] = {}  # by place
        found: dict[int, Stack] = {}
        for device in self.books:
            for at, _, _, place in BLOCK.iter_unpack(self.names.block_bytes(device)):
                if place not in stacks:
                    stacks[place] = self.names.stack(place)
                found[at] = stacks[place]
        return found

    def end(self) -> None:
        pass


def devices(names: Names, count: int) -> list[int]:
    """Those that had a block."""
    return [device for device in range(count) if names.levels(device).peak]
