"""What is mounted where, and what of it a dry run covers. Reads /proc/self/mountinfo; mounts nothing.

Each mount is one of three: passed on as it is (devices, /proc and their like: no file of before is there), covered (a folder of a file system on
which files lie), or read-only (one that was so, or a single file that is mounted, as Docker's /etc/hosts).
"""
import os
import re
from typing import Iterable, NamedTuple

# File systems that the kernel makes up: what lies there is no file of before. tmpfs is none of them, but for /dev.
MADE_UP = {"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs",
           "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"}
OF_THE_KERNEL = ("/proc", "/sys")  # with a tmpfs here and there, as /sys/fs/cgroup


class Mount(NamedTuple):
    path: str
    kind: str  # of file system
    is_writable: bool

    @property
    def has_files(self) -> bool:
        return self.kind not in MADE_UP and self.path != "/dev" and not any(is_below(self.path, folder) for folder in OF_THE_KERNEL)

    @property
    def is_covered(self) -> bool:
        return self.is_writable and self.has_files and os.path.isdir(self.path)

    @property
    def is_single_file(self) -> bool:
        return self.has_files and not os.path.isdir(self.path)


def unescaped(text: str) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), os.fsencode(text)))


def read(but: str = "/nowhere", path: str = "/proc/self/mountinfo") -> list[Mount]:
    """In the order of paths: what a mount is mounted on comes before it. Of several at one place the last. Not those in the folder `but`."""
    found = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
            where = unescaped(fields[4])
            is_writable = "rw" in fields[5].split(",") and "rw" in options.strip().split(",")
            found[where] = Mount(where, kind, is_writable)
    return [found[where] for where in sorted(found) if not is_below(where, but)]


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def below(folder: str, mounts: Iterable[Mount]) -> list[Mount]:
    return [mount for mount in mounts if mount.path != folder and is_below(mount.path, folder)]


def directly_below(folder: str, mounts: Iterable[Mount]) -> list[Mount]:
    """Those that have no other mount between."""
    found: list[Mount] = []
    for mount in below(folder, mounts):
        if not any(is_below(mount.path, one.path) for one in found):
            found.append(mount)
    return found


def sockets() -> list[str]:
    """Of this machine that have a path. A socket is found by its inode, which an overlay replaces."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line.rstrip("\n").split(maxsplit=7)[7:] for line in file]
    return sorted({path[0] for path in paths if path and path[0].startswith("/")})
