"""Memory of CUDA graphs in another process by legacy CUDA IPC, which the custom all-reduce of vLLM and SGLang needs (all_reduce.py)."""

import os
import pathlib

import pytest

import simulated
from spoken import said

PROGRAM = pathlib.Path(__file__).with_name("all_reduce.py").read_text()
SHAPE = f"capacity:4GiB,devices:2,context_bytes:300MiB,machine:reduce{os.getpid()}"

# The extension of vLLM does this when it is loaded.
OPERATOR = """
def prepare(torch):
    global library
    library = torch.library.Library("_C_custom_ar", "DEF")
    library.define("register_graph_buffers(int fa, int[][] handles, int[][] offsets) -> ()")
"""
NOTHING = "def prepare(torch):\n    pass\n"
SWITCHES_OFF = "def prepare(torch):\n    torch._C._accelerator_setAllocatorSettings('expandable_segments:False')\n"


def reduce(prepare, **environ):
    return simulated.forked(f"{PROGRAM}\n{prepare}\nmain()\n", shape=SHAPE, check=False, **environ)


def refused(done):
    return done.returncode == 1 and "cudaIpcGetMemHandle 'invalid argument'" in said(done.stderr)


@pytest.mark.adapter("graphs need CENOTE_CONF=graphs:plain for legacy CUDA IPC")
def test_a_custom_all_reduce():
    done = reduce(OPERATOR)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(bool(simulated.allocator()), reason="judges expandable segments of PyTorch's own allocator")
def test_expandable_segments_end_there():
    assert refused(reduce(OPERATOR, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
    done = reduce(SWITCHES_OFF, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")  # as a guard in those libraries does around the capture
    assert done.returncode == 0, done.stdout + done.stderr


# --- how cenote knows

only_cenote = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")


@pytest.mark.adapter("graphs need CENOTE_CONF=graphs:plain for legacy CUDA IPC")
@only_cenote
def test_what_makes_graphs_plain():
    done = reduce(OPERATOR)
    assert said(done.stderr).count("_C_custom_ar::register_graph_buffers") == 2  # once in each of the two processes, for neither has a LOCAL_RANK
    for prepare, environ in ((SWITCHES_OFF, {}), (NOTHING, {"CENOTE_CONF": "graphs:plain"}),
                             (NOTHING, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})):
        done = reduce(prepare, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "register_graph_buffers" not in done.stderr


@only_cenote
def test_what_leaves_graphs_on_pages():
    assert refused(reduce(OPERATOR, CENOTE_CONF="graphs:pages"))
    assert refused(reduce(NOTHING))
