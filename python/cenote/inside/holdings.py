"""What the blocks of a device hold, by name: at the peak, or now. `cenote dry-run` and `cenote run --report` show it.

A block goes by its holder if that has a name: a parameter, its gradient, the state of an optimizer for it, a buffer, an input. Otherwise it goes by
the place of its allocation: the module, the line of the program and the line of the library inside it. Each block is in exactly one row.
"""
import collections
import linecache
from typing import Any, NamedTuple, Optional

from cenote.base import source
from cenote.labels.names import INPUTS, KIND_SHIFT, UNNAMED, BlockStruct, Names, Place
from cenote.native import bindings
from cenote.view import moments

ROWS_MAX = 200  # of blocks with one name
PATTERNS_MAX = 40  # of names that differ in numbers alone
TEXT_MAX = 200

OUTSIDE, BEFORE, SUMS, TEMPORARY, AGAIN = ("outside of modules", "from before names were kept", "gradients of activations",
                                           "temporary memory of the optimizer", "activations, computed again")
KINDS = {1: "parameters", 2: "gradients", 3: "optimizer state", 4: "buffers", 6: "workspaces", INPUTS: "inputs"}
WORKSPACES = "workspaces of cuBLAS"
CACHES = {"transformers/cache_utils.py": "KV cache"}  # files of libraries, below site-packages, that allocate for one purpose alone
OUTSIDE_NAMES = {TEMPORARY: "optimizer.step()", BEFORE: BEFORE}  # where there is no module
NO_PHASE = "outside"  # of forward, backward, evaluation and optimizer


class Row(NamedTuple):
    """Blocks that go by one name."""

    kind: str
    name: str
    shape: str
    line: str  # of the program: "train.py:12"
    text: str  # of that line
    library: str  # the innermost line, if that is another one
    phase: str
    operation: str  # of backward


def printable(text: str) -> str:
    """Names of modules may be any text: line ends, and halves of characters, which no encoding has, are shown as escapes."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shown(spot: tuple[str, int]) -> str:
    return f"{source.shown(spot[0])}:{spot[1]}" if spot[0] else ""


def phase_name(number: int) -> str:
    names = bindings.phases()
    return names[number] if 0 < number < len(names) else NO_PHASE


class Reader:
    """Turns blocks into rows. Lives for one look."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.places: dict[int, Place] = {}
        self.rows: dict[tuple[int, int], Row] = {}

    def place(self, number: int) -> Place:
        if number not in self.places:
            self.places[number] = self.names.place(number)
        return self.places[number]

    def row(self, block: BlockStruct) -> Row:
        key = block.place, block.holder
        if key not in self.rows:
            made = self.make(self.place(block.place), block.place, block.holder >> KIND_SHIFT, block.holder & UNNAMED)
            self.rows[key] = Row(*map(printable, made))
        return self.rows[key]

    def make(self, place: Place, number: int, kind: int, holder: int) -> Row:
        own = place.own if place.own[0] else place.inner
        line, library = shown(own), shown(place.inner) if place.inner != own else ""
        text = linecache.getline(*own).strip()[:TEXT_MAX] if own[0] else ""
        name, shape = self.holder_name(kind, holder)
        if place.is_workspace and not kind:
            return Row(WORKSPACES, WORKSPACES, "", line, text, library, phase_name(place.phase), "")
        module = self.names.naming.text(place.path)
        own_kind = CACHES.get(place.inner[0].rpartition("site-packages/")[2]) if not kind else None
        if own_kind is not None:
            return Row(own_kind, module or own_kind, "", line, text, library, phase_name(place.phase), place.node)
        if kind in KINDS:
            return Row(KINDS[kind], name or module or line or KINDS[kind], shape, line, text, library, phase_name(place.phase), place.node)
        found = self.kind_of(place, number)
        outside = OUTSIDE_NAMES.get(found) or (f"outside modules: {line}" if line else "outside modules")
        return Row(found, module or outside, "", line, text, library, phase_name(place.phase), place.node)

    def holder_name(self, kind: int, number: int) -> tuple[str, str]:
        holder = self.names.holder(number)
        if kind not in KINDS or kind == INPUTS or number == UNNAMED or holder is None:
            return "", ""
        of = self.names.holder(holder.of) if holder.of >= 0 else None
        name = self.names.naming.shown(holder.root, holder.name)
        return (f"{name} of {self.names.naming.shown(of.root, of.name)}" if of is not None else name), holder.shape

    @staticmethod
    def kind_of(place: Place, number: int) -> str:
        phase = phase_name(place.phase)
        if not number:
            return BEFORE
        if place.node:
            return SUMS
        if phase == "backward":
            return AGAIN if place.path else SUMS
        if phase == "optimizer":
            return TEMPORARY
        return "activations" if place.path or phase in ("forward", "evaluation") else OUTSIDE


def sums(blocks: list[BlockStruct], rows: list[Any]) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter()
    for block, row in zip(blocks, rows):
        found[row] += block.size
    return dict(found.most_common())


def entry(row: Row, name: str, sizes: list[int]) -> dict[str, Any]:
    return {**row._asdict(), "name": name, "bytes": sum(sizes), "blocks": len(sizes), "largest": max(sizes)}


def of_blocks(names: Names, blocks: list[BlockStruct]) -> dict[str, Any]:
    """`rows`: the largest by name; `patterns`: the same, those together that differ in the numbers of layers alone; `kinds`, `phases`: sums."""
    reader = Reader(names)
    rows = [reader.row(block) for block in blocks]
    by_name: dict[Row, list[int]] = {}
    by_pattern: dict[tuple[Any, ...], tuple[Row, list[int], set[str]]] = {}
    for block, row in zip(blocks, rows):
        by_name.setdefault(row, []).append(block.size)
        key = row.kind, moments.fold(row.name), row.shape, row.line if row.kind not in KINDS.values() else ""
        first = by_pattern.setdefault(key, (row, [], set()))
        first[1].append(block.size)
        first[2].add(row.name)
    named = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    patterns = sorted(by_pattern.items(), key=lambda item: -sum(item[1][1]))
    return {"kinds": sums(blocks, [row.kind for row in rows]), "phases": sums(blocks, [row.phase for row in rows]),
            "rows": [entry(row, row.name, sizes) for row, sizes in named[:ROWS_MAX]],
            "patterns": [entry(row, key[1] if len(all_names) > 1 else row.name, sizes)
                         for key, (row, sizes, all_names) in patterns[:PATTERNS_MAX]],
            "blocks": len(blocks), "bytes": sum(block.size for block in blocks)}


def describe(names: Names, place: Place) -> dict[str, Any]:
    """The place of one allocation."""
    own = place.own if place.own[0] else place.inner
    found = {"module": names.naming.text(place.path), "line": shown(own), "library": shown(place.inner) if place.inner != own else "",
             "phase": phase_name(place.phase), "operation": place.node}
    return {key: printable(text) for key, text in found.items()}


def at_peak(names: Names, device: int) -> dict[str, Any]:
    found = of_blocks(names, names.blocks(device, True))
    levels = names.levels(device)
    return {**found, "peak": levels.peak, "place": describe(names, names.place(levels.peak_place))}


def now(names: Names, device: int) -> dict[str, Any]:
    return of_blocks(names, names.blocks(device, False))


def here(names: Optional[Names], size: int) -> dict[str, Any]:
    return describe(names, names.here(size)) if names is not None else {}
