"""torch.distributed over the simulated NCCL: four ranks, each on a device of its own. The checks are in ranks.py."""

import json
import pathlib
import subprocess
import sys

import pytest

import simulated
from spoken import said

torch = pytest.importorskip("torch")
import ranks  # noqa: E402  (needs torch)

RANKS = 4
SHAPE = f"capacity:16GiB,devices:{RANKS},context_bytes:300MiB"
PROGRAM = str(pathlib.Path(ranks.__file__))
SMALL_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "64"}  # workspaces of 32 MiB would hide the model


def left_behind() -> set:
    return set(pathlib.Path("/dev/shm").glob("cenote-nccl-*"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder with the results of the ranks. NVML counts the devices, so that the launcher may fork."""
    folder = tmp_path_factory.mktemp("ranks")
    before = left_behind()
    done = subprocess.run(
        [sys.executable, PROGRAM, str(folder), str(RANKS)],
        env=simulated.environment(
            SHAPE, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTORCH_NVML_BASED_CUDA_CHECK="1", **SMALL_WORKSPACES
        ),
        timeout=120,
        text=True,
        capture_output=True,
    )
    files = [folder / f"{rank}.json" for rank in range(RANKS)]
    assert done.returncode == 0 and all(file.exists() for file in files), done.stdout + done.stderr
    assert "is not simulated" not in said(done.stderr), done.stderr
    assert left_behind() == before
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """The result of each check in each rank."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", [check.__name__ for check in ranks.CHECKS])
def test_ranks(results, name):
    assert [done.get(name, "it was not reached") for done in results] == [""] * RANKS


def test_a_rank_that_dies_is_noticed(folder):
    """The real library would wait until a timeout; the simulated one tells the other rank at once."""
    words = [(folder / f"lost-{rank}.txt").read_text() for rank in range(2)]
    assert json.loads((folder / "lost.json").read_text()) == [9, 7], words
    assert "remote process exited" in words[0] and "rank 1 has left" in words[0], words[0]


def test_several_devices_in_one_process():
    """torch.cuda.nccl uses all devices from one thread."""
    inputs = [torch.tensor([float(device + 1)], device=f"cuda:{device}") for device in range(RANKS)]
    torch.cuda.nccl.all_reduce(inputs)
    assert [x.item() for x in inputs] == [10.0] * RANKS
    torch.cuda.nccl.broadcast([torch.tensor([device], device=f"cuda:{device}") for device in range(RANKS)], root=0)
    assert torch.cuda.nccl.version() == (2, 30, 7)
