"""sys.argv of a program's first process under `cenote dry-run --search`: it notices the first read, and has waiting.py called then.

It stands there from the start of Python on. So this module imports almost nothing: the program is to find the modules that it would find otherwise.
"""
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def open_files() -> set[str]:
    """What this process has open beside its standard streams, each with its number."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the folder itself, which was open for the list
            continue
        if int(number) > 2 and target not in DEVICES:
            found.add(f"{number} {target}")
    return found


class Arguments(list):  # type: ignore[type-arg]
    """sys.argv until it is read; from then on like any list. What stands first, the program's name, may be read and written before."""

    socket: int | None = None  # its number; None once the program has read its arguments
    files: set[str]  # open when Python started
    read: Callable[[int, set[str], Arguments], None]  # called at the first read

    def is_read(self) -> None:
        number, self.socket = self.socket, None
        if number is not None:
            self.read(number, self.files, self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.is_read()
        return list, (list(self),)


def noticed(name: str) -> Callable[..., Any]:
    inside = getattr(list, name)

    def method(self: Arguments, *args: Any, **kwargs: Any) -> Any:
        if not (name in ("__getitem__", "__setitem__") and args[0] == 0):
            self.is_read()
        return inside(self, *args, **kwargs)
    return method


for _name in ("__getitem__", "__setitem__", "__delitem__", "__iter__", "__reversed__", "__len__", "__contains__", "__eq__", "__ne__", "__lt__",
              "__le__", "__gt__", "__ge__", "__add__", "__iadd__", "__mul__", "__rmul__", "__imul__", "__repr__", "append", "clear", "copy", "count",
              "extend", "index", "insert", "pop", "remove", "reverse", "sort"):
    setattr(Arguments, _name, noticed(_name))


def begin(text: str, read: Callable[[int, set[str], Arguments], None]) -> None:
    """Called as Python starts. `text` is NUMBER:INODE of the socket; a process that has inherited the variable alone does nothing."""
    number, _, inode = text.partition(":")
    try:
        if os.fstat(int(number)).st_ino != int(inode):
            return
    except (OSError, ValueError):
        return
    os.set_inheritable(int(number), False)
    arguments = Arguments(sys.argv)
    arguments.socket, arguments.files, arguments.read = int(number), open_files(), read
    sys.argv = arguments
