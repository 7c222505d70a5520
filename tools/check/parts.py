#!/usr/bin/env python3
"""
Checks which files use which parts of a pool: struct cenote_pool is a structure of parts, and parts.txt says which files may change or read each.
It sees uses through a pointer to the pool, `pool->part.field`. An address that is passed on counts as a change, unless the parameter is const.

    tools/check/parts.py    prints each part with its fields, and the files that change and read it
"""
import collections
import dataclasses
import fnmatch
import functools
import pathlib
import re
import sys
import typing

from tree import Report, Tree

TABLE = "tools/check/parts.txt"
POOL = "pool/pool.h"
FOLDERS = ("pool/", "share/", "stats/")
POINTER = re.compile(r"\bcenote_pool\s*\*\s*(?:const\s+)?(\w+)")
STRUCT = r"^struct {} \{{\n(.*?)^\}};"
MEMBER = re.compile(r"^ {4}struct (\w+)\s+(\w+);", re.MULTILINE)
FIELD = re.compile(r"\**(\w+)(?:\[[^\]]*\])*(?=\s*[,;])")
FUNCTION = re.compile(r"^[a-z_][\w *()]*?\b\*?(\w+)\(([^();{}]*(?:\([^()]*\)[^();{}]*)*)\)\s*[;{]", re.MULTILINE)
CHANGE = re.compile(r"\s*(?:=(?!=)|\+\+|--|[-+*/%&|^]=|<<=|>>=)")
LOCKS = ("lock", "turn", "watching")
READING = {"atomic_load", "atomic_load_explicit", "TABLE_AT", "sizeof"}
FILLING = {"memcpy", "memset", "memmove", "snprintf"}


@dataclasses.dataclass
class Row:
    line: int
    part: str
    changers: list[str]
    readers: list[str]


@dataclasses.dataclass(frozen=True)
class Use:
    path: str
    line: int
    part: str
    changes: bool


def bare(text: str) -> str:
    """The text without comments and strings, with the same number of lines."""
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)


# ------------------------------------------------------------------------------------------------------------------------- the sources

def sources(tree: Tree) -> list[str]:
    return [path for path in tree.ending(".c", ".h") if path.startswith(FOLDERS)]


