"""Opens folders that only root and this user can change, and files in them. Libraries are loaded only from such folders.

A path is opened component by component from /, each in the open folder before it and without following a link. It is checked by its descriptor,
so that the checked object is the one in use. A folder must belong to root or to this user, and no other user may write to it, unless it is sticky
like /tmp: there other users can add names but not replace those of this user. A link is followed if it belongs to root or to this user, and is in
a folder that no other user may write to. Files are opened in such an open folder, never by a path.
"""
from __future__ import annotations

import os
import shutil
import stat
from contextlib import contextmanager
from typing import Iterator, NamedTuple

LINKS_MAX = 40  # in one path, as in Linux
O_FOLDER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # a folder that may be entered need not be readable


class Untrusted(OSError):
    """Another user could change the file or folder; the text names it, in one line."""


class Folder(NamedTuple):
    path: str  # without a link in it
    descriptor: int

    def place(self) -> str:
        """A path that names the open folder even if it is moved. Programs that this process starts can use it, too."""
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
        raise Untrusted(f"other users may write to {path} (mode {stat.S_IMODE(status.st_mode):o})")


class Walk:
    """The open folders from / to the one that was reached last. `close` closes them all."""

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
            return self._open_or_make(name)
        except OSError as problem:
            problem.filename = self.path(name)  # the name alone says nothing
            raise

    def _open_or_make(self, name: str) -> int:
        try:
            return os.open(name, O_FOLDER, dir_fd=self.folders[-1])
        except FileNotFoundError:
            if not self.may_make:
                raise
        try:
            os.mkdir(name, 0o700, dir_fd=self.folders[-1])
        except FileExistsError:  # another process made it meanwhile; it is checked like any other
            pass
        return os.open(name, O_FOLDER, dir_fd=self.folders[-1])

    def follow(self, link: int, path: str) -> list[str]:
        """The components of the link's target. `link` is the last of the open folders here."""
        check_owner(os.fstat(link), path)
        if others_write(os.fstat(self.folders[-2])):
            raise Untrusted(f"{path} is a link in a folder that other users may write to")
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
    """The open folder `path`. With `may_make` missing folders are made, for this user alone. OSError, such as Untrusted, if that cannot be done."""
    walk = Walk(may_make)
    try:
        walk.go(os.path.join(os.getcwd(), path))
        return Folder(walk.path(), os.dup(walk.folders[-1]))
    finally:
        walk.close()


def own_folder(path: str) -> Folder:
    """The same for a folder to write to: it must belong to this user, and no other user may write to it, sticky or not."""
    found = folder(path, may_make=True)
    status = os.fstat(found.descriptor)
    if status.st_uid == os.geteuid() and not others_write(status) and os.access(".", os.W_OK | os.X_OK, dir_fd=found.descriptor, effective_ids=True):
        return found
    found.close()
    raise Untrusted(f"{found.path} is not a folder that this user alone may write to")


def given_folder(path: str) -> Folder:
    """The same for a folder that is only read, as that of an image: it may be root's, and no other user may write to it, sticky or not."""
    found = folder(path)
    if not others_write(os.fstat(found.descriptor)):
        return found
    found.close()
    raise Untrusted(f"other users may write to {found.path}")


def open_file(place: Folder, name: str) -> int:
    """Opens a file in a folder for reading. Untrusted if other users may write to it; FileNotFoundError if it is missing."""
    path = os.path.join(place.path, name)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.descriptor)
    try:
        status = os.fstat(file)
        check_owner(status, path)
        if not stat.S_ISREG(status.st_mode) or others_write(status):
            raise Untrusted(f"{path} is no plain file, or other users may write to it (mode {stat.S_IMODE(status.st_mode):o})")
        return file
    except BaseException:
        os.close(file)
        raise


# --- temporary folders

def made_by_us(path: str) -> Folder:
    """Opens a folder that mkdtemp has just made. Changes to the folders above it do not matter from here on."""
    descriptor = os.open(path, O_FOLDER | os.O_DIRECTORY)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise Untrusted(f"{path} was replaced as soon as it was made")
    return Folder(path, descriptor)


@contextmanager
def passing_folder(place: Folder, prefix: str) -> Iterator[Folder]:
    """A new folder in `place`, removed with its content at the end."""
    name = prefix + os.urandom(8).hex()
    os.mkdir(name, 0o700, dir_fd=place.descriptor)
    made = Folder(os.path.join(place.path, name), os.open(name, O_FOLDER | os.O_DIRECTORY, dir_fd=place.descriptor))
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(os.path.join(place.place(), name), ignore_errors=True)
