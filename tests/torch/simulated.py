"""Controls the simulated GPU under the PyTorch of this process (sim/sim.h by ctypes), and starts other processes on simulated GPUs."""

import atexit
import ctypes
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "python"), str(ROOT / "tests")]
import patience  # noqa: E402  (needs the paths above)
from cenote import places  # noqa: E402

patience.stretch()

SHAPE = "capacity:4GiB,devices:4,context_bytes:300MiB"


class Books(ctypes.Structure):
    """struct sim_books of sim/sim.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "used used_peak reserved handles mappings reservations allocations pools events streams contexts kernels calls cost_ns violations"
        ).split()
    ]


def folder() -> pathlib.Path:
    """The folder of the simulated libraries: $CENOTE_SIM_LIBRARIES, or the newest build here."""
    named = os.environ.get("CENOTE_SIM_LIBRARIES")
    places = [pathlib.Path(named)] if named else [p.parent for p in ROOT.glob("build*/sim/libcenote_sim.so")]
    places = [p for p in places if (p / "libcenote_sim.so").exists()]
    if not places:
        raise RuntimeError("libcenote_sim.so was not found: `make build` first, or name its folder in CENOTE_SIM_LIBRARIES")
    return max(places, key=lambda p: (p / "libcuda.so.1").stat().st_mtime)


def environment(shape: str = SHAPE, **more: str) -> dict:
    """An environment in which PyTorch finds a simulated GPU of this shape."""
    preload = os.path.join(places.plain(str(folder().absolute())), "libcenote_sim.so")
    others = [p for p in os.environ.get("LD_PRELOAD", "").split(":") if p and not p.endswith("libcenote_sim.so")]
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    simulation = {"LD_PRELOAD": ":".join([preload, *others]), "CENOTE_SIM": shape, "CENOTE_SIM_LIBRARIES": str(folder())}
    return {**inherited, "CENOTE_ON_OOM": "off", **allocator(), **simulation, **more}


def allocator() -> dict:
    """CENOTE_TEST_ALLOCATOR=cenote runs the tests with cenote as PyTorch's allocator, and =fallback with cenote without an adapter; without it they
    judge PyTorch's own allocator."""
    named = os.environ.get("CENOTE_TEST_ALLOCATOR", "native")
    if named not in ("native", "cenote", "fallback"):
        raise RuntimeError(f"CENOTE_TEST_ALLOCATOR={named} is neither native nor cenote nor fallback")
    chosen = {"native": {}, "cenote": {"CENOTE": "on"}, "fallback": {"CENOTE": "fallback", **WITHOUT_ADAPTER}}[named]
    return {**chosen, "CENOTE_BUILD": str(folder().parent)} if chosen else {}


def backend() -> str:
    """What torch.cuda.get_allocator_backend() says then."""
    return {"on": "cenote", "fallback": "pluggable", None: "native"}[allocator().get("CENOTE")]


WITHOUT_ADAPTER = {"CXX": "/nonexistent/c++", "XDG_CACHE_HOME": "/nonexistent/cache"}


# PyTorch gives autograd's threads a copy of the caller's contextvars. Such a thread may drop the last reference to the copy after `backward` has
# returned, and takes Python's lock for that. If Python is older than 3.14 and has begun to end, that ends the process, under any allocator:
# "terminate called without an active exception". So the programs of the tests wait for these copies at their very end.
SETTLES = (
    "import atexit, contextvars, time, weakref; _copies, _copy = {}, contextvars.copy_context; "
    "_note = lambda made: _copies.setdefault(id(made), weakref.ref(made, lambda gone, at=id(made): _copies.pop(at, None))) and made; "
    "contextvars.copy_context = lambda: _note(_copy()); "
    "atexit.register(lambda: [time.sleep(0.002) for _ in range(5000) if _copies]); "
)


def settling(code: str) -> str:
    """Adds that wait to programs with a `backward`, without another line, so that line numbers stay."""
    code = textwrap.dedent(code)
    return SETTLES + code if "backward" in code and code.startswith(("\n", "import ", "from ")) else code


def is_loaded() -> bool:
    """Says whether this process has loaded the simulated driver."""
    return "libcenote_sim.so" in pathlib.Path("/proc/self/maps").read_text()


