"""What makes a history grow from step to step: a line, a tag or a name of which each of the last steps has left blocks that live at the end."""
from __future__ import annotations

import collections
from bisect import bisect_left
from typing import NamedTuple, Optional

from cenote.base.quantity import readable
from cenote.view.history import FOR_EVER, History

STEPS_LEAST = 5  # in a row, the last ones
FIRST = 2  # steps that are not looked at: parameters and the state of an optimizer come in these
LEAST = 64 << 10  # bytes a step
DIVISIONS = ("line", "name", "tag")


class Leak(NamedTuple):
    division: str
    name: str
    each: int  # bytes that a step leaves, in the mean
    steps: int


def of(history: History) -> Optional[Leak]:
    division = next((name for name in DIVISIONS if name in history.groups), None)
    steps = len(history.steps)
    if division is None or history.every != 1 or steps - FIRST < STEPS_LEAST:
        return None
    names, numbers = history.groups[division]
    left: dict[int, dict[int, int]] = collections.defaultdict(lambda: collections.defaultdict(int))  # bytes by name and step
    for block, (born, gone) in enumerate(zip(history.born, history.gone)):
        if gone == FOR_EVER and born:
            left[numbers[block]][bisect_left(history.steps, born)] += history.size[block]
    found = [leak for number, by_step in left.items() if (leak := of_name(division, names.names[number], by_step, steps)) is not None]
    return max(found, key=lambda leak: leak.each * leak.steps, default=None)


def of_name(division: str, name: str, by_step: dict[int, int], steps: int) -> Optional[Leak]:
    """The last step is not over for its blocks: what it made may be freed in the next one."""
    count = 0
    while count < steps - 1 - FIRST and by_step.get(steps - 2 - count, 0) >= LEAST:
        count += 1
    if count < STEPS_LEAST:
        return None
    return Leak(division, name, sum(by_step[steps - 2 - at] for at in range(count)) // count, count)


def words(leak: Leak, history: History) -> str:
    source = history.sources.get(leak.name, "")
    place = f"{leak.name}: {source}" if source else leak.name
    return (f"Memory grows: each of {leak.steps} steps left {readable(leak.each)} more, of {place}. Something keeps it from step to step; "
            "cenote.growth() says what.")
