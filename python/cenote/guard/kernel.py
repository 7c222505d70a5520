"""The calls of Linux that a dry run makes and that Python 3.10 has no functions for: namespaces, mounts, Landlock, parents. Each raises OSError.

No states, no locks. A process that calls `leave_namespaces` or `join` must have one thread.
"""
import ctypes
import os
import platform
import signal
import struct
from typing import Optional

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
KEPT_FLAGS = NO_SUID | NO_DEVICES | NO_EXEC  # the same numbers in statvfs and in mount
TIMES = {os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048, os.ST_RELATIME: 1 << 21}  # other numbers: statvfs's -> mount's
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # of Landlock
PARENT_ENDED, NO_NEW_PRIVILEGES, ADOPT = 1, 38, 36  # PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def leave_namespaces(which: int) -> None:
    checked(libc.unshare(which), "unshare")


def join(path: str, which: int) -> None:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        checked(libc.setns(number, which), "setns")
    finally:
        os.close(number)


def mount(source: str, target: str, kind: Optional[str] = None, flags: int = 0, options: str = "") -> None:
    checked(libc.mount(os.fsencode(source), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags), os.fsencode(options) or None),
            f"mount {target}")


def bind(source: str, target: str, is_read_only: bool = False, is_whole: bool = False) -> None:
    """`is_whole`: with what is mounted below."""
    mount(source, target, None, BIND | (RECURSIVE if is_whole else 0))
    if is_read_only:
        has = os.statvfs(target).f_flag
        times = sum(to for flag, to in TIMES.items() if has & flag)
        mount("none", target, None, REMOUNT | BIND | READ_ONLY | has & KEPT_FLAGS | times)


def become_root(folder: str) -> None:
    """The folder, a mount point, is `/` from now on; what was `/` is gone."""
    os.chdir(folder)
    checked(libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    checked(libc.umount2(b".", DETACH), "umount")
    os.chdir("/")


# --- parents

def adopt() -> None:
    """From now on a process below this one that loses its parent gets this one."""
    checked(libc.prctl(ADOPT, 1, 0, 0, 0), "prctl")


def end_with(parent: int) -> None:
    """This process is killed when `parent`, which has forked it, ends."""
    checked(libc.prctl(PARENT_ENDED, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


# --- Landlock

def landlock_version() -> int:
    """0: there is none."""
    version: int = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(0, version)


def landlock(handled: int, allowed: dict[str, int]) -> None:
    """From now on this process and all that it starts may do on files, of the rights `handled`, only what is allowed beneath a path."""
    ruleset = checked(libc.syscall(CREATE_RULESET, struct.pack("Q", handled), ctypes.c_size_t(8), 0), "landlock")
    try:
        for path, rights in allowed.items():
            number = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                checked(libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, number), 0), f"landlock {path}")
            finally:
                os.close(number)
        checked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
        checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)
