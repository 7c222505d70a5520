"""Turns blocks that outlive their step into causes: the variable that holds them, and the lines that stored and allocated them.

A cause is made from the blocks with their steps (growth.py), the path from a name to each block (finder.py), and the stack that allocated each
(PyTorch). This module has no state and runs no code of the program.
"""
import collections
from dataclasses import dataclass, field
from typing import Any, Iterable, NamedTuple, Optional

from cenote.base import source
from cenote.base.source import Line
from cenote.holders.finder import Findings, Path

COHORTS = 4  # so many cohorts that live on make a cause
COHORTS_KEYED = 16  # the same in a dictionary, which may be a cache: it grows while it meets new keys
COHORTS_UNHELD = 8  # the same for blocks of which only the allocating line is known
Stack = list[dict[str, Any]]  # frames as PyTorch has them, innermost first


class Block(NamedTuple):
    """A block that has outlived the step in which it was allocated; `cohort` is that step."""

    address: int
    size: int
    tag: int
    device: int
    cohort: int


@dataclass
class Cause:
    """A cause of growth. str() of it is the text of the alarm."""

    key: tuple[Any, ...]
    holder: str
    hint: str
    per_step: int
    steps: int  # that per_step is the mean of
    since: int
    device: int
    kept: tuple[Line, ...] = ()
    sites: list[tuple[str, int]] = field(default_factory=list)  # allocating lines, with bytes per step
    stacks: list[str] = field(default_factory=list)
    has_history: bool = False
    variable: tuple[Any, ...] = ()  # key of the variable that holds the memory, directly or through other objects
    name: str = ""  # of the holder: "list `outputs`"
    bound: Optional[int] = None  # most items that the holder takes, if it is bounded
    is_keyed: bool = False  # a dictionary holds it, which may be a cache

    def __str__(self) -> str:
        return ("cenote: memory grows: " if self.per_step else "cenote: ") + "\n    ".join(self.lines())

    def lines(self) -> list[str]:
        text = [f"+{size_text(self.per_step)} a step over the last {self.steps}, {self.holder}" if self.per_step else self.holder]
        text += [f"kept at {line}" for line in self.kept[:3]]
        text += [f"allocated at {site}" + (f" (+{size_text(bytes)})" if len(self.sites) > 1 else "") for site, bytes in self.sites[:3]]
        return text + ([self.hint] if self.hint else [])


def size_text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.{2 if name == 'GiB' else 1}f} {name}"
    return f"{size} B"


def site_of(frames: Iterable[dict[str, Any]]) -> str:
    """The innermost line that is the program's own."""
    own = [frame for frame in frames if not source.is_library(frame["filename"])]
    if not own:
        return ""
    frame = own[0]
    line = Line(frame["filename"], frame["line"], False)
    place, _, text = str(line).partition(": ")
    return f"{place} in {frame['name']}" + (f": {text}" if text else "")


# --- a path as text

def words(path: Path) -> str:
    """`model.encoder.mean`, `outputs[3]`."""
    text = ""
    for link in path:
        if link.how in ("variable", "closure"):
            text = f"{text}{link.name}" if not text or text.endswith(" ") else f"{text}, variable {link.name}"
        elif link.how == "attribute":
            text += f".{link.name}"
        elif link.how in ("index", "key"):
            text += f"[{link.name}]"
        elif link.how == "inside":
            text += f" ({link.name})" if link.name else " (inside)"
        elif link.how == "element":
            text += " (an element)"
        elif link.how == "unnamed":
            text = f"{link.name or 'something'} that no variable leads to"
    return text


def owner(path: Path) -> str:
    """The function or module that has the variable at the beginning of the path."""
    place = path[0].place if path else None
    if place is None:
        return ""
    return f" in {place.function}()" if place.function else f" of {source.shown(place.file)}"


def before_exception(path: Path) -> int:
    return next((at for at, link in enumerate(path) if link.how == "exception"), len(path))


def called(path: Path) -> str:
    """list `outputs`, `model.cache`."""
    path = path[:before_exception(path)]
    named = tuple(link for link in path if link.how != "history")
    kind = named[-1].leads_to if named else ""
    name = f"{kind} `{words(named)}`" if kind in ("list", "dict", "set", "deque", "tuple") else f"`{words(named)}`"
    return f"the autograd history of {name}" if len(named) < len(path) else name


