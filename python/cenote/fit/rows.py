"""The table of `cenote dry-run --advise`, as text and as JSON. Runs nothing: advice.py did."""
from typing import Any

from cenote.base import quantity
from cenote.base.quantity import readable as size
from cenote.fit import verdict
from cenote.fit.advice import STRENGTH, Advice, Row
from cenote.fit.outcome import Outcome
from cenote.launch import command_line

LEAST = 200  # a remedy has a row if it saves 1/200 of what the program needs


def helps(row: Row, advice: Advice) -> bool:
    """Also one that breaks the program, whose row says so, and a batch that is larger and fits."""
    assert advice.as_it_is is not None
    if row.changes[0].new > row.changes[0].value > 0:
        return True
    before = advice.as_it_is.least_needed()
    makes_it_fit = row.fits and advice.as_it_is.capacity != advice.capacity
    return row.needs is None or makes_it_fit or (before - row.needs) * LEAST >= before


def little(row: Row, advice: Advice) -> str:
    """What a remedy does that does not help."""
    assert advice.as_it_is is not None and row.needs is not None
    saved = advice.as_it_is.least_needed() - row.needs
    return f"{row.title} ({f'saves {size(saved)}' if saved > 0 else f'takes {size(-saved)} more' if saved else 'changes nothing'})"


def cells(row: Row, advice: Advice) -> list[str]:
    assert advice.as_it_is is not None
    if row.needs is None:
        return [row.title, "", "", verdict.WORDS[row.verdict], row.numerics, failed_text(row.told)]
    saved = advice.as_it_is.least_needed() - row.needs
    return [row.title, size(row.needs), size(saved) if saved > 0 else "", verdict.WORDS[row.verdict], row.numerics, to_write(row)]


def to_write(row: Row) -> str:
    return row.line if len(row.changes) == 1 else f"the lines of these {len(row.changes)} rows"


def failed_text(outcome: Outcome) -> str:
    return f"memory ran out in {verdict.where(outcome.failure)}" if outcome.failure is not None else verdict.why_unknown(outcome)


def lines(advice: Advice) -> list[str]:
    if advice.as_it_is is None:
        return ["what would help is not known: no run told what the program needs"]
    card = advice.card
    is_on_card = advice.as_it_is.capacity == advice.capacity
    where = "" if is_on_card else f" on a GPU of {quantity.write_size(command_line.MOST_CAPACITY)}, and again on {card} if it may fit"
    first = ["as it is", size(advice.as_it_is.least_needed()), "", verdict.WORDS[advice.verdict], "", ""]
    table = [["", "needs", "saved", f"on {card}", "numbers", "what to write"], first]
    table += [cells(row, advice) for row in sorted(advice.rows, key=lambda row: not row.fits) if helps(row, advice)]
    useless = [little(row, advice) for row in advice.rows if not helps(row, advice)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    found = [f"what would help, by running the program with it{where}:"]
    found += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
    if not advice.rows:
        found.append("  none of the remedies that cenote knows has something to change here")
    if useless:
        found.append(f"  of little or no help: {'; '.join(useless)}")
    return found + [f"  not tried: {title}: {why}" for title, why in advice.left_out.items()] + conclusion(advice)


def conclusion(advice: Advice) -> list[str]:
    """If the program does not fit as it is: the change that makes it fit and does least to its results, and to the program."""
    if advice.verdict != "fits not" or not advice.rows:
        return []
    fitting = [row for row in advice.rows if row.fits]
    if fitting:
        best = min(fitting, key=lambda row: (STRENGTH.index(row.numerics), len(row.changes), bool(row.changes[0].world), -row.changes[0].new))
        write = best.line if len(best.changes) == 1 else f"the lines of {len(best.changes)} rows above"
        return [f"smallest change that fits: {best.title} (needs {size(best.needs or 0)} of {size(advice.capacity)}): {write}"]
    least = min((row for row in advice.rows if row.needs is not None), key=lambda row: row.needs or 0, default=None)
    return [f"no change that was tried fits; with least: {least.title}, {size(least.needs or 0)}" if least is not None else
            "no change that was tried fits"]


def content(advice: Advice) -> dict[str, Any]:
    as_it_is = advice.as_it_is.least_needed() if advice.as_it_is is not None else None
    return {"as_it_is": as_it_is, "left_out": advice.left_out, "rows": [
        {"remedies": [change.remedy.name for change in row.changes], "title": row.title, "numerics": row.numerics, "line": row.line,
         "verdict": row.verdict, "needs": row.needs, "saved": as_it_is - row.needs if as_it_is is not None and row.needs is not None else None,
         "value": row.changes[0].new or None, "failed": failed_text(row.told) if row.needs is None else None, "kinds": kinds(row.told)}
        for row in advice.rows]}


def kinds(outcome: Outcome) -> dict[str, int]:
    worst = outcome.worst()
    return worst[1].get("kinds") or {} if worst is not None else {}
