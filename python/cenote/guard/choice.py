"""How the files of before are kept in a dry run: by an overlay where the system lets us mount, by Landlock where it does not, or not at all, and then
the user is asked.

    Guard(...) -> for each run: begin(), and `entrance` is called in the program's process before it becomes the program; ended() -> close()
"""
import json
import os
import shutil
from contextlib import suppress
from typing import Any, Callable, Mapping, Optional, Sequence, Type, Union

from cenote.base.mistake import Mistake
from cenote.guard import again, caches, changes, landlock, overlay
from cenote.launch import environment

Scratch = Union[overlay.Scratch, landlock.Scratch]
REFUSALS = ("Permission denied", "Read-only file system", "Value too large", "readonly database", "unable to open database file",
            "Operation not permitted", "Invalid cross-device link")
WAYS: tuple[tuple[Type[Any], Callable[..., None]], ...] = ((overlay.Scratch, overlay.enter), (landlock.Scratch, landlock.enter))


class Guard:
    """Of one command. `writes`: what the program may change all the same; `folder`: the command's, to be used by it alone."""

    def __init__(self, writes: Sequence[str], is_unprotected: bool, variables: Mapping[str, str], folder: str) -> None:
        self.found: list[changes.Change] = []
        self.run = ""  # the folder of the last run's writes
        self.runs = 0
        self.scratch: Optional[Scratch] = None
        self.folder = folder
        self.is_full = False  # the place for what the last run wrote
        self.problem = ""  # why what the first run wrote was not copied
        self.entrance: Callable[[], None] = lambda: None
        for path in writes:
            if not os.path.exists(path):  # only what is there can be passed through
                raise Mistake(f"--writes {path}: there is no such file or folder; make it first")
        passed = caches.folders(variables)
        caches.make(passed)
        self.through = [*map(os.path.realpath, passed), *map(os.path.realpath, writes)]
        self.choose(is_unprotected)

    def choose(self, is_unprotected: bool) -> None:
        """Landlock makes some scripts fail: not for a user who lets the script change any file."""
        problems = []
        for scratch, enter in WAYS[:1] if is_unprotected else WAYS:
            try:
                self.scratch, self.enter = scratch(self.folder), enter
                self.try_once()
                return
            except OSError as why:
                problems.append(f"{why.filename}: {why.strerror}" if why.filename else str(why))
                self.close()
        if is_unprotected:
            return
        raise Mistake(f"the system does not let cenote protect your files ({'; '.join(problems)}): --unprotected runs the script all the same, on a "
                      "copy of your project for example")

    def try_once(self) -> None:
        """In a process of its own, which ends: then the first run has no surprise."""
        assert self.scratch is not None
        read, write = os.pipe()
        folder = self.scratch.new_run()
        pid = os.fork()
        if not pid:
            try:
                self.enter(folder, self.scratch.folder, self.through)
            except OSError as why:
                os.write(write, f"{why.errno or 0} {why.filename or why}".encode(errors="replace"))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8", errors="replace") as file:
            problem = file.read()
        os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
        if problem:
            number, _, what = problem.partition(" ")
            raise OSError(int(number), os.strerror(int(number)), what)

    @property
    def is_overlay(self) -> bool:
        return isinstance(self.scratch, overlay.Scratch)

    def hint(self, texts: Sequence[str]) -> list[str]:
        """For a run that ended with these errors."""
        if self.is_full:
            return ["  no space was left for what the script writes, in " + (
                "memory, of which it may take half: --writes PATH lets the script really write to PATH" if self.is_overlay else
                "the folder for temporary files: TMPDIR names another")]
        if self.scratch is None or not any(word in text for word in REFUSALS for text in texts):
            return []
        return ["  cenote forbids a write for which it has no place: --writes PATH lets the script change PATH" + (
            "" if self.is_overlay else " (this system does not let it mount; docs/dry-run.md)")]

    def begin(self, variables: dict[str, str]) -> None:
        """For the next run, whose reports go to the folder that its variables name."""
        if self.scratch is None:
            return
        self.runs += 1
        self.run = folder = self.scratch.new_run()
        asked = folder, self.scratch.folder, [*self.through, variables[environment.DRY_RUN]]
        variables[environment.DRY_FILES] = again.text(os.getpid(), self.is_overlay, *asked)
        if not self.is_overlay:
            variables[environment.DRY_REDIRECT] = json.dumps([os.path.join(folder, "1", "upper"), asked[2]])
            variables["TMPDIR"] = os.path.join(folder, "tmp")
        self.entrance = lambda: self.enter(*asked)

    def ended(self, keep: str, is_over: bool) -> None:
        """A run has. What the first one wrote is copied to the folder `keep`, if there is one. `is_over`: no process is left that was in it."""
        if self.scratch is None:
            return
        new = changes.read(self.run)
        self.is_full = not os.statvfs(self.run).f_bavail
        if self.runs == 1 and keep:
            try:
                changes.copy(new, keep)
            except OSError as why:
                self.problem = f"--keep-files {keep}: {why.strerror or 'not all could be copied'}"
        known = {one.path for one in self.found}
        self.found += [one for one in new if one.path not in known]
        if is_over:
            shutil.rmtree(self.run, ignore_errors=True)

    def content(self) -> list[dict[str, Any]]:
        return [{"path": one.path, "how": one.how, "bytes": one.bytes} for one in self.found]

    def close(self) -> None:
        scratch, self.scratch = self.scratch, None
        if scratch is not None:
            with suppress(OSError):
                scratch.close()
