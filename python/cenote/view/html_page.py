"""Reduces histories to a size that a browser can draw smoothly, and writes the page: page.html with its style, its scripts and the data in it.

A history of any length becomes some thousand points. Each bucket of records gives the record with most live bytes, the one with fewest and the one
with most reserved bytes, so that no peak is lost. Of many blocks, those with most bytes times lifetime are kept; the page says what is left out.
"""
from __future__ import annotations

import base64
import html
import json
import os
import sys
from array import array
from functools import partial
from itertools import accumulate
from typing import Any, Callable, Iterable, Optional, Sequence

from cenote.places import HERE
from cenote.view import apart
from cenote.view import leak as leaks
from cenote.view.history import History, rounded

POINTS, BLOCKS, RANGES, NAMES, STEPS, PAGES = 8000, 60_000, 20_000, 1000, 5000, 60_000  # of all histories of a page together
GROUPS = 11  # names with a colour of their own; the others are "everything else"
LONGEST_NAME = 160
DATA = "/* the data of the page */ null"  # places in page.html
ABOVE = "<!-- what stands above the page -->"
STYLE, SCRIPTS = "/* the style of the page */", "/* the scripts of the page */"
MARK = '<meta name="generator" content="cenote view">'
SCRIPT_FILES = ("state.js", "drawing.js", "words.js", "events.js")  # in this order: one script


