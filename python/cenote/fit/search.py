"""`cenote dry-run --search`: finds the largest value of a number with which a script fits.

number.py says which number that is. next_value.py chooses what to try. The answer rests on runs: the value fits, and the next larger one does not,
or is more than what was asked for. That no value above that one fits is an assumption: a script that does not fit with one value is taken not to fit
with a larger one.
"""
import sys
import time
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence

from cenote.base import quantity
from cenote.base.quantity import readable as size
from cenote.fit import cards, number, observed, screen, verdict
from cenote.fit.cards import Card
from cenote.fit.next_value import Hunt, Point, slope
from cenote.fit.number import Search
from cenote.fit.outcome import Outcome
from cenote.launch import environment

if TYPE_CHECKING:
    from cenote.fit.dry_run import Stage

FIXED = ("parameters", "gradients", "optimizer state", "buffers")  # kinds that do not grow with a batch


class Found(NamedTuple):
    """The result of a search."""

    search: Search
    capacity: int
    card: str
    allocator: str
    tried: dict[int, Outcome]
    best: Optional[int]  # None: not even the smallest fits
    failed: Optional[int]  # a value without a verdict, which ended the search
    seconds: float
    copied: int  # runs that began at a copy of the first
    why_not: str  # why others began from the start

    @property
    def changed_nothing(self) -> bool:
        """All values came to the same, to the byte: the number is not what decides."""
        fitting = [outcome for outcome in self.tried.values() if outcome.fits]
        return self.failed is None and 1 < len(fitting) == len(self.tried) and len({outcome.least_needed() for outcome in fitting}) == 1


LOOK = {environment.DRY_REMEDIES: "look"}


def point(value: int, outcome: Outcome) -> Point:
    worst = outcome.worst()
    assert worst is not None  # the run fits
    kinds = worst[1].get("kinds") or {}
    return Point(value, outcome.needed(), outcome.least_needed(), worst[1]["others"] + sum(kinds.get(name, 0) for name in FIXED))


def find(stage: "Stage", search: Search, program: Sequence[str]) -> list[Found]:
    """For each card, the largest first: what needs more there than a smaller one has is not tried on that one."""
    options = stage.options
    if search.kind == number.BATCH:
        most = max(card.capacity for card in options.cards)
        search = number.looked(search, observed.remedies(stage.play(most, options.allocator, program, LOOK)))
    found: dict[int, Found] = {}
    seen: dict[int, Outcome] = {}
    for card in sorted(options.cards, key=lambda card: -card.capacity):
        found[card.capacity] = on_card(stage, search, program, card, seen)
        seen.update(found[card.capacity].tried)
        if found[card.capacity].failed is not None:
            break
    return [found[card.capacity] for card in options.cards if card.capacity in found]


def on_card(stage: "Stage", search: Search, program: Sequence[str], card: Card, seen: Mapping[int, Outcome]) -> Found:
    """`seen`: runs on larger cards."""
    options, began, copied, capacity = stage.options, time.monotonic(), stage.copied, card.capacity
    tried: dict[int, Outcome] = {}
    where = f" on {card.title}" if len(options.cards) > 1 else ""

    def run(value: int) -> Outcome:
        line, more = number.applied(search, program, value)
        outcome = tried[value] = stage.play(capacity, options.allocator, line, more)
        words = verdict.WORDS[outcome.verdict]
        print(f"cenote dry-run: {search.name}={value}{where}: {words}, {verdict.brief(outcome)}", file=sys.stderr, flush=True)
        return outcome

    def found(failed: Optional[int] = None) -> Found:
        best = max((value for value, outcome in tried.items() if outcome.fits), default=None)
        return Found(search, capacity, card.full_title, options.allocator, tried, best, failed, time.monotonic() - began,
                     stage.copied - copied, stage.why_from_the_start())

    hunt = Hunt(search.values, capacity)
    too_large = [search.values.index(value) for value, outcome in seen.items() if outcome.fits and outcome.least_needed() > capacity]
    while not hunt.is_over:
        at = hunt.next()
        outcome = run(search.values[at])
        if outcome.verdict == "unknown":
            return found(search.values[at])
        hunt.tell(at, point(search.values[at], outcome) if outcome.fits else None)
        if len(tried) == 1 and outcome.fits and min(too_large, default=0) > at:
            hunt.tell(min(too_large), None)
    if hunt.falls and search.values[-1] not in tried:
        run(search.values[-1])
    return found()


# --- the answer

def range_text(search: Search) -> str:
    """As it was written, but for the spelling of a list."""
    values = search.values
    if isinstance(values, range):
        return f"{search.name}={values[0]}..{values[-1]}" + (f":{values.step}" if values.step > 1 else "")
    return f"{search.name}={','.join(map(str, values))}"


def growth_line(found: Found) -> list[str]:
    """What grows with the value and what does not, by the two largest values that fit."""
    fitting = {value: outcome for value, outcome in sorted(found.tried.items()) if outcome.fits}
    if len(fitting) < 2:
        return []
    points = [point(value, outcome) for value, outcome in fitting.items()]
    name, last = found.search.name, points[-1]
    if len({one.live for one in points}) == 1:
        return []
    rise = slope(points)
    before = next((one for one in reversed(points[:-1]) if rise == (last.live - one.live) / (last.value - one.value)), None)
    if before is None or rise <= 0 or rise * last.value > last.live:
        return ["  memory does not grow in proportion to it"]
    return [f"  of {size(last.live)} of tensors and context {size(int(rise * last.value))} grow with {name}, and the rest does not: "
            f"{size(int(rise))} for each 1, as seen between {before.value} and {last.value}"]


