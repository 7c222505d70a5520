"""One question about several cards: `cenote dry-run --gpu a100-80gb,h100,rtx4090`, in few runs.

What each verdict rests on, and the table says which:

* "fits": a run on a card of that size; or two runs, on a smaller and on a larger card, that allocated and held the same, to the byte. A program that
  does the same on both has not asked how much there is, and no allocator had to give anything back.
* "does not fit": a run on a card of that size, or on a larger one, that ran out.

So the largest card is first. If the program fits there, the smallest that has room for its live bytes is second, and the cards between are run only
if those two differ; then the largest of the cards that have no room, which mostly ends soon. If the program does not fit on the largest card, a run
on the largest simulated GPU tells what it needs.

Without a card the question is which is the smallest: a run on the largest simulated GPU tells what is live, and the known cards that have room for
that run from the smallest on, until the program fits. The table has that card and the two above it.
"""
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

from cenote.base import quantity, source
from cenote.base.quantity import readable as size_text
from cenote.fit import advice, cards, generated, observed, replays, screen, search_room, verdict
from cenote.fit.cards import Card
from cenote.fit.outcome import Outcome
from cenote.launch import command_line, environment

if TYPE_CHECKING:
    from cenote.fit.dry_run import Stage

FITS, GROWS, FITS_NOT, CAUGHT, UNKNOWN = "fits", "grows", "fits not", "caught", "unknown"
FIGURES = ("live_peak", "reserved_peak", "requested_peak", "others", "peak_step", "kinds")


class Row(NamedTuple):
    card: Card
    verdict: str
    basis: str


