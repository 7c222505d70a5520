"""A call of the interface, and a report, takes the lock or the turn of a pool by a function that looks whether the pool has ended, or looks itself
(invariant 31)."""
import re

import lengths
from tree import Report, Tree

ROOMS = ("base/", "pool/", "share/", "stats/")
NAME = re.compile(r"^\w[\w *]*?\(?\b(\w+)\)?\(")
BARE = re.compile(r"\block_(?:take|try)\(&[\w>.-]*->(?:lock|turn)\)")
LOOK = "life.open"
REPORTS = ("stats/", "share/")      # there the turn is not held, and all functions are bound
ALLOWED = {"cenote_pool_destroy", "record_open", "record_forget"}   # begin and end the pool, and no second thread can


def check(tree: Tree) -> Report:
    report = Report("", [])
    functions = 0
    for path in [path for path in tree.ending(".c") if path.startswith(ROOMS)]:
        lines = tree.lines(path)
        for first, last in lengths.c_functions(lines):
            match = NAME.match(lines[first - 1])
            name = match[1] if match else ""
            is_bound = (name.startswith("cenote_") or path.startswith(REPORTS)) and name not in ALLOWED
            functions += is_bound
            if not is_bound or any(LOOK in line for line in lines[first:last]):
                continue
            report.problems += [f"{path}:{number + 1}: {name} takes a lock of a pool that may have ended: pool_take_lock, turn_take"
                                for number in range(first, last) if BARE.search(lines[number])]
    report.looked_at = f"{functions} calls of the interface and functions of reports"
    return report
