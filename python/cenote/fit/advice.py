"""`cenote dry-run --advise`: what each remedy of cenote/remedies gives for this program, by running it with each of them.

The run as it is looks which remedies have something to change; the others are listed with the reason. If the program fits as it is, each remedy is
run on that card. If not, each is run on the largest simulated GPU, which tells what it needs, and again on the card if that is less than the card
has: a row that says "fits" rests on a run on a card of that size.

Then, if the program does not fit: the remedies that help, one after the other, until it fits. And the largest batch that fits, found as --search
finds it. rows.py writes the table.
"""
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from cenote.base import quantity
from cenote.base.quantity import readable as size
from cenote.fit import number, observed, search, verdict
from cenote.fit.next_value import Hunt
from cenote.fit.outcome import Outcome
from cenote.fit.verdict import Answer
from cenote.launch import environment
from cenote.remedies import table
from cenote.remedies.remedy import CHANGED, ROUNDED, SAME, Remedy

if TYPE_CHECKING:
    from cenote.fit.dry_run import Stage

STRENGTH = (SAME, ROUNDED, CHANGED)
BATCHES = ("batch-argument", "batch")
MORE = 16  # times the batch that is tried at most, if the program fits
NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
LEAST = 100  # another remedy is added if it saves 1/100 of what the program needs as it is


class Change(NamedTuple):
    """A remedy, with its setting."""

    remedy: type[Remedy]
    what: str
    line: str
    value: int = 0  # of a remedy that makes a number smaller: what it is, and what it becomes
    new: int = 0
    argument: str = ""
    library: str = ""  # whose Trainer has it as an option

    @property
    def title(self) -> str:
        return self.remedy.title + (f", {self.what}" if self.what else "")

    @property
    def item(self) -> str:
        """In CENOTE_DRY_REMEDIES."""
        setting = f"{self.value}:{self.new}" if self.value else self.library
        return f"{self.remedy.name}={setting}" if setting else self.remedy.name

    @property
    def world(self) -> Optional[int]:
        return self.new if self.remedy.worlds else None


class Row(NamedTuple):
    """One change, or several, and the runs with them."""

    changes: tuple[Change, ...]
    title: str
    told: Outcome  # of the run that tells what it needs; without a verdict, why there is none
    on_card: Optional[Outcome]  # None: it needs more than the card has

    @property
    def verdict(self) -> str:
        if not self.told.fits:
            return self.told.verdict
        return self.on_card.verdict if self.on_card is not None else "fits not"

    @property
    def fits(self) -> bool:
        return self.verdict in ("fits", "grows")

    @property
    def needs(self) -> Optional[int]:
        return self.told.least_needed() if self.told.fits else None

    @property
    def numerics(self) -> str:
        return max((change.remedy.numerics for change in self.changes), key=STRENGTH.index)

    @property
    def line(self) -> str:
        return "\n".join(change.line for change in self.changes)


class Advice(NamedTuple):
    capacity: int
    card: str
    verdict: str  # of the program as it is
    as_it_is: Optional[Outcome]  # the run that told what the program needs; None: there is none, and no advice
    rows: list[Row]
    left_out: dict[str, str]  # titles of remedies, and why


