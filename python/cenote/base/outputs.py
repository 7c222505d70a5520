"""Writes files whole or not at all, as base/file.c does for libcenote.

A file is written in the folder of its path, under a new random name that ends in .part, and is renamed when it is complete. It replaces a plain
file at the path. A device, a pipe or /dev/stdout at the path is opened and written. Symbolic links are followed, one behind the other.

The folder may be /tmp, and the name one that can be guessed. So a link, a pipe or a device of another user is refused, root's excepted, and so is a
plain file that the kernel will not let this process replace. An open file of a process, in /proc, is written, whichever user owns it.
"""
from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import IO, Iterator, NamedTuple, NoReturn, Optional

PROC = "/proc/"  # a link in there stands for an open file: open the link itself, because its text may be no path
LINKS_MAX = 40  # one behind the other, as in Linux


class Place(NamedTuple):
    """Where the links of a path lead."""

    folder: int  # open
    name: str
    target: str  # what to open and write; empty: replace the file


def create(folder: int, name: str, mode: int = 0o666) -> int:
    """A new file in an open folder."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)


@contextmanager
def replacing(folder: int, name: str, mode: int = 0o666) -> Iterator[IO[bytes]]:
    part = f"{name}.{os.urandom(6).hex()}.part"
    file = os.fdopen(create(folder, part, mode), "wb")
    try:
        with file:
            yield file
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def refuse(number: int, what: str) -> NoReturn:
    raise OSError(number, f"{what}: remove it, or name another file")


def is_anothers(status: os.stat_result) -> bool:
    return status.st_uid not in (0, os.geteuid())


def is_kept(folder: int, status: os.stat_result) -> bool:
    """The kernel will not let this process take the place of a plain file."""
    around, user = os.fstat(folder), os.geteuid()
    return bool(around.st_mode & stat.S_ISVTX) and user not in (status.st_uid, around.st_uid)


def target_of(folder: int, name: str, seen: int, status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        if is_kept(folder, status):
            refuse(errno.EPERM, "this file belongs to another user")
        return ""
    if is_anothers(status):
        refuse(errno.EPERM, "this pipe or device belongs to another user, who could hold up this process or take what it writes")
    return f"{PROC}self/fd/{seen}"  # what was looked at, and not what has its name by then


@contextmanager
def looked_at(path: str, around: Optional[int]) -> Iterator[tuple[int, str, int]]:
    """The open folder of the path, the name in it, and what has this name, open; or -1 if nothing has."""
    head, name = os.path.split(path)
    if not name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    folder = os.open(head or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=around)
    seen = -1
    try:
        with suppress(FileNotFoundError):
            seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        yield folder, name, seen
    finally:
        os.close(folder)
        if seen >= 0:
            os.close(seen)


@contextmanager
def reached(path: str, around: Optional[int] = None, links: int = LINKS_MAX) -> Iterator[Place]:
    with looked_at(path, around) as (folder, name, seen):
        if seen < 0:
            yield Place(folder, name, "")
            return
        status = os.fstat(seen)
        if not stat.S_ISLNK(status.st_mode):
            yield Place(folder, name, target_of(folder, name, seen, status))
            return
        if is_anothers(status):
            refuse(errno.ELOOP, "this is a symbolic link of another user, which is not followed")
        if os.readlink(f"{PROC}self/fd/{folder}").startswith(PROC):
            yield Place(folder, name, name)
            return
        if not links:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with reached(os.readlink("", dir_fd=seen), folder, links - 1) as place:
            yield place


@contextmanager
def place_of(path: str) -> Iterator[Place]:
    """Every OSError gets the path as its file name."""
    try:
        with reached(path) as place:
            yield place
    except OSError as problem:
        problem.filename = path
        raise


@contextmanager
def whole(path: str) -> Iterator[IO[bytes]]:
    """A file to write bytes to. If it cannot be written: OSError, and the old file is unchanged."""
    with place_of(path) as place:
        if place.target:
            with os.fdopen(os.open(place.target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=place.folder), "wb") as file:
                yield file
        else:
            with replacing(place.folder, place.name) as file:
                yield file


def write(path: str, data: bytes) -> None:
    with whole(path) as file:
        file.write(data)


def check(path: str) -> None:
    """OSError if no file can be written at the path. Commands call this before they begin long work. It changes nothing there."""
    with place_of(path) as place:
        if not place.target:
            part = f"{place.name}.{os.urandom(6).hex()}.part"
            os.close(create(place.folder, part))
            os.unlink(part, dir_fd=place.folder)
            return
        try:
            os.close(os.open(place.target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder))
        except OSError as problem:
            if problem.errno != errno.ENXIO:  # a pipe that is not read yet
                raise