def body_of(text: str, name: str) -> str:
    match = re.search(STRUCT.format(name), text, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def parts_of(tree: Tree) -> dict[str, str]:
    """Each part and its struct. Locks are not parts: other rules are for them."""
    return {name: struct for struct, name in MEMBER.findall(bare(body_of(tree.text(POOL), "cenote_pool"))) if struct != "lock"}


def fields_of(tree: Tree, struct: str) -> list[str]:
    bodies = (body_of(bare(tree.text(path)), struct) for path in sources(tree) if path.endswith(".h"))
    body = next(filter(None, bodies), "")
    inner = re.compile(r"\{[^{}]*\}")
    while inner.search(body):
        body = inner.sub("", body)
    return FIELD.findall(body)


@functools.lru_cache(maxsize=None)
def parameters(tree: Tree) -> dict[str, list[str]]:
    """The types of the parameters of each function."""
    texts = (bare(tree.text(path)) for path in tree.ending(".c", ".h") if path.startswith(FOLDERS + ("base/", "driver/")))
    return {name: arguments.split(",") for text in texts for name, arguments in FUNCTION.findall(text)}


def call_around(text: str, at: int) -> tuple[str, int]:
    """The function that gets this text as an argument, and the index of the argument; "" if there is none in this statement."""
    depth = commas = 0
    while at and text[at - 1] not in ";{}":
        at -= 1
        depth += (text[at] in ")]") - (text[at] in "([")
        if depth < 0:
            return re.search(r"\w*$", text[:at])[0], commas
        commas += text[at] == "," and not depth
    return "", 0


def is_change(tree: Tree, text: str, start: int, end: int) -> bool:
    """Whether the use from start to end changes the field."""
    before = text[:start]
    if CHANGE.match(text, end) or before.endswith(("++", "--")):
        return True
    name, number = call_around(text, start)
    if not before.endswith("&") or before.endswith("&&"):
        return name in FILLING and number == 0
    if name in READING or before[:-1].rstrip().endswith(("==", "!=")) or re.match(r"\s*[=!]=", text[end:]):
        return False
    taken = parameters(tree).get(name, [])
    target = re.search(r"[^;{}]*$", before)[0] if not name else taken[number] if number < len(taken) else ""
    return "const " not in target


def uses_in(tree: Tree, path: str, parts: typing.Collection[str]) -> tuple[list[Use], list[str]]:
    text = bare(tree.text(path))
    names = "|".join(sorted({"pool", *POINTER.findall(text)}))
    pattern = re.compile(rf"(?:(?:\w+(?:->|\.))*\b(?:{names})(?:\[[^\]]*\])?|\(\*(?:{names})\))->(\w+)((?:\.\w+|->\w+|\[[^\]]*\])*)")
    uses, problems, at = [], [], 0
    while match := pattern.search(text, at):
        at = match.end(1)  # a subscript may contain another use
        line = text.count("\n", 0, match.start()) + 1
        if match[1] in parts:
            leads_out = "->" in re.sub(r"\[[^\]]*\]", "", match[2])  # a field points out of the pool
            uses.append(Use(path, line, match[1], not leads_out and is_change(tree, text, match.start(), match.end())))
        elif match[1] not in LOCKS:
            problems.append(f"{path}:{line}: {match[0]} is in no part of {POOL}")
    return uses, problems


# ------------------------------------------------------------------------------------------------------------------------- the table

def read_rows(text: str) -> list[Row]:
    """An indented line continues the row before it."""
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if rows and line.startswith(" "):
            rows[-1] = rows[-1][0], rows[-1][1] + line
        elif line and not line.startswith("#"):
            rows.append((number, line))
    cells = ((number, [cell.split() for cell in row.split("|")] + [[], []]) for number, row in rows)
    return [Row(number, part[0], changers, readers) for number, (part, changers, readers, *_) in cells]


def holds(patterns: list[str], path: str) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def judge(row: Row, uses: list[Use]) -> typing.Iterator[str]:
    """Each use must be allowed, and each name of a row must be needed: a name too many would let uses come back."""
    for use in uses:
        if use.changes and not holds(row.changers, use.path):
            yield f"{use.path}:{use.line}: changes {row.part}, which {TABLE} leaves to {' '.join(row.changers)}"
        elif not holds(row.changers + row.readers, use.path):
            yield f"{use.path}:{use.line}: reads {row.part}, and {TABLE} does not say so"
    for pattern in row.changers:
        if not any(use.changes and fnmatch.fnmatch(use.path, pattern) for use in uses):
            yield f"{TABLE}:{row.line}: {pattern} does not change {row.part}: take it out"
    for pattern in row.readers:
        if not any(fnmatch.fnmatch(use.path, pattern) and not holds(row.changers, use.path) for use in uses):
            yield f"{TABLE}:{row.line}: {pattern} does not read {row.part}, or changes it: take it out"


def all_uses(tree: Tree, parts: typing.Collection[str]) -> tuple[list[Use], list[str]]:
    found = [uses_in(tree, path, parts) for path in sources(tree)]
    return [use for uses, _ in found for use in uses], [problem for _, problems in found for problem in problems]


def check(tree: Tree) -> Report:
    if POOL not in tree.files:
        return Report(POOL, [f"{POOL} is not there"])
    parts, rows = parts_of(tree), read_rows(tree.text(TABLE))
    uses, problems = all_uses(tree, parts)
    for row in rows:
        if row.part in parts:
            problems += judge(row, [use for use in uses if use.part == row.part])
        else:
            problems.append(f"{TABLE}:{row.line}: the pool has no part {row.part}")
    problems += [f"{TABLE}: no row says which files may use {part}: add one" for part in parts if part not in {row.part for row in rows}]
    fields = sum(len(fields_of(tree, struct)) for struct in parts.values())
    return Report(f"{fields} fields in {len(parts)} parts, {len(uses)} uses", problems)


# ------------------------------------------------------------------------------------------------------------------------- for people

def main() -> int:
    tree = Tree(pathlib.Path(__file__).resolve().parents[2])
    parts = parts_of(tree)
    uses, _ = all_uses(tree, parts)
    by_part: dict[str, dict[str, bool]] = collections.defaultdict(dict)
    for use in uses:
        by_part[use.part][use.path] = by_part[use.part].get(use.path, False) or use.changes
    for part, struct in parts.items():
        fields, files = fields_of(tree, struct), by_part[part]
        print(f"{part} ({len(fields)}): {' '.join(fields)}")
        print(f"    changed by {' '.join(sorted(path for path in files if files[path])) or 'no file'}")
        print(f"    read by    {' '.join(sorted(path for path in files if not files[path])) or 'no other'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