class Trials:
    """The runs of one question."""

    def __init__(self, stage: "Stage", program: Sequence[str], answer: Answer) -> None:
        self.stage, self.program, self.answer = stage, program, answer
        self.card, self.allocator = stage.options.sim, stage.options.allocator
        self.began, self.done, self.planned = time.monotonic(), 0, 0  # rows of one remedy each
        self.as_it_is = next((one for one in (answer.outcome, answer.largest) if one is not None and one.fits), None)

    def play(self, capacity: int, changes: Sequence[Change]) -> Outcome:
        line = list(self.program)
        for change in changes:
            line = number.with_value(line, change.argument, change.new) if change.argument else line
        items = ",".join(change.item for change in changes if not change.argument)
        world = next((change.world for change in changes if change.world), None)
        return self.stage.play(capacity, self.allocator, line, {environment.DRY_REMEDIES: items} if items else search.LOOK, world=world)

    def row(self, *changes: Change) -> Row:
        assert self.as_it_is is not None
        told = self.play(self.as_it_is.capacity, changes)
        on_card: Optional[Outcome] = told
        if self.as_it_is.capacity != self.card:
            on_card = self.play(self.card, changes) if told.fits and told.least_needed() <= self.card else None
        title = changes[0].title if len(changes) == 1 else " + ".join(change.remedy.title for change in changes)
        row = Row(changes, title, told, on_card)
        words = verdict.WORDS[row.verdict] if row.verdict != "unknown" else verdict.why_unknown(told)
        self.done += 1
        needs = f", {size(row.needs)}" if row.needs is not None else ""
        print(f"cenote dry-run: {title}: {words}{needs}{self.progress()}", file=sys.stderr, flush=True)
        return row

    # --- how long it takes

    def announce(self, planned: int) -> None:
        """A remedy on a card that is too small takes two runs, unless it needs more than the card has."""
        self.planned = planned
        runs = planned * (2 if self.as_it_is is not None and self.as_it_is.capacity != self.card else 1)
        print(f"cenote dry-run: advice: {planned} changes to try, which take up to {quantity.duration(runs * self.stage.seconds)} or so",
              file=sys.stderr, flush=True)

    def progress(self) -> str:
        left = self.planned - self.done
        if left <= 0:
            return ""
        each = (time.monotonic() - self.began) / self.done
        return f" ({self.done} of {self.planned}, about {quantity.duration(left * each)} left)"

    # --- several remedies

    def combined(self, rows: Sequence[Row]) -> list[Row]:
        """The remedies that help, the best first, until the program fits; those that change the step come last, and after them more GPUs."""
        assert self.as_it_is is not None
        before = self.as_it_is.least_needed()
        helping = [row for row in rows if row.needs is not None and (before - row.needs) * LEAST >= before]
        alone = sorted((row for row in helping if not row.changes[0].world), key=lambda row: (row.numerics == CHANGED, row.needs))
        if not alone or any(row.fits for row in rows):
            return []
        best = alone[0]
        for other in alone[1:]:
            if not best.fits and go_together(best, other):
                row = self.row(*best.changes, *other.changes)
                if row.needs is not None and best.needs is not None and (best.needs - row.needs) * LEAST >= before:
                    best = row
        for sharded in [row for row in helping if row.changes[0].world]:
            if not best.fits and go_together(best, sharded):
                row = self.row(*[change for change in best.changes if not change.world], *sharded.changes)
                if row.needs is not None and best.needs is not None and row.needs < best.needs:
                    best = row
        return [best] if len(best.changes) > 1 else []

    # --- the largest batch

    def largest_batch(self, half: Row, most: int) -> list[Row]:
        """That fits on the card: below that of the program if it does not fit, else up to MORE times it, or `most`."""
        outcome, change = self.answer.outcome, half.changes[0]
        values = range(change.value, max(min(MORE * change.value, most or MORE * change.value), change.value) + 1) if outcome.fits else (
            range(1, change.value))
        hunt, tried, failed, guesses = Hunt(values, self.card), {change.value: outcome}, [], []
        if outcome.fits:
            hunt.tell(0, search.point(change.value, outcome))
        elif half.fits and half.on_card is not None:
            hunt.tell(change.new - 1, search.point(change.new, half.on_card))
            tried[change.new] = half.on_card
        else:
            failed, guesses = [change.new - 1], self.guesses(half)
        while not hunt.is_over:
            value = guesses.pop(0) if guesses and hunt.fits < 0 else values[hunt.next()]
            found = tried[value] = self.play(self.card, [change._replace(new=value)])
            print(f"cenote dry-run: batch of {value}: {verdict.WORDS[found.verdict]}, {verdict.brief(found)}", file=sys.stderr, flush=True)
            if found.verdict == "unknown":
                return []
            is_whole = not outcome.fits or found.steps == outcome.steps  # a batch larger than the data makes no step
            point = search.point(value, found) if found.fits and is_whole else None
            failed.append(values.index(value))
            if point is not None or value == values[0]:
                hunt.tell(failed.pop(), point)
            while failed and hunt.fits >= 0:
                hunt.tell(failed.pop(), None)
        if hunt.fits < 0 or values[hunt.fits] == change.value:
            return []
        best = values[hunt.fits]
        at_most = " (no larger one was tried)" if hunt.fits == len(values) - 1 else ""
        line = change.line.replace(str(change.new), str(best))
        return [Row((change._replace(new=best, line=line),), f"largest batch, {best} instead of {change.value}{at_most}", tried[best], tried[best])]

    def guesses(self, half: Row) -> list[int]:
        """What may fit if half the batch does not: where the line through both ends; and an eighth less, because memory is lost between blocks."""
        assert self.as_it_is is not None
        change = half.changes[0]
        rise = (self.as_it_is.least_needed() - (half.needs or 0)) / (change.value - change.new)
        end = change.new - int(((half.needs or 0) - self.card) / rise) - 1 if rise > 0 else 0
        return [value for value in (end, end * 7 // 8) if 1 < value < change.new]


def go_together(one: Row, other: Row) -> bool:
    pairs = [(first.remedy, second.remedy) for first in one.changes for second in other.changes]
    return not any(second.name in first.not_with or first.name in second.not_with for first, second in pairs)


def read(text: str) -> dict[str, int]:
    """`--advise=NAME,...`: names of remedies, and for those over k GPUs the k, 0: not said. ValueError with a message for the user."""
    found = {}
    for item in text.split(","):
        name, equals, number = item.strip().partition("=")
        remedy = table.BY_NAME.get(name)
        if remedy is None:
            raise ValueError(f"{name[:40]!r} is no remedy; there are {', '.join(table.BY_NAME)}")
        if equals and not remedy.worlds:
            raise ValueError(f"{item[:40]!r}: {name} takes no number")
        if equals and not (NUMBER.fullmatch(number) and int(number) > 1):
            raise ValueError(f"{item[:40]!r} is not {name}=K for K GPUs, 2 or more")
        found[name] = int(number) if equals else 0
    return found


def changes(remedy: type[Remedy], report: dict[str, Any], world: int = 0) -> list[Change]:
    if remedy.worlds:
        return [Change(remedy, f"over {size} GPUs", report["line"], new=size) for size in ((world,) if world else remedy.worlds)]
    return [Change(remedy, report["what"], report["line"], report["value"], report["value"] // 2, report["argument"], report["library"])]


def ask(stage: "Stage", answer: Answer, program: Sequence[str], wanted: dict[str, int]) -> Advice:
    """After the answer about the program as it is, for which the remedies have looked. `wanted`: of read(), empty: all."""
    trials = Trials(stage, program, answer)
    if trials.as_it_is is None:
        return Advice(answer.outcome.capacity, stage.options.cards[0].title, answer.verdict, None, [], {})
    found = observed.remedies(trials.as_it_is)
    chosen = [remedy for remedy in table.ALL if remedy.name in found and (not wanted or remedy.name in wanted)]
    chosen = [remedy for remedy in chosen if not any(other.name == remedy.unless and not found[other.name]["why_not"] for other in chosen)]
    to_try: list[Change] = []
    why_not: dict[str, list[str]] = {}
    for remedy in chosen:
        report = found[remedy.name]
        if report["why_not"]:
            why_not.setdefault(remedy.title, []).append(report["why_not"])
        else:
            to_try += changes(remedy, report, wanted.get(remedy.name, 0))
    if to_try:
        trials.announce(len(to_try))
    rows = [trials.row(change) for change in to_try]
    tried = {row.changes[0].remedy.title for row in rows}  # two remedies with one title are two ways to one end
    left_out = {title: ", and ".join(why) for title, why in why_not.items() if title not in tried}
    rows += trials.combined(rows)
    for row in [row for row in rows if row.changes[0].remedy.name in BATCHES][:1]:
        rows += trials.largest_batch(row, int(found[row.changes[0].remedy.name]["most"]))
    return Advice(answer.outcome.capacity, stage.options.cards[0].title, answer.verdict, trials.as_it_is, rows, left_out)


def hint(answer: Answer, ours: Sequence[str], program: Sequence[str]) -> list[str]:
    """After a verdict without advice: the command for it. `ours`: the options of the command line."""
    if answer.verdict != "fits not" or answer.largest is None or not answer.largest.fits:
        return []
    return hint_line(ours, program)


def hint_line(ours: Sequence[str], program: Sequence[str]) -> list[str]:
    return [f"what would help, in numbers: cenote dry-run --advise {shlex.join([*without(ours, '--json', '--report'), *program])}"]


def without(ours: Sequence[str], *names: str) -> list[str]:
    """Without these options, and their values."""
    found, skips = [], False
    for word in ours:
        name, equals, _ = word.partition("=")
        if not skips and name not in names:
            found.append(word)
        skips = not skips and name in names and not equals
    return found


def for_card(ours: Sequence[str], card: str) -> list[str]:
    """The same options for one card."""
    return ["--gpu", card, *without(ours, "--gpu", "--sim", "--per-hour")]
