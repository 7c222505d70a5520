"""Where a program is that does not go on: for `cenote dry-run`, which says so while it waits, and when it ends a program after --timeout.

A process of the program that gets the signal ASK writes the stack of its main thread to a file (faulthandler, in inside/fit_report.py). It does so in
that thread itself, whatever the thread does and whichever has Python's lock: so no frame changes meanwhile. This module sends the signal, reads the
stack, and asks the system what the process does. Upon TELL a process writes its report, if its main thread comes to Python code: a program that makes
no step has written none.
"""
import os
import re
import signal
import time
from typing import Optional

from cenote.base import source
from cenote.base.stacks import Frame, last_stack
from cenote.launch import environment

ENDING, ASK, TELL = environment.DRY_STACKS, environment.DRY_ASK, environment.DRY_TELL
ANSWER = 5  # s that a process has to write its stack: it may be stopped, or wait for a disk
STILL = 0.1  # s without a write: the stack is whole
TAIL = 1 << 16  # bytes that are read: the last stacks are in them
COMPILES = os.path.join("native", "adapter.py")


def listens(pid: int, number: int = ASK) -> bool:
    """Another process may have the number by now: the signal would end it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)$", file.read())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def asked(pid: int, path: str) -> list[Frame]:
    """The stack of the main thread of that process now; empty if it does not answer."""
    before = os.path.getsize(path)
    if not listens(pid):
        return []
    try:
        os.kill(pid, ASK)
    except OSError:
        return []
    end, size = time.monotonic() + ANSWER, before
    while time.monotonic() < end:
        time.sleep(STILL)
        last, size = size, os.path.getsize(path)
        if size == last > before:
            break
    with open(path, "rb") as file:
        file.seek(max(before, size - TAIL))
        return last_stack(file.read().decode(errors="replace"))


def does(pid: int) -> str:
    """What the process does just now, in a word of the system."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "it is gone"
    return {"R": "it computes", "D": "it waits for a disk", "T": "it is stopped", "Z": "it is gone"}.get(state, "it waits")


def place(stack: list[Frame]) -> str:
    if any(source.is_ours(frame.file) and frame.file.endswith(COMPILES) for frame in stack):
        return "about to begin: cenote compiles a library for this PyTorch, which it does once"
    own = next((frame for frame in stack if not source.is_library(frame.file)), None)
    inner = stack[0]
    if own is None:
        return f"inside {inner}"
    return f"at {own}" + (f", inside {inner}" if inner is not own else "")


def where(folder: str) -> list[str]:
    """A line for each process: where it is, and whether it computes or waits."""
    lines = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(ENDING):
            continue
        pid = int(name[:-len(ENDING)])
        stack = asked(pid, os.path.join(folder, name))
        doing = does(pid)
        if stack and doing != "it is gone":
            lines.append(f"process {pid} is {place(stack)}; {doing}")
    return lines


def reports(folder: str) -> None:
    """Each process writes its report, before it is ended. One that does not come to it within ANSWER seconds writes none."""
    began, waiting = time.time(), set()
    for name in os.listdir(folder):
        pid = int(name[:-len(ENDING)]) if name.endswith(ENDING) else 0
        if pid and listens(pid, TELL):
            os.kill(pid, TELL)
            waiting.add(os.path.join(folder, f"{pid}.json"))
    while waiting and time.time() < began + ANSWER:
        time.sleep(STILL)
        waiting = {path for path in waiting if not os.path.exists(path) or os.stat(path).st_mtime < began}


def last_report(folder: str) -> Optional[float]:
    """When a process last wrote its report: at a step, or as memory ran out."""
    times = [os.stat(os.path.join(folder, name)).st_mtime for name in os.listdir(folder) if name.endswith(".json")]
    return max(times, default=None)
