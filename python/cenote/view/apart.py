"""Work on a long history in two processes at once: parts that do not depend on each other, such as the divisions of a page."""
from __future__ import annotations

import os
from typing import Any, Callable, Sequence

MANY = 500_000  # records: with fewer, a process more takes longer than it saves


def has_one_thread() -> bool:
    """In the child of a process with several threads, a lock may be held for ever by a thread that the child does not have."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def done(work: Sequence[Callable[[], Any]], records: int) -> list[Any]:
    """What each of these calls returns. A child process makes every second call, if that pays and this process may be forked. If the child ends
    early, for example because memory is short, this process makes the child's calls, too."""
    if records < MANY or not has_one_thread():
        return [part() for part in work]
    import multiprocessing  # seldom needed
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send([part() for part in work[1::2]])
        except BaseException:
            os._exit(1)

    child = context.Process(target=run, daemon=True)
    try:
        child.start()
    except OSError:
        return [part() for part in work]
    finally:
        theirs.close()
    found = [part() for part in work[0::2]]
    with ours:
        try:
            others = ours.recv()
        except EOFError:
            others = [part() for part in work[1::2]]
    child.join()
    return [(others if i % 2 else found)[i // 2] for i in range(len(work))]
