"""Trace trackers: functions that PyTorch calls for each entry of the history, in order."""

import random
import threading

import pytest
import torch

from contents import LONG, MIB, block, fill, holds
from elsewhere import elsewhere

pytestmark = pytest.mark.adapter("trackers of memory")


@pytest.fixture(scope="module")
def library() -> str:
    import follower

    return follower.compiled()


def begin(library: str, early: bool = True):
    """Begins to follow, before any memory is allocated if `early`."""
    import follower

    torch.cuda.init()
    return follower.Follower(library, early)


def churn(seed: int, turns: int, live: list, sizes=(100, 9 * MIB), check=lambda tensor: None) -> None:
    """Allocates and drops tensors at random, and checks each new one."""
    at_random = random.Random(seed)
    for _ in range(turns):
        if live and at_random.random() < 0.5:
            live.pop(at_random.randrange(len(live)))
        else:
            live.append(block(at_random.randint(*sizes)))
            check(live[-1])


@elsewhere(alone=True)
def test_every_entry_fits_the_ones_before_it(library):
    follower, live = begin(library), []
    for turn in range(6):
        churn(turn, 300, live)
        if turn % 2:
            live.clear()
            torch.cuda.empty_cache()
    assert follower.problem() == ""
    assert follower.count("alloc") > 800
    assert follower.count("alloc") - follower.count("free_completed") == follower.live() == len(live)
    assert follower.count("segment_alloc", "segment_map") > 0 < follower.count("segment_free", "segment_unmap")


@elsewhere(alone=True)
def test_what_is_registered_is_at_least_what_is_reserved(library):
    follower = begin(library)
    live = [block(size * MIB) for size in (1, 5, 33, 70)]
    assert follower.registered() == torch.cuda.memory_reserved()
    del live
    torch.cuda.empty_cache()
    assert follower.registered() == torch.cuda.memory_reserved() == 0


@elsewhere(alone=True)
def test_no_copy_meets_memory_that_was_not_registered(library):
    """Sizes grow and shrink on several streams, so that memory moves. The test checks each tensor before a copy to it, and its bytes after."""
    follower, streams = begin(library), [torch.cuda.Stream() for _ in range(3)]
    at_random = random.Random(7)
    for turn in range(24):
        with torch.cuda.stream(streams[turn % 3]):
            tensors = []
            for value in range(8):
                tensor = block(at_random.randint(1, 14 * MIB))
                assert not follower.is_stale(tensor)
                tensors.append((fill(tensor, value), value))
            for tensor, value in tensors:
                assert not follower.is_stale(tensor) and holds(tensor, value)
            del tensors, tensor
        if turn % 7 == 6:
            torch.cuda.empty_cache()
    assert follower.problem() == ""


