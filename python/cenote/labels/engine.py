"""Keeps reads of autograd's graphs apart from backward, which frees them on threads of its own, without Python's lock.

    backward   any number at a time, and nested; a new one waits while a thread reads graphs
    a read     one at a time, and only while no thread is in backward; else it is refused
    gradients  are read only if no other live thread has run backward: `parameter.grad = None` releases Python's lock while the gradient is freed,
               and a thread that reads `parameter.grad` meanwhile gets freed memory. An assignment cannot be made to wait, so such reads are refused
"""
import os
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator

PATIENCE = 0.05  # seconds that a read waits for backwards to end
MOST = 30.0  # seconds that a backward waits for a read. Reads have far smaller limits of their own

_gate = threading.Condition(threading.RLock())
_inside = 0  # backwards that are running
_looker = 0  # the thread that reads graphs, 0: none
_waiting = 0  # backwards that wait for a read: they come before the next read
_learners: set[int] = set()  # threads that have run backward
_own = threading.local()  # `depth`: how many of the backwards are of this thread


def run(backward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    global _inside, _waiting
    with _gate:
        _learners.add(threading.get_ident())
        if not _inside and _looker != threading.get_ident():
            _waiting += 1
            _gate.wait_for(lambda: not _looker, MOST)
            _waiting -= 1
        _inside += 1
        _own.depth = getattr(_own, "depth", 0) + 1
    try:
        return backward(*args, **kwargs)
    finally:
        with _gate:
            _inside -= 1
            _own.depth -= 1
            _gate.notify_all()


@contextmanager
def at_rest() -> Iterator[bool]:
    """Yields False if a thread is in backward: what operations keep may be freed while it is read."""
    global _looker
    with _gate:
        rests = _gate.wait_for(lambda: not _inside and not _looker and not _waiting, PATIENCE)
        if rests:
            _looker = threading.get_ident()
    try:
        yield rests
    finally:
        if rests:
            with _gate:
                _looker = 0
                _gate.notify_all()


def learns_alone() -> bool:
    """Whether no other live thread has run backward: such a thread may free gradients at any time."""
    with _gate:
        _learners.intersection_update(sys._current_frames())
        return _learners <= {threading.get_ident()}


def forked() -> None:
    """In a forked child, where only the thread that forked goes on: it waits for no thread of the parent."""
    global _gate, _inside, _looker, _waiting
    _gate = threading.Condition(threading.RLock())
    _inside, _waiting = getattr(_own, "depth", 0), 0
    _looker = _looker if _looker == threading.get_ident() else 0


os.register_at_fork(after_in_child=forked)
