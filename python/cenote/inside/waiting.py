"""Leaves a copy of the program waiting where the program first reads its arguments, so that later runs of `cenote dry-run --search` begin there.

Until a program looks at sys.argv it mostly imports, which is most of the time of a short run. In the first run a list that notices the first read
stands for sys.argv. At that read this process forks, and goes on. The child is the copy: it waits at a socket (fit/copies.py has the other end) and
forks for each run that it is asked for. That run gets other arguments, and goes on as if it had just read them.

    first run:  import torch ... | reads sys.argv ... to its end
                                 | copy: waits --- asked ---> fork: reads sys.argv ... to its end, as the second run

No copy is left if a run that begins there could be another one than a run of a new process: `why_not` has the reasons. Environment variables that
were read at an import are no such reason: all runs have the same ones, apart from the folder of their reports and the name of their simulated
machine. What is not noticed is a program that learns its arguments by another way than sys.argv, from /proc for example.
"""
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import warnings
from typing import Any

from cenote import places
from cenote.guard import again, kernel
from cenote.inside import fit_report
from cenote.inside.arguments import Arguments, open_files
from cenote.launch import environment

REQUEST_MAX = 1 << 20
HAS_WRITTEN, CANNOT = 1, 2
WHY_NOT = {HAS_WRITTEN: "the program has written files before it reads its arguments",
           CANNOT: "the system does not let a run from a copy begin with the files of before"}


def look(number: int, files: set[str], arguments: Arguments) -> None:
    """The program reads its arguments for the first time. `number`: of the socket."""
    connection = socket.socket(fileno=number)
    why = why_not(files)
    if why:
        tell(connection, {"refused": why})
    else:
        leave(connection, arguments)
    connection.close()


def why_not(files: set[str]) -> str:
    """`files`: open when Python started."""
    watch = fit_report.watch
    if watch is None:
        return "the program reads its arguments before it has imported torch"
    if threading.active_count() > 1 or threading.current_thread() is not threading.main_thread():
        return "the program has started threads before it reads its arguments"
    if len(os.listdir("/proc/self/task")) > watch.threads:
        return "a library has started threads before the program reads its arguments"
    if watch.torch.cuda.is_initialized():
        return "the program uses the GPU before it reads its arguments"
    if has_children():
        return "the program has started processes before it reads its arguments"
    written = why_not_by_files()
    if written:
        return written
    folders = places.cache_folder(), watch.folder  # compiled libraries, stacks
    ours = tuple(os.path.join(folder, "") for folder in folders)
    opened = [one.partition(" ")[2] for one in sorted(open_files() - files)]
    opened = [path for path in opened if not path.startswith(ours)]
    if opened:  # a run would go on reading where the first one stopped
        return f"the program has opened files before it reads its arguments: {opened[0]}"
    return ""


def why_not_by_files() -> str:
    """Each run begins from the files of before, and so has to leave what this one wrote."""
    tree = os.environ.get(environment.DRY_FILES)
    if not tree:
        return ""
    child = forked()
    if not child:
        status = CANNOT
        try:
            status = HAS_WRITTEN if again.has_written(tree) else 0
        finally:
            os._exit(status)
    return WHY_NOT.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "")


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def tell(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode())
    except OSError:  # `cenote dry-run` has ended
        pass


def leave(connection: socket.socket, arguments: Arguments) -> None:
    """Returns at once in this process, and in each run that the copy forks; never in the copy."""
    assert fit_report.watch is not None
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = random.getstate()  # Python gives each child others
    interrupt = signal.getsignal(signal.SIGINT)
    if not forked():
        wait(connection, arguments)
        signal.signal(signal.SIGINT, interrupt)
        random.setstate(numbers)
    fit_report.watch.tell_stacks()


def forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 sees threads of numpy's, which end by themselves in a fork
        return os.fork()


def wait(connection: socket.socket, arguments: Arguments) -> None:
    """The copy. Returns in a run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    streams_to(os.open(os.devnull, os.O_RDWR))
    if has_used_the_driver():
        tell(connection, {"refused": "the program asks for the GPU before it reads its arguments"})
        os._exit(0)
    tell(connection, {"ready": os.getpid()})
    import_for_optimizers()
    while True:
        try:
            request, streams, _, _ = socket.recv_fds(connection, REQUEST_MAX, 1)
        except OSError:
            request = b""
        if not request:
            os._exit(0)
        copy, child = os.getpid(), forked()
        if not child:
            kernel.end_with(copy)
            begin_run(json.loads(request), streams[0], arguments)
            return
        os.close(streams[0])
        tell(connection, {"process": child})
        tell(connection, {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})


def import_for_optimizers() -> None:
    """The first optimizer of a run imports 841 modules, which takes longer than all else that most runs do. Here it happens once for all runs, while
    the first one goes on."""
    try:
        importlib.import_module("torch._dynamo")
    except Exception:  # then each run finds that out by itself
        pass


def streams_to(output: int) -> None:
    """Nothing for standard input; both outputs to this file, which is closed."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, output), (2, output)):
        os.dup2(file, number)
    for file in {nothing, output}:
        os.close(file)


def has_used_the_driver() -> bool:
    """Whether the program has called cuInit: the driver refuses a fork then. It is tried in a fork that ends at once."""
    import ctypes
    child = forked()
    if not child:
        status = 1
        try:
            status = ctypes.CDLL("libcuda.so.1").cuInit(0)
        finally:
            os._exit(1 if status else 0)
    return os.waitpid(child, 0)[1] != 0


def begin_run(request: dict[str, Any], output: int, arguments: Arguments) -> None:
    assert fit_report.watch is not None
    streams_to(output)
    if environment.DRY_FILES in request["variables"]:
        again.begin(request["variables"][environment.DRY_FILES], request["variables"].get(environment.DRY_REDIRECT, ""))
    for name in request["without"]:
        os.environ.pop(name, None)
    os.environ.update(request["variables"])
    list.__setitem__(arguments, slice(1, None), request["arguments"])
    before = len(sys.orig_argv) - request["replaced"]
    sys.orig_argv[before:] = request["arguments"]
    fit_report.watch.folder = fit_report.watch.rises.folder = request["variables"][environment.DRY_RUN]
    if fit_report.watch.remedies is not None:
        fit_report.watch.remedies.switch_on(os.environ[environment.DRY_REMEDIES])
