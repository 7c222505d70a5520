"""Whoever looks at autograd's graphs, and backward, which takes them apart on threads of its own without Python's lock, keep out of each other's way.

    backward   any number at a time, nested ones always; a new one waits while somebody looks
    a look     one at a time, and only while nobody is in backward; else it is not to be had
    gradients  looked at only where no other thread that lives has run backward: `parameter.grad = None` gives Python's lock away while the gradient
               dies, and whoever reads `parameter.grad` meanwhile is handed what is gone. No gate can be put before that: it is an assignment
"""
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator

PATIENCE = 0.05  # seconds that a look waits for backwards to end
MOST = 30.0  # seconds that a backward waits for a look: it has budgets of its own, which are far less

_gate = threading.Condition(threading.RLock())
_inside = 0  # backwards under way
_looker = 0  # the thread that looks, 0: none
_waiting = 0  # backwards that wait for a look: they come before the next one
_learners: set[int] = set()  # threads that have run backward


def run(backward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    global _inside, _waiting
    with _gate:
        _learners.add(threading.get_ident())
        if not _inside and _looker != threading.get_ident():
            _waiting += 1
            _gate.wait_for(lambda: not _looker, MOST)
            _waiting -= 1
        _inside += 1
    try:
        return backward(*args, **kwargs)
    finally:
        with _gate:
            _inside -= 1
            _gate.notify_all()


@contextmanager
def at_rest() -> Iterator[bool]:
    """False: somebody is in backward, and what operations keep may go while it is read."""
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
    """No other thread has gradients that it may drop at any time."""
    with _gate:
        _learners.intersection_update(sys._current_frames())
        return _learners <= {threading.get_ident()}
