"""How long a test waits for what has to come: patience(20) is 20 seconds of a quiet machine of 2026, in seconds of this one.

The factor is CENOTE_TEST_PATIENCE, which `make test` measures, or else it is measured here once: at least 4, because a machine may become busier
while a test runs. tests/patience.h is the same for C.
"""

import functools
import inspect
import os
import subprocess
import threading
import time

LEAST = 4
LOOPS = 250_000  # 10 ms of the machine that the limits were chosen on


def measure() -> int:
    before, number = time.monotonic(), 1
    for _ in range(LOOPS):
        number = number * 5 & 0xFFFF
    return LEAST * (1 + int((time.monotonic() - before) / 0.010))


@functools.cache
def factor() -> int:
    return int(os.environ.get("CENOTE_TEST_PATIENCE") or measure())


def patience(seconds: float) -> int:
    return int(seconds * factor())


def stretch() -> None:
    """Limits of ten seconds and more that this process sets to others with `subprocess` are for those that hang: they are stretched. Whatever it
    starts has the same factor."""
    os.environ["CENOTE_TEST_PATIENCE"] = str(factor())
    for name in ("communicate", "wait"):
        setattr(subprocess.Popen, name, stretched(getattr(subprocess.Popen, name)))


def stretched(call):
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    def with_patience(*arguments, **named):
        named.update(zip(names, arguments))
        limit = named.get("timeout")
        if limit is not None and limit >= 10 and not _inside.depth:
            named["timeout"] = patience(limit)
        _inside.depth += 1  # one of them calls the other
        try:
            return call(**named)
        finally:
            _inside.depth -= 1
    return with_patience


class _Inside(threading.local):
    depth = 0


_inside = _Inside()
