"""Python libraries with cenote as their allocator (docs/python-libraries.md), on the simulated GPU. Each library has a process, which runs all of its
cases (library_cases/run.py), so that it is imported once."""
import ast
import functools
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import INSTALLED, ROOT, clean_environment, simulation

from cenote import places

CASES = pathlib.Path(__file__).with_name("library_cases")
LIBRARIES = sorted(path.name.removesuffix("_cases.py") for path in CASES.glob("*_cases.py"))
SHAPE = "capacity:1GiB,devices:2,lag:1000000,manual_clock:1"

pytestmark = pytest.mark.usefixtures("installed")


def environment():
    sim = simulation().parent
    return {**clean_environment(), "LD_PRELOAD": f"{places.plain(str(sim))}/libcenote_sim.so", "LD_LIBRARY_PATH": str(sim), "CENOTE_SIM": SHAPE,
            "CENOTE_BUILD": str(sim.parent), "NUMBA_CUDA_MEMORY_MANAGER": "cenote.numba"}


@functools.cache
def outcome(library):
    """What went wrong in each case, and what the process said."""
    done = subprocess.run([sys.executable, CASES / "run.py", INSTALLED, library], env=environment(), capture_output=True, text=True, timeout=300)
    return dict(map(json.loads, done.stdout.splitlines())), done


def names(library):
    tree = ast.parse((CASES / f"{library}_cases.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")]


@pytest.mark.parametrize("library, case", [(library, case) for library in LIBRARIES for case in names(library)])
def test_case(library, case):
    wrong, done = outcome(library)
    assert case in wrong, done.stdout + done.stderr
    assert not wrong[case], wrong[case]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_process_ends_well(library):
    """Nothing is said at the end: no finalizer fails, and the simulated GPU has seen no hazard. CuPy brings its own runtime."""
    _, done = outcome(library)
    said = done.stderr.splitlines()
    if library == "cupy":
        assert "private table" in said.pop(0)
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("example", sorted((ROOT / "examples/libraries").glob("*.py")), ids=lambda path: path.stem)
def test_example(example):
    start = f"import runpy, site; site.addsitedir({str(INSTALLED)!r}); runpy.run_path({str(example)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", start], env=environment(), capture_output=True, text=True, timeout=300)
    if example.stem == "cupy_allocator":
        assert done.returncode == 1 and "CuPy cannot use this GPU: cudaErrorNotSupported" in done.stderr, done.stdout + done.stderr
    else:
        assert done.returncode == 0 and "waste" in done.stdout, done.stdout + done.stderr
