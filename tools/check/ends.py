"""A call of the interface takes the lock or the turn of a pool by a function that looks whether the pool has ended (invariant 31)."""
import re

import lengths
from tree import Report, Tree

ROOMS = ("library.c", "base/", "pool/", "share/", "stats/")
CALL = re.compile(r"^\w[\w *]*?\(?(cenote_\w+)\)?\(")
BARE = re.compile(r"\block_(?:take|try)\(&[\w>.-]*->(?:lock|turn)\)")
ALLOWED = {"cenote_pool_destroy"}   # ends the pool itself, and no second thread can


def check(tree: Tree) -> Report:
    report = Report("", [])
    calls = 0
    for path in [path for path in tree.ending(".c") if path.startswith(ROOMS)]:
        lines = tree.lines(path)
        for first, last in lengths.c_functions(lines):
            call = CALL.match(lines[first - 1])
            calls += call is not None
            for number in range(first, last) if call and call[1] not in ALLOWED else ():
                if BARE.search(lines[number]):
                    report.problems.append(f"{path}:{number + 1}: {call[1]} takes a lock of a pool that may have ended: pool_take_lock, turn_take")
    report.looked_at = f"{calls} calls of the interface"
    return report
