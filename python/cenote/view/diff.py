"""`cenote diff`: what held memory at the peaks of two runs, row by row, the largest difference first.

Rows of two versions of a program belong together if kind, name and line are the same; of those that are left, if only the number of the line is
another one, in their order: lines move when a program is edited. A file that only the first run has and the one that only the second has are taken
for the same: scripts get new names.
"""
from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from typing import Iterable, NamedTuple, Optional, Sequence

from cenote import places
from cenote.base import quantity
from cenote.base.progress import Bar
from cenote.base.quantity import readable
from cenote.launch.command_line import Parser
from cenote.view import moments, tables, viewer
from cenote.view.history import Broken
from cenote.view.moments import Moment, Sum

USAGE = "cenote diff [OPTION...] BEFORE AFTER"
ABOUT = """What held memory at the peak of one run and of another, by kind, name and line, the largest difference first. A file is what `cenote view`
reads (a trace, a snapshot of a pool or of PyTorch), a page of `cenote run --report` or `cenote view`, or the JSON of `cenote dry-run --json`."""
MORE = """examples:
  cenote diff old.html new.html                          two reports
  cenote diff --fail-above 2% main.json branch.json      two dry runs; exit status 1 if the second needs over 2 % more
  cenote diff --by module --top 10 a.pickle b.pickle --at end

Exit status: 0 done, 1 the second holds more than --fail-above, 2 an argument is wrong, or a file is broken."""
TOP = 20
NONE = Sum(0, 0)
LINE = re.compile(r"([^\s:]+):\d+")
PART = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s?%", re.ASCII)


class Limit(NamedTuple):
    part: float  # of the first, above which the second fails
    bytes: int

    def allowed(self, before: int) -> int:
        return self.bytes + int(before * self.part)


class Row(NamedTuple):
    device: int
    names: tuple[str, ...]
    before: Sum
    after: Sum

    @property
    def change(self) -> int:
        return self.after.bytes - self.before.bytes


