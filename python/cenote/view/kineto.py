"""Kineto's files, which torch.profiler writes: a history of their memory events, and what a history has in common with them, their clock.

A memory event ("[memory]", with profile_memory=True) has the address, the bytes, negative for a free, and what was allocated and reserved then.
"""
from __future__ import annotations

import collections
from array import array
from typing import Any, Iterator, NamedTuple, Optional, TypeGuard

from cenote.view.history import Broken, History

MEMORY, CUDA = "[memory]", 1
MATCHED = 2000  # events that are looked for in a history
LEAST = 8  # that have to be found, each as far from its allocation as the others
NEAR_US = 1000.0  # how far apart such distances may be


class Event(NamedTuple):
    ts: float  # microseconds
    device: int
    address: int
    bytes: int
    allocated: int
    reserved: int


def is_kineto(found: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(found, dict) and isinstance(found.get("traceEvents"), list)


def events(title: str, found: dict[str, Any]) -> Iterator[Event]:
    try:
        rows = [row for row in found["traceEvents"] if row.get("name") == MEMORY and row["args"].get("Device Type") == CUDA]
        for row in sorted(rows, key=lambda row: float(row["ts"])):
            args = row["args"]
            yield Event(float(row["ts"]), int(args["Device Id"]), int(args["Addr"]), int(args["Bytes"]), int(args.get("Total Allocated", 0)),
                        int(args.get("Total Reserved", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Broken(f"{title} is a damaged file of Kineto: {type(problem).__name__}: {str(problem)[:80]}") from None


def read(title: str, found: dict[str, Any]) -> list[History]:
    histories: dict[int, History] = {}
    live: dict[tuple[int, int], int] = {}
    began: Optional[float] = None
    for event in events(title, found):
        began = event.ts if began is None else began
        history = histories.get(event.device) or begun(histories, title, event)
        now = event.ts - began
        if event.bytes > 0:
            live[event.device, event.address] = history.allocate(event.bytes, event.address, now)
        elif (block := live.pop((event.device, event.address), None)) is not None:
            history.free(block, now)
        else:  # older than the first event
            history.free(history.allocate(-event.bytes, event.address, None), now)
        assert history.reserved is not None
        history.reserved.append(event.reserved)
    if not histories:
        raise Broken(f"{title} has no memory event of a GPU: torch.profiler writes them with profile_memory=True")
    for history in histories.values():
        older_blocks(history)
        history.divide_by_size()
    return [histories[device] for device in sorted(histories)]


def begun(histories: dict[int, History], title: str, event: Event) -> History:
    history = histories[event.device] = History(title, event.device)
    history.unit, history.reserved, history.reserved_first = "allocated", array("q"), event.reserved
    history.live_first = event.allocated - event.bytes  # blocks that are older and stay are no event
    history.notes.append("A file of Kineto has neither lines nor steps, and no blocks that were there before it and stayed.")
    return history


def older_blocks(history: History) -> None:
    """allocate() has added what was freed later to the live bytes of the beginning, which the first event had told."""
    history.live_first -= sum(size for size, born in zip(history.size, history.born) if not born)


def offset(title: str, found: dict[str, Any], histories: list[History]) -> float:
    """What to add to the times of the histories to have those of the file, in microseconds: most allocations of the file are in a history at that
    distance."""
    at: dict[tuple[int, int], list[float]] = collections.defaultdict(list)
    for history in histories:
        for block, born in enumerate(history.born):
            if born and history.address is not None:
                at[history.device, history.address[block]].append(history.time[born - 1])
    taken = [event for event in events(title, found) if event.bytes > 0][:MATCHED]
    if not taken:
        raise Broken(f"{title} has no memory event of a GPU: torch.profiler writes them with profile_memory=True")
    distances = sorted(event.ts - time for event in taken for time in at.get((event.device, event.address), ()))
    best, middle, first = 0, 0.0, 0
    for last, distance in enumerate(distances):
        while distance - distances[first] > NEAR_US:
            first += 1
        if last - first + 1 > best:
            best, middle = last - first + 1, distances[(first + last) // 2]
    if best < min(LEAST, len(taken)):
        raise Broken(f"{title} and the recording have no allocations in common: they have to be of one run, and to overlap")
    return middle
