"""torch.cuda.MemPool: memory set apart, by thread, by allocator, and given back with its pool."""

import threading

import pytest
import torch

from contents import LONG, MIB, block, comes_back, fails_before, filled, holds, overlap, places, release
from foreign import Foreign


@pytest.fixture
def foreign(tmp_path):
    return Foreign(tmp_path)


def owns(pool, tensor: torch.Tensor) -> bool:
    return any(s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())


def reserved_by(pool) -> int:
    return sum(segment["total_size"] for segment in pool.snapshot())


def test_pools_have_names_of_their_own():
    pools = [torch.cuda.MemPool() for _ in range(3)]
    assert len({tuple(pool.id) for pool in pools}) == 3
    assert all(len(pool.id) == 2 for pool in pools)


def test_memory_of_a_pool_is_apart():
    """Memory that is freed in a pool serves only that pool."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = block(12 * MIB)
    at = a.data_ptr()
    del a
    outside = [block(12 * MIB) for _ in range(4)]
    assert at not in places(outside)
    with torch.cuda.use_mem_pool(pool):
        assert block(12 * MIB).data_ptr() == at


def test_free_memory_outside_is_not_used_by_a_pool():
    release()
    a = block(12 * MIB)
    at = a.data_ptr()
    del a
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        assert block(12 * MIB).data_ptr() != at


def test_a_pool_in_the_statistics():
    before = torch.cuda.memory_allocated()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = block(12 * MIB)
    assert torch.cuda.memory_allocated() - before == 12 * MIB
    assert reserved_by(pool) >= 12 * MIB
    del a
    assert torch.cuda.memory_allocated() == before


def test_the_snapshot_of_a_pool_has_its_segments_alone():
    outside = block(12 * MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = block(30 * MIB)
    segments = pool.snapshot()
    assert {tuple(segment["segment_pool_id"]) for segment in segments} == {tuple(pool.id)}
    assert sum(segment["allocated_size"] for segment in segments) == 30 * MIB
    assert owns(pool, a)
    assert not owns(pool, outside)
    assert reserved_by(torch.cuda.MemPool()) == 0


def test_a_pool_that_is_gone_gives_its_memory_back():
    release()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block(12 * MIB)
    assert torch.cuda.memory_reserved() - before >= 12 * MIB
    del pool
    release()
    assert torch.cuda.memory_reserved() == before


def test_a_tensor_outlives_its_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = filled(8 * MIB, 5)
    del pool
    release()
    others = [filled(8 * MIB, 6) for _ in range(4)]
    assert holds(a, 5)
    before = torch.cuda.memory_allocated()
    del a
    assert before - torch.cuda.memory_allocated() == 8 * MIB
    del others


def test_the_memory_of_a_pool_goes_with_it_without_empty_cache():
    release()
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block(12 * MIB)
    del pool
    assert torch.cuda.memory_reserved() == before
    assert torch.cuda.mem_get_info()[0] == left


@pytest.mark.native("the native allocator's empty_cache passes by the pools of users as long as they live; nothing promises it")
def test_empty_cache_passes_by_pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block(12 * MIB)
        torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    assert reserved_by(pool) >= 12 * MIB


def test_empty_cache_leaves_what_a_pool_has_live():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = filled(12 * MIB, 4)
        torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    assert holds(a, 4) and reserved_by(pool) >= 12 * MIB


def test_pools_nest():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        a = block(12 * MIB)
        with torch.cuda.use_mem_pool(inner):
            b = block(12 * MIB)
        c = block(12 * MIB)
    d = block(12 * MIB)

    assert [owns(outer, a), owns(inner, b), owns(outer, c)] == [True, True, True]
    assert not owns(outer, b) and not owns(inner, c) and not owns(outer, d) and not owns(inner, d)


def test_a_pool_left_by_an_exception():
    pool = torch.cuda.MemPool()
    with pytest.raises(ZeroDivisionError):
        with torch.cuda.use_mem_pool(pool):
            a = block(12 * MIB)
            raise ZeroDivisionError
    at = a.data_ptr()
    del a
    assert block(12 * MIB).data_ptr() != at


def test_a_pool_is_of_the_thread_that_uses_it():
    pool, elsewhere = torch.cuda.MemPool(), []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: elsewhere.append(block(12 * MIB)))
        thread.start()
        thread.join()
        assert reserved_by(pool) == 0
        a = block(12 * MIB)
        assert reserved_by(pool) >= 12 * MIB
    assert not overlap(a, elsewhere[0])


@fails_before("2.15", "aborts when pools end on several threads")
def test_each_thread_has_its_own_pool():
    failures = []

    def work(value):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            live = [filled(3 * MIB, value) for _ in range(5)]
        inside = reserved_by(pool) >= 15 * MIB
        if not inside or not all(holds(a, value) for a in live):
            failures.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_several_streams_in_one_pool(sim):
    """Streams do not take each other's memory in a pool either."""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    late, mine = filled(12 * MIB, 3), filled(12 * MIB, 4)
    torch.cuda.synchronize()
    with torch.cuda.use_mem_pool(pool):
        with torch.cuda.stream(side):
            sim.work(side, LONG)
            block(12 * MIB).copy_(late)
        b = block(12 * MIB)
        b.copy_(mine)
    torch.cuda.synchronize()
    assert holds(b, 4)


