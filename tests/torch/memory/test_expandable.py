"""expandable_segments:True: segments that grow by mapping memory, and shrink again."""

import random

import pytest
import torch

from contents import LONG, MIB, block, comes_back, filled, holds, places, release
from elsewhere import elsewhere

run = elsewhere(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


@run
def test_the_segments_are_expandable():
    a = filled(30 * MIB, 4)
    segments = [s for s in torch.cuda.memory_snapshot() if s["address"] <= a.data_ptr() < s["address"] + s["total_size"]]
    assert len(segments) == 1 and segments[0]["is_expandable"]
    assert holds(a, 4)


@run
def test_neighbours_grow_into_one():
    """The purpose of the option: four free neighbours serve one block of the sum of their sizes."""
    release()
    pieces = [block(64 * MIB) for _ in range(8)]
    reserved = torch.cuda.memory_reserved()
    del pieces
    whole = block(512 * MIB)
    assert torch.cuda.memory_reserved() <= reserved + 64 * MIB
    del whole


@run
def test_contents_stay_while_a_segment_grows():
    live = []
    for value in range(1, 25):
        live.append(filled(value * MIB, value))
    assert all(holds(a, value) for value, a in enumerate(live, 1))
    del live[::2]
    torch.cuda.empty_cache()
    assert all(holds(a, value) for value, a in zip(range(2, 25, 2), live))


@run
def test_empty_cache_unmaps_what_is_free():
    release()
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    a, b, c = block(100 * MIB), filled(100 * MIB, 5), block(100 * MIB)
    del a, c
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 160 * MIB
    assert left - torch.cuda.mem_get_info()[0] < 160 * MIB
    assert holds(b, 5)
    del b
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before and torch.cuda.mem_get_info()[0] == left


@run
def test_memory_unmapped_comes_back():
    for value in range(1, 6):
        a = filled(50 * MIB, value)
        assert holds(a, value)
        del a
        torch.cuda.empty_cache()


@run
def test_out_of_memory_and_recovery():
    release()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            block(8 << 30)
        assert torch.cuda.memory_allocated() == before
        assert holds(filled(8 * MIB, 3), 3)


@run
def test_all_free_memory_can_be_allocated():
    release()
    size = torch.cuda.mem_get_info()[0] // (64 * MIB) * 64 * MIB
    pieces = [block(64 * MIB) for _ in range(size // (64 * MIB))]
    del pieces[1::2]
    with pytest.raises(torch.OutOfMemoryError):
        block(size)
    del pieces
    block(size)


@run
def test_pending_frees_are_waited_for(sim):
    release()
    side = torch.cuda.Stream()
    each = torch.cuda.mem_get_info()[0] // 3 // (20 * MIB) * 20 * MIB
    for _ in range(30):
        a = block(each)
        sim.work(side, 10**9)
        a.record_stream(side)
        del a
    torch.cuda.synchronize()


@run
def test_recorded_memory_waits_for_the_stream(sim):
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    at = a.data_ptr()
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    assert block(12 * MIB).data_ptr() != at
    torch.cuda.synchronize()
    assert comes_back(at, 12 * MIB)


@run
def test_unmapping_waits_for_the_gpu(sim):
    """No memory is unmapped while the GPU still uses it."""
    release()
    sim.set_lag(50_000_000)
    source = filled(100 * MIB, 1)
    for _ in range(5):
        block(100 * MIB).copy_(source)
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert holds(source, 1)


@run
def test_the_fraction_is_a_limit():
    release()
    torch.cuda.set_per_process_memory_fraction(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        block(1100 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    block(1100 * MIB)


@run
def test_a_graph_in_expandable_memory():
    release()
    before = torch.cuda.memory_reserved()
    source, graph = block(12 * MIB), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        temporary = source.clone()
        target = temporary.clone()
        del temporary
    for value in (4, 5):
        source.copy_(torch.full((12 * MIB,), value, dtype=torch.uint8))
        others = [filled(12 * MIB, 9) for _ in range(2)]
        torch.cuda.empty_cache()
        graph.replay()
        assert holds(target, value) and all(holds(a, 9) for a in others)
        del others
    del graph, target, source
    release()
    assert torch.cuda.memory_reserved() == before


@run
def test_a_pool_in_expandable_memory():
    release()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = filled(12 * MIB, 7)
    assert holds(a, 7)
    del a, pool
    release()
    assert torch.cuda.memory_reserved() == before


@run
def test_two_devices_share_expandable_memory():
    a = filled(12 * MIB, 7, "cuda:0")
    b = a.to("cuda:1")
    c = filled(70 * MIB, 8, "cuda:0").to("cuda:1")
    assert holds(b, 7) and holds(c, 8)


@run
def test_mapping_is_in_the_history():
    release()
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    block(100 * MIB)
    torch.cuda.empty_cache()
    actions = {entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]}
    torch.cuda.memory._record_memory_history(enabled=None)
    assert {"segment_map", "segment_unmap", "alloc", "free_completed"} <= actions


@run
def test_random_sizes_fragment_little():
    generator = random.Random(2)
    release()
    live, most = [], torch.cuda.memory_allocated() + 800 * MIB
    for _ in range(1500):
        live.append(block(generator.choice((100, 30_000, MIB, 7 * MIB, 31 * MIB)) + generator.randrange(5000)))
        while torch.cuda.memory_allocated() > most:
            live[generator.randrange(len(live))] = live[-1]
            live.pop()
    assert torch.cuda.memory_reserved() < 1400 * MIB
    assert len(places(live)) == len(live) and torch.cuda.memory_allocated() > most // 2


@run
def test_nothing_is_left_behind(sim):
    release()
    filled(64 * MIB, 1)
    release()
    before = sim.books()
    for _ in range(10):
        filled(64 * MIB, 1)
        release()
    after = sim.books()
    assert (after.handles, after.mappings, after.used) == (before.handles, before.mappings, before.used)
