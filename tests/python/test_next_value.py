"""The values that `cenote dry-run --search` tries: right whatever the shape of the memory, and in few runs where memory is a line."""
import math
import random

import pytest

from cenote.fit.next_value import Hunt, Point

MIB, GIB = 1 << 20, 1 << 30
VALUES = range(8, 513)
CONTEXT = 500 * MIB


def search(values, capacity, live_of, fixed=CONTEXT, page=2 * MIB):
    """The values tried, and the hunt when it was over. A run fits if its live bytes do."""
    hunt, tried = Hunt(values, capacity), []
    while not hunt.is_over:
        at = hunt.next()
        assert at not in tried and hunt.fits < at < hunt.fails
        tried.append(at)
        live = int(live_of(values[at]))
        held = min(-(-live * 1003 // 1000 // page) * page, capacity)
        still = fixed(values[at]) if callable(fixed) else fixed
        hunt.tell(at, Point(values[at], held, live, still) if live <= capacity else None)
    return [values[at] for at in tried], hunt


LINES = {  # bytes of a value, and of it what is known not to grow
    "a small model": (lambda x: CONTEXT + 200 * MIB + 90 * MIB * x, CONTEXT + 200 * MIB),
    "a large model": (lambda x: CONTEXT + 12 * GIB + 31 * MIB * x, CONTEXT + 12 * GIB),
    "not known what does not grow": (lambda x: CONTEXT + 3 * GIB + 45 * MIB * x, CONTEXT),
    "a peak of the optimizer's first": (lambda x: CONTEXT + max(4 * GIB, 3 * GIB + 40 * MIB * x),
                                         lambda x: CONTEXT + (3 if x > 25 else 4) * GIB),
    "not quite straight": (lambda x: CONTEXT + GIB + 45 * MIB * x + 5 * MIB * (x % 3), CONTEXT + GIB),
}


CARDS = [16, 24, 40, 80]


@pytest.mark.parametrize("name", LINES)
def test_a_line_takes_few_runs(name):
    live_of, fixed = LINES[name]
    counts = []
    for capacity in CARDS:
        tried, hunt = search(VALUES, capacity * GIB, live_of, fixed)
        right = max(x for x in VALUES if live_of(x) <= capacity * GIB)
        assert VALUES[hunt.fits] == right and right in tried and (right == 512 or right + 1 in tried)
        counts.append(len(tried))
    assert sorted(counts)[1] <= 4 and max(counts) <= 6, counts  # a bisection takes 9 to 11


SHAPES = {
    "quadratic": lambda x: CONTEXT + GIB + x * x * MIB // 2,
    "a root": lambda x: CONTEXT + 2 * GIB * math.sqrt(x),
    "exponential": lambda x: CONTEXT + 1.04**x * MIB,
    "powers of two": lambda x: CONTEXT + (1 << (x - 1).bit_length()) * 60 * MIB,
    "steps of 64": lambda x: CONTEXT + (x + 63) // 64 * 5 * GIB,
    "a plateau, then a cliff": lambda x: CONTEXT + (3 * GIB if x < 300 else 90 * GIB),
    "a line, then a steeper one": lambda x: CONTEXT + 10 * MIB * x + max(0, x - 100) * 300 * MIB,
    "nothing": lambda x: CONTEXT + GIB,
}


@pytest.mark.parametrize("capacity", [8, 24, 80])
@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes(name, capacity):
    tried, hunt = search(VALUES, capacity * GIB, SHAPES[name])
    assert VALUES[hunt.fits] == max(x for x in VALUES if SHAPES[name](x) <= capacity * GIB)
    assert len(tried) <= 16, tried  # a bisection takes 9 to 11


def test_any_rising_memory():
    """Of 505 values of any height; and of a list."""
    dice, most = random.Random(1), 0
    for _ in range(300):
        power, top = dice.choice([0.1, 0.5, 1, 2, 8]), dice.choice([20, 60, 600]) * GIB
        heights = sorted(int(dice.random() ** power * top) for _ in VALUES)
        values = VALUES if dice.random() < 0.7 else sorted(dice.sample(VALUES, 20))
        tried, hunt = search(values, 50 * GIB, lambda x: heights[x - 8], dice.choice([0, GIB, 30 * GIB]))
        fitting = [x for x in values if heights[x - 8] <= 50 * GIB]
        assert hunt.fits == len(fitting) - 1
        most = max(most, len(tried))
    assert most <= 20


def test_figures_that_mislead():
    """The figures say nothing about whether it fits: as under an allocator that loses memory, or in a program that catches the error."""
    dice = random.Random(2)
    for _ in range(200):
        cut = dice.randrange(8, 512)
        hunt, runs = Hunt(VALUES, 50 * GIB), 0
        while not hunt.is_over:
            value, runs = VALUES[hunt.next()], runs + 1
            figures = [dice.randrange(50 * GIB) for _ in range(3)]
            hunt.tell(VALUES.index(value), Point(value, max(figures), min(figures), figures[0]) if value <= cut else None)
        assert VALUES[hunt.fits] == cut and runs <= 22


def test_memory_that_falls_is_noticed():
    tried, hunt = search([1, 2, 3, 4], 10 * GIB, lambda x: [0, 5, 3, 4, 20][x] * GIB)
    assert hunt.falls and hunt.fits == 2
    tried, hunt = search([1, 2, 3, 4], 10 * GIB, lambda x: [0, 3, 4, 5, 20][x] * GIB)
    assert not hunt.falls


@pytest.mark.parametrize("values, fits", [([7], 7), ([7], None), ([0, 1], 0), ([0, 1], 1), ([1, 1000], 1)])
def test_small_ranges(values, fits):
    tried, hunt = search(values, GIB, lambda x: CONTEXT if fits is not None and x <= fits else 2 * GIB)
    assert (values[hunt.fits] if hunt.fits >= 0 else None) == fits and len(tried) <= 2
