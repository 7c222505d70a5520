"""torch.accelerator: the same memory under names that know no vendor; and what the profiler says of it."""

import pytest
import torch

from contents import MIB, block, release


def test_the_accelerator_is_this_gpu():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == torch.cuda.device_count() == 4


def test_allocated_and_reserved_are_those_of_cuda():
    live = [block(5 * MIB), block(700)]
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() >= 5 * MIB
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    assert torch.accelerator.max_memory_reserved() == torch.cuda.max_memory_reserved()
    del live


def test_the_statistics_are_those_of_cuda():
    live = [block(5 * MIB), block(700)]
    ours, theirs = torch.accelerator.memory_stats(), torch.cuda.memory_stats()
    shared = set(ours) & set(theirs)
    assert {"allocated_bytes.all.current", "reserved_bytes.all.peak", "num_ooms"} <= shared
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    del live


def test_statistics_of_another_device():
    live = block(5 * MIB, "cuda:2")
    assert torch.accelerator.memory_allocated(2) == torch.cuda.memory_allocated(2) >= 5 * MIB
    del live


def test_peaks_and_totals_are_reset():
    block(30 * MIB)
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_the_cache_is_emptied():
    release()
    before = torch.cuda.memory_reserved()
    block(64 * MIB)
    assert torch.cuda.memory_reserved() > before
    torch.accelerator.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_free_and_total():
    if not hasattr(torch.accelerator, "get_memory_info"):
        pytest.skip("this PyTorch has no torch.accelerator.get_memory_info")
    assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()


def test_streams_and_waiting(sim):
    side = torch.Stream(device="cuda")
    with side:
        assert torch.accelerator.current_stream() == side
    sim.work(torch.cuda.current_stream(), 10**10)
    torch.accelerator.synchronize()
    assert torch.cuda.current_stream().query()


# --- the profiler


@pytest.mark.adapter("memory in the profiler")
def test_the_profiler_counts_memory_of_the_device():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        live = block(6 * MIB)
    total = sum(event.self_device_memory_usage for event in profiler.events())
    assert total == 6 * MIB
    del live


def test_the_profiler_sees_frees():
    from torch.profiler import ProfilerActivity, profile

    live = [block(6 * MIB)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        live.clear()
        block(2 * MIB)
    total = sum(event.self_device_memory_usage for event in profiler.events())
    assert total <= 0


@pytest.mark.adapter("memory in the profiler")
def test_the_profiler_says_which_operator_allocated():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        a = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        b = a.clone()
    rows = {row.key: row.self_device_memory_usage for row in profiler.key_averages()}
    assert max(rows.values()) >= 3 * MIB and sum(rows.values()) == 6 * MIB
    assert any(key.startswith("aten::empty") and used for key, used in rows.items())
    del b
