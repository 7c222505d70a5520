"""Checks that sim/libraries/stubs.def has all that the torch in .venv needs, and that the simulated libraries export it. Needs a torch."""
import dataclasses
import pathlib
import re
import sys

from tree import Report, Tree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from cenote.simulated import demands  # noqa: E402  (needs the path above)

TABLE = "sim/libraries/stubs.def"
BUILDS = ("build", "build-debug")    # the simulated libraries are in one of them
SECTION = re.compile(r"#ifdef LIBRARY_(\w+)")
ROW = re.compile(r"STUB\((\w+), *(\w+)\)")
LIBRARY = re.compile(r"^simulated_library\((\w+) (\S+)", re.MULTILINE)


@dataclasses.dataclass
class Stub:
    section: str
    symbol: str
    behaviour: str
    line: int


def read_table(tree: Tree) -> list[Stub]:
    stubs, section = [], ""
    for number, line in enumerate(tree.lines(TABLE), 1):
        if match := SECTION.match(line):
            section = match[1]
        elif line.startswith("#endif"):
            section = ""
        elif match := ROW.match(line):
            stubs.append(Stub(section, match[1], match[2], number))
    return stubs


def sections(tree: Tree) -> dict[str, str]:
    """The section of the table for each file name of a library."""
    return {soname: section for section, soname in LIBRARY.findall(tree.text("sim/libraries/CMakeLists.txt"))}


def find_torch(tree: Tree) -> demands.Torch | None:
    return demands.find_torch(map(str, tree.root.glob(".venv/lib/python3*/site-packages")))


def without_row(tree: Tree, wanted: set[demands.Demand]) -> list[demands.Demand]:
    """What torch needs from a library, and the library's section does not have."""
    names = sections(tree)
    rows = {(stub.section, stub.symbol) for stub in read_table(tree)}
    return sorted(demand for demand in wanted
                  if demand.symbol and demand.library in names and (names[demand.library], demand.symbol) not in rows)


def check_table(tree: Tree) -> list[str]:
    problems, seen = [], set()
    known = set(sections(tree).values())
    for stub in read_table(tree):
        if stub.section not in known:
            problems.append(f"{TABLE}:{stub.line}: {stub.symbol} is in the section {stub.section!r}, and no library of that name is built")
        if (stub.section, stub.symbol) in seen:
            problems.append(f"{TABLE}:{stub.line}: {stub.symbol} a second time")
        seen.add((stub.section, stub.symbol))
    return problems


def check(tree: Tree) -> Report:
    if TABLE not in tree.files:
        return Report(f"no {TABLE}")
    count = len(read_table(tree))
    report = Report(f"{count} entry points", check_table(tree))
    torch = find_torch(tree)
    if torch is None:
        report.looked_at += ", and no torch in .venv to compare with"
        return report
    wanted = demands.wanted_by(demands.torch_libraries(torch))
    report.looked_at += f", {len(wanted)} demands of torch {torch.version}"
    for demand in without_row(tree, wanted):
        report.problems.append(f"{TABLE} has no row for {demand.symbol} of {demand.library}: `tools/stubs --write` adds it")
    built = [name for name in BUILDS if (tree.root / name / "sim/libcuda.so.1").exists()]
    if not built:
        report.problems.append("no simulated libraries are there: `make build` comes first")
        return report
    folder = f"{built[0]}/sim"
    for demand in demands.missing(wanted, demands.simulated_libraries(str(tree.root / folder))):
        report.problems.append(f"{folder}/{demand.library} " + (f"lacks {demand.symbol} {demand.version}" if demand.symbol else "is not there"))
    return report
