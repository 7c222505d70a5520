"""A program that may write only to a scratch folder of its run, to caches and to what --writes names. Where we may not mount:
containers under Docker's own profile, and Ubuntu from 23.10 on, where AppArmor takes mounting from the namespaces of ordinary users.

Linux refuses every other write, by whatever program and call (EACCES), so nothing of before is lost. What Python code of the program writes goes to
the scratch folder (redirect.py), so that a script that saves needs no option; what slips past that is an error of the script.

Not forbidden by Linux in this way: changes of modes, times and extended attributes. Left open: /dev with /dev/shm, through which processes share
memory, and in which a file of before is not protected.
"""
import os
from typing import Sequence

from cenote.guard import kernel

WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
REMOVE_FOLDER, REMOVE_FILE, MAKE, REFER = 1 << 4, 1 << 5, sum(1 << bit for bit in range(6, 13)), 1 << 13
FILES = WRITE_FILE | TRUNCATE
ALL = FILES | REMOVE_FOLDER | REMOVE_FILE | MAKE | REFER
LEAST = 3  # version that forbids truncate: Linux 6.2
OPEN = ("/dev", "/proc")


class Scratch:
    """The command's side. Raises OSError where the system has no Landlock, or an older one."""

    def __init__(self, folder: str) -> None:
        version = kernel.landlock_version()
        if version < LEAST:
            raise OSError(95, "Linux 6.2 or newer is needed" if version else "the system has no Landlock", "Landlock")
        self.folder = folder
        self.runs = 0

    def new_run(self) -> str:
        """It looks like that of overlay.py, with one cover of `/`."""
        self.runs += 1
        folder = os.path.join(self.folder, str(self.runs))
        os.makedirs(os.path.join(folder, "1", "upper"))
        os.symlink("/", os.path.join(folder, "1", "lower"))
        os.mkdir(os.path.join(folder, "tmp"))
        return folder

    def close(self) -> None:
        """The command removes its folder."""


def enter(folder: str, scratch: str, through: Sequence[str]) -> None:
    """From now on this process writes only there: to the scratch folder, because a later run begins in a copy of this process."""
    allowed = {path: ALL if os.path.isdir(path) else FILES for path in (scratch, *through) if os.path.exists(path)}
    kernel.landlock(ALL, {**allowed, **{path: ALL if path == "/dev" else FILES for path in OPEN}})
