"""Lifetimes of MemPools, graphs and tensors: which keeps which alive, in any order of death, nested, on several threads; pools as a last resort."""

import itertools
import threading

import pytest
import torch

import simulated
from contents import LONG, MIB, block, copied, fails_before, fill, filled, holds, overlap, places, release


@pytest.fixture
def books():
    copied(filled(MIB, 1))
    release()
    return torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]


def is_as_before(books) -> bool:
    release()
    return torch.cuda.memory_reserved() <= books[0] and torch.cuda.mem_get_info()[0] >= books[1]


def owns(pool, tensor: torch.Tensor) -> bool:
    return any(s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())


# --- what keeps what alive


@pytest.mark.parametrize("order", list(itertools.permutations(["pool", "graph", "tensor"])), ids="-".join)
def test_pool_graph_and_tensor_end_in_any_order(books, order):
    """The memory works as long as one of them is there, and goes when all are gone."""
    source = filled(12 * MIB, 3)
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        between = source.clone()
        tensor = between.clone()
        del between
    there = {"pool": pool, "graph": graph, "tensor": tensor}
    del pool, graph, tensor
    value = 3
    there["graph"].replay()
    for name in order:
        del there[name]
        release()
        others = [filled(12 * MIB, 90 + i) for i in range(3)]
        if "graph" in there:
            value += 1
            fill(source, value)
            there["graph"].replay()
        assert "tensor" not in there or holds(there["tensor"], value)
        torch.cuda.synchronize()
        assert all(holds(others[i], 90 + i) for i in range(3))
        del others
    del source
    assert is_as_before(books)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_three_graphs_of_one_pool_end_in_any_order(books, order):
    source = block(5 * MIB)
    pool = torch.cuda.graph_pool_handle()
    made = {i: copied(source, pool=pool) for i in range(3)}
    for value, i in enumerate(order, 1):
        fill(source, value)
        for one in made:
            made[one][0].replay()
        assert all(holds(made[one][1], value) for one in made)
        del made[i]
        release()
    del source
    assert is_as_before(books)


def test_a_pool_counts_its_graphs():
    pool = torch.cuda.MemPool()
    alone = pool.use_count()
    first, _ = copied(filled(MIB, 1), pool=pool.id)
    second, _ = copied(filled(MIB, 1), pool=pool.id)
    assert pool.use_count() == alone + 2
    first.reset()
    assert pool.use_count() == alone + 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == alone + 2
    del second
    assert pool.use_count() == alone


def test_a_pool_that_ends_inside_its_use(books):
    """The program drops its last reference inside `use_mem_pool`; the pool stays until the block ends."""
    pool = torch.cuda.MemPool()
    use = torch.cuda.use_mem_pool(pool)
    use.__enter__()
    a = filled(12 * MIB, 4)
    del pool
    b = filled(12 * MIB, 5)
    use.__exit__(None, None, None)
    del use
    assert holds(a, 4) and holds(b, 5)
    del a, b
    assert is_as_before(books)


def test_hundreds_of_pools_lose_no_memory(books):
    kept = []
    for i in range(200):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            a = block((i % 5 + 1) * MIB)
        if i % 20 == 0:
            kept.append((pool, a))
    del pool, a
    kept.clear()
    assert is_as_before(books)


# --- nested, and by thread


