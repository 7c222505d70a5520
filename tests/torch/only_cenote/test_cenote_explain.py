"""What cenote adds to PyTorch's message when memory runs out. For CENOTE_TEST_ALLOCATOR=cenote; tests in C go through all advice."""

import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import cenote
import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
MIB, GIB = 1 << 20, 1 << 30


def block(size: int, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def out_of_memory(size: int, device="cuda") -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(size, device)
    return str(caught.value)


def test_pytorchs_words_come_first_then_advice_then_the_table():
    live = block(3 * GIB)
    said = out_of_memory(2 * GIB)
    order = [
        r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0 has a total capacity of 4\.00 GiB of which [\d.]+ MiB is free\. ",
        r"Including non-PyTorch memory, this process has [\d.]+ GiB memory in use\. ",
        r"Of the allocated memory 3\.00 GiB is allocated by PyTorch, and [\d.]+ \w+ is reserved by PyTorch but unallocated\.\n",
        r"Advice: It is 1\.\d+ GiB too much for this GPU: 3\.00 GiB is live and 2\.00 GiB was asked for\. ",
        r"\nIn use on GPU 0, as nvidia-smi counts: 3\.\d+ GiB\n",
        r" +3\.00 GiB  pages of cenote: 3\.00 GiB in \d+ blocks?",
        r"\n +300\.00 MiB  CUDA context of this process \(estimated\)\n",
        r"expandable_segments:True would not help\. See documentation for Memory Management  \(https://docs\.pytorch\.org/",
    ]
    at = 0
    for words in order:
        found = re.compile(words).search(said, at)
        assert found, f"{words}\nis not in the rest of\n{said}"
        at = found.start()
    del live


@pytest.mark.parametrize(
    "provider, says",
    [
        ("vmm", "needed, so that PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would not help. See"),
        ("async", "segments here, which do not move. CENOTE_CONF=provider:vmm, where the GPU allows it, moves"),
        ("plain", "segments here, which do not move. CENOTE_CONF=provider:vmm, where the GPU allows it, moves"),
        ("guard", "each block pages of its own; provider:vmm takes less"),
    ],
)
def test_what_a_provider_does_not_move_is_not_said_to_move(provider, says):
    code = """
        import torch
        try:
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(error)
    """
    said = simulated.forked(code, shape="capacity:4GiB,devices:1", whole=True, CENOTE_CONF=f"provider:{provider}").stdout
    assert says in said and ("has no effect. See documentation for Memory Management  (" in said) == (provider != "vmm")
    assert ("would not help" in said) == (provider == "vmm")


def test_the_same_on_demand():
    live = block(GIB)
    said = cenote.explain()
    assert "out of memory" not in said and "1.00 GiB in" in said and "In use on GPU 0" in said
    assert "GPU 2 has a total capacity" in cenote.explain(2)
    assert "Tried to allocate 2.00 GiB" in cenote.explain(0, 2 * GIB)
    del live


def test_other_devices_that_are_empty_are_named():
    live = [block(3 * GIB), block(3 * GIB, "cuda:2")]
    said = out_of_memory(2 * GIB)
    assert "Other GPUs of which nearly nothing is in use: 1, 3\n" in said
    assert '.to("cuda:1")' in said
    del live


def test_a_size_that_was_computed_wrong():
    said = out_of_memory(2 << 60)
    assert "more than 1EB" in said and "the size was computed wrong" in said
    assert "\n    or:" not in said


def test_a_fraction_that_is_too_low():
    torch.cuda.set_per_process_memory_fraction(0.25)
    said = out_of_memory(1100 * MIB)
    assert "Advice: The limit of 1.00 GiB stands in the way" in said and "set_per_process_memory_fraction" in said
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert "stands in the way" not in out_of_memory(5 * GIB)


def test_graphs_that_are_left_over():
    """A private pool without live tensors."""
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = block(2 * GIB)
    live = block(GIB)
    said = out_of_memory(2 * GIB)
    assert "with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), " in said and "without a live tensor" not in said
    del inside
    said = out_of_memory(2 * GIB)
    assert "2.00 GiB lies in 1 private pool (CUDA graphs, MemPools) without a live tensor" in said
    del graph, pool
    block(2 * GIB)
    del live


class Layer(torch.nn.Module):
    """Keeps its output for the backward, as layers do."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256 * MIB // 4, device="cuda"))

    def forward(self, x):
        for _ in range(20):
            x = (x * self.weight).exp()
        return x


def test_evaluation_that_keeps_history():
    model, x = Layer().eval(), torch.ones(256 * MIB // 4, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model(x)
    assert "This is evaluation, and it keeps history" in str(caught.value)
    caught = None
    with torch.no_grad():
        model(x)  # as was advised
        live = block(2900 * MIB)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            model(x)
    assert "keeps history" not in str(caught.value)
    del live, caught
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model.train()(x)
    assert "This is evaluation" not in str(caught.value)


def test_gradients_that_are_kept_in_evaluation():
    model, x = Layer(), torch.ones(256 * MIB // 4, device="cuda")
    model.weight.grad = torch.ones_like(model.weight)
    live = block(2400 * MIB)
    with torch.no_grad(), pytest.raises(torch.OutOfMemoryError) as caught:
        model.eval()(x)
    assert "Gradients of the last training step hold 256.00 MiB" in str(caught.value)
    caught = None
    model.weight.grad = None
    with torch.no_grad():
        model(x)  # as was advised
    del live


def test_steps_that_leave_more_and_more():
    kept = []
    for _ in range(8):
        kept.append(block(64 * MIB))
        cenote.step()
    said = out_of_memory(4000 * MIB)
    assert re.search(r"Each of the last \d+ steps left more behind than the one before, 64\.00 MiB a step", said)
    cenote.step()
    assert "left more behind" not in out_of_memory(4000 * MIB)


HOLDER = """
    import ctypes, sys, time
    cuda, context, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(3 << 30)) == 0
    import os
    print(os.getpid(), flush=True)
    time.sleep(100)
