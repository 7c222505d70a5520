"""The tests that other projects bring along, on the simulated GPU: with the driver's memory, and with cenote's by each route. What passes or fails
with the one has to do so with the other; DIFFERENT names the rest, with the reason. Not what cenote promises of them: test_libraries.py."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import clean_environment, simulation

from cenote import places

RUN = pathlib.Path(__file__).with_name("suites") / "run.py"
INSTALLED = pathlib.Path(sys.prefix) / "libraries"
DRIVER = "numba.cuda.tests.cudadrv."
PENDING = "with another memory manager the test skips itself: it looks into Numba's own list"
DIFFERENT = {("adapter", DRIVER + f"test_deallocations.TestDeallocation.test_{name}"): PENDING
             for name in ("defer_cleanup", "exception", "max_pending_bytes", "max_pending_count", "nested_defer_cleanup")}
SUITES = {"numba-cuda": [DRIVER + "test_" + name for name in (
    "array_attr", "context_stack", "cuda_auto_context", "cuda_memory", "cuda_ndarray", "deallocations", "emm_plugins", "events", "host_alloc",
    "managed_alloc", "pinned", "reset_device", "select_device", "streams")]}
ROUTES = {"preload": {"LD_PRELOAD": "libcenote_preload.so", "CENOTE_SUMMARY": "on"}, "forward": {"LD_PRELOAD": "forward/libcuda.so.1"},
          "adapter": {"NUMBA_CUDA_MEMORY_MANAGER": "cenote.numba"}}

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def installed():
    if sys.version_info < (3, 11):
        pytest.skip("python/requirements/libraries.txt has nothing for Python 3.10")
    if not INSTALLED.exists():
        (pytest.fail if os.environ.get("CENOTE_TEST_ALL") else pytest.skip)(f"`tools/setup test` installs the libraries into {INSTALLED}")


def outcomes(suite, variables):
    """What became of each test, and what the process said."""
    sim = simulation().parent
    build, preloads = places.plain(str(sim.parent)), [f"{places.plain(str(sim))}/libcenote_sim.so"]
    if "LD_PRELOAD" in variables:
        preloads.insert(0, f"{build}/{variables['LD_PRELOAD']}")
    environment = {**clean_environment(), **variables, "LD_PRELOAD": ":".join(preloads), "LD_LIBRARY_PATH": str(sim),
                   "CENOTE_SIM": "capacity:8GiB,data:256MiB", "CENOTE_BUILD": str(sim.parent)}
    done = subprocess.run([sys.executable, RUN, INSTALLED, *SUITES[suite]], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return {name: outcome for name, outcome, _ in lines}, done.stderr


@pytest.fixture(scope="module")
def native():
    return {suite: outcomes(suite, {})[0] for suite in SUITES}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("suite", SUITES)
def test_equal(native, suite, route):
    ours, said = outcomes(suite, ROUTES[route])
    assert list(native[suite].values()).count("passed") > 100
    different = {name for name in native[suite].keys() | ours.keys() if native[suite].get(name) != ours.get(name)}
    assert different == {name for served, name in DIFFERENT if served == route}
    if route == "preload":
        assert "cenote by preload" in said and "peak requested 0" not in said