def test_a_pool_inside_itself():
    """PyTorch's own allocator refuses that, cenote does not; in both cases the outer use goes on."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        made = [block(5 * MIB)]
        try:
            with torch.cuda.use_mem_pool(pool):
                made.append(block(5 * MIB))
        except RuntimeError as error:
            assert "already" in str(error)
        made.append(block(5 * MIB))
    outside = block(5 * MIB)
    assert all(owns(pool, a) for a in made) and not owns(pool, outside)


def test_three_pools_deep():
    pools, made = [torch.cuda.MemPool() for _ in range(3)], []
    with torch.cuda.use_mem_pool(pools[0]), torch.cuda.use_mem_pool(pools[1]):
        with torch.cuda.use_mem_pool(pools[2]):
            made.append((block(5 * MIB), pools[2]))
        made.append((block(5 * MIB), pools[1]))
    for a, owner in made:
        assert [pool is owner for pool in pools] == [owns(pool, a) for pool in pools]


def test_an_inner_pool_that_is_left_by_an_exception():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        with pytest.raises(torch.OutOfMemoryError), torch.cuda.use_mem_pool(inner):
            block(8 << 30)
        a = block(5 * MIB)
    assert owns(outer, a) and not owns(inner, a)


def test_one_pool_on_two_threads():
    """Two threads use the pool one after the other; blocks do not overlap."""
    pool, made = torch.cuda.MemPool(), []

    def work(value):
        with torch.cuda.use_mem_pool(pool):
            made.append(([filled(3 * MIB, value + i) for i in range(4)], value))

    for value in (10, 20):
        thread = threading.Thread(target=work, args=(value,))
        thread.start()
        thread.join()
    both = made[0][0] + made[1][0]
    assert all(owns(pool, a) for a in both)
    assert not any(overlap(a, b) for a, b in itertools.combinations(both, 2))
    assert all(holds(mine[i], value + i) for mine, value in made for i in range(4))


def test_a_tensor_of_a_pool_dies_on_another_thread():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        made = [block(12 * MIB)]
    at = made[0].data_ptr()
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    assert at not in places(block(12 * MIB) for _ in range(2))
    with torch.cuda.use_mem_pool(pool):
        assert block(12 * MIB).data_ptr() == at


def test_pools_and_streams_are_apart(sim):
    """Two pools on two streams: memory that is free in one pool or on one stream does not serve the others."""
    side, pools = torch.cuda.Stream(), [torch.cuda.MemPool() for _ in range(2)]
    corners, at = [(pool, stream) for pool in pools for stream in (torch.cuda.current_stream(), side)], []
    for pool, stream in corners:
        with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
            at.append(block(12 * MIB).data_ptr())
    assert len(set(at)) == 4
    for (pool, stream), place in reversed(list(zip(corners, at))):
        with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
            assert block(12 * MIB).data_ptr() == place


def test_a_capture_while_another_thread_is_in_a_pool():
    pool, inside, leave = torch.cuda.MemPool(), threading.Event(), threading.Event()
    made = []

    def work():
        with torch.cuda.use_mem_pool(pool):
            made.append(filled(5 * MIB, 3))
            inside.set()
            leave.wait(20)
            made.append(block(5 * MIB))

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(20)
    source = filled(5 * MIB, 6)
    graph, target = copied(source, capture_error_mode="thread_local")
    leave.set()
    thread.join()
    graph.replay()
    assert holds(target, 6) and holds(made[0], 3)
    assert not owns(pool, target) and all(owns(pool, a) for a in made)


# --- what a pool may be asked for


def test_blocks_of_a_pool_that_does_not_split_share_nothing():
    """Each block shares its pages of 2 MiB with no other, also where larger blocks were before."""
    whole = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(whole):
        block(12 * MIB)
        live = [filled(size, i) for i, size in enumerate((512, MIB, 3 * MIB, 512, 2 * MIB, MIB))]
    under = [set(range(a.data_ptr() // (2 * MIB), (a.data_ptr() + a.numel() - 1) // (2 * MIB) + 1)) for a in live]
    assert sum(map(len, under)) == len(set.union(*under))
    assert all(holds(a, i) for i, a in enumerate(live)) and all(owns(whole, a) for a in live)


def test_no_split_does_not_touch_other_pools():
    release()
    whole, ordinary = torch.cuda.MemPool(no_split=True), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(ordinary):
        block(12 * MIB)
        before = torch.cuda.memory_reserved()
        live = [block(2 * MIB) for _ in range(4)]
    assert torch.cuda.memory_reserved() == before
    del whole, live


def test_a_last_resort_lends_only_what_is_free(sim):
    release()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        live = filled(30 * MIB, 7)
        block(40 * MIB)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    a = block(36 * MIB)
    assert owns(pool, a) and not overlap(a, live)
    with pytest.raises(torch.OutOfMemoryError):
        block(36 * MIB)
    assert holds(live, 7)


def test_what_a_last_resort_lent_comes_back_to_it(sim):
    release()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        block(64 * MIB)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    a = filled(64 * MIB, 5)
    at = a.data_ptr()
    del a
    with torch.cuda.use_mem_pool(pool):
        assert block(64 * MIB).data_ptr() == at


def test_a_last_resort_that_is_gone(sim):
    release()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        block(64 * MIB)
    del pool
    release()
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    with pytest.raises(torch.OutOfMemoryError):
        block(64 * MIB)


def test_memory_borrowed_outlives_the_lender(sim, books):
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        block(64 * MIB)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    a = filled(64 * MIB, 5)
    del pool
    sim.set_foreign(0, 0)
    release()
    others = [filled(32 * MIB, 6) for _ in range(3)]
    assert holds(a, 5)
    del a, others
    assert is_as_before(books)


def test_a_recorded_block_of_a_pool_that_is_gone(sim, books):
    """The block waits for the other stream, and then its memory goes back."""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        a = block(12 * MIB)
    source, seen = filled(12 * MIB, 8), block(12 * MIB)
    a.copy_(source)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sim.work(side, LONG)
        seen.copy_(a)
    a.record_stream(side)
    del a, pool
    others = [block(12 * MIB).zero_() for _ in range(3)]
    torch.cuda.synchronize()
    assert holds(seen, 8)
    del seen, source, others
    torch.cuda.synchronize()
    assert is_as_before(books)


@fails_before("2.15", "counts no memory by pool")
def test_statistics_of_several_pools():
    pools = [torch.cuda.MemPool() for _ in range(3)]
    live = []
    for i, pool in enumerate(pools):
        with torch.cuda.use_mem_pool(pool):
            live.append(block((i + 1) * 20 * MIB))
    by_pool = torch.cuda.memory.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    held = [by_pool[tuple(pool.id)]["all"]["current"] for pool in pools]
    assert all(size >= (i + 1) * 20 * MIB for i, size in enumerate(held))
    assert sum(held) <= torch.cuda.memory_reserved()
    del live


@pytest.mark.skipif(not simulated.allocator(), reason="the native allocator lends what a replay writes to")
def test_a_last_resort_keeps_what_graphs_write_to(sim):
    """Memory that a capture used stays with its graphs; memory of another stream, which no capture used, is lent."""
    release()
    pool, graph, apart = torch.cuda.MemPool(use_on_oom=True), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    source = filled(32 * MIB, 3)
    with torch.cuda.stream(apart), torch.cuda.use_mem_pool(pool):
        block(48 * MIB)
    with torch.cuda.graph(graph, pool=pool.id):
        between = source.clone()
        target = between.clone()
        del between
    captured = torch.cuda.graph.default_capture_stream
    sim.set_foreign(0, torch.cuda.mem_get_info()[0])
    with torch.cuda.stream(captured), pytest.raises(torch.OutOfMemoryError):
        block(32 * MIB)
    with torch.cuda.stream(apart):
        lent = filled(48 * MIB, 5)
    graph.replay()
    torch.cuda.synchronize()
    assert holds(target, 3) and holds(lent, 5)
    del lent, target, source


@fails_before("2.15", "counts no memory by pool")
def test_a_pool_without_memory_is_in_no_statistics():
    pool = torch.cuda.MemPool()
    name = "reserved_bytes_by_private_pools.{}_{}.all.current".format(*pool.id)
    with torch.cuda.use_mem_pool(pool):
        assert name not in torch.cuda.memory_stats()
        live = block(4 * MIB)
    assert torch.cuda.memory_stats()[name] >= 4 * MIB
    del live