"""
RUN = """
    import os, subprocess, sys
    worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
    print(worker.stdout.readline().strip(), flush=True)
    os._exit(1)  # without its worker
"""
TRIES = """
    import torch
    try:
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_memory_that_a_run_left_behind():
    """The worker of a run that died lives on and has the memory: the message names it, and says what to do."""
    shape = f"capacity:4GiB,context_bytes:100MiB,machine:torch-explain-{time.time_ns()}"
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(RUN), textwrap.dedent(HOLDER)], env=simulated.environment(shape), timeout=60,
                         text=True, stdout=subprocess.PIPE, start_new_session=True)
    worker = int(run.stdout)
    try:
        said = simulated.fresh(TRIES, shape).stdout
    finally:
        subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(worker)], check=True)
    assert f"Process {worker} has 3.10 GiB memory in use. " in said
    assert "Advice: Memory was not freed after exit: 3.10 GiB belongs to what is left of a run that has ended. " in said
    assert f" `kill {worker}` gives it back.\n" in said
    assert simulated.fresh(TRIES, shape).stdout == ""  # as was advised


def test_python_is_asked_without_a_lock_that_its_owner_may_wait_for():
    """One of autograd's threads runs out of memory while another thread, with Python's lock, begins and ends histories."""
    simulated.fresh(
        """
        import threading, time, torch
        import cenote.inside.moment
        fill, over, failures = cenote.inside.moment.Moment.fill, threading.Event(), 0

        def slow(self, moment):
            time.sleep(0.001)  # lets the other thread have Python's lock
            fill(self, moment)

        def toggle():
            while not over.is_set():
                torch.cuda.memory._record_memory_history(stacks="python")

        cenote.inside.moment.Moment.fill = slow
        thread = threading.Thread(target=toggle)
        thread.start()
        hold = torch.empty(5 << 29, dtype=torch.uint8, device="cuda")
        x = torch.empty(1 << 28, device="cuda", requires_grad=True)
        for _ in range(20):
            try:
                x[0:1].sum().backward()
            except torch.OutOfMemoryError:
                failures += 1
        over.set()
        thread.join()
        assert failures == 20
        """,
        timeout=60,
    )
