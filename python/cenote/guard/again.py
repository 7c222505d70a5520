"""A run that begins at a copy of an earlier one (inside/waiting.py) leaves what that one wrote, and gets files of its own."""
import json
import os
from typing import Sequence

from cenote.guard import changes, kernel, overlay, redirect


def return_to(command: int) -> None:
    """To the namespace of the command with this number: there are the files of before, and the scratch folder."""
    here = os.getcwd()
    kernel.join(f"/proc/{command}/ns/mnt", kernel.NEW_MOUNTS)
    os.chdir(here)


def text(command: int, is_overlay: bool, folder: str, scratch: str, through: Sequence[str]) -> str:
    return json.dumps([command, is_overlay, folder, scratch, through])


def has_written(tree: str) -> bool:
    """Whether this run has. Raises OSError if the system does not let it leave its tree of files. To be called in a fork."""
    command, is_overlay, folder, _, _ = json.loads(tree)
    if not is_overlay:
        return redirect.has_written(redirect.upper)
    return_to(command)
    return bool(changes.read(folder))


def begin(tree: str, redirected: str) -> None:
    command, is_overlay, folder, scratch, through = json.loads(tree)
    if is_overlay:
        return_to(command)
        overlay.enter(folder, scratch, through)
    else:
        redirect.begin(redirected)
