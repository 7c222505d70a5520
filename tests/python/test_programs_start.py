"""Every program of bench/, tools/ and examples/ starts: with a small input here, in the test that is named, or not at all, with the reason.

The programs are found by a look into the folders: one that is new, and in none of the tables, fails, and so does a row whose program is gone.
"""
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

SECONDS = 300
FOLDERS = ("bench", "tools", "examples")

# With these arguments each runs to its end. --help: a program that trains a large model, which is imported whole and reads its options.
SMALL = {
    "bench/accuracy/compare.py": ["--help"],
    "bench/policy/run.py": ["--help"],
    "bench/reach/pools.py": ["--help"],
    "bench/reach/served.py": ["--help"],
    "bench/torch/driver_time.py": ["--help"],
    "bench/torch/graphs.py": ["--help"],
    "bench/torch/labels.py": ["--help"],
    "bench/torch/speed.py": ["--rounds", "1", "--only", "pair 512"],
    "bench/torch/step_cost.py": ["--help"],
    "bench/torch/trim.py": ["--help"],
    "bench/torch/watching.py": ["--help"],
    "bench/view/snapshot.py": ["--help"],
    "examples/torch/table.py": ["--help"],
    "tools/pictures": ["--help"],
    "tools/stubs": ["--help"],
    "tools/wheel/try.py": ["--help"],
}

# Programs that another test starts, or a lane of `make test`: the file names each.
ELSEWHERE = {
    "examples/dry/deepspeed_zero.py": "tests/python/test_frameworks.py",
    "examples/dry/lightning_vit.py": "tests/python/test_dry_run.py",
    "examples/dry/llama_ranks.py": "tests/python/test_ranks.py",
    "examples/dry/megatron_gpt.py": "tests/python/test_frameworks.py",
    "examples/dry/pipeline_schedules.py": "tests/python/test_ranks.py",
    "examples/dry/titan_llama.py": "tests/python/test_frameworks.py",
    "examples/dry/torchvision_loop.py": "tests/python/test_dry_run.py",
    "tools/check/run": "Makefile",
    "tools/setup": "Makefile",
    "tools/test": "Makefile",
    "tools/unchanged": "Makefile",
    "tools/wrap": "tests/check/checks.py",
}

# What is not started, by the beginning of its path, and why.
NOT = {
    "bench/accuracy/": "trains models of hundreds of millions of parameters, on a card",
    "bench/host/run.py": "`make bench` starts it under cenote run, with jemalloc and a compiler",
    "bench/reach/build_": "compiles CuPy, RMM and UMF, whose sources are not here",
    "bench/reach/clients/": "needs the libraries that bench/reach/build_... makes",
    "bench/reach/jax_lengths.py": "needs JAX",
    "examples/dry/": "trains a model for many seconds: tools/answers runs those whose verdict docs/dry-run.md shows",
    "examples/libraries/": "tests/python/test_libraries.py starts all that lie there",
    "examples/pinned.py": "needs jemalloc loaded early: docs/host-memory.md",
    "examples/questions/": "tools/answers runs it for the page that shows its output",
    "examples/torch/": "trains a large model: `make table`",
    "examples/training.py": "`make run` trains it",
    "tools/outcomes": "reads reports that `make outcomes` makes of all of tests/torch",
    "tools/answers": "makes pages of the documents anew",
    "tools/check/": "a rule of `make check`, which tools/check/run starts",
    "tools/coverage/run": "needs a build with counters: `make coverage`",
    "tools/deep": "`make deep` is it",
    "tools/gpu": "needs a card",
    "tools/wheel/build.py": "`make wheel` is it: minutes",
    "tools/wheel/old-g++": "stands in for a compiler within tools/wheel/build.py",
}


def is_program(path):
    """A Python file, of tools one that is not only imported; or what a shell can start."""
    if path.suffix == ".py":
        return path.parts[0] != "tools" or '__name__ == "__main__"' in (ROOT / path).read_text()
    return path.suffix == "" and os.access(ROOT / path, os.X_OK)


def programs():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in listed.stdout.splitlines() if is_program(pathlib.Path(name)))


def reason(name):
    return next((why for start, why in NOT.items() if name.startswith(start)), None)


def test_no_program_is_forgotten():
    found = programs()
    assert [name for name in found if name not in SMALL and name not in ELSEWHERE and reason(name) is None] == []
    assert sorted({*SMALL, *ELSEWHERE} - set(found)) == []
    assert [start for start in NOT if not any(name.startswith(start) for name in found)] == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_test_starts_it(name):
    assert pathlib.Path(name).name in (ROOT / ELSEWHERE[name]).read_text()


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("name", SMALL)
def test_it_starts(clean, simulation_library, tmp_path, name):
    variables = {**clean, "CENOTE_BUILD": str(simulation_library.parents[1])}
    command = [sys.executable, str(ROOT / name), *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a;b"])
def test_a_folder_in_which_cmake_cannot_build_is_refused(tmp_path, name):
    tools = tmp_path / name / "tools"
    tools.mkdir(parents=True)
    (tools / "setup").write_bytes((ROOT / "tools/setup").read_bytes())
    done = subprocess.run(["bash", tools / "setup", "build"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert "CMake cannot build in a folder whose path has a quotation mark, a backslash or a semicolon" in done.stderr
