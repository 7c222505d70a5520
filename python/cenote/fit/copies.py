"""Runs that begin where the first run has read its arguments: `cenote dry-run`'s end of the socket at which a copy of the program waits.

inside/waiting.py is the other end, and says when no copy is left. Then, and for programs that are not Python, each run begins from the start. A run
from a copy that ends without a verdict is no evidence: dry_run.py repeats it from the start.
"""
import json
import os
import select
import signal
import socket
import subprocess
from typing import Any, Mapping, Optional, Sequence

from cenote.launch import environment

REQUEST_MAX = 1 << 20
SECONDS = 60  # for the answers of a copy, which at first imports what an optimizer needs; one that has ended is noticed at once


class Gone(Exception):
    """The copy does not answer."""


class Run:
    """A run that the copy has forked, with the methods of subprocess.Popen that dry_run.py uses."""

    def __init__(self, copy: socket.socket, pid: int) -> None:
        self.copy, self.pid = copy, pid
        self.status: Optional[int] = None

    def wait(self, timeout: Optional[float] = None) -> int:
        if self.status is None:
            if not select.select([self.copy], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a run", timeout or 0)
            try:
                self.status = int(receive(self.copy)["status"])
            except Gone:
                self.status = -signal.SIGKILL
        return self.status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def receive(copy: socket.socket) -> dict[str, Any]:
    try:
        message = copy.recv(REQUEST_MAX)
    except OSError:
        message = b""
    if not message:
        raise Gone
    return dict(json.loads(message))


class Copies:
    """States: not offered -> offered to the first run -> a copy waits -> closed. The first run may leave no copy: `why_not` says why."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.variables: dict[str, str] = {}  # of the first run
        self.program: list[str] = []
        self.why_not = "the program does not read its arguments from sys.argv"
        self.is_there: Optional[bool] = None
        self.pid = 0  # of the copy

    def offer(self, program: Sequence[str], variables: dict[str, str]) -> list[int]:
        """To the first run: what it has to inherit."""
        self.program, self.variables = list(program), dict(variables)
        number = self.theirs.fileno()
        variables[environment.DRY_COPY] = f"{number}:{os.fstat(number).st_ino}"
        return [number]

    def has_one(self) -> bool:
        """Once the first run has ended."""
        if self.is_there is None:
            self.theirs.close()
            self.is_there = False
            try:
                if select.select([self.ours], [], [], SECONDS)[0]:
                    message = receive(self.ours)
                    self.is_there, self.pid = "ready" in message, message.get("ready", 0)
                    self.why_not = message.get("refused", "")
            except Gone:
                pass
        return self.is_there

    def can_begin(self, program: Sequence[str], variables: Mapping[str, str]) -> bool:
        """Whether this run differs from the first in its arguments and in what is read after them, and in nothing else."""
        mine = (environment.DRY_RUN, environment.DRY_FILES, environment.DRY_REDIRECT, environment.SIM, environment.DRY_REMEDIES)
        is_alike = all(variables.get(name) == self.variables.get(name) for name in {*variables, *self.variables} - {*mine})
        return is_alike and arguments(program)[0] == arguments(self.program)[0] and self.has_one()

    def begin(self, program: Sequence[str], variables: Mapping[str, str], output: Any) -> Run:
        fixed, given = arguments(program)
        changed = {name: value for name, value in variables.items() if self.variables.get(name) != value}
        request = {"arguments": given, "replaced": len(arguments(self.program)[1]), "variables": changed,
                   "without": [name for name in self.variables if name not in variables]}
        try:
            socket.send_fds(self.ours, [json.dumps(request).encode()], [output.fileno()])
            if not select.select([self.ours], [], [], SECONDS)[0]:
                raise Gone
            return Run(self.ours, int(receive(self.ours)["process"]))
        except (OSError, Gone):
            raise Gone from None

    def close(self, why: str) -> None:
        """The copy ends when it notices that."""
        self.is_there, self.why_not = False, why
        self.ours.close()
        self.theirs.close()


def arguments(program: Sequence[str]) -> tuple[list[str], list[str]]:
    """What names the program, and the arguments that it reads."""
    names = 2 if program[0] in ("-m", "-c") else 1
    return list(program[:names]), list(program[names:])
