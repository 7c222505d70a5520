"""Shared by the Python tests: the command as a user runs it, in an environment without settings of cenote."""
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import answers
import browser
import patience
from nursery import Nursery

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.dont_write_bytecode = True
from cenote import places  # noqa: E402  (needs the path above)

patience.stretch()
os.umask(0o022)  # only this user may write to the files of tests, unless a test says otherwise, whatever the umask was
signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C ends what tests start, even if a shell runs the tests in the background

OURS = ("CENOTE", "CENOTE_SUMMARY", "CENOTE_SIM", "LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES")
SECONDS = 120
CENOTE = (sys.executable, "-m", "cenote")
INSTALLED = pathlib.Path(sys.prefix) / "libraries"  # of others, as cuda.core and Numba, for tests that use them
SMALL_WEIGHTS = pathlib.Path(sys.prefix) / "bitsandbytes"

SHOW = """
import json, os, sys
names = {names!r}
json.dump(dict(argv=sys.argv, pid=os.getpid(), stdin=sys.stdin.read() if "read" in sys.argv else None,
               python=sys.executable, **{{name: os.environ.get(name) for name in names}}), sys.stdout)
"""


def simulation() -> pathlib.Path:
    return pathlib.Path(os.environ.get("CENOTE_BUILD") or ROOT / "build").resolve() / "sim/libcenote_sim.so"


def clean_environment() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in OURS}
    variables["PYTHONPATH"] = str(ROOT / "python")
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    variables["CENOTE_ON_OOM"] = "off"  # no test writes to the folder of the user's state
    return variables


@pytest.fixture
def installed() -> None:
    """The libraries of others are there."""
    if sys.version_info < (3, 11):
        pytest.skip("python/requirements/libraries.txt has nothing for Python 3.10")
    if not INSTALLED.exists():
        (pytest.fail if os.environ.get("CENOTE_TEST_ALL") else pytest.skip)(f"`tools/setup test` installs the libraries into {INSTALLED}")


@pytest.fixture
def small_weights() -> pathlib.Path:
    """The folder in which bitsandbytes is."""
    if not SMALL_WEIGHTS.exists():
        (pytest.fail if os.environ.get("CENOTE_TEST_ALL") else pytest.skip)(f"`tools/setup test` installs bitsandbytes into {SMALL_WEIGHTS}")
    return SMALL_WEIGHTS


@pytest.fixture
def clean() -> dict[str, str]:
    """The environment without the variables that `cenote run` sets, and with this tree's package on the path."""
    return clean_environment()


def nursery_with(*imports):
    """A nursery on the simulated GPU, with these modules imported beside PyTorch."""
    preload = os.path.join(places.plain(str(simulation().parent)), simulation().name)
    return Nursery({**clean_environment(), "LD_PRELOAD": preload, "CENOTE_SIM": "capacity:1GiB"}, *imports)


@pytest.fixture(scope="session")
def nursed_python():
    """A stand-in for Python, in which scripts on the simulated GPU begin with PyTorch imported (nursery.py), and with what an optimizer imports at
    its first step: a second for each script."""
    nursery = nursery_with("torch._dynamo")
    yield nursery.python
    nursery.close()


def caller(python, clean, folder):
    def call(*arguments, input=None, cwd=folder, **variables):
        words = list(map(str, arguments))
        words[1:1] = ["-v"] if words[:1] == ["dry-run"] and "SHORT" not in variables else []  # most tests ask for a line of the whole verdict
        variables.pop("SHORT", None)
        done = subprocess.run([python, "-m", "cenote", *words], env={**clean, **variables}, cwd=cwd, input=input, capture_output=True, text=True,
                              timeout=SECONDS)
        if words[:1] == ["dry-run"] and "--json" in words:
            answers.check_file(pathlib.Path(cwd, words[words.index("--json") + 1]))
        return done
    return call


@pytest.fixture
def run(clean, tmp_path):
    """run("run", "--sim", "8GiB", ..., NAME=VALUE...): a finished process, with its output as text."""
    return caller(sys.executable, clean, tmp_path)


@pytest.fixture
def nursed_run(nursed_python, clean, tmp_path):
    """The same for scripts that import PyTorch, two seconds faster."""
    return caller(nursed_python, clean, tmp_path)


@pytest.fixture
def show(run, tmp_path):
    """show(OPTION..., NAME=VALUE...): arguments and environment of a program that is started with these options."""
    script = tmp_path / "show.py"
    script.write_text(SHOW.format(names=OURS))

    def call(*options, arguments=(), **variables):
        done = run("run", *options, script, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return call


@pytest.fixture
def simulation_library() -> pathlib.Path:
    return simulation()


def pytest_collection_modifyitems(items):
    """Skips tests that cannot run here. If CENOTE_TEST_ALL is set, as in `make test`, they fail instead."""
    reasons = {
        "simulation": "" if simulation().exists() else f"{simulation()} is not built",
        "browser": "" if browser.find() else "no Chromium here; `tools/setup test` installs it on Debian",
        "torch": "" if importlib.util.find_spec("torch") else "torch is not installed; `tools/setup test` installs it into .venv",
    }
    for item in items:
        for mark, reason in reasons.items():
            if reason and item.get_closest_marker(mark) and not os.environ.get("CENOTE_TEST_ALL"):
                item.add_marker(pytest.mark.skip(reason=reason))
