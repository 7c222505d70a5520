"""Wrong use fails as under CUDA, and leaves the device as CUDA leaves it."""

import ctypes
import os

import pytest
import torch

from contents import LONG, MIB, block, fails_before, filled, holds, uncached
from elsewhere import elsewhere

INVALID_VALUE = 1
ILLEGAL_ADDRESS = 700
INVALID_HANDLE = 400
CAPTURE_UNSUPPORTED = 900
LOST = "illegal memory access"
NO_BLOCK = "invalid device pointer|a pointer not allocated here"  # PyTorch's own words for its interface for any allocator come second


def runtime():
    return ctypes.CDLL("libcudart.so.13")


def lose_device(device: int = 0) -> None:
    """Loses the device, as after a kernel that wrote to memory it may not use."""
    ctypes.CDLL("libcuda.so.1").sim_lose_context(device, ILLEGAL_ADDRESS)


@pytest.mark.parametrize("wild", [0xDEAD000, 512])
def test_deleting_what_was_never_allocated(wild):
    with pytest.raises(RuntimeError, match=NO_BLOCK):
        torch.cuda.caching_allocator_delete(wild)


def test_deleting_twice():
    at = torch.cuda.caching_allocator_alloc(3 * MIB)
    torch.cuda.caching_allocator_delete(at)
    before = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError, match=NO_BLOCK):
        torch.cuda.caching_allocator_delete(at)
    assert torch.cuda.memory_allocated() == before
    assert holds(filled(3 * MIB, 5), 5)


def test_deleting_the_middle_of_a_block():
    at = torch.cuda.caching_allocator_alloc(3 * MIB)
    with pytest.raises(RuntimeError, match=NO_BLOCK):
        torch.cuda.caching_allocator_delete(at + 512)
    torch.cuda.caching_allocator_delete(at)


@pytest.mark.adapter("the cache cannot be switched off")
@pytest.mark.violates
def test_a_copy_beyond_an_allocation(sim):
    sim.set_quiet(True)
    host = (ctypes.c_char * 100)()
    with uncached():
        a = block(2 * MIB)
        beyond = ctypes.c_void_p(a.data_ptr() + 2 * MIB - 50)
        status = runtime().cudaMemcpy(host, beyond, ctypes.c_size_t(100), 2)
        runtime().cudaGetLastError()
        assert status == INVALID_VALUE
        del a
    sim.set_quiet(False)
    assert holds(filled(MIB, 3), 3)


@pytest.mark.violates
def test_freeing_from_the_device_twice(sim):
    sim.set_quiet(True)
    at = ctypes.c_void_p()
    assert runtime().cudaMalloc(ctypes.byref(at), ctypes.c_size_t(2 * MIB)) == 0
    assert runtime().cudaFree(at) == 0
    assert runtime().cudaFree(at) == INVALID_VALUE
    assert runtime().cudaGetLastError() == INVALID_VALUE
    sim.set_quiet(False)
    assert holds(filled(MIB, 3), 3)


@pytest.mark.violates
def test_memory_of_the_cache_is_not_the_programs_to_free(sim):
    sim.set_quiet(True)
    a = filled(3 * MIB, 6)
    assert runtime().cudaFree(ctypes.c_void_p(a.data_ptr() + 512)) == INVALID_VALUE
    runtime().cudaGetLastError()
    sim.set_quiet(False)
    assert holds(a, 6)


@fails_before("2.15", "takes the capture for open after it was invalidated")
@pytest.mark.violates
def test_taking_memory_from_the_device_in_a_capture(sim):
    sim.set_quiet(True)
    graph, a = torch.cuda.CUDAGraph(), block(MIB)
    at = ctypes.c_void_p()
    with pytest.raises(RuntimeError, match="captur"):
        with torch.cuda.graph(graph):
            a.zero_()
            assert runtime().cudaMalloc(ctypes.byref(at), ctypes.c_size_t(2 * MIB)) == CAPTURE_UNSUPPORTED
            runtime().cudaGetLastError()
    sim.set_quiet(False)
    del graph
    assert holds(filled(MIB, 3), 3)


def test_taking_memory_from_the_device_in_a_relaxed_capture():
    graph, a, zeroes, at = torch.cuda.CUDAGraph(), filled(MIB, 1), filled(MIB, 0), ctypes.c_void_p()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        a.copy_(zeroes)
        assert runtime().cudaMalloc(ctypes.byref(at), ctypes.c_size_t(2 * MIB)) == 0
    graph.replay()
    assert holds(a, 0)
    assert runtime().cudaFree(at) == 0


