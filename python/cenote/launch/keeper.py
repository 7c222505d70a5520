"""Ends what `cenote dry-run` has started, also if `cenote dry-run` is killed, by any signal, with its group or alone: a process of its own.

    dry run:  forks the keeper -> starts a run, and tells its number -> the run has ended
              `-- the system closes its end of the pipe, however it ends
    keeper:   reads from the pipe until it is closed -> "ended" was its last line: nothing is left to do
                                                     `-> kills what is left of the run, and removes its folders

The keeper holds no file of the dry run but the pipe, has a session of its own, and gets no signal of the terminal.
"""
import os
import shutil
import signal
from contextlib import suppress
from types import TracebackType
from typing import Callable, Optional, Type

from cenote.launch import processes

LINE_MAX = 1 << 16  # bytes
ENDED = b"ended"
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keeper:
    """`with Keeper(folder) as keeper: keeper.began(pid)`; leaving the block, also by an exception, says that the run has ended. `clear`: removes
    what else is to go if the command is killed."""

    def __init__(self, folder: str, clear: Callable[[], None]) -> None:
        read, self.pipe = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                keep(read, folder, clear)
            finally:
                os._exit(0)
        os.close(read)

    def began(self, pid: int) -> None:
        with suppress(OSError):
            os.write(self.pipe, b"%d\n" % pid)

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], stack: Optional[TracebackType]) -> None:
        with suppress(OSError):  # another process has killed the keeper
            os.write(self.pipe, ENDED)
        os.close(self.pipe)
        os.waitpid(self.pid, 0)


def keep(pipe: int, folder: str, clear: Callable[[], None]) -> None:
    os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
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
        processes.end(folder, [int(line) for line in lines])
        shutil.rmtree(folder, ignore_errors=True)
        clear()
