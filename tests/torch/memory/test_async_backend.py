"""The backend cudaMallocAsync: the driver keeps the cache, and PyTorch allocates in stream order."""

import pytest
import torch

from contents import MIB, block, filled, holds, release
from elsewhere import elsewhere

run = elsewhere(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")


@run
def test_the_backend_has_its_name():
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"


@run
def test_contents():
    live = [filled(size, value) for value, size in enumerate((100, 70_000, 3 * MIB, 33 * MIB), 1)]
    del live[1]
    assert holds(live[0], 1) and holds(live[1], 3) and holds(live[2], 4)


@run
def test_allocated_follows_tensors():
    before = torch.cuda.memory_allocated()
    a = block(8 * MIB)
    assert torch.cuda.memory_allocated() - before == 8 * MIB
    del a
    assert torch.cuda.memory_allocated() == before


@run
def test_the_peak_and_its_reset():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    block(40 * MIB)
    assert torch.cuda.max_memory_allocated() - before == 40 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before


@run
def test_empty_cache_gives_back():
    release()
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    block(256 * MIB)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before >= 256 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before and torch.cuda.mem_get_info()[0] == left


@run
def test_out_of_memory_and_recovery():
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            block(8 << 30)
        assert holds(filled(MIB, 3), 3)


@run
def test_the_fraction_is_a_limit():
    release()
    torch.cuda.set_per_process_memory_fraction(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        block(1100 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    block(1100 * MIB)


@run
def test_recorded_memory_waits_for_the_stream(sim):
    side, source = torch.cuda.Stream(), filled(12 * MIB, 2)
    a, target = filled(12 * MIB, 1), block(12 * MIB)
    torch.cuda.synchronize()
    sim.work(side, 10**9)
    with torch.cuda.stream(side):
        target.copy_(a)
    a.record_stream(side)
    del a
    b = block(12 * MIB).copy_(source)
    torch.cuda.synchronize()
    assert holds(target, 1) and holds(b, 2)


@run
def test_memory_of_streams_while_the_gpu_is_behind(sim):
    sim.set_lag(1_000_000)
    sources = [filled(4 * MIB, value) for value in range(4)]
    torch.cuda.synchronize()
    results = []
    for step in range(100):
        with torch.cuda.stream(torch.cuda.Stream()):
            a = block(4 * MIB).copy_(sources[step % 4])
            results.append((block(4 * MIB).copy_(a), step % 4))
            del a
    torch.cuda.synchronize()
    assert all(holds(a, value) for a, value in results)


@run
def test_a_graph_is_captured_and_replayed():
    source, graph = block(3 * MIB), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        temporary = source.clone()
        target = temporary.clone()
        del temporary
    for value in (4, 5):
        source.copy_(torch.full((3 * MIB,), value, dtype=torch.uint8))
        graph.replay()
        assert holds(target, value)


@run
def test_raw_memory():
    before = torch.cuda.memory_allocated()
    at = torch.cuda.caching_allocator_alloc(6 * MIB)
    assert torch.cuda.memory_allocated() - before == 6 * MIB
    torch.cuda.caching_allocator_delete(at)
    assert torch.cuda.memory_allocated() == before


@run
def test_memory_of_two_devices():
    a, b = filled(5 * MIB, 1, "cuda:0"), filled(5 * MIB, 2, "cuda:1")
    assert torch.cuda.memory_allocated(1) >= 5 * MIB
    assert holds(a.to("cuda:1"), 1) and holds(b.to("cuda:0"), 2)


@run
@pytest.mark.native("what cudaMallocAsync lacks, in PyTorch's words")
def test_snapshots_are_refused():
    with pytest.raises(RuntimeError, match="(?i)cudaMallocAsync"):
        torch.cuda.memory_snapshot()


@run
def test_a_step_of_training():
    model = torch.nn.LayerNorm(4096).cuda()
    peaks = []
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        model(torch.empty(256, 4096, device="cuda")).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad)
        model.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] == peaks[2] == peaks[3] >= 2 * 256 * 4096 * 4
