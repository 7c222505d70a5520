"""How the files of before are kept in a dry run: by an overlay where the system lets us mount, else not at all, and then the user is asked.

    Guard(...) -> for each run: begin(), and what it returns is called in the program's process before it becomes the program -> close()
"""
import json
import os
import shutil
from contextlib import suppress
from typing import Any, Callable, Mapping, Optional, Sequence

from cenote.base.mistake import Mistake
from cenote.guard import caches, changes, overlay
from cenote.launch import environment


class Guard:
    """Of one command. `writes`: what the program may change all the same."""

    def __init__(self, writes: Sequence[str], is_unprotected: bool, variables: Mapping[str, str]) -> None:
        self.found: list[changes.Change] = []
        self.run = ""  # the folder of the last run's writes
        self.scratch: Optional[overlay.Scratch] = None
        self.entrance: Optional[Callable[[], None]] = None
        if is_unprotected:
            return
        passed = caches.folders(variables)
        caches.make(passed)
        self.through = [*passed, *map(os.path.realpath, writes)]
        try:
            self.scratch = overlay.Scratch()
            self.try_once()
        except OSError as why:
            raise Mistake(f"the system does not let cenote protect your files ({why.filename or why}: {why.strerror}): --unprotected runs the script "
                          "all the same, on a copy of your project for example") from None

    def try_once(self) -> None:
        """In a process of its own, which ends: then the first run has no surprise."""
        assert self.scratch is not None
        read, write = os.pipe()
        folder = self.scratch.new_run()
        pid = os.fork()
        if not pid:
            try:
                overlay.enter(folder, self.scratch.folder, self.through)
            except OSError as why:
                os.write(write, f"{why.errno or 0} {why.filename or why}".encode(errors="replace"))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8", errors="replace") as file:
            why = file.read()
        os.waitpid(pid, 0)
        if why:
            number, _, what = why.partition(" ")
            raise OSError(int(number), os.strerror(int(number)), what)

    def begin(self, variables: dict[str, str]) -> None:
        """For the next run, whose reports go to the folder that its variables name."""
        if self.scratch is None:
            return
        self.run = folder = self.scratch.new_run()
        through = [*self.through, variables[environment.DRY_RUN]]
        asked = folder, self.scratch.folder, through
        variables[environment.DRY_FILES] = json.dumps([os.getpid(), *asked])
        self.entrance = lambda: overlay.enter(*asked)

    def ended(self, keep: str, is_over: bool) -> None:
        """A run has. What the first one wrote is copied to the folder `keep`, if there is one. `is_over`: no process is left that was in it."""
        if self.scratch is None:
            return
        new = changes.read(self.run)
        if not self.found and keep:
            changes.copy(new, keep)
        known = {one.path for one in self.found}
        self.found += [one for one in new if one.path not in known]
        if is_over:
            shutil.rmtree(self.run, ignore_errors=True)

    def content(self) -> list[dict[str, Any]]:
        return [{"path": one.path, "how": one.how, "bytes": one.bytes} for one in self.found]

    def close(self) -> None:
        if self.scratch is not None:
            with suppress(OSError):
                self.scratch.close()
