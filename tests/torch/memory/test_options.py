"""PYTORCH_CUDA_ALLOC_CONF: what is accepted, what is refused, and what the options do."""

import os

import pytest
import torch

import simulated
from contents import MIB, block, filled, holds, release
from elsewhere import elsewhere


@pytest.fixture
def settings():
    """Sets options for one test."""
    before = torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
    yield torch._C._accelerator_setAllocatorSettings
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{before}")
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    "options",
    [
        "max_split_size_mb:128",
        "garbage_collection_threshold:0.8",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "expandable_segments:False",
        "pinned_use_background_threads:False",
        "pinned_num_register_threads:4",
        "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:8",
    ],
)
def test_an_option_is_accepted(settings, options):
    settings(options)
    assert holds(filled(3 * MIB, 4), 4)


@pytest.mark.parametrize(
    "options",
    [
        "nonsense:1",
        "max_split_size_mb:0",
        "max_split_size_mb:much",
        "garbage_collection_threshold:1.2",
        "garbage_collection_threshold:0",
        "expandable_segments:yes",
        "roundup_power2_divisions:3",
        "pinned_num_register_threads:3",
        "pinned_num_register_threads:1024",
        "max_split_size_mb",
        "per_process_memory_fraction:1.5",
        "backend:cudaMallocAsync",
    ],
)
def test_a_value_is_refused(settings, options):
    with pytest.raises((RuntimeError, ValueError)):
        settings(options)
    assert holds(filled(3 * MIB, 4), 4)


@pytest.mark.adapter("PYTORCH_ALLOC_CONF has no effect")
def test_a_program_with_a_bad_option_does_not_start():
    done = simulated.fresh("import torch; torch.empty(4, device='cuda')", check=False, PYTORCH_CUDA_ALLOC_CONF="nonsense:1")
    assert done.returncode != 0
    assert "nonsense" in done.stderr


def test_the_settings_are_in_the_snapshot(settings):
    settings("max_split_size_mb:128,garbage_collection_threshold:0.5")
    said = torch.cuda.memory._snapshot()["allocator_settings"]
    assert said["max_split_size"] == 128 * MIB and said["garbage_collection_threshold"] == 0.5


@pytest.mark.native("splitting of segments is the native allocator's affair")
def test_large_blocks_are_not_split(settings):
    release()
    settings("max_split_size_mb:32")
    a = block(100 * MIB)
    at = a.data_ptr()
    del a
    assert block(20 * MIB).data_ptr() != at
    assert block(100 * MIB).data_ptr() == at


@pytest.mark.native("rounding is the native allocator's answer to fragmentation: 1,200 KiB become 1,280 KiB, as its documentation says")
def test_sizes_are_rounded_up(settings):
    settings("roundup_power2_divisions:4")
    before = torch.cuda.memory_stats()
    a = block(1200 << 10)
    now = torch.cuda.memory_stats()
    assert now["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 1280 << 10
    assert now["requested_bytes.all.current"] - before["requested_bytes.all.current"] == 1200 << 10
    del a


# The memory of one stream is free, and another stream wants more than half of what is allowed. Without a budget cenote would move pages to it.
GARBAGE = """
import torch
MIB = 1 << 20
def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
for warm_up in range(3):
    with torch.cuda.stream(torch.cuda.Stream()):
        block(30 * MIB)
    torch.cuda.synchronize()
torch.cuda.empty_cache()
before = torch.cuda.memory_stats()
with torch.cuda.stream(torch.cuda.Stream()):
    cached = [block(100 * MIB) for _ in range(4)]
    del cached
torch.cuda.synchronize()
live = [block(300 * MIB), block(100 * MIB)]
after = torch.cuda.memory_stats()
assert after["num_alloc_retries"] == before["num_alloc_retries"] and after["num_sync_all_streams"] == before["num_sync_all_streams"]
print(after["reserved_bytes.all.current"] // MIB)
"""


def reserved_after_garbage(options: str) -> int:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": options, "CENOTE_CONF": "harvest_budget:0,page_mib:2"}
    return int(simulated.fresh(GARBAGE, shape="capacity:4GiB,charge_cost:1", **environ).stdout)


def test_free_memory_above_a_threshold_goes_back():
    assert reserved_after_garbage("garbage_collection_threshold:0.5,per_process_memory_fraction:0.25") <= 612


@pytest.mark.parametrize("options", ["garbage_collection_threshold:0.1", "per_process_memory_fraction:0.25"])
def test_a_threshold_is_part_of_a_fraction(options):
    assert reserved_after_garbage(options) >= 780


@pytest.mark.native("the native allocator collects old segments before it asks for another; cenote uses what they are made of")
def test_garbage_is_collected(settings):
    release()
    settings("garbage_collection_threshold:0.5")
    torch.cuda.set_per_process_memory_fraction(0.25)
    before = torch.cuda.memory_stats()
    cached = [block(100 * MIB) for _ in range(7)]
    del cached
    block(130 * MIB)
    after = torch.cuda.memory_stats()
    assert after["num_device_free"] > before["num_device_free"]
    assert after["num_alloc_retries"] == before["num_alloc_retries"]
    assert torch.cuda.memory_reserved() < 700 * MIB


@pytest.mark.parametrize("more", ["", ",pinned_num_register_threads:4"])
def test_pinned_memory_by_registration(settings, more):
    """Registered memory of malloc: the contents of copies are right."""
    torch._C._host_emptyCache()
    settings("pinned_use_cuda_host_register:True" + more)
    try:
        for value in range(1, 4):
            host = torch.full((9 * MIB + 5,), value, dtype=torch.uint8).pin_memory()
            assert host.is_pinned() and holds(host.to("cuda", non_blocking=True), value)
            del host
    finally:
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        settings("pinned_use_cuda_host_register:False,pinned_num_register_threads:1")


@pytest.mark.adapter("the cache cannot be switched off")
@elsewhere(alone=True)
def test_the_cache_can_be_off_from_the_start():
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    torch.cuda.init()
    left = torch.cuda.mem_get_info()[0]
    a = block(64 * MIB)
    assert left - torch.cuda.mem_get_info()[0] == 64 * MIB
    del a
    assert torch.cuda.mem_get_info()[0] == left


@elsewhere(alone=True)
def test_before_the_first_use_there_is_nothing():
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.memory_stats() == {}
    torch.cuda.empty_cache()
    assert not torch.cuda.is_initialized()
    assert torch.cuda.get_allocator_backend() == simulated.backend()
    a = block(MIB)
    assert torch.cuda.is_initialized() and torch.cuda.memory_allocated() == a.numel()