@fails_before("2.15", "asks no event while a pool is in use")
def test_record_stream_in_a_pool(sim):
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        a = block(12 * MIB)
        at = a.data_ptr()
        sim.work(side, LONG)
        a.record_stream(side)
        del a
        assert block(12 * MIB).data_ptr() != at
        torch.cuda.synchronize()
        assert comes_back(at, 12 * MIB)


def test_a_pool_of_another_device():
    pool = torch.cuda.MemPool()
    before = torch.cuda.memory_allocated(1)
    with torch.cuda.use_mem_pool(pool, device=1):
        a = block(12 * MIB, "cuda:1")
        b = block(12 * MIB, "cuda:0")
    assert torch.cuda.memory_allocated(1) - before == 12 * MIB
    segments = pool.snapshot()
    assert {segment["device"] for segment in segments} == {1}
    assert b.device.index == 0 and a.device.index == 1


def test_out_of_memory_in_a_pool():
    release()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = filled(12 * MIB, 2)
        with pytest.raises(torch.OutOfMemoryError):
            block(8 << 30)
        assert holds(a, 2)
    del a, pool
    release()
    assert torch.cuda.memory_reserved() == before


def test_a_pool_as_the_last_resort(sim):
    """With use_on_oom, free memory of the pool serves any allocation before one fails."""
    release()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        block(64 * MIB)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    a = block(64 * MIB)
    assert owns(pool, a)
    del a


def test_a_pool_that_is_no_last_resort(sim):
    release()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block(64 * MIB)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    try:
        a = block(64 * MIB)
    except torch.OutOfMemoryError:
        return
    assert not owns(pool, a)


@pytest.mark.native("a segment is the native allocator's unit: with no_split it serves one block, so the second takes a segment of its own")
def test_a_pool_that_does_not_split():
    pool, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    for each, segments in ((pool, 1), (whole, 2)):
        with torch.cuda.use_mem_pool(each):
            live = [block(2 * MIB), block(2 * MIB)]
        assert len(each.snapshot()) == segments
        del live


def test_a_pool_in_use_outlives_a_reset_of_peaks():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = block(3 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        b = block(3 * MIB)
    assert len(pool.snapshot()) > 0
    del a, b, pool


def test_a_pool_counts_its_users():
    pool = torch.cuda.MemPool()
    alone = pool.use_count()
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == alone + 1
    assert pool.use_count() == alone


def test_a_graph_in_a_pool():
    pool = torch.cuda.MemPool()
    source = filled(12 * MIB, 6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        target = source.clone()
    assert reserved_by(pool) >= 12 * MIB
    graph.replay()
    assert holds(target, 6)


def test_a_pool_used_inside_a_capture_lives_with_the_graph():
    release()
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    source = filled(12 * MIB, 6)
    with torch.cuda.graph(graph):
        with torch.cuda.use_mem_pool(pool):
            a = source.clone()
        b = a.clone()
    del pool
    release()
    others = [filled(12 * MIB, 9) for _ in range(2)]
    graph.replay()
    assert holds(a, 6) and holds(b, 6) and all(holds(other, 9) for other in others)


# --- memory of another library's allocator


def test_a_pool_over_a_foreign_allocator(foreign):
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        a = filled(3 * MIB, 7)
    assert foreign.taken == 1 and foreign.bytes >= 3 * MIB
    assert holds(a, 7)
    block(3 * MIB)
    assert foreign.taken == 1


def test_foreign_memory_is_kept_and_used_again(foreign):
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        for _ in range(10):
            block(30 * MIB)
    assert foreign.taken == 1 and foreign.given == 0


def test_foreign_memory_goes_back_with_its_pool(foreign):
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        both = [block(30 * MIB), block(30 * MIB)]
    del both, pool
    release()
    assert foreign.given == foreign.taken >= 2 and foreign.bytes == 0


def test_a_tensor_of_foreign_memory_outlives_pool_and_allocator(foreign):
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        a = filled(30 * MIB, 8)
    del pool
    release()
    assert foreign.given == 0 and holds(a, 8)
    del a
    release()
    assert foreign.given == foreign.taken


def test_a_foreign_allocator_sees_device_and_stream(foreign):
    side = torch.cuda.Stream(device=1)
    with torch.cuda.device(1):
        pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool, device=1), torch.cuda.stream(side):
        block(30 * MIB, "cuda:1")
    assert foreign.device == 1
    assert foreign.stream == side.cuda_stream


def test_a_foreign_allocator_that_has_no_more(foreign):
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    foreign.limit(64 * MIB)
    with torch.cuda.use_mem_pool(pool):
        a = filled(40 * MIB, 1)
        with pytest.raises(torch.OutOfMemoryError):
            block(40 * MIB)
    b = block(40 * MIB)
    assert holds(a, 1) and foreign.taken == 1
    del a, b


def test_a_foreign_pool_counts_as_reserved(foreign):
    release()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        a = block(30 * MIB)
    assert torch.cuda.memory_reserved() - before == foreign.bytes >= 30 * MIB
    del a


def test_the_allocator_cannot_be_changed_when_it_is_in_use(foreign):
    with pytest.raises(RuntimeError, match="already initialized"):
        torch.cuda.memory.change_current_allocator(foreign.allocator)
    assert holds(filled(MIB, 3), 3) and foreign.taken == 0
