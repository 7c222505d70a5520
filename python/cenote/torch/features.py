"""What cenote does inside PyTorch, by features that switch themselves off.

The table of seams.py says which private names a feature needs. If a name is missing, or if the start raises anything, the feature is off: what it has
replaced is put back, and one line on stderr says what is lost. `import torch` never ends by it. What a program asks for by a call, such as
cenote.growth(), raises the same line (`why_not`). A public name that is missing raises where it is used, and is treated alike.

    not begun -> begun
              `-> off, for this process, and said once
"""
import os
import sys
from typing import Any, Callable

from cenote.torch import patches, seams

WORKERS = ("from multiprocessing.spawn import spawn_main", "from multiprocessing.forkserver import main")  # how their programs begin, after -c

_said: set[str] = set()  # features that are off


def is_worker() -> bool:
    """A worker by `spawn` or `forkserver` imports the program, and PyTorch with it, before multiprocessing says that it has a parent. Its command
    line tells."""
    import multiprocessing
    return multiprocessing.parent_process() is not None or any(word.startswith(WORKERS) for word in sys.orig_argv)


def say(text: str) -> None:
    """Prints to stderr, once for a program: not in workers, and of several ranks only in the first."""
    if not is_worker() and os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)


def why_not(name: str) -> str:
    """The line that says which names the feature lacks and what is lost; empty if it lacks none."""
    feature = seams.table()[name]
    missing = [seam.name for seam in feature.seams if not seams.is_there(seam)]
    version = getattr(sys.modules.get("torch"), "__version__", "?")
    return f"cenote: PyTorch {version} has no {', '.join(missing)}: {feature.lost}" if missing else ""


def is_whole(name: str) -> bool:
    """Whether the feature lacks no name. If it does, the line is said, once."""
    why = why_not(name)
    if why:
        turn_off(name, why)
    return not why


def turn_off(name: str, why: str) -> None:
    if name not in _said:
        _said.add(name)
        say(why)


def begin(name: str, start: Callable[[], Any]) -> bool:
    """Starts a feature. False: it is off, and one line was said."""
    if not is_whole(name):
        return False
    try:
        start()
    except Exception as error:
        patches.put_back(name)
        text = " ".join(str(error).split())[:200]
        turn_off(name, f"cenote: {name} did not begin, {type(error).__name__}: {text}: {seams.table()[name].lost}")
        return False
    return True
