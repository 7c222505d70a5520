"""What held memory at one moment, for `cenote view --at` and `cenote diff`: one form for every kind of file.

A `Moment` is one device at its peak, at the end, or at the peak of a step. Its holdings have names in the divisions that the file tells: kind, name
(a parameter, or the module), line, tag and others. Names that differ in numbers alone are one name (`layers.*`), as in a dry run.
"""
from __future__ import annotations

import collections
import re
from itertools import accumulate, islice
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from cenote.view.history import Broken, History

PEAK, END = "peak", "end"
PREFERRED = (("kind", "name", "line"), ("kind", "line"), ("line",), ("tag",), ("kind",), ("size",))  # the first that all files tell
FOLDED = ("name", "module")
NUMBER = re.compile(r"(?<![A-Za-z0-9_])\d+(?![A-Za-z0-9_])")  # a part of a name, as in `layers.3.mlp` or `[3]`
A_LINE = re.compile(r":\d+$")  # the name of what has none: that of its line
NAME_MOST = 200
SMALLER = "not listed in the file"


class Holding(NamedTuple):
    names: dict[str, str]  # by division
    bytes: int
    blocks: int


class Moment(NamedTuple):
    title: str
    device: int
    at: str  # in words
    unit: str  # what `bytes` counts: requested or allocated
    bytes: int  # live
    reserved: Optional[int]  # None: the file does not tell
    holdings: list[Holding]
    divisions: tuple[str, ...]


class Sum(NamedTuple):
    bytes: int
    blocks: int


def fold(name: str) -> str:
    return NUMBER.sub("*", name)


def sums(moment: Moment, by: Sequence[str]) -> dict[tuple[str, ...], Sum]:
    """The bytes of each name, or of each combination of names."""
    found: dict[tuple[str, ...], Sum] = {}
    for one in moment.holdings:
        key = tuple(one.names.get(division, "") for division in by)
        before = found.get(key, Sum(0, 0))
        found[key] = Sum(before.bytes + one.bytes, before.blocks + one.blocks)
    rest = moment.bytes - sum(one.bytes for one in moment.holdings)
    if rest > 0:
        found[tuple([SMALLER] + [""] * (len(by) - 1))] = Sum(rest, 0)
    return found


def chosen(moments: Iterable[Moment], asked: Optional[Sequence[str]]) -> tuple[str, ...]:
    """The divisions of a table of these moments."""
    all_of = list(moments)
    common = [division for division in all_of[0].divisions if all(division in one.divisions for one in all_of)]
    if asked is not None:
        missing = [division for division in asked if division not in common]
        if missing:
            raise Broken(f"{all_of[0].title}{' and the other file do' if len(all_of) > 1 else ' does'} not tell {missing[0]!r}; there is "
                         + (", ".join(common) or "nothing to divide by"))
        return tuple(asked)
    return next((divisions for divisions in PREFERRED if set(divisions) <= set(common)), tuple(common[:1]))


# --- of a history

def at_which(history: History, levels: Sequence[int], at: str) -> tuple[int, str]:
    """The moment, and its words."""
    if history.is_moment():
        if at not in (PEAK, END):
            raise Broken(f"{history.title} is a snapshot, which has one moment: --at end")
        return 0, "when the snapshot was taken"
    if at == END:
        return len(levels) - 1, "at the end"
    if at == PEAK:
        peak = history.known_peak[0] if history.known_peak is not None else max(range(len(levels)), key=levels.__getitem__)
        return peak, "at the peak" + step_words(history, peak)
    step = int(at)
    if history.every != 1 or not 1 <= step <= len(history.steps):
        kept = f"it keeps every {history.every}th of {history.all_steps:,} steps" if history.every != 1 else f"it has {len(history.steps):,} steps"
        raise Broken(f"{history.title} has no step {step}: {kept}")
    first, last = history.steps[step - 2] if step > 1 else 0, history.steps[step - 1]
    return max(range(first, last + 1), key=levels.__getitem__), f"at the peak of step {step}"


def step_words(history: History, moment: int) -> str:
    if history.every != 1 or not history.steps:
        return ""
    before = sum(1 for end in history.steps if end < moment)
    return f", in step {before + 1}" if before < len(history.steps) else ", after the last step"


def of_history(history: History, at: str) -> Moment:
    levels = list(accumulate(history.change, initial=history.live_first))
    moment, words = at_which(history, levels, at)
    divisions = [name for name in history.groups if name not in ("state", "step")]
    tables = [history.groups[name] for name in divisions]
    live: dict[tuple[int, ...], list[int]] = collections.defaultdict(lambda: [0, 0])
    for block, (born, gone) in enumerate(zip(history.born, history.gone)):
        if born <= moment < gone:
            one = live[tuple(numbers[block] for _, numbers in tables)]
            one[0] += history.size[block]
            one[1] += 1
    holdings = [Holding({division: name_of(division, names.names[number]) for division, (names, _), number in zip(divisions, tables, key)},
                        *one) for key, one in live.items()]
    total = history.known_peak[1] if at == PEAK and history.known_peak is not None else levels[moment]
    return Moment(history.title, history.device, words, history.unit, total, reserved_at(history, moment), holdings, tuple(divisions))


def name_of(division: str, name: str) -> str:
    return (fold(name) if division in FOLDED and not A_LINE.search(name) else name)[:NAME_MOST]


def reserved_at(history: History, moment: int) -> Optional[int]:
    if history.moment is not None:
        found: Optional[int] = history.moment["figures"].get("reserved")
        return found
    if history.reserved is None:
        return None
    return next(islice(history.reserved, moment - 1, None), history.reserved_first) if moment else history.reserved_first


# --- of what `cenote dry-run --json` wrote

def is_dry_run(found: dict[str, Any]) -> bool:
    return any(key in found for key in ("processes", "cards", "tried", "searches"))


def run_of(title: str, found: dict[str, Any]) -> dict[str, Any]:
    """The run that tells what the program needs: if memory ran out, the one on the largest GPU."""
    if "searches" in found:
        raise Broken(f"{title} has the searches of several cards: write the answer of one card with --json")
    tried = found.get("tried") or {}
    run = tried.get(str(found.get("largest"))) if "tried" in found else found.get("needed") if "cards" in found else found.get("largest") or found
    if not isinstance(run, dict):
        raise Broken(f"{title} has no run that tells what the program needs")
    return run


def of_dry_run(title: str, found: dict[str, Any], at: str) -> list[Moment]:
    """One for each device: that of the process that held most there."""
    if at != PEAK:
        raise Broken(f"{title} tells what was held at the peak, and at no other moment: --at peak")
    devices: dict[int, dict[str, Any]] = {}
    for process in run_of(title, found)["processes"]:
        for number, figures in process["devices"].items():
            if figures["live_peak"] > devices.get(int(number), {"live_peak": -1})["live_peak"]:
                devices[int(number)] = figures
    if not devices:
        raise Broken(f"{title}: the program used no GPU")
    return [of_device(title, number, figures) for number, figures in sorted(devices.items())]


def of_device(title: str, device: int, figures: dict[str, Any]) -> Moment:
    named = figures.get("names")
    rows = [Holding({"kind": row["kind"], "name": name_of("name", row["name"]), "line": row["line"]}, row["bytes"], row["blocks"])
            for row in named["rows"]] if named else [Holding({"kind": kind}, size, 0) for kind, size in (figures.get("kinds") or {}).items()]
    return Moment(title, device, f"at the peak, in step {figures['peak_step']}", "allocated", figures["live_peak"], figures["reserved_peak"], rows,
                  ("kind", "name", "line") if named else ("kind",))