@elsewhere(shape="capacity:1GiB,devices:1,context_bytes:100MiB", alone=True)
def test_no_copy_meets_memory_that_moved_under_shortage(library):
    """Hardly any memory is left, so that blocks of each size take the pages of the size before, again and again."""
    follower = begin(library)
    torch.cuda.set_per_process_memory_fraction(0.5)
    for turn in range(12):
        size = (3, 17, 64, 150)[turn % 4] * MIB
        tensors = [block(size) for _ in range(400 * MIB // size)]
        for value, tensor in enumerate(tensors):
            assert not follower.is_stale(tensor)
            fill(tensor[:4096], value), fill(tensor[-4096:], value)
        for value, tensor in enumerate(tensors):
            assert not follower.is_stale(tensor) and holds(tensor[:4096], value) and holds(tensor[-4096:], value)
        del tensors, tensor
    assert follower.problem() == ""


@elsewhere(alone=True)
def test_threads_are_told_one_after_the_other(library):
    """Some threads share a stream, so that one gets the memory that another has just freed."""
    follower, failures, streams = begin(library), [], [torch.cuda.Stream() for _ in range(2)]

    def work(seed: int) -> None:
        live: list = []
        with torch.cuda.stream(streams[seed % 2]):
            churn(seed, 400, live, sizes=(MIB, MIB + 1000), check=lambda tensor: follower.is_stale(tensor) and failures.append(tensor.shape))
        live.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        torch.cuda.empty_cache()
        torch.cuda.memory_snapshot()
    for thread in threads:
        thread.join()
    assert follower.problem() == "" and failures == []
    assert follower.live() == 0 and follower.count("alloc") == follower.count("free_completed") > 1000


@elsewhere(alone=True)
def test_a_block_is_free_before_the_next_has_it(library):
    follower = begin(library)
    for size in (1000, 3 * MIB):
        follower.churn(4, 5000, size)
    assert follower.problem() == "" and follower.live() == 0
    assert follower.count("alloc") == follower.count("free_requested") == follower.count("free_completed") == 2 * 4 * 5000


@elsewhere(alone=True)
def test_a_block_that_waits_is_free_when_its_stream_is_done(library, sim):
    follower, side = begin(library), torch.cuda.Stream()
    a = block(12 * MIB)
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    assert follower.count("free_requested") == 1 and follower.count("free_completed") == 0
    torch.cuda.synchronize()
    block(100)
    torch.cuda.memory_snapshot()
    assert follower.count("free_completed") >= 1 and follower.live() == 0 and follower.problem() == ""


@elsewhere(alone=True)
def test_other_devices_are_followed(library):
    follower = begin(library)
    live = [block(5 * MIB, f"cuda:{device}") for device in range(torch.cuda.device_count())]
    assert all(follower.live(device) == 1 and not follower.is_stale(live[device]) for device in range(len(live)))
    assert follower.problem() == ""


@elsewhere(alone=True)
def test_running_out_is_told(library):
    follower = begin(library)
    with pytest.raises(torch.OutOfMemoryError):
        block(8 << 30)
    assert follower.count("oom") == 1 and follower.problem() == ""


@elsewhere(alone=True)
def test_a_tracker_that_comes_late_finds_what_is_there_in_a_snapshot(library):
    before = [block(size * MIB) for size in (1, 30)]
    gone = block(60 * MIB)
    follower = begin(library, early=False)
    assert all(map(follower.is_stale, before))
    follower.register(torch.cuda.memory_snapshot())
    assert not any(map(follower.is_stale, before))
    del gone
    after = block(200 * MIB)
    assert not follower.is_stale(after)
    del before, after
    torch.cuda.empty_cache()
    assert follower.problem() == "" and follower.registered() == torch.cuda.memory_reserved() == 0
    assert follower.count("free_requested") == 4 and follower.count("segment_free", "segment_unmap") >= 1


@elsewhere(alone=True)
def test_two_are_told_the_same(library):
    both = begin(library)
    begin(library)  # a second tracker over the same books
    block(5 * MIB)
    assert both.count("alloc") == both.count("free_requested") == 2 and both.problem() != ""


@elsewhere(alone=True)
def test_a_tracker_and_a_history(library):
    follower = begin(library)
    torch.cuda.memory._record_memory_history(stacks="python")
    a = block(5 * MIB)
    torch.cuda.memory._record_memory_history(enabled=None)
    at = a.data_ptr()
    del a
    b = block(5 * MIB)
    assert follower.count("alloc") == 2 and follower.count("free_completed") == 1 and follower.problem() == ""
    assert [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e.get("addr") == at] == []
    del b


@elsewhere(alone=True)
def test_annotations_are_told(library):
    annotate = getattr(torch.cuda.memory, "_annotate_tensor", None)
    if not annotate:
        pytest.skip("this PyTorch has no annotations")
    follower, a = begin(library), block(5 * MIB)
    annotate(a[100:], "mine")
    assert follower.count("annotate") == 1 and follower.problem() == ""


@elsewhere(alone=True)
def test_memory_of_a_foreign_allocator_comes_in_segments(library, tmp_path):
    from foreign import Foreign

    follower, foreign = begin(library), Foreign(tmp_path)
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        a = block(5 * MIB)
    assert foreign.taken == follower.count("segment_alloc") == 1 and not follower.is_stale(a)
    del a, pool
    torch.cuda.empty_cache()
    assert foreign.given == follower.count("segment_free") == 1 and follower.problem() == ""


@elsewhere(alone=True)
def test_a_capture_is_followed(library):
    follower, a, graph = begin(library), block(5 * MIB), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b = a.clone()
        c = b.clone()
    assert not any(map(follower.is_stale, (a, b, c)))
    for _ in range(20):
        scratch = [block(size * MIB) for size in (7, 40, 90)]
        assert not any(map(follower.is_stale, scratch))
        del scratch
        graph.replay()
        assert not follower.is_stale(b) and not follower.is_stale(c)
    del b, c
    graph.reset()
    torch.cuda.empty_cache()
    assert follower.problem() == ""