def packed(kind: str, numbers: Iterable[float]) -> str:
    """The numbers as text for a typed array of JavaScript, which is little-endian on every machine that has a browser."""
    column = array(kind, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(column.tobytes()).decode("ascii")


class Condensed:
    """One history, reduced for a picture. The page shows `share` histories, which share its limits equally."""

    def __init__(self, history: History, share: int = 1) -> None:
        self.history = history
        self.levels = array("q", accumulate(history.change, initial=history.live_first))  # live bytes at each moment
        self.reserved = None if history.reserved is None else array("q", [history.reserved_first]) + history.reserved
        self.moments = self._moments(max(300, POINTS // share))
        self.seen = self._seen()
        self.peak = self.levels.index(max(self.levels))
        self.most_names = max(50, NAMES // share)
        self.blocks: list[int]
        work = [partial(self._blocks, max(2000, BLOCKS // share))] + [partial(self._divide, division) for division in history.groups]
        self.blocks, *found_of = apart.done(work, len(history.time))
        divided = dict(zip(history.groups, found_of))
        self.names = {division: found[0] for division, found in divided.items()}  # the largest peak first
        self.rank = {division: found[1] for division, found in divided.items()}  # index in `names` for each of the history's names
        self.stacks = {division: found[2] for division, found in divided.items()}  # live bytes of each group at each of the moments

    def _moments(self, most: int) -> list[int]:
        """The moments that are kept, about `most` of them."""
        count = len(self.levels)
        if count <= most:
            return list(range(count))
        wanted = {0, count - 1}
        series = [(max, self.levels), (min, self.levels)] + ([(max, self.reserved)] if self.reserved is not None else [])
        buckets = most // len(series)
        for i in range(buckets):
            first, last = i * count // buckets, (i + 1) * count // buckets
            for extreme, column in series:
                part = column[first:last]
                wanted.add(first + part.index(extreme(part)))
        return sorted(wanted)

    def _seen(self) -> list[tuple[int, int, int]]:
        """The blocks that are live at some of the moments, each with the first of them and the first after it, by their places in the list. Most
        blocks come and go between two moments."""
        history, count, last = self.history, len(self.levels), len(self.moments)
        place = array("L")  # of the first of the moments that is not before this one
        for i, moment in enumerate(self.moments):
            place.extend(array("L", [i]) * (moment + 1 - len(place)))
        lives = enumerate(zip(history.born, history.gone))
        return [(block, since, until) for block, (born, gone) in lives
                if (since := place[born]) != (until := place[gone] if gone < count else last)]

    def _blocks(self, most: int) -> list[int]:
        """The numbers of the blocks that are kept, in the order of their allocation."""
        history, count = self.history, len(self.levels)
        blocks = range(len(history.size))
        if len(blocks) <= most:
            return list(blocks)
        weight = [float(size) * ((gone if gone < count else count) - born) for size, born, gone in zip(history.size, history.born, history.gone)]
        least = sorted(weight)[-most]  # floats are sorted in a third of the time that whole numbers of this size take
        more = sum(map(least.__lt__, weight))
        alike = iter([True] * (most - more))  # of the blocks that weigh just that, the first ones
        return [block for block, one in enumerate(weight) if one > least or one == least and next(alike, False)]

    def _divide(self, division: str) -> tuple[list[str], list[int], list[list[int]]]:
        """The names of a division, the rank of each, and its stack."""
        names = self.history.groups[division][0].names
        order = list(range(len(names))) if division == "size" else self._by_peak(division)
        kept = order if len(order) <= self.most_names else order[:self.most_names - 1]
        ranks = [0] * len(order)
        for place, number in enumerate(order):
            ranks[number] = min(place, self.most_names - 1)
        shown = [names[number][:LONGEST_NAME] for number in kept] + (["others"] if len(kept) < len(order) else [])
        return shown, ranks, self._stack(division, ranks, len(self._groups(shown)))

    def _by_peak(self, division: str) -> list[int]:
        """The numbers of the names of a division, ordered by their peaks of live bytes."""
        numbers = self.history.groups[division][1]
        live = self._first_live(numbers, len(self.history.groups[division][0].names))
        most = list(live)
        for number, change in zip(map(numbers.__getitem__, self.history.block), self.history.change):
            now = live[number] = live[number] + change
            if now > most[number]:
                most[number] = now
        return sorted(range(len(most)), key=lambda number: -most[number])

    def _first_live(self, numbers: Sequence[int], count: int) -> list[int]:
        """Live bytes of each number at moment 0."""
        live = [0] * count
        for block, since, _ in self.seen:
            if not since:
                live[numbers[block]] += self.history.size[block]
        return live

    def _stack(self, division: str, ranks: list[int], count: int) -> list[list[int]]:
        """Live bytes of each of `count` groups at each of the moments."""
        size, numbers, group = self.history.size, self.history.groups[division][1], [min(place, count - 1) for place in ranks]
        changes = [array("q", bytes(8 * len(self.moments) + 8)) for _ in range(count)]  # from one of the moments to the next
        for block, since, until in self.seen:
            change = changes[group[numbers[block]]]
            change[since] += size[block]
            change[until] -= size[block]
        return [list(row) for row in zip(*(list(accumulate(change))[:-1] for change in changes))]

    @staticmethod
    def _groups(names: list[str]) -> list[str]:
        return names if len(names) <= GROUPS + 1 else names[:GROUPS] + ["everything else"]

    def groups(self, division: str) -> list[str]:
        """The names that have a colour of their own, and one name for the others."""
        return self._groups(self.names[division])

    def step_lines(self) -> tuple[list[float], dict[str, list[int]]]:
        """The time line of a snapshot: the time at which each step ended, and its figures."""
        steps = (self.history.moment or {}).get("steps", [])
        names = ("allocated when it ended", "reserved", "peak within the step")
        return [step[1] / 1e3 for step in steps], {name: [step[i] for step in steps] for i, name in enumerate(names, 2)}

    def times(self) -> list[float]:
        """The time of each of the moments."""
        time = self.history.time
        return [time[moment - 1] if moment else (time[0] if time else 0.0) for moment in self.moments]

    def series(self) -> dict[str, Sequence[int]]:
        """The lines of the picture, at each of the moments."""
        history = self.history
        lines: dict[str, Sequence[int]] = {history.unit: [self.levels[moment] for moment in self.moments]}
        if history.unit == "requested":
            first = sum(rounded(size) for size, born in zip(history.size, history.born) if not born)
            sizes = (rounded(change) if change > 0 else -rounded(-change) for change in history.change)
            levels = array("q", accumulate(sizes, initial=first))
            lines["allocated"] = [levels[moment] for moment in self.moments]
        if self.reserved is not None:
            lines["reserved"] = [self.reserved[moment] for moment in self.moments]
        return lines


def _view(picture: Condensed, share: int) -> dict[str, Any]:
    """The data of one history, as state.js reads it."""
    history, series, moments, times = picture.history, picture.series(), picture.moments, picture.times()
    if history.is_moment():
        times, lines = picture.step_lines()
        moments, series = list(range(len(times))), dict(lines)
    steps = list(history.steps)
    kept_steps = steps[::max(1, -(-len(steps) // (STEPS // share or 1)))]
    ranges = sorted(history.ranges, key=lambda row: -row[1])[:max(500, RANGES // share)]
    kept, moment, notes = picture.blocks, history.moment, list(history.notes)
    if moment and len(moment.get("pages", ())) > PAGES // share:
        notes.append(f"{len(moment['pages']) - PAGES // share:,} of {len(moment['pages']):,} physical pages are left out, the last ones.")
        moment = {**moment, "pages": moment["pages"][:PAGES // share]}
    blocks = {
        "count": len(kept), "all": len(history.size),
        "size": packed("d", (history.size[i] for i in kept)), "born": packed("I", (history.born[i] for i in kept)),
        "gone": packed("I", (history.gone[i] for i in kept)),
        "address": packed("d", (history.address[i] for i in kept)) if history.address is not None else None,
        "groups": {division: packed("H", (picture.rank[division][numbers[i]] for i in kept)) for division, (_, numbers) in history.groups.items()},
    }
    leak = leaks.of(history)
    shown = set(picture.names.get("line", ()))
    peaks = {history.unit: max(picture.levels)}
    if picture.reserved is not None:
        peaks["reserved"] = max(picture.reserved)
    return {
        "title": history.title, "device": history.device, "unit": history.unit, "notes": notes, "records": len(history.time),
        "moments": packed("I", moments), "times": packed("d", times), "sampled": len(picture.moments) < len(picture.levels),
        "series": {name: packed("d", line) for name, line in series.items()},
        "stacks": {division: {"groups": picture.groups(division), "values": packed("f", (x for row in picture.stacks[division] for x in row))}
                   for division in history.groups if not history.is_moment()},
        "names": picture.names, "steps": kept_steps, "all_steps": history.all_steps, "blocks": blocks, "peak": picture.peak, "peaks": peaks,
        "limits": {name: bytes for name, bytes in history.limits.items() if bytes}, "marks": history.marks,
        "grows": leak.division if leak is not None else None,
        "words": [*history.words, *([leaks.words(leak, history)] if leak is not None else [])],
        "sources": {line: text for line, text in history.sources.items() if line in shown},
        "ranges": [list(row) for row in ranges], "moment": moment,
    }


def template() -> str:
    """page.html with the style and the scripts in their places, so that the page is one file."""
    def part(name: str) -> str:
        with open(os.path.join(HERE, "view", name), encoding="utf-8") as file:
            return file.read()
    whole = part("page.html")
    for place, content in ((STYLE, part("page.css")), (SCRIPTS, "\n".join(map(part, SCRIPT_FILES)))):
        whole = whole.replace(place + "\n", content, 1)
    return whole


def page(histories: list[History], tell: Optional[Callable[[str], None]] = None, is_views: bool = False) -> str:
    """The whole page as text. `is_views`: with a mark that `cenote view` wrote it."""
    views = []
    for history in histories:
        if tell:
            tell(f"drawing {history.title}, {len(history.time):,} records of device {history.device}")
        views.append(_view(Condensed(history, len(histories)), len(histories)))
    # Without a < in the data, no name of the program can end the script element.
    data = json.dumps({"views": views}, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    before, _, after = template().partition(DATA)
    title = html.escape(", ".join(dict.fromkeys(history.title for history in histories))[:200]).encode("ascii", "xmlcharrefreplace").decode()
    mark = MARK + "\n" if is_views else ""
    return before.replace("<title>cenote view</title>", f"{mark}<title>{title} - cenote view</title>") + data + after


def below(text: str, more: str, page: str) -> str:
    """The same page, below a text, which a click makes longer."""
    safe, whole = (html.escape(one).encode("ascii", "xmlcharrefreplace").decode() for one in (text, more))
    return page.replace(ABOVE, f'<div class="above"><pre>{safe}</pre><details><summary>all lines</summary><pre>{whole}</pre></details></div>', 1)