@pytest.mark.violates
def test_a_stream_that_does_not_exist(sim):
    sim.set_quiet(True)
    assert runtime().cudaStreamQuery(ctypes.c_void_p(0x1234560)) in (INVALID_VALUE, INVALID_HANDLE)
    assert runtime().cudaGetLastError() != 0
    sim.set_quiet(False)
    assert holds(filled(MIB, 3), 3)


def test_an_event_of_one_device_on_a_stream_of_another():
    event = torch.cuda.Event()
    event.record(torch.cuda.Stream(device=0))
    with pytest.raises(RuntimeError, match="device"):
        event.record(torch.cuda.Stream(device=1))
    event.synchronize()


@pytest.mark.violates
def test_the_time_between_events_of_two_devices(sim):
    sim.set_quiet(True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(torch.cuda.Stream(device=0))
    end.record(torch.cuda.Stream(device=1))
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with pytest.raises(RuntimeError):
        start.elapsed_time(end)
    sim.set_quiet(False)
    runtime().cudaGetLastError()
    assert holds(filled(MIB, 3), 3)


def test_waiting_for_an_event_never_recorded_is_no_wait(sim):
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    side.wait_event(event)
    event.synchronize()
    assert side.query()


def test_tensors_of_two_devices_in_one_operation():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4, device="cuda:0") + torch.ones(4, device="cuda:1")


def test_a_forked_child_cannot_use_the_gpu():
    block(100)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.empty(4, device="cuda")
            os.write(writer, b"it could")
        except RuntimeError as error:
            os.write(writer, str(error).encode()[:200])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as words:
        assert b"Cannot re-initialize CUDA in forked subprocess" in words.read()
    assert holds(filled(MIB, 3), 3)


def test_a_forked_child_may_drop_what_it_inherits():
    """The child does not change memory of its parent."""
    a = filled(3 * MIB, 7)
    before = torch.cuda.memory_allocated()
    child = os.fork()
    if child == 0:
        del a
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.cuda.memory_allocated() == before and holds(a, 7)


# --- a lost device; each of these tests has a process of its own


@pytest.mark.violates
@elsewhere(alone=True)
def test_a_lost_device_stays_lost(sim):
    sim.set_quiet(True)
    a, host = filled(MIB, 1), torch.zeros(MIB, dtype=torch.uint8)
    lose_device()
    acts = {
        "wait": torch.cuda.synchronize,
        "read": a.cpu,
        "write": lambda: a.copy_(host),
        "launch": lambda: torch.ones(4, device="cuda"),
        "allocate": lambda: block(600 * MIB),
        "record": lambda: torch.cuda.Event().record(),
    }
    for name, act in acts.items():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=LOST):
                act()
                torch.cuda.synchronize()
                pytest.fail(f"could still {name}")
    del a


@pytest.mark.violates
@elsewhere(alone=True)
def test_tensors_can_be_dropped_when_the_device_is_lost(sim):
    """No free may fail, whatever the device says."""
    sim.set_quiet(True)
    live = [block(3 * MIB) for _ in range(10)]
    before = torch.cuda.memory_allocated()
    lose_device()
    del live[1:]
    assert before - torch.cuda.memory_allocated() == 27 * MIB
    del live


@pytest.mark.violates
@elsewhere(alone=True)
def test_memory_freed_under_a_copy_loses_the_device(sim):
    """Without the cache, PyTorch calls cudaFree for memory that a stream is about to read."""
    sim.set_quiet(True)
    target, side = block(4 * MIB), torch.cuda.Stream()
    at = ctypes.c_void_p()
    assert runtime().cudaMalloc(ctypes.byref(at), ctypes.c_size_t(4 * MIB)) == 0
    assert runtime().cudaFree(at) == 0
    sim.work(side, LONG)
    size, to = ctypes.c_size_t(4 * MIB), ctypes.c_void_p(target.data_ptr())
    refused = runtime().cudaMemcpyAsync(to, at, size, 3, ctypes.c_void_p(side.cuda_stream))
    if refused:
        assert refused == INVALID_VALUE
        return
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch.cuda.synchronize()


@pytest.mark.violates
@elsewhere(alone=True)
def test_one_lost_device_leaves_the_others(sim):
    sim.set_quiet(True)
    a = filled(MIB, 4, "cuda:1")
    torch.empty(4, device="cuda:0")
    lose_device(0)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch.cuda.synchronize(0)
    with torch.cuda.device(1):
        assert holds(a, 4)
