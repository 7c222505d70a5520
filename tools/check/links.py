#!/usr/bin/env python3
"""
Checks calls between files: the objects of a library say which file calls functions, or uses data, of which other. Neither files nor folders may call
each other in a circle, unless links.txt lists it; of a room with a face others call what that declares (FACES). layers.py checks includes.

    tools/check/links.py [BUILD]    prints the folders with their lines, the arrows between them and the circles there are
"""
import collections
import dataclasses
import pathlib
import re
import subprocess
import sys
import typing

from tree import Report, Tree

BUILDS = ("build", "build-debug")
LIBRARIES = {                       # name: the folder of its objects in a build, and the prefix of the paths below it
    "libcenote.so": ("CMakeFiles/cenote_objects.dir", ""),
    "libcuda.so.1": ("sim/CMakeFiles/cenote_sim.dir", "sim/"),
}
TABLE = "tools/check/links.txt"
FACES = {"pool/clock": ("pool/clock/clock.h", "pool/clock/fence.h", "pool/clock/keys.h")}   # of a folder: the headers that declare what others call
Circle = frozenset[str]
Arrows = dict[str, dict[str, list[str]]]    # from, to: the names that are used


@dataclasses.dataclass
class Known:
    line: int
    members: Circle
    reason: str


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


# ------------------------------------------------------------------------------------------------------------------------- what is built

def objects_of(tree: Tree, build: str, library: str) -> dict[str, pathlib.Path]:
    """Source and object of each file that still exists."""
    place, before = LIBRARIES[library]
    folder = tree.root / build / place
    found = {before + str(path.relative_to(folder))[:-len(".o")]: path for path in folder.rglob("*.c.o")}
    return {source: path for source, path in found.items() if (tree.root / source).is_file()}


def is_fresh(tree: Tree, objects: dict[str, pathlib.Path]) -> bool:
    return bool(objects) and all((tree.root / source).stat().st_mtime <= path.stat().st_mtime for source, path in objects.items())


def fresh_build(tree: Tree, library: str) -> dict[str, pathlib.Path]:
    """The objects of the first build that is as new as the sources; {} if there is none."""
    builds = (objects_of(tree, build, library) for build in BUILDS)
    return next((objects for objects in builds if is_fresh(tree, objects)), {})


def read_arrows(objects: dict[str, pathlib.Path]) -> Arrows:
    """Reads the symbol tables. Not by nm, which shows another table for an object that is optimised when it is linked."""
    home: dict[str, str] = {}
    used: dict[str, list[str]] = {}
    for source, path in objects.items():
        listing = subprocess.run(["readelf", "--syms", "--wide", str(path)], check=True, capture_output=True, text=True).stdout
        symbols = [words for line in listing.splitlines() if len(words := line.split()) == 8 and words[4] in ("GLOBAL", "WEAK")]
        used[source] = [words[7] for words in symbols if words[6] == "UND"]
        home |= {words[7]: source for words in symbols if words[6] != "UND"}
    arrows: Arrows = {source: {} for source in objects}
    for source, names in used.items():
        for name in names:
            if name in home:
                arrows[source].setdefault(home[name], []).append(name)
    return arrows


def between_folders(arrows: Arrows) -> Arrows:
    folders: Arrows = {folder_of(path): {} for path in arrows}
    for source, targets in arrows.items():
        for target, names in targets.items():
            if folder_of(source) != folder_of(target):
                folders[folder_of(source)].setdefault(folder_of(target), []).extend(names)
    return folders


# ---------------------------------------------------------------------------------------------------------------------------- circles

def reachable(arrows: Arrows, start: str) -> dict[str, str]:
    """The files that can be reached along arrows, each with the file before it on the shortest way."""
    came_from: dict[str, str] = {}
    queue = collections.deque([start])
    while queue:
        at = queue.popleft()
        for target in arrows.get(at, {}):
            if target not in came_from:
                came_from[target] = at
                queue.append(target)
    return came_from


def circles_of(arrows: Arrows) -> list[Circle]:
    """The sets in which each file reaches every other, the largest first."""
    reach = {node: set(reachable(arrows, node)) for node in arrows}
    circles = {frozenset(other for other in reach[node] if node in reach[other]) for node in arrows if node in reach[node]}
    return sorted(circles, key=lambda circle: (-len(circle), sorted(circle)))


