"""What a run has done to files: read from the folders to which its writes went, and compared with the files of before.

A folder of writes looks like the folder that it stands over (`lower`). In it lie new files, changed ones as a whole, and for each removed one a mark:
a device of number 0, as overlays have it. __pycache__ counts for nothing, nor do temporary files.
"""
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from typing import Iterator, NamedTuple

from cenote.base import source
from cenote.base.quantity import readable

SHOWN_MAX = 4
REMOVED, CHANGED, REPLACED, NEW = "removed", "changed", "replaced", "new"
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")  # a folder that was removed and made anew
PASSING = ("__pycache__",)


class Change(NamedTuple):
    path: str
    how: str
    written: str  # where that is, which the program wrote
    bytes: int


def is_mark(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: str) -> bool:
    for name in OPAQUE:
        with suppress(OSError):
            return os.getxattr(folder, name) == b"y"
    return False


def lstat(path: str) -> "os.stat_result | None":
    with suppress(OSError):
        return os.lstat(path)
    return None


def within(upper: str, lower: str) -> Iterator[Change]:
    """What lies below `upper`, which stands over the folder `lower`."""
    with suppress(OSError):
        for entry in os.scandir(upper):
            if entry.name in PASSING:
                continue
            status, path = entry.stat(follow_symlinks=False), os.path.join(lower, entry.name)
            before = lstat(path)
            if is_mark(status):
                if before is not None:
                    yield Change(path, REMOVED, "", 0)
            elif stat.S_ISDIR(status.st_mode):
                is_over = before is not None and stat.S_ISDIR(before.st_mode)
                if is_over and not is_opaque(entry.path):
                    yield from within(entry.path, path)
                else:
                    yield Change(path, NEW if before is None else REPLACED, entry.path, size_below(entry.path))
            elif before is None:
                yield Change(path, NEW, entry.path, status.st_size)
            elif (before.st_mode, before.st_size, before.st_mtime_ns) != (status.st_mode, status.st_size, status.st_mtime_ns):
                yield Change(path, CHANGED, entry.path, status.st_size)


def size_below(folder: str) -> int:
    return sum(os.lstat(os.path.join(above, name)).st_size for above, _, names in os.walk(folder) for name in names)


def read(run: str) -> list[Change]:
    """Of all folders of writes of a run."""
    found: list[Change] = []
    for name in sorted(os.listdir(run)):
        link = os.path.join(run, name, "lower")
        if os.path.islink(link):
            found += within(os.path.join(run, name, "upper"), os.readlink(link))
    return [one for one in found if not is_passing(one)]


def is_passing(one: Change) -> bool:
    """Temporary files; and what is gone from /dev/shm, where the simulated GPU clears away what ended programs left."""
    if one.how == REMOVED:
        return one.path.startswith("/dev/shm/")
    folders = [os.path.join(folder, "") for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")]
    return one.how == NEW and one.path.startswith(tuple(folders)) and not one.path.startswith(os.path.join(os.getcwd(), ""))


def shown(found: list[Change], words: bool) -> str:
    texts = []
    for one in found[:SHOWN_MAX]:
        path = source.shown(one.path)
        texts.append((path if path.isprintable() else ascii(path)) + (f" ({one.how})" if words else ""))
    return ", ".join(texts) + (f", and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else "")


def lines(found: list[Change], are_copied_to: str) -> list[str]:
    """For the verdict."""
    old, new = [one for one in found if one.how != NEW], [one for one in found if one.how == NEW]
    told = [f"kept as it was: {shown(old, True)}"] if old else []
    if new or old:
        size = readable(sum(one.bytes for one in found))
        what = f"what the script wrote, {size}," if not new else f"what the script wrote, {size}, new: {shown(new, False)},"
        told.append(f"{what} {'is copied to ' + source.shown(are_copied_to) if are_copied_to else 'is gone (--keep-files DIR copies it)'}")
    return told


def copy(found: list[Change], to: str) -> None:
    """What the program wrote, each by its path below the current folder, or else by its whole path."""
    for one in found:
        if one.written:
            inside = os.path.relpath(one.path)
            target = os.path.join(to, one.path.lstrip("/") if inside.startswith(os.pardir) else inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(one.written) and not os.path.islink(one.written):
                shutil.copytree(one.written, target, symlinks=True, dirs_exist_ok=True, ignore=marks)
            else:
                shutil.copy2(one.written, target, follow_symlinks=False)


def marks(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if is_mark(os.lstat(os.path.join(folder, name)))}
