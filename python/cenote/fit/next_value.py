"""Which value a search tries next. Memory mostly grows in proportion to a batch, so a line through two runs that fit comes close to the largest value
that fits; the runs around it prove it.

Nothing here is taken for true that was not run: the line only chooses. The search is over when a value fits and the next one does not, or when the
largest value fits, or when the smallest does not. If the line is wrong, the steps away from it double; and if two runs in a row have not halved what
is left, the third one halves it. So no shape of the memory takes more than about twice the runs of a bisection.

This file runs nothing, and knows no program: search.py tells it what each run gave.
"""
import bisect
from typing import NamedTuple, Optional, Sequence


class Point(NamedTuple):
    """A run that fits, in bytes."""

    value: int
    held: int  # at most, with the context
    live: int  # at most, with the context: no allocator can do with less
    fixed: int  # of `live`: what a larger value does not enlarge (parameters, gradients, state of an optimizer, the context)


ALIKE = 0.02  # two runs have their peaks at the same moment of a step if their fixed bytes differ by less than this part
FIRST = 0.85  # the second run goes so far towards where the first one points: a run that fits tells its memory, one that does not tells little
FAINT, FAR = 0.1, 4  # if less than this part of the first run grows with the value, the second goes no further than to so many times the value
CLOSE = 3  # places between what is sure to fit and what may fit at best: try the best
NEAR = 1.2  # a line that was wrong at so many times a value that fits is not far wrong: look beside its end


def slope(points: Sequence[Point]) -> float:
    """Bytes for each 1 of the value at the largest value that fits. The second point is the next smaller one with its peak at the same moment of a
    step; without one, what is not fixed grows in proportion to the value."""
    last = points[-1]
    for before in reversed(points[:-1]):
        if abs(last.fixed - before.fixed) <= ALIKE * last.fixed:
            return (last.live - before.live) / (last.value - before.value)
    return (last.live - last.fixed) / max(last.value, 1)


class Hunt:
    """States: nothing known -> the smallest fits -> between `fits` and `fails` -> over."""

    def __init__(self, values: Sequence[int], capacity: int) -> None:
        self.values, self.capacity = values, capacity
        self.fits, self.fails = -1, len(values)  # places in `values`: the largest that fits, the smallest above it that does not
        self.points: dict[int, Point] = {}  # of the places that fit
        self.step = 1  # away from the end of a line
        self.rooms: list[int] = []  # how much was left before each run

    @property
    def is_over(self) -> bool:
        return self.fails - self.fits <= 1 or (self.fits < 0 and self.fails < len(self.values))

    @property
    def falls(self) -> bool:
        """Whether a larger value was seen to need less."""
        lives = [point.live for _, point in sorted(self.points.items())]
        return any(later < before for before, later in zip(lives, lives[1:]))

    def next(self) -> int:
        """The place of the value to try now. Only while the search is not over."""
        if self.fits < 0:
            return 0
        self.rooms.append(self.fails - self.fits)
        lowest, highest = self.fits + 1, self.fails - 1
        is_bounded, is_slow = self.fails < len(self.values), len(self.rooms) > 2 and self.rooms[-1] * 2 > self.rooms[-3]
        return self.middle() if is_bounded and is_slow else min(max(self.aim(), lowest), highest)

    def aim(self) -> int:
        """Where the line through the last two runs ends."""
        points = [self.points[at] for at in sorted(self.points) if at <= self.fits]
        last, rise, is_bounded = points[-1], slope(points), self.fails < len(self.values)
        is_first = len(points) == 1 and not is_bounded
        if is_first and last.live - last.fixed < FAINT * last.live:
            return self.place(FAR * max(last.value, 1))
        if rise <= 0:
            return self.middle() if is_bounded else self.fails - 1
        held, live = last.value + (self.capacity - last.held) / rise, last.value + (self.capacity - last.live) / rise
        if is_first:
            return self.place(last.value + FIRST * (held - last.value))
        sure, most = max(self.place(held), self.fits), self.place(live)
        if sure >= self.fails:
            is_near = self.values[self.fails] <= NEAR * last.value
            return self.fails - self.stride() if is_near else self.middle()
        if most > self.fits:
            return min(most if most - sure <= CLOSE else (sure + most + 1) // 2, self.fails - 1)
        return self.fits + self.stride()

    def middle(self) -> int:
        return (self.fits + self.fails) // 2

    def stride(self) -> int:
        step, self.step = self.step, self.step * 2
        return step

    def place(self, value: float) -> int:
        """The place of the largest value that is not above `value`."""
        return bisect.bisect_right(self.values, value) - 1

    def tell(self, at: int, point: Optional[Point]) -> None:
        """What the run at this place gave: None if it does not fit."""
        if point is not None:
            self.points[at] = point
            self.fits = max(self.fits, at)
        else:
            self.fails = min(self.fails, at)