def describe(prefix: Path, whole: Path, count: int, length: int, has_history: bool) -> str:
    """What holds the blocks, as text. `prefix`: the common beginning of their paths; `whole`: the path of one of them."""
    named = tuple(link for link in prefix if link.how != "history")
    at = before_exception(whole)
    cut = named[:before_exception(named)]
    kind = cut[-1].leads_to if cut else "object"
    if at < len(whole):
        frame, inner = whole[at].place, words(tuple(link for link in whole[at + 1:] if link.how not in ("exception", "history")))
        place = f"{source.shown(frame.file)}:{frame.line}" if frame is not None else "?"
        keeper = f"list `{words(cut)}`" if kind == "list" else f"`{words(cut)}`"
        function = f"{frame.function}()" if frame is not None and frame.function else "a module"
        return f"held by exceptions in {keeper}{owner(cut)}: their tracebacks keep the variables of {function}, left at {place}, as `{inner}`"
    operations = f", {length:,} operations long" if length else ""
    if prefix and prefix[-1].how == "history":
        return f"held by the autograd history of `{words(named)}`{owner(named)}{operations}"
    return f"held by {called(named)}{owner(named)}: {count} blocks" + (", with the autograd history of its tensors" if has_history else "")


def hint_for(whole: Path, has_history: bool) -> str:
    if before_exception(whole) < len(whole):
        return "keep str(error) instead, or error.with_traceback(None)"
    if has_history:
        return "keep .item() of numbers and .detach() of tensors; evaluate under torch.no_grad()"
    return ""


def lines_for(path: Path) -> tuple[Line, ...]:
    """The lines of the program that store something in the last variable of the path."""
    for link in reversed(path[:before_exception(path)]):
        if link.how in ("variable", "attribute", "closure") and link.codes:
            return source.keeping(link.codes, link.name, link.how == "attribute")
    return ()


def keys(path: Path) -> list[tuple[Any, ...]]:
    """A key for each prefix of a path. A key is the same in the next search."""
    made: list[tuple[Any, ...]] = []
    key: tuple[Any, ...] = ()
    for link in path:
        key = (*key, link.how, link.name, link.place.file + link.place.function if link.place is not None else "")
        made.append(key)
    return made


def variable_of(path: Path) -> tuple[Any, ...]:
    """The key of a path up to its last variable or attribute."""
    at = max((at for at, link in enumerate(path) if link.how in ("variable", "attribute", "closure")), default=-1)
    return keys(path)[at] if at >= 0 else ()


# --- causes

