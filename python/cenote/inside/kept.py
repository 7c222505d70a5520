"""A dry run overwrites no checkpoint that was there before it.

Runs in a program that `cenote dry-run` started. Where a regular file is that no run of this command has made, torch.save and safetensors write
nothing, and it stays as it is. The same goes for os.replace, os.rename and shutil.copyfile if they bring a file there that was saved so, or kept so:
many programs save to another name first. A file that a run of this command has made is written as usual, so that a program which loads it again goes
on.

Not kept: what is written to a file object. Its open has emptied the file by then.

All processes of all runs write to one list, which `cenote dry-run` makes and reads: which files they made, by device and inode, because a file may be
renamed; and which they kept.
"""
import functools
import importlib.util
import json
import os
import shutil
import sys
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

from cenote.base import source
from cenote.base.tracebacks import hide

SHOWN_MAX = 4
MOVERS: tuple[tuple[Any, str], ...] = ((os, "replace"), (os, "rename"), (shutil, "copyfile"))


class One(NamedTuple):
    """A file that was kept, what would have written it, and the program's line."""

    path: str
    by: str
    file: str
    line: int


def identity(path: str) -> Optional[list[int]]:
    """Of a regular file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_dev, found.st_ino] if os.path.isfile(path) else None


class List:
    """The file that all processes share."""

    def __init__(self, path: str) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, encoding="utf-8") as file:
                return [json.loads(line) for line in file]
        except OSError:  # none yet; or the command has ended, and this process has not: then it overwrites nothing any more
            return []

    def add(self, **row: Any) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as file:  # one write: lines of two processes do not mix
                file.write(json.dumps(row) + "\n")
        except OSError:
            pass

    def is_made(self, path: str) -> bool:
        this = identity(path)
        return this is not None and any(row.get("made") == this for row in self.rows())

    def made(self, path: str) -> None:
        this = identity(path)
        if this is not None and not self.is_made(path):
            self.add(made=this)

    def kept(self) -> list[One]:
        """Each path once."""
        found = {row["kept"]: One(row["kept"], row["by"], row["file"], row["line"]) for row in reversed(self.rows()) if "kept" in row}
        return list(reversed(found.values()))


def lines(kept: list[One]) -> list[str]:
    if not kept:
        return []
    named = [f"{source.shown(one.path)} ({one.by}{f', {source.shown(one.file)}:{one.line}' if one.file else ''})" for one in kept[:SHOWN_MAX]]
    more = f", and {len(kept) - SHOWN_MAX} more" if len(kept) > SHOWN_MAX else ""
    return [f"kept as it was: {', '.join(named)}{more}"]


# --- in the program

def begin(torch: ModuleType, path: str) -> None:
    """Before the program saves for the first time."""
    files = List(path)
    for module in (torch, torch.serialization):
        setattr(module, "save", guarded(files, module.save, "torch.save", "f"))
    for module in safetensors():
        setattr(module, "serialize_file", guarded(files, module.serialize_file, "safetensors", "filename"))
    for owner, name in MOVERS:
        setattr(owner, name, mover(files, getattr(owner, name), f"{owner.__name__}.{name}"))


def safetensors() -> list[ModuleType]:
    """Its modules that write files. It is imported here if it is installed: what a program has imported by name cannot be replaced later."""
    try:
        found = importlib.util.find_spec("safetensors")
        if found is None or not source.is_library(found.origin or ""):
            return []
        importlib.import_module("safetensors.torch")
    except Exception:  # installed in part: then no program can use it
        return []
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "safetensors" and "serialize_file" in vars(module)
            and not name.endswith("_rust")]


def guarded(files: List, inside: Callable[..., Any], by: str, name: str) -> Callable[..., Any]:
    """`inside`, which writes its second argument, a path of that name."""
    @functools.wraps(inside)
    def save(*args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get(name)
        if not isinstance(path, (str, os.PathLike)):
            return inside(*args, **kwargs)
        path = os.fspath(path)
        if identity(path) is not None and not files.is_made(path):
            keep(files, path, by)
            return None
        try:
            return inside(*args, **kwargs)
        except BaseException as error:
            hide(error)
            raise
        finally:
            files.made(path)
    return save


def mover(files: List, inside: Callable[..., Any], by: str) -> Callable[..., Any]:
    """`inside(from, to)`, which replaces a file. What it would have moved is gone afterwards, as after a move."""
    copies = inside.__name__ == "copyfile"

    @functools.wraps(inside)
    def move(*args: Any, **kwargs: Any) -> Any:
        paths = [os.fspath(one) for one in args[:2] if isinstance(one, (str, os.PathLike))]
        is_made = len(paths) == 2 and files.is_made(paths[0])
        if len(paths) < 2 or not (is_made or os.path.abspath(paths[0]) in [one.path for one in files.kept()]):
            return inside(*args, **kwargs)
        if identity(paths[1]) is not None and not files.is_made(paths[1]):
            keep(files, paths[1], by)
            if is_made and not copies:
                os.unlink(paths[0])
            return paths[1] if copies else None
        result = inside(*args, **kwargs)
        files.made(paths[1])
        return result
    return move


def keep(files: List, path: str, by: str) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None and source.is_library(frame.f_code.co_filename):
        frame = frame.f_back
    files.add(kept=os.path.abspath(path), by=by, file=frame.f_code.co_filename if frame is not None else "",
              line=frame.f_lineno or 0 if frame is not None else 0)
