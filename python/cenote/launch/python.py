"""The command lines of every Python that cenote starts: of a module of its own, and of the user's program.

`python -m` and `python -c` put the current folder first on the path where modules are looked for: in /tmp, or in a project of another user, a
json.py of that user would run as this one. A module of ours starts without that folder. Python 3.10 has no option for it (-P is of 3.11), and -I
would leave out PYTHONPATH and the user's packages, too; so the first thing that runs takes it out, before anything is imported. The user's program
starts as Python starts it: a script finds the modules beside it.
"""
from __future__ import annotations

import os
import sys
from typing import Sequence

from cenote import places

FOLDER = os.path.dirname(places.HERE)  # of the package
# sys is built in, and importlib is loaded at every start.
START = (f"import sys; sys.path[:] = filter(None, sys.path); {FOLDER!r} in sys.path or sys.path.insert(0, {FOLDER!r}); import importlib; "
         "sys.exit(importlib.import_module(sys.argv.pop(1)).main())")


def of_ours(module: str, *arguments: str) -> list[str]:
    """A Python that calls `main()` of a module of the package, which finds the arguments in sys.argv."""
    return [sys.executable, "-c", START, module, *arguments]


def of_user(arguments: Sequence[str]) -> list[str]:
    """A Python that runs what the user named: SCRIPT ..., -m MODULE ... or -c CODE ..."""
    return [sys.executable, *arguments]
