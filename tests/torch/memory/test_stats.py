"""Statistics: what torch.cuda says of the memory that a program has."""

import threading
import warnings

import pytest
import torch

from contents import LONG, MIB, block, fails_before, filled, holds, let_go, release

GROUPS = (
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes"
).split()
OVERSIZE = "oversize_allocations oversize_segments".split()
METRICS = "current peak allocated freed".split()
COUNTERS = (
    "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free max_split_size"
).split()


def test_allocated_follows_tensors():
    before = torch.cuda.memory_allocated()
    a = block(4 * MIB)
    b = block(6 * MIB)
    assert torch.cuda.memory_allocated() - before == 10 * MIB
    del a
    assert torch.cuda.memory_allocated() - before == 6 * MIB
    del b
    assert torch.cuda.memory_allocated() == before


def test_a_view_holds_the_whole_storage():
    before = torch.cuda.memory_allocated()
    a = block(8 * MIB)
    view = a[MIB : MIB + 100].view(10, 10)
    del a
    assert torch.cuda.memory_allocated() - before == 8 * MIB
    del view
    assert torch.cuda.memory_allocated() == before


def test_a_storage_of_no_size_holds_nothing():
    before = torch.cuda.memory_allocated()
    a = block(8 * MIB)
    a.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before
    a.untyped_storage().resize_(2 * MIB)
    assert torch.cuda.memory_allocated() - before == 2 * MIB


def test_growing_a_storage_keeps_what_it_holds():
    a = filled(2 * MIB, 7)
    a.untyped_storage().resize_(8 * MIB)
    assert holds(a, 7)


