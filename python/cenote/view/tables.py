"""What held memory at a moment, as text for people and as JSON: the tables of `cenote view --at` and `cenote diff`."""
from __future__ import annotations

import argparse
import json
from typing import Any, Optional, Sequence

from cenote.base.mistake import visible
from cenote.base.quantity import read_count, readable
from cenote.view import moments
from cenote.view.moments import Moment

MOST_ROWS = 100_000
DIVISIONS = ("kind", "name", "module", "line", "tag", "stream", "size", "phase")
WIDEST = 72  # of a name


def moment(text: str) -> str:
    if text in (moments.PEAK, moments.END) or text.isascii() and text.isdigit() and 0 < int(text) < 1 << 32:
        return text
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither peak, nor end, nor the number of a step, from 1")


def rows(text: str) -> int:
    try:
        number = read_count(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of rows, from 1 to {MOST_ROWS}")
    return number


def divisions(text: str) -> list[str]:
    found = text.split(",")
    wrong = [name for name in found if name not in DIVISIONS]
    if wrong or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{(wrong or found)[0][:40]!r} is none of {', '.join(DIVISIONS)}, each once")
    return found


def shortened(text: str) -> str:
    """The end of a path says more than its beginning."""
    shown = visible(text)
    return shown if len(shown) <= WIDEST else "..." + shown[3 - WIDEST:]


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], numbers: int) -> list[str]:
    """Columns: the first `numbers` are figures, to the right."""
    cells = [list(heads), *[list(line[:numbers]) + [shortened(text) for text in line[numbers:]] for line in lines]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  ".join(f"{cell:{'>' if i < numbers else '<'}{width}}" for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in cells]


def heading(one: Moment) -> str:
    reserved = f"; {readable(one.reserved)} reserved" if one.reserved is not None else ""
    return f"{visible(one.title)}, GPU {one.device}: {readable(one.bytes)} {one.unit} {one.at}{reserved}"


def rows_words(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def sorted_sums(one: Moment, by: Sequence[str]) -> list[tuple[tuple[str, ...], moments.Sum]]:
    return sorted(moments.sums(one, by).items(), key=lambda row: (-row[1].bytes, row[0]))


def text_of(found: Sequence[Moment], asked: Optional[Sequence[str]], top: int) -> str:
    parts = []
    for one in found:
        by = moments.chosen([one], asked)
        all_rows = sorted_sums(one, by)
        lines = [[readable(row.bytes), f"{100 * row.bytes / max(one.bytes, 1):.1f} %", f"{row.blocks:,}" if row.blocks else "", *key]
                 for key, row in all_rows[:top]]
        if len(all_rows) > top:
            rest = sum(row.bytes for _, row in all_rows[top:])
            lines.append([readable(rest), f"{100 * rest / max(one.bytes, 1):.1f} %", f"{sum(row.blocks for _, row in all_rows[top:]):,}",
                          f"{rows_words(len(all_rows) - top)} more", *[""] * (len(by) - 1)])
        parts.append("\n".join([heading(one), *table(["bytes", "share", "blocks", *by], lines, 3)]))
    return "\n\n".join(parts)


def head_of(one: Moment) -> dict[str, Any]:
    return {"file": one.title, "device": one.device, "at": one.at, "counts": one.unit, "bytes": one.bytes, "reserved": one.reserved}


def json_of(found: Sequence[Moment], asked: Optional[Sequence[str]], top: int) -> str:
    answers = []
    for one in found:
        by = moments.chosen([one], asked)
        answers.append({**head_of(one), "rows": [{**dict(zip(by, key)), "bytes": row.bytes, "blocks": row.blocks}
                                                 for key, row in sorted_sums(one, by)[:top]]})
    return json.dumps(answers, indent=1)
