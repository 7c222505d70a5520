"""A bar of the card: what holds how much of it, by letters. For screen.py; draws, and knows no run.

A part has as many letters as its share, rounded down; letters that are left go to the parts that lost most by it. So a part of less than a letter may
have none.
"""
from typing import NamedTuple, Optional, Sequence

from cenote.base.quantity import readable as size

WIDTH = 64
FREE, END = ".", "|"  # of the card; where the card ends, if more is needed
LISTED = 100  # a part of less than 1/100 of what is used is named only if it has a letter


class Part(NamedTuple):
    letter: str
    name: str
    bytes: int


def cells(parts: Sequence[int], whole: int) -> list[int]:
    """WIDTH letters in proportion. The parts make the whole."""
    exact = [part * WIDTH / whole for part in parts]
    found = [int(one) for one in exact]
    for at in sorted(range(len(parts)), key=lambda i: found[i] - exact[i])[:WIDTH - sum(found)]:
        found[at] += 1
    return found


def lines(parts: Sequence[Part], capacity: int, limit: str = "the card ends") -> list[str]:
    """Two: the bar, and what its letters are. `limit`: what the capacity is."""
    used = sum(part.bytes for part in parts)
    whole = max(used, capacity)
    if not used:
        return []
    drawn = [*parts, Part(FREE, "free", whole - used)]
    counts = cells([part.bytes for part in drawn], whole)
    text = "".join(part.letter * count for part, count in zip(drawn, counts))
    end: Optional[int] = int(WIDTH * capacity / whole) if used > capacity else None
    bar = text if end is None else text[:end] + END + text[end:]
    named = [f"{part.letter} {part.name} {size(part.bytes)}" for part, count in zip(parts, counts)
             if count or part.bytes * LISTED >= used]
    return [f"  [{bar}]", "   " + ", ".join(named + ([f"{END} {limit}"] if end is not None else []))]