def test_an_empty_tensor_takes_no_memory():
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    empty = [block(0), torch.empty(0, 5, device="cuda"), torch.empty(3, 0, 2, device="cuda")]
    assert [t.data_ptr() for t in empty] == [0, 0, 0]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_requested_bytes_are_what_was_asked_for():
    before = torch.cuda.memory_stats()
    sizes = [1, 3, 511, 513, 4097, 70_001, MIB + 1, 3 * MIB + 17, 11 * MIB + 5]
    live = [block(size) for size in sizes]
    now = torch.cuda.memory_stats()
    assert now["requested_bytes.all.current"] - before["requested_bytes.all.current"] == sum(sizes)
    assert now["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] >= sum(sizes)
    assert now["allocation.all.current"] - before["allocation.all.current"] == len(live)


def test_addresses_are_aligned_and_apart():
    live = sorted((t.data_ptr(), t.numel(), t) for t in (block(size) for size in range(1, 60_000, 977)))
    assert all(at % 256 == 0 for at, _, _ in live)
    assert all(at + size <= after for (at, size, _), (after, _, _) in zip(live, live[1:]))


def test_the_peak_stays_until_it_is_reset():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    a, b = block(16 * MIB), block(16 * MIB)
    del a
    assert torch.cuda.max_memory_allocated() - before == 32 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() - before == 16 * MIB
    assert torch.cuda.memory_allocated() - before == 16 * MIB
    del b


def test_the_peak_of_reserved_memory():
    release()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_reserved()
    a = block(64 * MIB)
    del a
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == start
    assert torch.cuda.max_memory_reserved() - start >= 64 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == start


def test_freed_memory_is_kept_and_used_again():
    release()
    a = block(32 * MIB)
    reserved = torch.cuda.memory_reserved()
    for _ in range(20):
        del a
        assert torch.cuda.memory_reserved() == reserved
        a = block(32 * MIB)
    assert torch.cuda.memory_reserved() == reserved


def test_empty_cache_gives_back_what_is_free():
    release()
    start, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    dead = [block(48 * MIB) for _ in range(4)]
    live = filled(10 * MIB, 9)
    del dead
    assert torch.cuda.memory_reserved() - start >= 192 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - start < 64 * MIB
    assert left - torch.cuda.mem_get_info()[0] < 64 * MIB
    assert holds(live, 9)


def test_empty_cache_gives_back_everything_when_nothing_is_live():
    release()
    reserved, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    live = [block(size) for size in (100, 5_000, MIB, 3 * MIB, 25 * MIB)]
    del live
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.mem_get_info()[0] == left


def test_empty_cache_while_the_gpu_is_behind(sim):
    """Memory that another stream still uses goes back only when that stream has finished with it."""
    release()
    start = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    a = block(32 * MIB)
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        a.zero_()
    a.record_stream(side)
    del a
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == start


def test_mem_get_info_counts_what_is_reserved():
    release()
    reserved, (left, total) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    live = block(100 * MIB)
    taken = torch.cuda.memory_reserved() - reserved
    assert torch.cuda.mem_get_info() == (left - taken, total)
    assert torch.cuda.get_device_properties(0).total_memory == total
    del live


def test_mem_get_info_sees_other_processes(sim):
    left, total = torch.cuda.mem_get_info()
    sim.set_foreign(0, 512 * MIB)
    assert torch.cuda.mem_get_info() == (left - 512 * MIB, total)
    sim.set_foreign(0, 0)
    assert torch.cuda.mem_get_info() == (left, total)


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_of_statistics_adds_up(group):
    before = torch.cuda.memory_stats()
    live = [block(size) for size in (700, 300_000, 2 * MIB, 30 * MIB, 12_345)]
    del live[1::2]
    stats = torch.cuda.memory_stats()
    for pool in ("all", "small_pool", "large_pool"):
        current, peak, allocated, freed = (stats[f"{group}.{pool}.{metric}"] for metric in METRICS)
        current_before, _, allocated_before, freed_before = (before[f"{group}.{pool}.{metric}"] for metric in METRICS)
        assert 0 <= current <= peak
        assert current - current_before == (allocated - allocated_before) - (freed - freed_before)
    for metric in ("current", "allocated", "freed"):
        parts = stats[f"{group}.small_pool.{metric}"] + stats[f"{group}.large_pool.{metric}"]
        assert stats[f"{group}.all.{metric}"] == parts


def test_every_key_of_the_statistics_is_there():
    keys = {f"{group}.{pool}.{metric}" for group in GROUPS for pool in ("all", "small_pool", "large_pool") for metric in METRICS}
    keys |= {f"{group}.{metric}" for group in OVERSIZE for metric in METRICS} | set(COUNTERS)
    stats = torch.cuda.memory_stats()
    assert keys - set(stats) == set()
    assert [key for key in keys if not isinstance(stats[key], int)] == []


@fails_before("2.15", "does not count what it refuses before it asks the device")
def test_nothing_is_rejected_unless_it_is_asked_for():
    with pytest.raises(torch.OutOfMemoryError):
        block(8 << 30)
    assert torch.cuda.memory_stats()["num_oom_rejections"] == 0


def test_statistics_of_the_functions_are_those_of_the_dictionary():
    live = [block(5 * MIB), block(999)]
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
    assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
    assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved()
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
    assert nested["num_ooms"] == stats["num_ooms"]
    del live


def test_reserved_is_at_least_active_is_at_least_allocated():
    live = [block(3 * MIB) for _ in range(7)]
    del live[::2]
    stats = torch.cuda.memory_stats()
    requested, allocated, active, reserved = (
        stats[f"{group}.all.current"] for group in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
    )
    assert requested <= allocated <= active <= reserved


def test_memory_that_waits_for_a_stream_is_active_not_allocated(sim):
    side = torch.cuda.Stream()
    before = torch.cuda.memory_stats()
    a = block(8 * MIB)
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    after = torch.cuda.memory_stats()
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert after["active_bytes.all.current"] - before["active_bytes.all.current"] >= 8 * MIB
    torch.cuda.synchronize()
    block(100)
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == before["active_bytes.all.current"]


def test_reset_accumulated_starts_the_totals_anew():
    live = block(4 * MIB)
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    for group in GROUPS:
        assert stats[f"{group}.all.allocated"] == stats[f"{group}.all.freed"] == 0
    assert stats["allocated_bytes.all.current"] >= 4 * MIB
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 0
    block(2 * MIB)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 2 * MIB
    assert stats["allocation.all.allocated"] == 1
    del live


def test_reset_peak_sets_every_peak_to_the_present():
    live = [block(1000), block(9 * MIB)]
    dead = [block(1000), block(9 * MIB)]
    del dead
    torch.cuda.reset_peak_memory_stats()
    stats = torch.cuda.memory_stats()
    for group in GROUPS:
        for pool in ("all", "small_pool", "large_pool"):
            assert stats[f"{group}.{pool}.peak"] == stats[f"{group}.{pool}.current"], (group, pool)
    del live


def test_calls_for_device_memory_are_counted():
    release()
    before = torch.cuda.memory_stats()
    block(64 * MIB)
    torch.cuda.empty_cache()
    after = torch.cuda.memory_stats()
    assert after["num_device_alloc"] > before["num_device_alloc"]
    assert after["num_device_free"] > before["num_device_free"]


def test_reuse_needs_no_call_for_device_memory():
    block(64 * MIB)
    before = torch.cuda.memory_stats()
    for _ in range(10):
        block(64 * MIB)
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] == 10
    assert after["num_device_alloc"] == before["num_device_alloc"]
    assert after["num_device_free"] == before["num_device_free"]


