"""`@pytest.mark.gpu_memory`, in a project of its own that has an installed cenote and no GPU."""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import spoken

pytestmark = [pytest.mark.torch, pytest.mark.simulation]
SECONDS = 240

PROJECT = {
    "pytest.ini": "[pytest]\naddopts = -p cenote.integrations.pytest_plugin --strict-markers\n",  # installed, it is an entry point
    "conftest.py": """
import pytest

def pytest_addoption(parser):
    parser.addoption("--width", type=int)

@pytest.fixture(scope="session")
def width(request):
    return request.config.getoption("--width")
""",
    "models/conftest.py": """
import pytest, torch

@pytest.fixture(scope="module")
def model(width):
    return torch.nn.Linear(width, width).cuda()
""",
    "models/test_model.py": """
import pytest, torch

def test_without_the_mark():
    assert not torch.cuda.is_available()

@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.gpu_memory("64MiB")
@pytest.mark.parametrize("batch", [1024, 65536])
def test_step(model, batch, tmp_path):
    print("batch", batch, "in", tmp_path)
    loss = model(torch.randn(batch, 1024, device="cuda")).sum()
    loss.backward()
    del loss
    torch.cuda.reset_peak_memory_stats()
    assert len(torch.ones(3, device="cuda").nonzero()) == 3
""",
    "plain/test_plain.py": """
import os, pathlib, pytest, signal

@pytest.fixture(scope="module")
def shared():
    yield 5
    raise OSError("shared fails")

def test_before(shared):
    pass

@pytest.mark.gpu_memory("1GiB")
def test_wrong(width):
    print("the width is", width)
    assert width == 5, "no"

@pytest.mark.gpu_memory("1GiB")
@pytest.mark.xfail(strict=True)
def test_known():
    assert 0

@pytest.mark.gpu_memory("1GiB")
def test_no_gpu():
    pass

@pytest.mark.gpu_memory("1GiB")
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.gpu_memory("a lot")
def test_no_size():
    pass

@pytest.mark.gpu_memory("1GiB")
@pytest.mark.parametrize("there", ["CENOTE_DRY_RUN" in os.environ])
def test_is_another_there(there):
    pass
""",
    "plain/test_second.py": "def test_after():\n    pass\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def play(project, clean, simulation_library):
    """play(OPTION...): pytest's output there. PyTorch can be imported, as if NVIDIA's packages were installed, and sees no GPU."""
    def call(*arguments):
        variables = {**clean, "LD_LIBRARY_PATH": str(simulation_library.parent), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, "-m", "pytest", "--width", "1024", "--basetemp", project / "kept", *arguments], env=variables,
                              cwd=project, capture_output=True, text=True, timeout=SECONDS)
        return done.returncode, spoken.said(done.stdout) + spoken.said(done.stderr)
    return call


def section(text, test):
    """What pytest says about one failure."""
    found = re.search(rf"^_+ (?:ERROR at \w+ of )?{re.escape(test)} _+$(.*?)^(?:_+ \S.* _+|[=-]+ .* [=-]+)$", text, re.M | re.S)
    assert found, text
    return found[1]


def test_a_limit(play, project):
    """The same test keeps to the limit with one batch and not with another; tests without the mark see no GPU."""
    status, text = play("models", "--junitxml", "done.xml")
    assert status == 1 and "1 failed, 2 passed" in text, text
    lines = section(text, "test_step[65536]").strip().splitlines()
    assert lines[0] == "GPU memory: 552.0 MiB at most, 488.0 MiB above the limit of 64.0 MiB (simulated GPU)", text
    assert "by kind:  inputs 256.0 MiB" in lines[1] and any("inputs: models/test_model.py:12" in line for line in lines[3:]), text
    assert re.search(r"^ +552.0 MiB +64.0 MiB +models/test_model.py::test_step\[65536\]\n +48.0 MiB +64.0 MiB .*\[1024\]$", text, re.M), text
    assert "batch 65536 in " in text and "batch 1024" not in text
    cases = {case.get("name"): case for case in xml.etree.ElementTree.parse(project / "done.xml").iter("testcase")}
    assert len(cases) == 3
    found = {one.get("name"): int(one.get("value")) for one in cases["test_step[65536]"].iter("property")}
    assert found["gpu_memory"] == 64 << 20 and 552 << 20 <= found["gpu_memory_peak"] < 553 << 20


def test_other_ends(play):
    """Each failure says what it is; what other tests have set up is torn down before tests that do not share it."""
    status, text = play("plain")
    assert status == 1 and "5 failed, 2 passed, 1 xfailed, 1 error" in text, text
    assert 'assert width == 5, "no"' in section(text, "test_wrong") and "1024 == 5" in section(text, "test_wrong")
    assert "the width is 1024" in text
    assert "the test used no GPU memory" in section(text, "test_no_gpu") and "PyTorch was not imported" in section(text, "test_no_gpu")
    assert "without its result, signal 9:" in section(text, "test_dies")
    assert "gpu_memory('a lot'): it takes one size" in section(text, "test_no_size")
    assert "OSError: shared fails" in section(text, "test_is_another_there[False]")  # what comes first is its teardown
    assert re.search(r"exit status 1:\nnot found: .*::test_is_another_there", text), text


def test_the_first_failure_ends_it(play):
    status, text = play("-x", "plain", "-k", "wrong or known or dies")
    assert status == 1 and "1 failed, 5 deselected" in text, text


def test_under_xdist(play):
    import xdist  # noqa: F401  (python/requirements/test.txt has it)
    status, text = play("-n", "2", "plain", "-k", "wrong or known or after")
    assert status == 1 and "1 failed, 1 passed, 1 xfailed" in text and "1024 == 5" in section(text, "test_wrong"), text
    assert re.search("^ +0 bytes +1.00 GiB +plain/test_plain.py::test_known$", text, re.M), text


def test_in_a_pytest_on_the_simulated_gpu(run, project):
    """A machine without NVIDIA's packages runs all of pytest under `cenote run`."""
    done = run("run", "--sim", "8GiB", "-m", "pytest", "--width", "1024", "models", "-k", "step and 1024", cwd=project)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
