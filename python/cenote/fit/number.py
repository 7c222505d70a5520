"""Which number `cenote dry-run --search` changes, and how a run gets another one. It runs nothing: search.py does.

A search names a number, or only its range; `chosen` says what that is in this command line and script, without a run. The batch of a DataLoader is
known only once a run has looked (`looked`).
"""
import ast
import os
import re
from typing import Any, NamedTuple, Sequence

from cenote.base import source
from cenote.base.mistake import Mistake
from cenote.inside import constant
from cenote.launch import environment

NAME = re.compile(r"-{0,2}([A-Za-z_][A-Za-z0-9_.\-]*)|([1-9][0-9]{0,2})", re.ASCII)
RANGE = re.compile(r"([0-9]{1,12})\.\.([0-9]{1,12})(?::([0-9]{1,12}))?", re.ASCII)
LIST = re.compile(r"[0-9]{1,12}(?:,[0-9]{1,12})*", re.ASCII)
NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
UNKNOWN, ARGUMENT, PLACE, VARIABLE, CONSTANT, BATCH = range(6)  # a number on the command line by its name or its place, ...
PLACES_MAX = 3


class Search(NamedTuple):
    name: str  # empty: the range stands alone
    values: Sequence[int]  # rising
    kind: int = UNKNOWN
    what: str = ""  # that is changed, for the answer
    old: int = 0  # BATCH: the size of the program's own batches
    line: str = ""  # BATCH: what to write in the program, with {} for the number

    @property
    def begins_at_copy(self) -> bool:
        """A run with another number may begin where the first has read its arguments: what comes before does not depend on it."""
        return self.kind in (ARGUMENT, PLACE, BATCH)


def read(text: str) -> Search:
    """NAME=8..512, NAME=8..512:8, NAME=8,16,32, and each without NAME=. ValueError with a message for the user for anything else."""
    name, equals, values = text.rpartition("=")
    match, is_list = RANGE.fullmatch(values), LIST.fullmatch(values)
    named = NAME.fullmatch(name)
    if (equals and named is None) or not (match or is_list):
        raise ValueError(f"{text[:40]!r} is not NAME=LOW..HIGH, such as batch_size=8..512")
    name = (named[1] or named[2]) if named is not None else ""
    if match:
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if low > high or not step:
            raise ValueError(f"{values[:40]!r} is empty: write the lower number first")
        return Search(name, range(low, high + 1, step))
    return Search(name, sorted({int(part) for part in values.split(",")}))


# --- the command line

def alike(one: str, other: str) -> bool:
    return one.lstrip("-").replace("-", "_") == other.replace("-", "_")


def first_argument(program: Sequence[str]) -> int:
    """Where arguments begin: what comes before names the program."""
    return 2 if program[0] in ("-m", "-c", "--") else 1


def with_value(program: Sequence[str], name: str, value: int) -> list[str]:
    """The command line with this argument: it replaces the value of the last argument of that name, or is added at the end. Arguments before the
    script's name are not read."""
    line = list(program)
    for i in range(len(line) - 1, first_argument(line) - 1, -1):
        before, equals, _ = line[i].partition("=")
        if equals and alike(before, name) and (before.startswith("-") or "-" not in before):
            line[i] = f"{before}={value}"
            return line
        if line[i].startswith("-") and alike(line[i], name) and i + 1 < len(line):
            line[i + 1] = str(value)
            return line
    return [*line, f"--{name}", str(value)]


# --- the choice

def chosen(search: Search, program: Sequence[str]) -> Search:
    """Mistake if there is no such number, or if it is not clear which is meant."""
    given = program[first_argument(program):]
    numbers = [place for place, text in enumerate(given, 1) if NUMBER.fullmatch(text)]
    if not search.name and len(numbers) > 1:
        raise Mistake(f"--search: there are {len(numbers)} numbers in the command line; say which: "
                      + ", ".join(f"{place}=LOW..HIGH for {given[place - 1]}" for place in numbers))
    place = int(search.name) if search.name.isdecimal() else numbers[0] if not search.name and numbers else 0
    if place:
        if place not in numbers:
            there = f"{given[place - 1]!r}, no number" if place <= len(given) else "not there"
            raise Mistake(f"--search {place}=...: argument {place} of the program is {there}")
        return search._replace(name=str(place), kind=PLACE, what=f"argument {place} of the command line, which is {given[place - 1]}")
    if not search.name:
        return search._replace(kind=BATCH)
    if len(with_value(program, search.name, 0)) > len(program):
        lines = constant_lines(program, search.name)
        if lines:
            path = source.shown(program[0])
            places = ", ".join(f"{path}:{line}, which is {value}" for line, value in lines)
            return search._replace(kind=CONSTANT, what=f"`{search.name}` in {places}")
        if search.name.isupper():
            return search._replace(kind=VARIABLE, what=f"the environment variable {search.name}")
    return search._replace(kind=ARGUMENT, what=f"the argument {search.name}")


def constant_lines(program: Sequence[str], name: str) -> list[tuple[int, int]]:
    """Lines and values where the script has a number by that name; none if the script has an option of that name."""
    if program[0] in ("-m", "-c", "--") or not name.isidentifier():
        return []
    try:
        with open(program[0], "rb") as file:
            text = file.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return []
    options = {f"--{name}", f"--{name.replace('_', '-')}"}
    if any(isinstance(node, ast.Constant) and node.value in options for node in ast.walk(tree) if isinstance(getattr(node, "value", None), str)):
        return []
    return [(node.lineno, node.value) for node in constant.places(tree, name)][:PLACES_MAX]


def looked(search: Search, seen: dict[str, dict[str, Any]]) -> Search:
    """The range stands alone: the program's own argument for the batch, else the batches of its DataLoader. `seen`: by the remedies of a run."""
    argument, batch = seen.get("batch-argument", {}), seen.get("batch", {})
    if argument and not argument["why_not"]:
        return search._replace(name=argument["argument"], kind=ARGUMENT, what=f"the argument {argument['argument']}, which is {argument['value']}")
    if not batch or batch["why_not"]:
        raise Mistake("--search: no number to change was found: none in the command line, no argument whose name says batch, and "
                      f"{batch['why_not'] if batch else 'no model was called'}; name one: NAME=LOW..HIGH")
    old = int(batch["value"])
    line = batch["line"].replace(f"={old // 2}", "={}")
    name = line.partition("(")[2].rpartition("=")[0].rpartition(" ")[2] or "batch_size"
    return search._replace(name=name, old=old, line=line, what=f"the batches of the DataLoader, which are {old}: {line.format(search.values[0])}")


def applied(search: Search, program: Sequence[str], value: int) -> tuple[Sequence[str], dict[str, str]]:
    """The command line, and more variables of the environment."""
    if search.kind == VARIABLE:
        return program, {search.name: str(value)}
    if search.kind == CONSTANT:
        return program, {environment.DRY_CONSTANT: f"{search.name}={value}={os.path.abspath(program[0])}"}
    if search.kind == BATCH:
        return program, {environment.DRY_REMEDIES: f"batch={search.old}:{value}"}
    if search.kind == PLACE:
        at = first_argument(program) + int(search.name) - 1
        return [*program[:at], str(value), *program[at + 1:]], {}
    return with_value(program, search.name, value), {}