@pytest.mark.native("sizes of segments are the native allocator's: 2 MiB, 20 MiB, and multiples of 2 MiB from 10 MiB on")
@pytest.mark.parametrize("size, segment", [(100, 2), (MIB, 2), (MIB + 1, 20), (9 * MIB, 20), (10 * MIB, 10), (33 * MIB, 34)])
def test_sizes_of_native_segments(size, segment):
    release()
    before = torch.cuda.memory_reserved()
    live = block(size)
    assert torch.cuda.memory_reserved() - before == segment * MIB
    del live


def test_the_summary_is_a_table_of_the_statistics():
    live = block(50 * MIB)
    full, short = torch.cuda.memory_summary(), torch.cuda.memory_summary(abbreviated=True)
    for row in ("Allocated memory", "Active memory", "Requested memory", "GPU reserved memory", "Non-releasable memory", "Allocations"):
        assert row in full and row in short
    assert "from large pool" in full and "from large pool" not in short
    allocated = next(line for line in full.splitlines() if line.startswith("| Allocated memory")).split("|")
    number, unit = allocated[2].split()
    assert int(number) == torch.cuda.memory_allocated() // {"B": 1, "KiB": 1024, "MiB": MIB}[unit]
    assert "device ID 0" in full
    del live


def test_many_small_tensors():
    release()
    before = torch.cuda.memory_stats()
    live = [block(size % 3000 + 1) for size in range(5000)]
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] - before["allocation.all.current"] == 5000
    assert stats["reserved_bytes.all.current"] - before["reserved_bytes.all.current"] < 5000 * 4096
    del live
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before["reserved_bytes.all.current"]


def test_statistics_from_threads_add_up():
    before = torch.cuda.memory_stats()

    def churn():
        for size in range(1, 400):
            block(size * 1000)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] == 4 * 399
    assert after["allocation.all.current"] == before["allocation.all.current"]
    assert after["requested_bytes.all.allocated"] - before["requested_bytes.all.allocated"] == 4 * sum(range(1, 400)) * 1000


def test_each_device_has_its_own_statistics():
    live = block(6 * MIB, "cuda:1")
    for device in (1, "cuda:1", torch.device("cuda", 1)):
        assert torch.cuda.memory_allocated(device) >= 6 * MIB
    before = torch.cuda.memory_allocated(0)
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated(1)
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.max_memory_allocated(1) >= 6 * MIB
    assert torch.cuda.memory_allocated(0) == before
    del live


@pytest.mark.parametrize("device", [99, -5, "cuda:17"])
def test_a_device_that_does_not_exist(device):
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        torch.cuda.memory_stats(device)
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        torch.cuda.mem_get_info(device)


def test_the_processor_has_no_such_statistics():
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.memory_allocated("cpu")


def test_old_names_still_work():
    live = block(3 * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
        assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()
        torch.cuda.reset_max_memory_allocated()
        torch.cuda.reset_max_memory_cached()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    del live


def test_workspaces_of_matrix_products_count_and_can_be_let_go():
    let_go()
    before = torch.cuda.memory_allocated()
    a = torch.empty(64, 64, device="cuda")
    b = a @ a
    del a, b
    let_go()
    assert torch.cuda.memory_allocated() == before
