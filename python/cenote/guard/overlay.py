"""A tree of files of its own for each run: an overlay over every file system on which the program could change a file. Where we may mount.

    command:  begin -> has a mount namespace of its own, and in it a tmpfs, the scratch folder, which nothing else sees
    program:  enter -> has another one, whose `/` is made of overlays: what was there lies below, what the program writes lies in the scratch folder
    command:  the run has ended -> reads in the scratch folder what has changed (changes.py), and ends: the namespaces and the tmpfs are gone

So nothing of before changes, however it is written, each run begins from the same files, and nothing is left if all processes are killed. Passed
through are caches, which are meant to grow, and what --writes names. What cannot be covered is read-only: the program gets an error.

An ordinary user mounts in a user namespace of the command's. There a folder with a mount below cannot be covered as a whole (the kernel would show
what that mount hides): its folders are covered one by one, and new files cannot be made in it directly.
"""
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Iterable, Optional, Sequence

from cenote.guard import kernel, mounts

# redirect_dir: an old folder can be renamed. Ordinary users may not have it, nor the attributes that overlays use otherwise.
OPTIONS = ("redirect_dir=on,index=off,metacopy=off", "userxattr")


class Scratch:
    """The command's side."""

    def __init__(self, folder: str) -> None:
        """Leaves the namespaces of before. To be called once, with one thread. Raises OSError where the system does not let us."""
        user, group = os.geteuid(), os.getegid()
        try:
            kernel.leave_namespaces(kernel.NEW_MOUNTS)
        except PermissionError:
            kernel.leave_namespaces(kernel.NEW_MOUNTS | kernel.NEW_USER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
        self.folder = os.path.join(folder, "files")
        self.runs = 0
        os.mkdir(self.folder)
        kernel.mount("cenote", self.folder, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, "mode=700")

    def new_run(self) -> str:
        self.runs += 1
        folder = os.path.join(self.folder, str(self.runs))
        os.mkdir(folder)
        return folder

    def close(self) -> None:
        with suppress(OSError):
            kernel.checked(kernel.libc.umount2(os.fsencode(self.folder), kernel.DETACH), "umount")


def escaped(path: str) -> str:
    """For the options of an overlay."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


class Tree:
    """The program's side, while it is made."""

    def __init__(self, folder: str, all_mounts: Sequence[mounts.Mount]) -> None:
        self.folder, self.all = folder, all_mounts
        self.root = os.path.join(folder, "root")
        self.tries = 0
        self.covered: list[str] = []
        self.failed: Optional[OSError] = None  # the last overlay that could not be mounted
        os.mkdir(self.root)

    def at(self, path: str) -> str:
        return self.root + path.rstrip("/")

    def overlay(self, path: str) -> bool:
        """The folder `upper` beside the overlay's number has what the program writes; the link `lower` says over what."""
        self.tries += 1
        own = os.path.join(self.folder, str(self.tries))
        upper, work = os.path.join(own, "upper"), os.path.join(own, "work")
        status = os.stat(path)
        os.makedirs(upper)
        os.mkdir(work)
        os.chown(upper, status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        # It is this user's, and has to forbid what the folder of another user forbids.
        os.chmod(upper, status.st_mode & 0o7777 & (~0 if os.access(path, os.W_OK) else ~0o222))
        places = ",".join(f"{name}={escaped(at)}" for name, at in (("lowerdir", path), ("upperdir", upper), ("workdir", work)))
        flags = os.statvfs(path).f_flag & kernel.KEPT_FLAGS
        for options in OPTIONS:
            try:
                kernel.mount("cenote", self.at(path), "overlay", flags, f"{options},{places}")
                os.symlink(path, os.path.join(own, "lower"))
                self.covered.append(path)
                return True
            except OSError as why:
                self.failed = why
        shutil.rmtree(own, ignore_errors=True)
        return False

    def cover(self, path: str) -> None:
        """With all that is mounted below."""
        if not self.overlay(path):
            kernel.bind(path, self.at(path), is_read_only=True, is_whole=True)
            self.cover_parts(path)
        for mount in mounts.directly_below(path, self.all):
            self.attach(mount)

    def cover_parts(self, path: str) -> None:
        """Each folder in it, down to those on which another file system is mounted."""
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False) and not any(mount.path == entry.path for mount in self.all):
                if mounts.below(entry.path, self.all):
                    with suppress(PermissionError):
                        self.cover_parts(entry.path)
                else:
                    with suppress(PermissionError):
                        self.overlay(entry.path)

    def attach(self, mount: mounts.Mount) -> None:
        if mount.is_covered:
            self.cover(mount.path)
            return
        with suppress(FileNotFoundError, PermissionError):  # one that another mount hides
            kernel.bind(mount.path, self.at(mount.path), is_read_only=mount.is_single_file, is_whole=True)
        for one in mounts.directly_below(mount.path, self.all):
            if one.is_covered or any(each.is_covered for each in mounts.below(one.path, self.all)):
                self.attach(one)

    def cover_own(self, paths: Iterable[str]) -> None:
        """An ordinary user's overlay takes no folder of other users to the scratch folder, and so nothing below one. Therefore the first folder on
        the way to a path that is this user's has one of its own, or else the path itself."""
        for path in sorted({self.own(os.path.realpath(path)) for path in paths}):  # those above come first: a later one would hide them
            if path not in self.covered and not any(mounts.is_below(path, one.path) for one in self.all if not one.is_covered):
                self.overlay(path)

    def own(self, path: str) -> str:
        at = "/"
        for name in path.strip("/").split("/"):
            at = os.path.join(at, name)
            if os.stat(at).st_uid == os.geteuid():
                return at
        return path

    def pass_through(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                kernel.bind(path, self.at(path), is_whole=True)


def enter(folder: str, scratch: str, through: Sequence[str]) -> None:
    """From now on this process has a tree of its own; `folder` is that of its run in the scratch folder. Raises OSError if it could not be made."""
    here = os.getcwd()
    kernel.leave_namespaces(kernel.NEW_MOUNTS)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    tree = Tree(folder, mounts.read(but=scratch))
    tree.cover("/")
    if not tree.covered:
        raise tree.failed or OSError("no file system can be covered")
    if os.geteuid():
        tree.cover_own(path for path in (here, os.path.expanduser("~"), tempfile.gettempdir()) if os.path.isdir(path))
    tree.pass_through([*mounts.sockets(), *through])
    kernel.become_root(tree.root)
    os.chdir(here)