def shortest_through(arrows: Arrows, node: str) -> str:
    """The circle as text, a.c -> b.c (name) -> a.c (name), to find the call that should go."""
    came_from = reachable(arrows, node)
    way = [node]
    while len(way) == 1 or way[-1] != node:
        way.append(came_from[way[-1]])
    way.reverse()
    return node + "".join(f" -> {target} ({sorted(set(arrows[source][target]))[0]})" for source, target in zip(way, way[1:]))


# ------------------------------------------------------------------------------------------------------------------------- the table

def read_known(text: str) -> list[Known]:
    """An indented line continues the row before it."""
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if rows and line.startswith(" "):
            rows[-1] = rows[-1][0], rows[-1][1] + line
        elif line and not line.startswith("#"):
            rows.append((number, line))
    return [Known(number, frozenset(row.partition("|")[0].split()), row.partition("|")[2].strip()) for number, row in rows]


def judge(arrows: Arrows, known: list[Known], kind: str) -> list[str]:
    """Each circle has to be in one row."""
    problems = []
    for circle in circles_of(arrows):
        row = max(known, key=lambda row: len(row.members & circle), default=None)
        extra = sorted(circle - row.members) if row else sorted(circle)
        if extra:
            problems.append(f"a circle of {len(circle)} {kind} has {len(extra)} that no row of {TABLE} has together: "
                            f"{shortest_through(arrows, extra[0])}")
    return problems


def behind_faces(tree: Tree, arrows: Arrows) -> list[str]:
    """What files call of a room with a face, and the face does not declare."""
    problems = []
    for folder, headers in FACES.items():
        face = "".join(tree.text(path) for path in headers if path in tree.files)
        calls = {(source, name) for source, targets in arrows.items() if folder_of(source) != folder
                 for target, names in targets.items() if folder_of(target) == folder for name in names}
        problems += [f"{source}: calls {name} of {folder}/, which {headers[0]} does not declare" for source, name in sorted(calls)
                     if not re.search(rf"\b{name}\(", face)]
    return problems


def stale(known: list[Known], circles: list[Circle]) -> list[str]:
    """A row without its circle would let the circle come back."""
    problems = []
    for row in known:
        gone = sorted(row.members.difference(*(circle for circle in circles if len(circle & row.members) > 1)))
        if gone:
            problems.append(f"{TABLE}:{row.line}: in no circle any more, take it out: {' '.join(gone)}")
        if not row.reason:
            problems.append(f"{TABLE}:{row.line}: no reason is given")
    return problems


def check(tree: Tree) -> Report:
    known = read_known(tree.text(TABLE)) if TABLE in tree.files else []
    report, seen, told = Report(""), [], []
    for library in LIBRARIES:
        arrows = read_arrows(fresh_build(tree, library))
        if not arrows:
            report.problems.append(f"{library}: {' and '.join(BUILDS)} have no objects of these sources: `make build` comes first")
            continue
        for graph, kind in (arrows, "files"), (between_folders(arrows), "folders"):
            report.problems += judge(graph, known, kind)
            seen += circles_of(graph)
        report.problems += behind_faces(tree, arrows)
        told.append(f"{len(arrows)} files of {library}, {len(max(circles_of(arrows), key=len, default=()))} in the largest circle")
    if len(told) == len(LIBRARIES):
        report.problems += stale(known, seen)
    report.looked_at = "; ".join(told)
    return report


# ------------------------------------------------------------------------------------------------------------------------- for people

def describe(tree: Tree, library: str, arrows: Arrows) -> typing.Iterator[str]:
    lines: collections.Counter[str] = collections.Counter()
    folders = between_folders(arrows)
    for path in tree.ending(".c", ".h"):
        if folder_of(path) in folders:
            lines[folder_of(path)] += len(tree.lines(path))
    yield f"{library}: {len(arrows)} files in {len(folders)} folders"
    for folder, targets in sorted(folders.items()):
        yield f"  {folder:16} {lines[folder]:6} lines -> {' '.join(sorted(targets)) or 'nothing'}"
    for graph, kind in (folders, "folders"), (arrows, "files"):
        yield f"  circles of {kind}: {len(circles_of(graph))}"
        for circle in circles_of(graph):
            yield f"    {len(circle)}: {' '.join(sorted(circle))}"
            yield f"       {shortest_through(graph, min(circle))}"


def main(words: list[str]) -> int:
    tree = Tree(pathlib.Path(__file__).resolve().parents[2])
    for library in LIBRARIES:
        objects = objects_of(tree, words[0], library) if words else fresh_build(tree, library)
        if not objects:
            print(f"{library}: no objects: `make build` comes first")
            return 1
        print("\n".join(describe(tree, library, read_arrows(objects))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
