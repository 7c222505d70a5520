"""The processes of one run of `cenote dry-run`: what it has started, what that has started, and so on.

Each run has a folder of its own, in that of its command, and all that it starts has the folder's name in its environment. The kernel shows the
environment with which a process began. So one is found also if the one between it and the run (a shell script, torchrun) has ended. If a program
clears the environment of what it starts, the line of parents finds it: `cenote dry-run` becomes the parent of those that have lost theirs
(guard/kernel.py). Not found: a process that has lost both when `cenote dry-run` itself was killed, and those of other users.
"""
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Iterable, Iterator, NamedTuple, Optional, Protocol

from cenote.launch import environment

GRACE = 5  # s that the kernel has to end a process that was killed
POLL = 0.01  # s
POLL_MAX = 0.05


class Child(Protocol):
    """subprocess.Popen, or what takes its place."""

    def wait(self, timeout: Optional[float] = None) -> int: ...


class Seen(NamedTuple):
    parent: int
    has_ended: bool  # its parent has not asked yet how


def poll(child: Child) -> Optional[int]:
    """The child's exit status; None: it still runs. An interrupt from the keyboard has to wait meanwhile: Popen takes a lock, and where Python raised
    KeyboardInterrupt right behind that, no later call for this child would ever return."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return child.wait(timeout=0)
    except subprocess.TimeoutExpired:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait(child: Child, seconds: float) -> Optional[int]:
    """As `poll`, and waits so long for it."""
    last, pause = time.monotonic() + seconds, POLL
    while (status := poll(child)) is None and (left := last - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(2 * pause, POLL_MAX)
    return status


def seen() -> dict[int, Seen]:
    """All processes."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent, *_ = file.read().rpartition(")")[2].split()
                found[int(name)] = Seen(int(parent), state in "ZX")
    return found


def is_of(pid: int, item: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(one == item or one.startswith(item + b"/") for one in file.read().split(b"\0"))
    except OSError:  # it has ended, or it is another user's
        return False


def children(pid: int) -> list[int]:
    return [one for one, found in seen().items() if found.parent == pid]


def left(folder: str, pids: Iterable[int] = (), but: Iterable[int] = ()) -> list[int]:
    """Those of the run, or of all runs of the command, with this folder, and those of the line below `pids`, that have not ended; children before
    parents. Not this process, nor those in `but` and what is below them."""
    item = os.fsencode(f"{environment.DRY_RUN}={folder}")
    all_seen = seen()
    children: dict[int, list[int]] = {}
    but = set(but)
    for pid, one in all_seen.items():
        children.setdefault(one.parent, []).append(pid)

    def below(pid: int) -> Iterator[int]:
        if pid not in but:
            for child in children.get(pid, []):
                yield from below(child)
            yield pid
    roots = [*pids, *(pid for pid, one in all_seen.items() if not one.has_ended and is_of(pid, item))]
    found = dict.fromkeys(pid for root in roots for pid in below(root))
    return [pid for pid in found if pid in all_seen and not all_seen[pid].has_ended and pid != os.getpid()]


def end(folder: str, pids: Iterable[int] = (), but: Iterable[int] = ()) -> None:
    """Kills them, and returns when they are gone: what one of them would still have written does not come after what we do next."""
    pids, but, last = list(pids), set(but), time.monotonic() + GRACE
    while (found := left(folder, pids, but)) and time.monotonic() < last:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)