def proof_lines(found: Found) -> list[str]:
    """What the answer rests on."""
    name, best, values = found.search.name, found.best, found.search.values
    assert best is not None
    lines = []
    if best == values[-1]:
        lines.append(f"  {best} is the largest that you asked for: a larger one may fit, too")
    failing = sorted(value for value, outcome in found.tried.items() if outcome.verdict in ("caught", "fits not"))
    for value in [one for one in failing if one < best][:1]:
        lines.append(f"  though {name}={value} does not: {verdict.brief(found.tried[value])}")
    fitting = sorted((value, outcome.least_needed()) for value, outcome in found.tried.items() if outcome.fits)
    for (before, more), (after, less) in [pair for pair in zip(fitting, fitting[1:]) if pair[1][1] < pair[0][1]][:1]:
        lines.append(f"  memory falls from {size(more)} at {name}={before} to {size(less)} at {after}: values that were not tried "
                     f"may be otherwise; list what matters ({name}={before},{after})")
    for value in [one for one in failing if one > best][:1]:
        lines.append(f"  {name}={value} does not: {verdict.brief(found.tried[value])}")
    return lines


def tight(outcome: Outcome) -> str:
    left = outcome.capacity - outcome.needed()
    return f", {size(left)} left{', tight' if left < outcome.capacity // verdict.TIGHT else ''}"


def text(found: Found, which: list[Card], has_all: bool) -> str:
    """`has_all`: the user asked for all lines."""
    name, values = found.search.name, found.search.values
    under = verdict.NAMES.get(found.allocator, found.allocator)
    lines = ["", f"--- cenote dry-run --search {range_text(found.search)}: GPU of {found.card}, {under} ---"]
    if found.failed is not None:
        outcome = found.tried[found.failed]
        lines += [f"no verdict at {name}={found.failed}: {verdict.why_unknown(outcome)}", *verdict.last_words(outcome)]
    elif found.changed_nothing:
        lines.append(f"no answer: {name} changed nothing: {verdict.brief(next(iter(found.tried.values())))} with "
                     f"{', '.join(map(str, sorted(found.tried)))}")
    elif found.best is None:
        lines.append(f"not even {name}={values[0]} fits: {verdict.brief(found.tried[values[0]])}")
    else:
        best = found.tried[found.best]
        lines += [f"largest that fits: {name}={found.best}, {verdict.brief(best)}{tight(best)}", *proof_lines(found), *growth_line(found)]
    lines.append(f"  what was changed: {found.search.what}")
    copied = f", {found.copied} of them from where the first had read its arguments" if found.copied else ""
    lines.append(f"  {verdict.plural(len(found.tried), 'run')}, {found.seconds:.0f} s{copied}")
    told = found.tried.get(found.best) if found.best is not None else None
    if not has_all:
        return "\n".join([*lines, *(screen.below_search(told, which) if told is not None else [])])
    return "\n".join([*lines, *cards.caveats(which), *(verdict.value_lines(told, None) if told is not None else [verdict.NOT_KNOWN])])


def table(all_found: Sequence[Found], which: list[Card], has_all: bool) -> str:
    """Of several cards."""
    first = all_found[0]
    under = verdict.NAMES.get(first.allocator, first.allocator)
    rows = [["card", "memory", f"largest {first.search.name}", "with it"], *(row(found, card) for found, card in zip(all_found, which))]
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    lines = ["", f"--- cenote dry-run --search {range_text(first.search)}: {len(which)} cards, {under} ---",
             *("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in rows)]
    lines += [f"  {name}: {line.strip()}" for found, name in zip(all_found, (card.title for card in which)) if found.best is not None
              for line in proof_lines(found) if has_all]
    runs, copied, seconds = (sum(figures) for figures in zip(*((len(found.tried), found.copied, found.seconds) for found in all_found)))
    lines.append(f"  what was changed: {first.search.what}")
    lines.append(f"  {runs} runs, {seconds:.0f} s" + (f", {copied} of them from where the first had read its arguments" if copied else ""))
    best = max((found for found in all_found if found.best is not None), key=lambda found: found.best or 0, default=None)
    if best is None or best.best is None:
        return "\n".join(lines)
    told = best.tried[best.best]
    lines.append(f"  with {first.search.name}={best.best} on {best.card}:")
    return "\n".join([*lines, *(verdict.value_lines(told, None) if has_all else screen.below_search(told, which)[2:])])


def row(found: Found, card: Card) -> list[str]:
    if found.failed is not None:
        why = verdict.why_unknown(found.tried[found.failed])
        return [card.title, size(card.capacity), "no verdict", f"{found.search.name}={found.failed}: {why}"]
    if found.changed_nothing:
        return [card.title, size(card.capacity), "no answer", "it changed nothing"]
    value = found.best if found.best is not None else found.search.values[0]
    more = " (a larger one was not asked for)" if value == found.search.values[-1] else ""
    return [card.title, size(card.capacity), str(found.best) if found.best is not None else "none",
            verdict.brief(found.tried[value]) + (tight(found.tried[value]) if found.best is not None else "") + more]


def content(found: Found) -> dict[str, Any]:
    return {"search": found.search.name, "what": found.search.what, "capacity": found.capacity, "allocator": found.allocator, "largest": found.best,
            "changed_nothing": found.changed_nothing, "no_verdict_at": found.failed, "runs": len(found.tried), "runs_from_a_copy": found.copied,
            "why_from_the_start": found.why_not, "seconds": round(found.seconds, 1),
            "tried": {str(value): verdict.outcome_content(outcome) for value, outcome in sorted(found.tried.items())}}