def limit(text: str) -> Limit:
    part = PART.fullmatch(text)
    try:
        if text.isdecimal() and text != "0":
            raise ValueError(text)  # of what?
        return Limit(float(part[1]) / 100, 0) if part else Limit(0, quantity.read_size(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither a part, such as 2%, nor a size, such as 64MiB") from None


def files(keys: Iterable[tuple[str, ...]], by: Sequence[str]) -> set[str]:
    names = (LINE.search(name) for key in keys for division, name in zip(by, key) if division == "line")
    return {name[1] for name in names if name}


def moved(key: tuple[str, ...], by: Sequence[str], script: set[str]) -> tuple[str, ...]:
    """The names of a row without the number of its line, which may be a part of the name of what has none; and without the name of the script."""
    return tuple(LINE.sub(lambda at: ":" if at[1] in script else at[1] + ":", name, count=1) if division in ("line", "name") else name
                 for division, name in zip(by, key))


def paired(before: dict[tuple[str, ...], Sum], after: dict[tuple[str, ...], Sum], by: Sequence[str]) -> list[tuple[tuple[str, ...], Sum, Sum]]:
    pairs = [(key, before[key], after[key]) for key in before if key in after]
    old, new = files(before, by), files(after, by)
    script = old ^ new if len(old - new) == len(new - old) == 1 else set()
    gone: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for key in sorted((key for key in before if key not in after), key=numbered):
        gone.setdefault(moved(key, by, script), []).append(key)
    for key in sorted((key for key in after if key not in before), key=numbered):
        there = gone.get(moved(key, by, script))
        pairs.append((key, before[there.pop(0)] if there else NONE, after[key]))
    return pairs + [(key, before[key], NONE) for keys in gone.values() for key in keys]


def numbered(key: tuple[str, ...]) -> list[list[tuple[int, str]]]:
    """For an order in which line 9 comes before line 10."""
    return [[(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)] for name in key]


def rows_of(before: Sequence[Moment], after: Sequence[Moment], by: Sequence[str]) -> list[Row]:
    ours, theirs = ({one.device: moments.sums(one, by) for one in found} for found in (before, after))
    found = [Row(device, key, one, other) for device in sorted({*ours, *theirs})
             for key, one, other in paired(ours.get(device, {}), theirs.get(device, {}), by)]
    return sorted(found, key=lambda row: (-abs(row.change), -row.after.bytes, row.device, row.names))


def signed(size: int) -> str:
    return "0" if not size else ("+" if size > 0 else "-") + readable(abs(size))


def part_of(change: int, before: int) -> str:
    return f"{100 * change / before:+.1f} %" if before else "new" if change else ""


def cells(row: Row, has_devices: bool) -> list[str]:
    change = "gone" if not row.after.bytes else part_of(row.change, row.before.bytes)
    device = [str(row.device)] if has_devices else []
    return [signed(row.change), change, readable(row.before.bytes), readable(row.after.bytes), *device, *row.names]


def text(before: Sequence[Moment], after: Sequence[Moment], rows: list[Row], by: Sequence[str], top: int) -> str:
    has_devices = len({row.device for row in rows}) > 1
    changed = [row for row in rows if row.change]
    lines = [cells(row, has_devices) for row in changed[:top]]
    total, first = (sum(one.bytes for one in found) for found in (after, before))
    found = [tables.heading(one) for one in (*before, *after)]
    found += [f"together {signed(total - first)}" + (f" ({part_of(total - first, first)})" if first and total != first else "")]
    if before[0].unit != after[0].unit:
        found.append(f"the first counts {before[0].unit} bytes, the second {after[0].unit} ones, which are rounded up to 512")
    if lines:
        found += ["", *tables.table(["change", "", "before", "after", *(["GPU"] if has_devices else []), *by], lines, 4 + has_devices)]
    if len(changed) > top:
        found.append(f"{tables.rows_words(len(changed) - top)} more, {signed(sum(row.change for row in changed[top:]))} together: --top")
    same = len(rows) - len(changed)
    return "\n".join(found + ([f"{tables.rows_words(same)} {'holds' if same == 1 else 'hold'} the same"] if same else []))


def content(before: Sequence[Moment], after: Sequence[Moment], rows: list[Row], by: Sequence[str], top: int) -> str:
    return json.dumps({
        "before": [tables.head_of(one) for one in before], "after": [tables.head_of(one) for one in after],
        "change": sum(one.bytes for one in after) - sum(one.bytes for one in before),
        "rows": [{"device": row.device, **dict(zip(by, row.names)), "change": row.change, "before": row.before.bytes, "after": row.after.bytes,
                  "blocks_before": row.before.blocks, "blocks_after": row.after.blocks} for row in rows[:top]]}, indent=1)


def make_parser() -> Parser:
    parser = Parser("cenote diff", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="the file of the first run")
    parser.add_argument("after", metavar="AFTER", help="and that of the second")
    parser.add_argument("--at", metavar="MOMENT", type=tables.moment, default=moments.PEAK, help="peak (default), end, or the number of a step, at "
                        "its peak")
    parser.add_argument("--top", metavar="N", type=tables.rows, default=TOP, help=f"so many rows (default {TOP})")
    parser.add_argument("--by", metavar="NAME,...", type=tables.divisions, help="what divides memory: kind, name, module, line, tag, stream or "
                        "size, as both files tell")
    parser.add_argument("--fail-above", metavar="LIMIT", type=limit, help="exit status 1 if the second holds over so much more: 2%% or 64MiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    bar = Bar(says_lines=True)
    gc.disable()  # a large file is millions of objects, and none is in a cycle
    try:
        before, after = (viewer.moments_of(path, options.at, bar) for path in (options.before, options.after))
        by = moments.chosen([*before, *after], options.by)
        rows = rows_of(before, after, by)
    except (Broken, places.NotBuilt) as problem:
        parser.error(str(problem))
    except OSError as problem:
        parser.error(f"{problem.filename}: {problem.strerror or problem}")
    finally:
        gc.enable()
        bar.clear()
    print((content if options.json else text)(before, after, rows, by, options.top))
    return judge(options.fail_above, *(sum(one.bytes for one in found) for found in (before, after)))


def judge(most: Optional[Limit], before: int, after: int) -> int:
    if most is None or after - before <= most.allowed(before):
        return 0
    words = f"{100 * most.part:g} %" if most.part else signed(most.bytes)
    print(f"cenote diff: {signed(after - before)} ({part_of(after - before, before)}) is above --fail-above, {words}", file=sys.stderr)
    return 1
