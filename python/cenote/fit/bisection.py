"""`cenote dry-run --search`: finds the largest value of an argument, or of an environment variable, with which a script fits.

Bisection: each run halves the values that are left. It assumes that a script that fits with one value fits with every smaller one.
"""
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from cenote.base import quantity
from cenote.fit import verdict
from cenote.fit.verdict import Outcome

if TYPE_CHECKING:
    from cenote.fit.dry_run import Stage

NAME = re.compile(r"-{0,2}([A-Za-z_][A-Za-z0-9_.\-]*)", re.ASCII)
RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})(?::([0-9]{1,12}))?", re.ASCII)
LIST = re.compile(r"[0-9]{1,12}(?:,[0-9]{1,12})*", re.ASCII)


class Search(NamedTuple):
    name: str
    values: Sequence[int]  # rising

    @property
    def is_variable(self) -> bool:
        return self.name.isupper()


class Found(NamedTuple):
    """The result of a search."""

    search: Search
    capacity: int
    allocator: str
    tried: dict[int, Outcome]
    best: Optional[int]  # None: not even the smallest fits
    failed: Optional[int]  # a value without a verdict, which ended the search


def read(text: str) -> Search:
    """NAME=8..512, NAME=8..512:8, NAME=8,16,32. ValueError with a message for the user for anything else."""
    name, equals, values = text.partition("=")
    match, is_list = RANGE.fullmatch(values), LIST.fullmatch(values)
    named = NAME.fullmatch(name)
    if not equals or named is None or not (match or is_list):
        raise ValueError(f"{text[:40]!r} is not NAME=LOW..HIGH, such as batch_size=8..512")
    if match:
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if low > high or not step:
            raise ValueError(f"{values[:40]!r} is empty: write the lower number first")
        return Search(named[1], range(low, high + 1, step))
    return Search(named[1], sorted({int(part) for part in values.split(",")}))


def alike(one: str, other: str) -> bool:
    return one.lstrip("-").replace("-", "_") == other.replace("-", "_")


def with_value(program: Sequence[str], name: str, value: int) -> list[str]:
    """The command line with this argument: it replaces the value of the last argument of that name, or is added at the end. Arguments before the
    script's name are not read."""
    line = list(program)
    first = 2 if line[0] in ("-m", "-c", "--") else 1
    for i in range(len(line) - 1, first - 1, -1):
        before, equals, _ = line[i].partition("=")
        if equals and alike(before, name) and (before.startswith("-") or "-" not in before):
            line[i] = f"{before}={value}"
            return line
        if line[i].startswith("-") and alike(line[i], name) and i + 1 < len(line):
            line[i + 1] = str(value)
            return line
    return [*line, f"--{name}", str(value)]


def find(stage: "Stage", search: Search, program: Sequence[str]) -> Found:
    options = stage.options
    tried: dict[int, Outcome] = {}

    def fits(value: int) -> Optional[bool]:
        more = {search.name: str(value)} if search.is_variable else {}
        line = program if search.is_variable else with_value(program, search.name, value)
        outcome = tried[value] = stage.play(options.sim, options.allocator, line, more)
        words = verdict.WORDS[outcome.verdict]
        print(f"cenote dry-run: {search.name}={value}: {words}, {verdict.brief(outcome)}", file=sys.stderr, flush=True)
        return None if outcome.verdict == "unknown" else outcome.fits

    def found(best: Optional[int], failed: Optional[int] = None) -> Found:
        return Found(search, options.sim, options.allocator, tried, best, failed)

    low, high = 0, len(search.values) - 1  # all below `low` fit, all above `high` do not
    order = [low, high]  # the ends first: often they decide
    best = None
    while low <= high:
        at = order.pop(0) if order else (low + high) // 2
        if not low <= at <= high:
            continue
        answer = fits(search.values[at])
        if answer is None:
            return found(best, search.values[at])
        if answer:
            best, low = search.values[at], at + 1
        else:
            high = at - 1
    return found(best)


def text(found: Found) -> str:
    name, values = found.search.name, found.search.values
    lines = ["", f"--- cenote dry-run --search {name}={values[0]}..{values[-1]}: GPU of {quantity.write_size(found.capacity)}, {found.allocator} ---"]
    if found.failed is not None:
        outcome = found.tried[found.failed]
        lines += [f"no verdict at {name}={found.failed}: {verdict.why_unknown(outcome)}", *verdict.last_words(outcome)]
    elif found.best is None:
        lines.append(f"not even {name}={values[0]} fits: {verdict.brief(found.tried[values[0]])}")
    else:
        lines.append(f"largest that fits: {name}={found.best}, {verdict.brief(found.tried[found.best])}")
        above = min((value for value in found.tried if value > found.best), default=None)
        if above is not None:
            lines.append(f"  {name}={above} does not: {verdict.brief(found.tried[above])}")
        fitting = [outcome.worst() for outcome in found.tried.values() if outcome.fits]
        lives = [worst[1]["live_peak"] for worst in fitting if worst]
        if len(lives) > 1 and len(set(lives)) == 1:
            lines.append(f"  but {name} changed nothing: is that the name that the script reads?")
    best = found.tried.get(found.best) if found.best is not None else None
    return "\n".join([*lines, *(verdict.value_lines(best, None) if best is not None else [verdict.NOT_KNOWN])])


def content(found: Found) -> dict[str, Any]:
    return {"search": found.search.name, "capacity": found.capacity, "allocator": found.allocator, "largest": found.best,
            "no_verdict_at": found.failed,
            "tried": {str(value): verdict.outcome_content(outcome) for value, outcome in sorted(found.tried.items())}}