class Answer(NamedTuple):
    rows: list[Row]  # as the user listed the cards
    runs: dict[int, Outcome]  # by capacity
    needed: Optional[Outcome]  # the run that tells what the program needs: on the largest card on which it was not short of memory
    played: replays.Replays

    @property
    def verdict(self) -> str:
        verdicts = {row.verdict for row in self.rows}
        return next((one for one in (UNKNOWN, FITS_NOT, CAUGHT, GROWS) if one in verdicts), FITS)


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two runs did the same with memory, in all their processes."""
    def figures(outcome: Outcome) -> list[Any]:
        return [outcome.steps, *([{name: device.get(name) for name in FIGURES} for device in report["devices"].values()] for report in outcome.used)]
    return figures(one) == figures(other)


def smallest(stage: "Stage", program: Sequence[str]) -> Answer:
    """Which known card is enough?"""
    largest = Card("", command_line.MOST_CAPACITY)
    top = stage.play(largest.capacity, stage.options.allocator, program)
    runs = {largest.capacity: top}
    if not top.fits:
        return ask(stage, [largest], program, runs)
    every = cards.enough(0, len(cards.table()))
    left = [card for card in every if card.sure >= top.least_needed()] or every[-1:]
    while True:
        found = runs[left[0].capacity] = stage.play(left[0].capacity, stage.options.allocator, program)
        if found.fits or len(left) == 1:
            return ask(stage, left[:cards.ENOUGH_MAX], program, runs)
        left = left[1:]


def ask(stage: "Stage", wanted: list[Card], program: Sequence[str], before: Optional[dict[int, Outcome]] = None) -> Answer:
    """`before`: runs that there are already, that on the largest simulated GPU among them."""
    allocator, wanted = stage.options.allocator, [cards.priced(card, stage.options.per_hour) for card in wanted]
    runs: dict[int, Outcome] = dict(before or {})
    sizes = sorted({card.capacity for card in wanted} | {*runs}, reverse=True)
    basis: dict[int, tuple[str, str]] = {}

    titles = {**{size: quantity.write_size(size) for size in runs}, **{card.capacity: card.title for card in reversed(wanted)}}

    def run(size: int) -> Outcome:
        found = runs[size] = runs[size] if size in runs else stage.play(size, allocator, program)
        basis[size] = found.verdict, "a run on a card of that size"
        return found

    top = run(sizes[0])
    needed: Optional[Outcome] = top
    if top.fits:
        between(run, top, sizes[1:], basis, titles)
    elif top.verdict == FITS_NOT:
        basis.update({size: ran_out(titles[sizes[0]]) for size in sizes[1:]})
        is_largest = sizes[0] >= command_line.MOST_CAPACITY
        needed = None if is_largest else stage.play(command_line.MOST_CAPACITY, allocator, program, {environment.DRY_UNLIMITED: "on"})
    elif top.verdict == UNKNOWN:
        basis.update({size: (UNKNOWN, "the run on the largest card has no verdict") for size in sizes[1:]})
    else:  # what the program does depends on the card: it catches the error
        for size in sizes[1:]:
            run(size)
    rows = [Row(card, *basis[card.capacity]) for card in wanted]
    told = needed if needed is not None and needed.fits else None
    return Answer(rows, runs, told, replays.of(told) if told is not None else {})


def ran_out(larger: str) -> tuple[str, str]:
    return FITS_NOT, f"a run on {larger} that ran out"


def between(run: Callable[[int], Outcome], top: Outcome, sizes: list[int], basis: dict[int, tuple[str, str]], titles: dict[int, str]) -> None:
    """The cards below the largest, on which the program fits."""
    live = [size for size in sizes if size >= top.least_needed()]
    while live:
        smallest = run(live.pop())
        if smallest.fits and same(smallest, top):
            said = f"runs on {titles[smallest.capacity]} and {titles[top.capacity]}, which did the same"
            basis.update({size: (smallest.verdict, said) for size in live})
            live = []
    short: Optional[Outcome] = None
    for size in sizes:
        if size in basis:
            continue
        if short is None:
            found = run(size)
            short = found if found.verdict == FITS_NOT else None
        else:
            basis[size] = ran_out(titles[short.capacity])


def row_text(row: Row, answer: Answer) -> list[str]:
    own = answer.runs.get(row.card.capacity)
    told = own if own is not None and (own.fits or own.verdict == CAUGHT) else answer.needed
    left = ""
    if row.verdict in (FITS, GROWS, CAUGHT) and told is not None:
        left = f"{size_text(row.card.capacity - told.needed())} left"
        if row.card.capacity - told.needed() < row.card.capacity // verdict.TIGHT:
            left += ", tight"
    elif row.verdict == FITS_NOT and answer.needed is not None:
        missing, is_own = own.missing(answer.needed) if own is not None else (answer.needed.least_needed() - row.card.capacity, False)
        left = f"{size_text(missing)} missing{' of its own limit' if is_own else ''}" if missing > 0 else "lost between blocks"
    left += f", {row.card.hourly:.2f} $ per hour" if row.card.hourly else ""
    return [row.card.title, size_text(row.card.capacity), verdict.WORDS[row.verdict], left, row.basis]


def text(program: Sequence[str], answer: Answer, allocator: str, is_smallest: bool = False, has_all: bool = True) -> str:
    """`is_smallest`: the user named no card. `has_all`: the user asked for all lines."""
    name = program[1] if program[0] in ("-m", "--") else program[0]
    table = [row[:None if has_all else -1] for row in (["card", "memory", "verdict", "", "by"], *(row_text(row, answer) for row in answer.rows))]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    which = "the smallest cards that are known" if is_smallest else f"{len(answer.rows)} cards"
    lines = ["", f"--- cenote dry-run {source.shown(name)}: {which}, {verdict.NAMES.get(allocator, allocator)} ---",
             *("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table)]
    if answer.needed is not None:
        lines += [*needed_lines(answer), *generated.lines(answer.needed, [(row.card.title, row.card.capacity) for row in answer.rows]),
                  *(verdict.peak_lines(answer.needed) if has_all else [])]
    for row in answer.rows:
        own = answer.runs.get(row.card.capacity)
        if own is not None and own.failure is not None:
            lines.append(f"  {row.card.title}: memory ran out in {verdict.where(own.failure)}")
        elif own is not None and own.verdict == UNKNOWN:
            lines += [f"  {row.card.title}: {verdict.why_unknown(own)}", *verdict.last_words(own)]
    some = answer.needed or next(iter(answer.runs.values()))
    lines += verdict.enough_lines(some, max(lacking)) if (lacking := [row.card.capacity for row in answer.rows if row.verdict == FITS_NOT]) else []
    lines += verdict.range_lines(some, answer.played, some.capacity)
    if not has_all:
        return "\n".join([*lines, *screen.below_table(some, answer.played, [row.card for row in answer.rows])])
    lines += verdict.replay_lines(some, answer.played)
    lines += search_room.lines(some.used)
    lines += observed.lines(some.used, some.was_ended)
    return "\n".join([*lines, *cards.caveats([row.card for row in answer.rows]), *verdict.value_lines(some, None)])


def needed_lines(answer: Answer) -> list[str]:
    """What the table counts from: a card that is too small lacks something of what is live, one that is large enough has the peak beside what is
    left."""
    assert answer.needed is not None
    verdicts = {row.verdict for row in answer.rows}
    least = f"at least {size_text(answer.needed.least_needed())}, live tensors and context (missing: of that)" if FITS_NOT in verdicts else ""
    peak = f"peak {size_text(answer.needed.needed())} with what the allocator keeps (left: beside that)" if verdicts != {FITS_NOT} else ""
    return [f"needs {'; '.join(part for part in (least, peak, verdict.how_far(answer.needed)) if part)}"]


def hint(answer: Answer, ours: Sequence[str], program: Sequence[str]) -> list[str]:
    """The command for advice about the largest card on which the program does not fit."""
    lacking = [row.card for row in answer.rows if row.verdict == FITS_NOT]
    if not lacking or answer.needed is None:
        return []
    return advice.hint_line(advice.for_card(ours, max(lacking, key=lambda card: card.capacity).title), program)


def content(program: Sequence[str], answer: Answer) -> dict[str, Any]:
    return {"program": list(program), "verdict": answer.verdict,
            "cards": [{"card": row.card.title, "capacity": row.card.capacity, "verdict": row.verdict, "by": row.basis,
                       **({"per_hour": row.card.hourly} if row.card.hourly else {})} for row in answer.rows],
            "replays": {name: one._asdict() for name, one in answer.played.items()},
            "runs": [verdict.outcome_content(outcome) for outcome in answer.runs.values()],
            "needed": verdict.outcome_content(answer.needed) if answer.needed is not None else None}
