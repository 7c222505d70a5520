"""What `cenote dry-run` kept: files of before that the program would have overwritten, changed, removed or moved away.

libcenote_files.so (plugins/files/), which is preloaded into each process of a run, keeps them, and writes rows and the names of stand-ins to a folder
that all runs of one command share. `begin` runs in the program: there the rows get a line of Python. The rest runs in `cenote dry-run`, which reads
the rows and, at its end, removes the stand-ins.
"""
import ctypes
import faulthandler
import functools
import importlib.util
import os
import shutil
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, Callable, NamedTuple

from cenote import places
from cenote.base import source
from cenote.base.stacks import last_stack
from cenote.base.tracebacks import hide
from cenote.launch import environment
from cenote.places import NotBuilt

LIBRARY = "libcenote_files.so"
PREFIX = ".cenote-dry-"  # of a stand-in; plugins/files/files.h has it, too
SHOWN_MAX = 4
PATH_ROOM = 4096  # PATH_MAX
IN_PLACE = "changes in place"  # not kept: too large to copy; change.c has it, too


class One(NamedTuple):
    """A file or folder, what the program does to it, and where."""

    path: str
    how: str  # one of the texts of change.c
    program: str  # the process's name
    file: str  # the program's line in Python, or "" and 0
    line: int

    @property
    def is_kept(self) -> bool:
        return self.how != IN_PLACE

    def __str__(self) -> str:
        by, path = f"{source.shown(self.file)}:{self.line}" if self.file else self.program, source.shown(self.path)
        what = f"{self.how} it" if self.is_kept else "changes it in place, and it is too large for a copy"
        return f"{path if path.isprintable() else ascii(path)} ({by} {what})"


def library(simulation: str) -> str:
    """The library beside that of the simulated GPU. The dynamic linker would go on without it."""
    path = os.path.join(os.path.dirname(simulation), LIBRARY)
    if not os.path.exists(path):
        raise NotBuilt(f"{path} is not there, which keeps your files as they are: " +
                       ("install the package again" if places.is_installed() else "`make build` makes it"))
    return path


def begin(folder: str) -> None:
    """In the program. From now on a row has the stack of its thread, which faulthandler writes when the library sends that thread a signal."""
    with suppress(OSError):  # the command has ended, and this process has not
        rows = open(os.path.join(folder, "rows"), "ab")  # noqa: SIM115  (as long as the process lives)
        faulthandler.register(environment.DRY_KEPT, file=rows, all_threads=False)
    begin_late = getattr(ctypes.CDLL(None), "cenote_files_begin", None)
    if begin_late is not None:
        begin_late(os.fsencode(folder))
    where = getattr(ctypes.CDLL(None), "cenote_files_where", None)
    if where is not None:
        where.restype = ctypes.c_bool
        for module in safetensors():
            setattr(module, "serialize_file", in_two_steps(module.serialize_file, where))


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


def in_two_steps(inside: Callable[..., Any], where: Callable[..., bool]) -> Callable[..., Any]:
    """safetensors' writer, which renames a file by a system call of its own, past the C library and so past libcenote_files.so: it gets a new name in
    the folder where the system has it, and Python renames that."""
    @functools.wraps(inside)
    def serialize_file(data: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filename)
        part = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
        room = ctypes.create_string_buffer(PATH_ROOM)
        try:
            done = inside(data, os.fsdecode(room.value) if where(os.fsencode(part), room) else filename, *args, **kwargs)
            if room.value:
                os.replace(part, path)
        except BaseException as error:
            hide(error)
            raise
        finally:
            with suppress(OSError):
                os.unlink(part)
        return done
    return serialize_file


def read(folder: str) -> list[One]:
    """Each path once. What lies in a folder that was removed or moved away as a whole is not named."""
    try:
        with open(os.path.join(folder, "rows"), "rb") as file:
            fields = [os.fsdecode(field) for field in file.read().split(b"\0")]
    except OSError:
        return []
    found: dict[str, One] = {}
    for how, program, path, stack in zip(*(fields[first::4] for first in range(4))):
        own = next((frame for frame in last_stack(stack) if not source.is_library(frame.file)), None)
        found.setdefault(path, One(path, how, program, own.file if own else "", own.line if own else 0))
    return [one for one in found.values() if not any(above in found for above in folders_above(one.path))]


def folders_above(path: str) -> list[str]:
    found = []
    while (above := os.path.dirname(path)) != path:
        found.append(above)
        path = above
    return found


def lines(found: list[One]) -> list[str]:
    """For the verdict."""
    stayed, changed = [one for one in found if one.is_kept], [one for one in found if not one.is_kept]
    return [*listed("kept as it was: ", stayed, "; what the script wrote in its place is gone"), *listed("not kept: ", changed, "")]


def listed(before: str, found: list[One], after: str) -> list[str]:
    more = f", and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return [before + ", ".join(map(str, found[:SHOWN_MAX])) + more + after] if found else []


def clear(folder: str) -> None:
    """Once all processes have ended."""
    try:
        with open(os.path.join(folder, "stand-ins"), "rb") as file:
            paths = file.read().split(b"\0")
    except OSError:
        return
    for path in dict.fromkeys(filter(None, paths)):
        with suppress(OSError):
            if not os.path.basename(path).startswith(PREFIX.encode()):
                take_second_names(path)
            elif os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def take_second_names(path: bytes) -> None:
    """What the program renamed has its name of before, too. Nothing else goes: the program may have written to the new folder."""
    if os.path.islink(path) or not os.path.isdir(path):
        if os.lstat(path).st_nlink > 1:
            os.unlink(path)
        return
    for name in os.listdir(path):
        take_second_names(os.path.join(path, name))
    with suppress(OSError):
        os.rmdir(path)