class Judge:
    """Turns blocks, their holders and their stacks into causes."""

    def __init__(self, step: int, blocks: list[Block], findings: Findings, stacks: dict[int, Stack]) -> None:
        self.step, self.findings, self.stacks = step, findings, stacks
        self.blocks = blocks
        self.tells_all = False  # also containers of bounded length, and young dictionaries
        self.steps = step - min((block.cohort for block in blocks), default=step)

    def causes(self) -> list[Cause]:
        groups: dict[tuple[Any, ...], list[Block]] = {}
        prefixes: dict[tuple[Any, ...], Path] = {}
        for block in self.blocks:
            path = self.findings.paths.get(block.address, ())
            for at, key in enumerate(keys(path)):
                groups.setdefault(key, []).append(block)
                prefixes.setdefault(key, path[:at + 1])
        grown = {key for key, members in groups.items() if self.is_growing(members, COHORTS)}
        inner = {key for key in grown if not any(len(other) > len(key) and other[:len(key)] == key for other in grown)}
        causes: list[Cause] = []
        explained: set[int] = set()
        for key in inner:
            explained.update(block.address for block in groups[key])
            cause = self.of_holder(key, prefixes[key], groups[key])
            if cause is not None:
                causes.append(cause)
        causes += self.of_lines([block for block in self.blocks if block.address not in explained])
        return sorted(causes, key=lambda cause: -cause.per_step)

    def is_growing(self, members: list[Block], needed: int) -> bool:
        cohorts = {block.cohort for block in members}
        return len(cohorts) >= needed and max(cohorts) >= self.step - needed

    def rate(self, members: list[Block]) -> tuple[int, int]:
        """Mean bytes per step, and the number of steps. What the last step leaves may be seen only after it: that step does not count then."""
        cohorts = {block.cohort for block in members}
        steps = max(cohorts) - min(cohorts) + 1
        return sum(block.size for block in members) // steps, steps

    def of_holder(self, key: tuple[Any, ...], prefix: Path, members: list[Block]) -> Optional[Cause]:
        paths = [self.findings.paths[block.address] for block in members]
        bound = next((link.bound for link in prefix if link.bound is not None), None)
        if bound is not None and not self.tells_all:
            return None  # a container of bounded length
        is_keyed = prefix[-1].how != "history" and any(len(path) > len(prefix) and path[len(prefix)].how == "key" for path in paths)
        if is_keyed and not self.tells_all and not self.is_growing(members, COHORTS_KEYED):
            return None
        whole = max(paths, key=lambda path: before_exception(path) < len(path))
        has_history = any(block.address in self.findings.with_history for block in members)
        length = self.findings.lengths.get(prefix, 0)
        per_step, steps = self.rate(members)
        holder = describe(prefix, whole, len(members), length, has_history)
        return Cause(key, holder, hint_for(whole, has_history), per_step, steps, self.step - steps, members[0].device, lines_for(prefix),
                     self.sites(members), self.short_stacks(members), has_history, variable_of(prefix), called(prefix), bound, is_keyed)

    def sites(self, members: list[Block]) -> list[tuple[str, int]]:
        """Allocating lines, with the bytes that each adds per step. The stacks of the earliest blocks may be unknown."""
        known = [block for block in members if self.stacks.get(block.address)] or members
        steps = len({block.cohort for block in known})
        sums: collections.Counter[str] = collections.Counter()
        for block in known:
            sums[site_of(self.stacks.get(block.address, ()))] += block.size
        named = [(site, bytes // steps) for site, bytes in sums.most_common() if site]
        if named or len(known) < len(members):
            return named
        return [("a thread of autograd or of a library, without a line of Python", sum(sums.values()) // steps)]

    def short_stacks(self, members: list[Block]) -> list[str]:
        block = max(members, key=lambda member: member.size)
        frames = [frame for frame in self.stacks.get(block.address, ()) if not source.is_library(frame["filename"])]
        return [f"{source.shown(frame['filename'])}:{frame['line']} in {frame['name']}" for frame in frames[:8]]

    def of_lines(self, blocks: list[Block]) -> list[Cause]:
        """Causes by allocating line, for blocks without a known holder."""
        groups: dict[str, list[Block]] = {}
        for block in blocks:
            if block.address not in self.findings.paths:
                groups.setdefault(site_of(self.stacks.get(block.address, ())), []).append(block)
        causes = []
        for site, members in groups.items():
            if self.is_growing(members, COHORTS_UNHELD):
                per_step, steps = self.rate(members)
                why = f"the search ended {self.findings.gave_up}" if self.findings.gave_up else "a library may hold it"
                causes.append(Cause(("line", site), f"held by no Python object that was found ({why})", "", per_step, steps, self.step - steps,
                                    members[0].device, (), self.sites(members), self.short_stacks(members)))
        return causes

    def exceptions(self) -> list[Cause]:
        """Blocks of one step that an exception keeps. That is no growth yet, but the program never wants it."""
        causes = {}
        for block in self.blocks:
            path = self.findings.paths.get(block.address, ())
            at = before_exception(path)
            if at < len(path):
                key = (*keys(path)[at], "exception")
                members = [other for other in self.blocks if self.findings.paths.get(other.address, ())[:at + 1] == path[:at + 1]]
                holder = describe(path[:at], path, len(members), 0, False)
                size = size_text(sum(member.size for member in members))
                causes[key] = Cause(key, f"{size} of step {block.cohort} stays, {holder}", hint_for(path, False), 0, 0, block.cohort,
                                    block.device, lines_for(path), self.sites(members), self.short_stacks(members))
        return list(causes.values())
