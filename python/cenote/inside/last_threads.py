"""At Python's end: waits until the threads of autograd are at rest.

A backward pass is over for the program when the last gradient is there. The thread of autograd then drops what the pass held, and may ask for
Python's lock to do so. If Python is ending by then, versions up to 3.13 end the thread in the middle of C++ code, and the process with it: "terminate
called without an active exception", SIGABRT. That is so without cenote, too. On a simulated GPU, whose kernels take no time, many programs come
to their end that early: then `cenote dry-run` had no verdict.

A thread is at rest if it sleeps and has not run between two looks. Python's lock is free between them: a thread that waits for it would run.
"""
import atexit
import os
import time

NAME = "pt_autograd_"  # and the number of the device, as PyTorch names them
PAUSE = 0.001
LOOKS = 2000  # a thread that works all that time may work for ever

_is_registered = False


def register() -> None:
    global _is_registered
    if not _is_registered:
        atexit.register(wait)
    _is_registered = True


def read(number: str, name: str) -> str:
    try:
        with open(f"/proc/self/task/{number}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # the thread has ended
        return ""


def look() -> dict[str, list[str]]:
    """What tells whether each of the threads has run: its state, and how often it went to sleep and was put to sleep."""
    numbers = [number for number in os.listdir("/proc/self/task") if read(number, "comm").startswith(NAME)]
    return {number: [line for line in read(number, "status").splitlines() if line.startswith(("State:", "voluntary", "nonvoluntary"))]
            for number in numbers}


def is_asleep(lines: list[str]) -> bool:
    return not lines or lines[0].split()[1:2] == ["S"]


def wait() -> None:
    try:
        before = look()
        for _ in range(LOOKS if before else 0):
            time.sleep(PAUSE)
            now = look()
            if now == before and all(is_asleep(lines) for lines in now.values()):
                return
            before = now
    except OSError:  # no /proc, or no descriptor left
        pass
