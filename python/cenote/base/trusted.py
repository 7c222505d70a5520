"""Folders that only root and this user can change, and files in them. What is loaded into a process comes from there.

A path is walked from / through open folders: each component is opened in the folder before it, without following a link, and judged by the open
descriptor, so that what was judged is what is used. A folder belongs to root or to this user, and no other user may write to it, unless it is
sticky as /tmp is: there others add names, and cannot replace ours. A link is followed if it belongs to root or to this user and lies in a folder
that no other user may write to. Files are opened in a folder that was walked to, never by a path.
"""
from __future__ import annotations

import os
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator, NamedTuple

LINKS_MAX = 40  # on the way, as the system has it
O_FOLDER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # a folder that may be entered need not be readable


class Untrusted(OSError):
    """Another user could change what is there; the text says where, in one line."""


class Folder(NamedTuple):
    path: str  # without a link in it
    descriptor: int

    def place(self) -> str:
        """A path to the open folder itself, wherever it is moved. For programs that this process starts, too."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        os.close(self.descriptor)


def is_trusted(owner: int) -> bool:
    return owner in (0, os.geteuid())


def others_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & 0o022)


def check_owner(status: os.stat_result, path: str) -> None:
    if not is_trusted(status.st_uid):
        raise Untrusted(f"{path} belongs to another user (number {status.st_uid})")


def check_folder(status: os.stat_result, path: str) -> None:
    check_owner(status, path)
    if others_write(status) and not status.st_mode & stat.S_ISVTX:
        raise Untrusted(f"others than its owner may write to {path} (mode {stat.S_IMODE(status.st_mode):o})")


class Walk:
    """The folders from / to where it is, open. `close` leaves none open."""

    def __init__(self, may_make: bool) -> None:
        self.may_make, self.links = may_make, 0
        self.names: list[str] = []
        self.folders = [os.open("/", O_FOLDER | os.O_DIRECTORY)]
        check_folder(os.fstat(self.folders[0]), "/")

    def path(self, *more: str) -> str:
        return "/" + "/".join([*self.names, *more])

    def up(self, count: int) -> None:
        for _ in range(min(count, len(self.names))):  # above / there is /
            os.close(self.folders.pop())
            self.names.pop()

    def open(self, name: str) -> int:
        try:
            return os.open(name, O_FOLDER, dir_fd=self.folders[-1])
        except FileNotFoundError:
            if not self.may_make:
                raise
        try:
            os.mkdir(name, 0o700, dir_fd=self.folders[-1])
        except FileExistsError:  # made meanwhile; it is judged like any other
            pass
        return os.open(name, O_FOLDER, dir_fd=self.folders[-1])

    def follow(self, link: int, path: str) -> list[str]:
        """The components that stand for the link, which is the last one here. Its text is that of the open link."""
        check_owner(os.fstat(link), path)
        if others_write(os.fstat(self.folders[-2])):
            raise Untrusted(f"{path} is a link in a folder that others may write to")
        self.links += 1
        if self.links > LINKS_MAX:
            raise Untrusted(f"{path}: more than {LINKS_MAX} links on the way")
        target = os.readlink("", dir_fd=link)
        self.up(len(self.names) if target.startswith("/") else 1)
        return target.split("/")

    def go(self, path: str) -> None:
        ahead = path.split("/")[::-1]
        while ahead:
            name = ahead.pop()
            if name in ("", ".", ".."):
                self.up(name == "..")
                continue
            found, path = self.open(name), self.path(name)
            self.folders.append(found)  # `close` finds it there, too
            self.names.append(name)
            status = os.fstat(found)
            if stat.S_ISLNK(status.st_mode):
                ahead.extend(self.follow(found, path)[::-1])
            elif stat.S_ISDIR(status.st_mode):
                check_folder(status, path)
            else:
                raise NotADirectoryError(f"{path} is no folder")

    def close(self) -> None:
        for folder in self.folders:
            os.close(folder)


def folder(path: str, may_make: bool = False) -> Folder:
    """`path`, open; with `may_make` what is missing of it is made, for this user alone. OSError where it cannot be, Untrusted among them."""
    walk = Walk(may_make)
    try:
        walk.go(os.path.join(os.getcwd(), path))
        return Folder(walk.path(), os.dup(walk.folders[-1]))
    finally:
        walk.close()


def own_folder(path: str) -> Folder:
    """The same for a folder to write to: this user's, and sticky is not enough."""
    found = folder(path, may_make=True)
    status = os.fstat(found.descriptor)
    if status.st_uid == os.geteuid() and not others_write(status) and os.access(".", os.W_OK | os.X_OK, dir_fd=found.descriptor, effective_ids=True):
        return found
    found.close()
    raise Untrusted(f"{found.path} is not a folder that this user alone may write to")


def open_file(place: Folder, name: str) -> int:
    """A file in a folder, to read. Untrusted if others may write to it; FileNotFoundError if it is not there."""
    path = os.path.join(place.path, name)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.descriptor)
    try:
        status = os.fstat(file)
        check_owner(status, path)
        if not stat.S_ISREG(status.st_mode) or others_write(status):
            raise Untrusted(f"{path} is no file, or others may write to it (mode {stat.S_IMODE(status.st_mode):o})")
        return file
    except BaseException:
        os.close(file)
        raise


# --- folders that pass

def made_by_us(path: str) -> Folder:
    """A folder of mkdtemp's, open; where it lies does not matter from here on."""
    descriptor = os.open(path, O_FOLDER | os.O_DIRECTORY)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise Untrusted(f"{path} was replaced as soon as it was made")
    return Folder(path, descriptor)


@contextmanager
def passing_folder(place: Folder, prefix: str) -> Iterator[Folder]:
    """One that is gone at the end, with what is in it."""
    name = prefix + os.urandom(8).hex()
    os.mkdir(name, 0o700, dir_fd=place.descriptor)
    made = Folder(os.path.join(place.path, name), os.open(name, O_FOLDER | os.O_DIRECTORY, dir_fd=place.descriptor))
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(os.path.join(place.place(), name), ignore_errors=True)
