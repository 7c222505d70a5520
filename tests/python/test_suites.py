"""The tests that other projects bring along, on the simulated GPU: with the driver's memory, and with cenote's by each route. What passes or fails
with the one has to do so with the other; DIFFERENT names the rest, with the reason. Not what cenote promises of them: test_libraries.py.

numba-cuda's tests are part of its package. Those of cuda.core and cuda.bindings are not: CENOTE_CUDA_PYTHON names a clone of NVIDIA/cuda-python, and
its folder packages/ has the versions that the tests are of. For the commit 1af2e22, of July 2026:

    pip install --no-deps --target packages cuda-core==1.1.0 cuda-bindings==13.3.1 cuda-pathfinder==1.5.4

CENOTE_CUPY names the folder that bench/reach/build_cupy was given: CuPy's source package has its tests. CENOTE_RMM names that of build_rmm, where
RMM's tests in C++ are, and CENOTE_UMF that of build_umf. CENOTE_PYCUDA names PyCUDA's source package; its folder packages/ has the PyCUDA that was
built of it.

CENOTE_JAX names a folder: tests/ of it has the files of JAX's tests that are named here (the commit cec06d1 was taken), and packages/ JAX 0.10.2 with
its plug-in for CUDA 13, and pytest. CENOTE_ONNX_RUNTIME names one whose packages/ has onnxruntime-gpu 1.31.1, onnx 1.23.2, and pytest.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
from conftest import INSTALLED, clean_environment, simulation

from cenote import places

RUN = pathlib.Path(__file__).with_name("suites") / "run.py"
DRIVER = "numba.cuda.tests.cudadrv."
PENDING = "with another memory manager the test skips itself: it looks into Numba's own list"
DIFFERENT = {("adapter", DRIVER + f"test_deallocations.TestDeallocation.test_{name}"): PENDING
             for name in ("defer_cleanup", "exception", "max_pending_bytes", "max_pending_count", "nested_defer_cleanup")}
ASYNC_POOL = "tests/cupy_tests/cuda_tests/test_memory.py::TestMemoryAsyncPool::test_"
DIFFERENT |= {("preload", ASYNC_POOL + name): why for name, why in {
    "free_all_blocks_large_chunk": "counts on a cudaMalloc that fails beside free memory of a pool: cenote serves it from there",
    "free_bytes": "the memory of that test's cudaMalloc is free by now, and all free memory of cenote's is a part of the default pool"}.items()}
# The driver's thread that calls a Python function may want Python's lock while Python ends, after the last test. Python ends such a thread, and where
# its frames are C++ the C++ library aborts.
GOOGLE = re.compile(r"^\[ *(OK|FAILED|SKIPPED) *\] ([^\s,]+).* \(\d+ ms\)$", re.MULTILINE)
OF_GOOGLE = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
CUT_OFF, ENDED = -6, "terminate called without an active exception\n"


OPERATORS = "_cuda and NodeModel and not expanded" # those that are made of other operators, once more
JAX = (("XLA_FLAGS", "--xla_gpu_autotune_level=0"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"))
NOTHING = "0" # every read gives zeros: tests that compare what kernels have not written would go by what lay in the memory before


class Suite(NamedTuple):
    modules: tuple[str, ...]  # of unittest
    folder: str = ""  # of the clone: files of pytest, each in a process of its own, because a test that fails leaves a capture open
    without: tuple[str, ...] = ()  # what needs other things than a GPU's memory
    only: tuple[str, ...] = ("test_*.py",)
    clone: str = "CENOTE_CUDA_PYTHON"  # the variable that names it
    packages: str = "packages"  # of the clone
    programs: str = ""  # of the clone: programs of GoogleTest
    passes: int = 100  # more tests than these pass with the driver's memory
    variables: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()  # of pytest
    data: str = "256MiB"  # contents that the simulated GPU keeps


SUITES = {
    "numba-cuda": Suite(tuple(DRIVER + "test_" + name for name in (
        "array_attr", "context_stack", "cuda_auto_context", "cuda_memory", "cuda_ndarray", "deallocations", "emm_plugins", "events", "host_alloc",
        "managed_alloc", "pinned", "reset_device", "select_device", "streams"))),
    "cuda.core": Suite((), "cuda_core/tests", ("cython", "example_tests", "system")),
    "cuda.bindings": Suite((), "cuda_bindings/tests", ("cython", "nvml", "cudla", "test_examples.py", "test_nvfatbin.py")),
    "CuPy": Suite((), "tests", (), ("cuda_tests/test_*memory*.py", "memory_hooks_tests/test_*.py"), "CENOTE_CUPY", ""),
    "PyCUDA": Suite((), "test", ("undistributed",), clone="CENOTE_PYCUDA", passes=30),
    "RMM": Suite((), clone="CENOTE_RMM", programs="*_tests"),
    "UMF": Suite((), clone="CENOTE_UMF", programs="test/test_provider_*cuda*"),
    "JAX": Suite((), "tests", (), tuple(f"{name}_test.py" for name in (
        "array", "array_interoperability", "buffer_callback", "clear_backends", "debug_nans", "device", "garbage_collection_guard", "heap_profiler",
        "layout", "memories", "multibackend", "python_callback")), "CENOTE_JAX", passes=300, variables=JAX),
    "JAX, arrays that change": Suite((), "tests", (), ("mutable_array_test.py",), "CENOTE_JAX", passes=50, variables=JAX, data=NOTHING),
    "ONNX Runtime": Suite((), str(RUN.parent), (), ("onnx_backend.py",), "CENOTE_ONNX_RUNTIME", passes=200, options=("-k", OPERATORS), data=NOTHING),
}
ROUTES = {"preload": ("libcenote_preload.so",), "adapter": ()}
CASES = [(suite, route) for suite in SUITES for route in ROUTES if route != "adapter" or suite == "numba-cuda"]

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("installed")]


def outcomes(name, route):
    """What became of each test, and what the processes said."""
    sim = simulation().parent
    build = places.plain(str(sim.parent))
    preloads = [f"{build}/{library}" for library in ROUTES.get(route, ())] + [f"{places.plain(str(sim))}/libcenote_sim.so"]
    environment = {**clean_environment(), **dict(SUITES[name].variables), "LD_PRELOAD": ":".join(preloads), "LD_LIBRARY_PATH": str(sim),
                   "CENOTE_SUMMARY": "on" if route else "off", "CENOTE_SIM": f"capacity:8GiB,data:{SUITES[name].data},devices:2,quiet:1",
                   "CENOTE_BUILD": str(sim.parent)}
    if route == "adapter":
        environment["NUMBA_CUDA_MEMORY_MANAGER"] = "cenote.numba"
    found, said = {}, ""
    for command, folder in commands(SUITES[name]):
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900)
        others = 1 if SUITES[name].programs else CUT_OFF if done.stderr.endswith(ENDED) else 0
        assert done.returncode in (0, others), f"{route} {command}: {done.stderr}"
        if SUITES[name].programs:
            found.update({f"{command[0].name} {test}": OF_GOOGLE[outcome] for outcome, test in GOOGLE.findall(done.stdout)})
        else:
            lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
            found.update({test: outcome for test, outcome, _ in lines})
        said += done.stderr
    return found, said


def commands(suite):
    """For each process: its command, and its folder."""
    if suite.modules:
        yield (sys.executable, RUN, INSTALLED, *suite.modules), None
        return
    clone = os.environ.get(suite.clone)
    if not clone:
        pytest.skip(f"{suite.clone} does not name a clone of the project: its package does not bring its tests along")
    if suite.programs:
        folder = pathlib.Path(clone).resolve()
        yield from (((program,), folder) for program in sorted(folder.glob(suite.programs)))  # one writes a file where it is
        return
    tests = pathlib.Path(clone) / suite.folder
    folders = os.pathsep.join(str(folder) for folder in (pathlib.Path(clone) / suite.packages, INSTALLED)[:1 if suite.packages else 2])
    for file in sorted(path for pattern in suite.only for path in tests.rglob(pattern)):
        if not set(file.relative_to(tests).parts) & set(suite.without):
            yield (sys.executable, RUN, folders, "--pytest", str(file.relative_to(tests)), *suite.options), tests


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
    assert list(theirs.values()).count("passed") > SUITES[suite].passes
    different = {name: (theirs.get(name), ours.get(name)) for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)}
    assert different.keys() == {name for served, name in DIFFERENT if served == route and name in theirs}, different
    if route != "adapter":
        assert "cenote by " in said
