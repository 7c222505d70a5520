"""The tests that other projects bring along, on the simulated GPU: with the driver's memory, and with cenote's by each route. What passes or fails
with the one has to do so with the other; DIFFERENT names the rest, with the reason. Not what cenote promises of them: test_libraries.py.

numba-cuda's tests are part of its package. Those of cuda.core and cuda.bindings are not: CENOTE_CUDA_PYTHON names a clone of NVIDIA/cuda-python, and
its folder packages/ has the versions that the tests are of. For the commit 1af2e22, of July 2026:

    pip install --no-deps --target packages cuda-core==1.1.0 cuda-bindings==13.3.1 cuda-pathfinder==1.5.4
"""
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest
from conftest import INSTALLED, clean_environment, simulation

from cenote import places

RUN = pathlib.Path(__file__).with_name("suites") / "run.py"
CLONE = os.environ.get("CENOTE_CUDA_PYTHON")
DRIVER = "numba.cuda.tests.cudadrv."
PENDING = "with another memory manager the test skips itself: it looks into Numba's own list"
DIFFERENT = {("adapter", DRIVER + f"test_deallocations.TestDeallocation.test_{name}"): PENDING
             for name in ("defer_cleanup", "exception", "max_pending_bytes", "max_pending_count", "nested_defer_cleanup")}
# The driver's thread that calls a Python function may want Python's lock while Python ends, after the last test. Python ends such a thread, and where
# its frames are C++ the C++ library aborts.
CUT_OFF, ENDED = -6, "terminate called without an active exception\n"


class Suite(NamedTuple):
    modules: tuple[str, ...]  # of unittest
    folder: str = ""  # of the clone: files of pytest, each in a process of its own, because a test that fails leaves a capture open
    without: tuple[str, ...] = ()  # what needs other things than a GPU's memory


SUITES = {
    "numba-cuda": Suite(tuple(DRIVER + "test_" + name for name in (
        "array_attr", "context_stack", "cuda_auto_context", "cuda_memory", "cuda_ndarray", "deallocations", "emm_plugins", "events", "host_alloc",
        "managed_alloc", "pinned", "reset_device", "select_device", "streams"))),
    "cuda.core": Suite((), "cuda_core", ("cython", "example_tests", "system")),
    "cuda.bindings": Suite((), "cuda_bindings", ("cython", "nvml", "cudla", "test_examples.py", "test_nvfatbin.py")),
}
ROUTES = {"preload": ("libcenote_preload.so",), "forward": ("forward/libcuda.so.1", "sim/libcuda.so.1"), "adapter": ()}
CASES = [(suite, route) for suite in SUITES for route in ROUTES if route != "adapter" or suite == "numba-cuda"]

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("installed")]


def outcomes(name, route):
    """What became of each test, and what the processes said."""
    sim = simulation().parent
    build = places.plain(str(sim.parent))
    preloads = [f"{build}/{library}" for library in ROUTES.get(route, ())] + [f"{places.plain(str(sim))}/libcenote_sim.so"]
    environment = {**clean_environment(), "LD_PRELOAD": ":".join(preloads), "LD_LIBRARY_PATH": str(sim), "CENOTE_SUMMARY": "on" if route else "off",
                   "CENOTE_SIM": "capacity:8GiB,data:256MiB,devices:2,quiet:1", "CENOTE_BUILD": str(sim.parent)}
    if route == "adapter":
        environment["NUMBA_CUDA_MEMORY_MANAGER"] = "cenote.numba"
    found, said = {}, ""
    for packages, folder, arguments in commands(SUITES[name]):
        done = subprocess.run([sys.executable, RUN, packages, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode in (0, CUT_OFF if done.stderr.endswith(ENDED) else 0), f"{route} {arguments}: {done.stderr}"
        lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        found.update({test: outcome for test, outcome, _ in lines})
        said += done.stderr
    return found, said


def commands(suite):
    """For each process: where the packages lie, its folder, and the arguments of suites/run.py."""
    if suite.modules:
        yield INSTALLED, None, suite.modules
        return
    if not CLONE:
        pytest.skip("CENOTE_CUDA_PYTHON does not name a clone of NVIDIA/cuda-python: neither package brings its tests along")
    tests = pathlib.Path(CLONE) / suite.folder / "tests"
    for file in sorted(tests.rglob("test_*.py")):
        if not set(file.relative_to(tests).parts) & set(suite.without):
            yield pathlib.Path(CLONE) / "packages", tests, ("--pytest", str(file.relative_to(tests)))


@pytest.fixture(scope="module")
def native():
    known = {}

    def call(suite):
        if suite not in known:
            known[suite] = outcomes(suite, None)[0]
        return known[suite]
    return call


@pytest.mark.parametrize("suite, route", CASES)
def test_equal(native, suite, route):
    theirs = native(suite)
    ours, said = outcomes(suite, route)
    assert list(theirs.values()).count("passed") > 100
    different = {name: (theirs.get(name), ours.get(name)) for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)}
    assert different.keys() == {name for served, name in DIFFERENT if served == route}, different
    if route != "adapter":
        assert "cenote by " in said
