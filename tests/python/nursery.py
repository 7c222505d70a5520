"""Imports PyTorch once for many programs: a process that forks for each script that a test runs by the command `cenote` on the simulated GPU.

    nursery = Nursery(environment)
    subprocess.run([nursery.python, "-m", "cenote", "dry-run", ...])

nursery.python stands in for Python. A command that runs under it has it as sys.executable: `cenote run` becomes the stand-in again, and dry-run
starts it. The stand-in hands a script on the simulated GPU to the process that has imported PyTorch, with arguments, environment, folder and
standard streams, waits for it, and ends with its status. Everything else it hands to the real Python.

For dry-run, whose tests run three dozen scripts. Not for tests of how Python starts, how torch is imported, or how a process ends: here cenote
does after the fork what it otherwise does when torch is imported.
"""
import gc
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import types

STAND_IN = """#!/bin/bash
case "$1:$LD_PRELOAD" in
    *.py:*libcenote_sim.so*) exec {python} -I -S {here} {address} "$@" ;;
esac
exec -a "$0" {python} "$@"
"""


class Nursery:
    """The process that forks. It ends with the process that made it."""

    def __init__(self, environment: dict[str, str], *imports: str) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cenote-nursery-"))
        self.python = self.make_stand_in()
        # Stacks of the program end in this file. In a folder named site-packages, cenote does not take it for a part of the program.
        own = self.folder / "site-packages/nursery.py"
        own.parent.mkdir()
        shutil.copy(__file__, own)
        self.process = subprocess.Popen([sys.executable, own, "serve", self.folder / "socket", *imports], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def make_stand_in(self) -> str:
        """Makes the stand-in, and beside it a link to this Python's packages, where Python looks for them."""
        (self.folder / "bin").mkdir()
        (self.folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
        packages = pathlib.Path(sysconfig.get_path("purelib"))
        link = self.folder / packages.relative_to(sys.prefix)
        link.parent.mkdir(parents=True)
        link.symlink_to(packages)
        path = self.folder / "bin/python"
        words = {"python": sys.executable, "here": os.path.abspath(__file__), "address": str(self.folder / "socket")}
        path.write_text(STAND_IN.format(**{name: shlex.quote(word) for name, word in words.items()}))
        path.chmod(0o755)
        return str(path)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder)


# --- the stand-in

def ask(address: str, arguments: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(address)
        mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY)  # a dry run gives its program a tree of files of its own
        socket.send_fds(asked, [b"-"], [0, 1, 2, mounts])
        asked.sendall(json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode())
        asked.shutdown(socket.SHUT_WR)
        status = int(asked.makefile().read() or 1)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


# --- the process that has PyTorch

def serve(address: str, *imports: str) -> None:
    """Forks for each connection, until standard input ends. `imports`: modules beside torch that the programs will need."""
    import importlib

    import torch  # noqa: F401  (so that the children need not)
    for name in imports:
        importlib.import_module(name)
    gc.freeze()  # a child does not collect what was imported, at its end above all: that takes longer than most scripts
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        os.write(1, b"ready\n")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children that wait for a script
        while True:
            ready, _, _ = select.select([server, 0], [], [])
            if server not in ready:
                os._exit(0)  # to end as Python does, with all that was imported, takes a second
            asker, _ = server.accept()
            if os.fork():
                asker.close()
                continue
            break
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, (*streams, mounts), _, _ = socket.recv_fds(asker, 1, 4)
    arguments, folder, variables = json.loads(asker.makefile().read())
    child = os.fork()
    if child:
        for stream in (0, 1, 2, mounts, *streams):
            os.close(stream)
        attend(child, asker)
        os._exit(0)
    asker.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    enter(mounts)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    play(arguments)


def enter(mounts: int) -> None:
    """The mount namespace of the stand-in."""
    import ctypes
    if os.fstat(mounts).st_ino != os.stat("/proc/self/ns/mnt").st_ino and ctypes.CDLL(None).setns(mounts, 0):
        raise OSError("setns")
    os.close(mounts)


def attend(child: int, asker: socket.socket) -> None:
    """Waits for the script, and tells the stand-in its status. If the stand-in is killed, the script is, too."""
    ends = select.poll()
    ends.register(asker, 0)  # it has hung up, which is more than that it has nothing more to say
    ends.register(os.pidfd_open(child), select.POLLIN)
    if all(number == asker.fileno() for number, _ in ends.poll()):
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asker.sendall(str(status).encode())
    except BrokenPipeError:
        pass


def play(arguments: list[str]) -> None:
    """Does what cenote does after the import of torch, then runs the script as Python does."""
    from cenote import hook
    hook.act(os.environ.get(hook.VARIABLE, ""))
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = arguments[0]
    try:
        exec(compile(pathlib.Path(arguments[0]).read_bytes(), arguments[0], "exec"), vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(sys.last_traceback), sys.last_traceback)
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        ask(sys.argv[1], sys.argv[2:])