def fresh(code: str, shape: str = SHAPE, timeout: float = 120, check: bool = True, **environ: str) -> subprocess.CompletedProcess:
    """Runs Python code in a process of its own, on a GPU of its own."""
    done = subprocess.run(
        [sys.executable, "-c", settling(code)],
        env=environment(shape, **environ),
        timeout=timeout,
        text=True,
        capture_output=True,
    )
    if check and done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


# Imports PyTorch once, and forks for each line: code, environment, path of the output, seconds. Only children use CUDA.
NURSERY = SETTLES + """
import gc, json, os, signal, sys, torch
gc.freeze()  # children do not collect what was imported
for line in sys.stdin:
    code, environ, output, seconds, whole = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number in (1, 2):
        os.dup2(os.open(f"{output}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.alarm(seconds)
    os.environ.clear()
    os.environ.update(environ)
    if whole:
        exec(compile(code, "<string>", "exec"))
        sys.exit()
    status = 1
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
"""


# Python or PyTorch reads these variables as it starts: each combination of them has a nursery of its own.
EARLY = ("CENOTE", "CENOTE_LABELS", "CENOTE_ON_OOM", "CENOTE_ON_SIGNAL", "CENOTE_SUMMARY", "CENOTE_HOST", "PYTORCH_CUDA_ALLOC_CONF",
         "PYTORCH_ALLOC_CONF")


@functools.cache
def nursery(early: tuple) -> tuple:
    command = [sys.executable, "-c", NURSERY]
    process = subprocess.Popen(command, env=environment(**dict(early)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = tempfile.TemporaryDirectory(prefix="cenote-forked-")
    atexit.register(process.stdin.close)
    return process, folder, itertools.count()


def forked(
    code: str, shape: str = SHAPE, timeout: int = 120, check: bool = True, whole: bool = False, **environ: str
) -> subprocess.CompletedProcess:
    """Like fresh, but takes a tenth of a second: the process has imported PyTorch before. With `whole` it ends as Python does, with exit handlers."""
    new = environment(shape, **environ)
    usual = environment()
    process, folder, numbers = nursery(tuple((name, new[name]) for name in EARLY if name in new and new[name] != usual.get(name)))
    output = f"{folder.name}/{next(numbers)}"
    order = [textwrap.dedent(code), new, output, patience.patience(timeout), whole]
    print(json.dumps(order), file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"the process that imports PyTorch for others has ended: exit status {process.wait()}")
    status = int(answer)
    out, err = (pathlib.Path(f"{output}.{number}").read_text() for number in (1, 2))
    if check and status:
        raise AssertionError(f"exit status {status}\n{out}\n{err}")
    return subprocess.CompletedProcess([], status, out, err)


class Hand:
    """The controls of the simulated GPU under this process: its clock, its books, its failures."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.sim_last_violation.restype = ctypes.c_char_p
        self._driver.sim_now.restype = ctypes.c_uint64

    def registered(self) -> int:
        """Ranges of the program's own memory that are pinned."""
        self._driver.sim_registered.restype = ctypes.c_uint64
        return self._driver.sim_registered(None)

    def books(self) -> Books:
        books = Books()
        self._driver.sim_books(ctypes.byref(books))
        return books

    def last_violation(self) -> str:
        return self._driver.sim_last_violation().decode()

    def now(self) -> int:
        return self._driver.sim_now()

    def advance(self, ns: int) -> None:
        self._driver.sim_advance(ctypes.c_uint64(ns))

    def set_lag(self, ns: int) -> None:
        """From now on the GPU runs this far behind the host."""
        self._driver.sim_set_lag(ctypes.c_uint64(ns))

    def set_foreign(self, device: int, size: int) -> None:
        """Makes it look as if other processes held that much of a device."""
        self._driver.sim_set_foreign(device, ctypes.c_uint64(size))

    def set_quiet(self, quiet: bool) -> None:
        self._driver.sim_set_quiet(quiet)

    def touch(self, stream, tensor) -> None:
        """Launches a kernel that reads and writes all of the tensor. If it may not, its device is lost."""
        at, size = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        assert self._driver.sim_launch_touch(ctypes.c_void_p(stream.cuda_stream), at, size) in (0, 700)

    def work(self, stream, ns: int) -> None:
        """Puts work of that length on a torch.cuda.Stream."""
        assert self._driver.sim_launch_wait(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(ns)) == 0
