"""Ends what `cenote dry-run` has started, and removes its folder, if `cenote dry-run` is killed, by any signal, with its group or alone. A process of
its own.

    dry run:  forks the keeper -> makes the folder -> starts a run -> it is over -> starts another -> the command has ended
              `-- the system closes its end of the pipe, however it ends
    a run:    has the pipe, too, until it becomes the program, and tells its number first: at no moment there is one that the keeper does not learn of
    keeper:   reads from the pipe until it is closed -> "ended" was its last line: nothing is left to do
                                                     `-> kills what is left of the command's runs, and removes its folder

The keeper holds no file of the dry run but the pipe, has a session of its own, and gets no signal of the terminal. It stays in the mount namespace in
which the command began: there the folder holds what lies on a disk.
"""
import os
import secrets
import shutil
import signal
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Optional, Type

from cenote.base import source
from cenote.launch import processes

LINE_MAX = 1 << 16  # bytes
OVER, ENDED = b"over", b"ended"
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keeper:
    """`with Keeper() as keeper: ...`, in which a run says `keeper.began(its number)`. Leaving the block says that the command has ended; an interrupt
    leaves the rest to the keeper, as being killed does."""

    def __init__(self) -> None:
        self.folder = os.path.join(os.path.realpath(tempfile.gettempdir()), f"{source.KEPT}{secrets.token_hex(6)}")
        read, self.pipe = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        self.pid = os.fork()
        if not self.pid:
            try:
                keep(read, self.folder)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)

    def say(self, line: bytes) -> None:
        with suppress(OSError):  # another process has killed the keeper
            os.write(self.pipe, line + b"\n")

    def began(self, pid: int) -> None:
        self.say(b"%d" % pid)

    def over(self) -> None:
        """The run is, and the system may give its numbers to others."""
        self.say(OVER)

    def __enter__(self) -> "Keeper":
        os.mkdir(self.folder, 0o700)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], stack: Optional[TracebackType]) -> None:
        if kind is None or issubclass(kind, Exception):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.say(ENDED)
        os.close(self.pipe)
        os.waitpid(self.pid, 0)


def keep(pipe: int, folder: str) -> None:
    os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    os.chdir("/")
    os.dup2(pipe, 0)  # every other file of the dry run is closed: a program that reads what it prints must not wait for us
    for name in os.listdir("/proc/self/fd"):  # the limit may be 10^9: Python closes one by one where the system has no close_range
        if int(name):
            with suppress(OSError):  # that of the list itself
                os.close(int(name))
    text = b""
    while part := os.read(0, LINE_MAX):
        text += part
    lines = text.split()
    if lines[-1:] != [ENDED]:
        processes.end(folder, [int(line) for line in text.rpartition(OVER)[2].split()])
        shutil.rmtree(folder, ignore_errors=True)
