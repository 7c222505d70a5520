"""Writes files whole or not at all, as base/file.c does for libcenote.

A file is written in the folder of its path, under a new random name that ends in .part, and is renamed when it is complete. It replaces a plain
file at the path. A device, a pipe or /dev/stdout at the path is opened and written. So is the target of a symbolic link of this user or of root;
a link of another user is refused.
"""
from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import IO, Iterator

PROC = "/proc/"  # a link in there stands for an open file: open the link itself, because its text may be no path


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


def as_it_is(folder: int, name: str) -> tuple[str, int]:
    """The name to open and write, and the flags for that. An empty name: replace the file instead."""
    try:
        seen = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return "", 0
    try:
        status = os.fstat(seen)
        if not stat.S_ISLNK(status.st_mode):
            return ("", 0) if stat.S_ISREG(status.st_mode) else (name, os.O_NOFOLLOW)
        if status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.ELOOP, "this is a symbolic link of another user, which is not followed: remove it, or name another file", name)
        target = os.readlink("", dir_fd=seen)
        is_open_file = os.readlink(f"{PROC}self/fd/{folder}").startswith(PROC)
        return (name, 0) if is_open_file else (target, os.O_CREAT)
    finally:
        os.close(seen)


@contextmanager
def place_of(path: str) -> Iterator[tuple[int, str, str, int]]:
    """The open folder of the path, the name in it, and the answer of as_it_is. Every OSError gets the path as its file name."""
    head, name = os.path.split(path)
    try:
        if not name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = os.open(head or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield (folder, name, *as_it_is(folder, name))
        finally:
            os.close(folder)
    except OSError as problem:
        problem.filename = path
        raise


@contextmanager
def whole(path: str) -> Iterator[IO[bytes]]:
    """A file to write bytes to. If it cannot be written: OSError, and the old file is unchanged."""
    with place_of(path) as (folder, name, target, flags):
        if target:
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | flags, 0o666, dir_fd=folder), "wb") as file:
                yield file
        else:
            with replacing(folder, name) as file:
                yield file


def write(path: str, data: bytes) -> None:
    with whole(path) as file:
        file.write(data)


def check(path: str) -> None:
    """OSError if no file can be written at the path. Commands call this before they begin long work. It changes nothing there."""
    with place_of(path) as (folder, name, target, flags):
        if not target:
            part = f"{name}.{os.urandom(6).hex()}.part"
            os.close(create(folder, part))
            os.unlink(part, dir_fd=folder)
            return
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666, dir_fd=folder))
        except OSError as problem:
            if problem.errno != errno.ENXIO:  # a pipe that is not read yet
                raise
