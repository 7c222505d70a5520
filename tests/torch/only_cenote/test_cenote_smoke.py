"""torch.cuda's memory with cenote as the allocator: what users know works, and what is missing gives an error that says so.

For CENOTE_TEST_ALLOCATOR=cenote. The tests in memory/ judge cenote as they judge the native allocator; only cenote has to pass these.
"""

import ctypes
import gc
import pathlib
import re
import sys
import threading

import pytest
import torch

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "memory"))
sys.path.insert(0, str(simulated.ROOT / "python"))
MIB = 1 << 20
LONG = 10**9


def block(size: int, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


# --- which allocator it is


def test_the_backend_has_its_name():
    import cenote

    block(1)
    status = cenote.status()
    assert torch.cuda.get_allocator_backend() == status.allocator == "cenote"
    assert pathlib.Path(status.adapter).exists() and status.torch == torch.__version__ and status.note == ""


def test_the_adapter_names_no_folder_of_this_machine():
    import cenote

    content = pathlib.Path(cenote.status().adapter).read_bytes()
    for folder in (simulated.ROOT, simulated.folder().parent, pathlib.Path(torch.__file__).parent, pathlib.Path(cenote.status().adapter).parent):
        assert str(folder).encode() not in content


# --- statistics


def test_what_is_allocated_and_reserved():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    a = block(7 * MIB)
    b = block(1000)
    assert torch.cuda.memory_allocated() - before == 7 * MIB + 1024
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] <= torch.cuda.memory_allocated() <= torch.cuda.memory_reserved()
    del a
    assert torch.cuda.memory_allocated() - before == 1024
    assert torch.cuda.max_memory_allocated() - before == 7 * MIB + 1024
    assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
    del b


def test_the_keys_are_the_native_ones():
    code = "import torch; torch.empty(1, device='cuda'); print(*torch.cuda.memory_stats())"
    native = simulated.forked(code, CENOTE="off", whole=True).stdout.split()
    block(1)
    assert list(torch.cuda.memory_stats()) == native


def test_totals_and_peaks_are_reset():
    live = block(5 * MIB)
    del live
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"]
    assert stats["allocation.all.allocated"] == stats["num_device_alloc"] == stats["num_ooms"] == 0
    live = block(5 * MIB)
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 5 * MIB
    del live


def test_the_summary_is_printed():
    live = block(5 * MIB)
    assert "5120 KiB" in torch.cuda.memory_summary() and "|" in torch.cuda.memory_summary(abbreviated=True)
    del live


def test_accelerator_sees_the_same():
    live = block(5 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    stats = torch.cuda.memory_stats()
    assert {key: stats[key] for key in torch.accelerator.memory_stats()} == torch.accelerator.memory_stats()
    del live
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved() <= 2 * MIB + torch.cuda.memory_allocated() * 64


def test_what_the_driver_says():
    torch.cuda.empty_cache()
    left, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    live = block(64 * MIB)
    assert left - torch.cuda.mem_get_info()[0] == torch.cuda.memory_reserved() - reserved >= 64 * MIB - 4 * MIB
    del live


ANOTHER = """
import torch, cenote
from cenote import places
other = torch.cuda.memory.CUDAPluggableAllocator(places.pluggable_library(), "cenote_pluggable_alloc", "cenote_pluggable_free")
torch.cuda.memory.change_current_allocator(other)
x = torch.ones(1 << 20, device="cuda")
left, total = torch.cuda.mem_get_info()
assert 0 < left < total
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(torch.cuda.get_allocator_backend(), cenote.status().note)
"""


def test_a_program_that_takes_another_allocator_after_all():
    """PyTorch's interface for any allocator has no counters: mem_get_info, which had read one, raised."""
    assert simulated.forked(ANOTHER, whole=True).stdout == "pluggable the program has changed PyTorch's allocator to pluggable since\n"


# --- giving back, running out, limits


def test_empty_cache_gives_back(sim):
    torch.cuda.empty_cache()
    before = sim.books().used
    a = block(300 * MIB)
    del a
    assert sim.books().used - before >= 300 * MIB
    torch.cuda.empty_cache()
    assert sim.books().used == before


def test_out_of_memory_and_recovery():
    live = block(1000 * MIB)
    for size, words in ((8 << 30, r"Tried to allocate 8\.00 GiB\. GPU 0 has a total capacity of 4\.00 GiB"), (1 << 62, "more than 1EB")):
        with pytest.raises(torch.OutOfMemoryError, match=words):
            block(size)
    assert torch.cuda.memory_allocated() >= 1000 * MIB and block(1000 * MIB).is_cuda
    del live


def test_processes_on_the_device_are_in_the_message():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(8 << 30)
    assert re.search(r"this process has [\d.]+ [MG]iB memory in use\.", str(caught.value))


def test_observers_are_told():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    with pytest.raises(torch.OutOfMemoryError):
        block(8 << 30)
    (device, size, total, left), = seen
    assert (device, size, total) == (0, 8 << 30, 4 << 30) and 0 < left <= total


def test_a_fraction_is_a_limit():
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    with pytest.raises(torch.OutOfMemoryError, match=r"1\.00 GiB allowed"):
        block(1100 * MIB)
    assert block(900 * MIB).is_cuda
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert block(1100 * MIB).is_cuda
    torch.cuda.set_per_process_memory_fraction(0.0)  # a limit of 0 is a limit
    with pytest.raises(torch.OutOfMemoryError):
        block(1100 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_that_is_none(fraction):
    with pytest.raises((ValueError, RuntimeError), match="fraction"):
        torch.cuda.set_per_process_memory_fraction(fraction)


# --- streams


def test_recorded_memory_waits_while_the_gpu_is_behind(sim):
    sim.set_lag(10**6)
    side = torch.cuda.Stream()
    for size in (700, 100_000, 12 * MIB):
        a = block(size)
        at = a.data_ptr()
        sim.work(side, LONG)
        a.record_stream(side)
        del a
        others = [block(size) for _ in range(4)]
        assert at not in [other.data_ptr() for other in others]
        torch.cuda.synchronize()
        del others


def test_recorded_memory_waits_for_the_default_stream_of_another_device(sim):
    """The default stream of another device has the same handle as that of the block's device."""
    a = block(12 * MIB, "cuda:0")
    at = a.data_ptr()
    with torch.cuda.device(1):
        sim.work(torch.cuda.default_stream(1), LONG)
    a.record_stream(torch.cuda.default_stream(1))
    del a
    assert block(12 * MIB, "cuda:0").data_ptr() != at
    torch.cuda.synchronize(1)


def test_a_stream_of_the_program_is_gone_before_the_free(sim):
    """cenote does not pass the handle of the destroyed stream to the driver: that would break a rule of CUDA."""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
    sim.set_lag(10**6)
    foreign = torch.cuda.ExternalStream(handle.value)
    a = block(12 * MIB)
    at = a.data_ptr()
    sim.work(foreign, LONG)
    a.record_stream(foreign)
    assert driver.cuStreamDestroy_v2(handle) == 0
    del a
    assert block(12 * MIB).data_ptr() != at


def test_memory_of_others_is_recorded_without_harm():
    class Foreign:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (0, False), "version": 3}

    live = block(4)
    Foreign.__cuda_array_interface__["data"] = (live.data_ptr(), False)
    torch.as_tensor(Foreign(), device="cuda").record_stream(torch.cuda.Stream())
    torch.empty(0, device="cuda").record_stream(torch.cuda.Stream())
    del live


STEPS = """
import sys
sys.path.insert(0, {folder!r})
import torch
from simulated import Hand
sim = Hand()
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
def step():
    optimizer.zero_grad()
    model(torch.empty(64, 256, device="cuda")).sum().backward()
    optimizer.step()
for _ in range(8):
    step()
torch.cuda.synchronize()
def taken():
    return torch.cuda.memory_stats()["allocation.all.allocated"]
first, before = taken(), sim.books()
for _ in range(50):
    step()
after, last = sim.books(), taken()
names = ("calls", "handles", "mappings", "reservations", "allocations", "events")
print(*(getattr(after, name) - getattr(before, name) for name in names), last - first)
"""


def test_a_step_of_fixed_shapes_calls_no_driver():
    """The native allocator calls no driver then: what remains launches kernels. cenote asks for the current context, once an allocation."""
    code = STEPS.format(folder=str(pathlib.Path(__file__).parents[1]))
    done = simulated.forked(code, whole=True), simulated.forked(code, CENOTE="off", whole=True)
    ours, native = ([int(number) for number in each.stdout.split()] for each in done)
    assert ours[0] - ours[6] == native[0] and ours[1:] == native[1:] and ours[1:6] == [0] * 5


# --- other ways to memory


def test_raw_memory():
    before = torch.cuda.memory_allocated()
    at = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert at and torch.cuda.memory_allocated() - before == 3 * MIB
    torch.cuda.caching_allocator_delete(at)
    at = torch.cuda.caching_allocator_alloc(1000, 1, torch.cuda.Stream(device=1))
    assert torch.cuda.memory_allocated(1) == 1024
    torch.cuda.caching_allocator_delete(at)
    assert torch.cuda.memory_allocated() == before and torch.cuda.memory_allocated(1) == 0


def test_switched_off_memory_is_the_drivers(sim):
    held = block(MIB)
    torch.cuda.caching_allocator_enable(False)
    try:
        before = sim.books().allocations
        direct = block(MIB)
        assert sim.books().allocations == before + 1
    finally:
        torch.cuda.caching_allocator_enable(True)
    del held, direct
    assert sim.books().allocations == before


def test_a_view_inside_a_block_is_found():
    from torch.multiprocessing import reductions  # noqa: F401  (sharing needs it)

    a = block(5 * MIB)
    assert a[MIB:].untyped_storage().data_ptr() == a.data_ptr()
    assert torch.cuda.memory_allocated() >= 5 * MIB
    del a


# --- other callers of the allocator


def test_the_profiler_sees_memory():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        a = block(3 * MIB)
        del a
        with pytest.raises(torch.OutOfMemoryError):
            block(8 << 30)
    changes = [event.device_memory_usage for event in seen.events() if event.name == "[memory]"]
    assert -3 * MIB in changes
    taken = [event.device_memory_usage for event in seen.events() if event.name == "aten::empty"]
    assert 3 * MIB in taken
    assert "[OutOfMemory]" in [event.name for event in seen.events()]


def test_cudnn_benchmark():
    torch.backends.cudnn.benchmark = True
    try:
        convolution = torch.nn.Conv2d(16, 32, 3).cuda()
        convolution(torch.empty(8, 16, 32, 32, device="cuda")).sum().backward()
    finally:
        torch.backends.cudnn.benchmark = False


def test_data_loader_with_pinned_memory():
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(64).float()), batch_size=16, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    assert [batch.cuda(non_blocking=True).shape[0] for (batch,) in loader] == [16] * 4


def test_backward_runs_on_threads_of_its_own():
    """Blocks are freed by other threads than the one that allocated them."""
    def train(device):
        torch.cuda.set_device(device)
        weight = torch.empty(256, 256, device="cuda", requires_grad=True)
        for _ in range(20):
            (torch.empty(64, 256, device="cuda") @ weight).relu().sum().backward()

    gc.collect()
    before = [torch.cuda.memory_allocated(device) for device in range(4)]
    threads = [threading.Thread(target=train, args=(device,)) for device in (0, 0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(1) >= before[1] and torch.cuda.memory_allocated(3) == before[3]


def test_a_copy_between_devices():
    from contents import filled, holds

    a = filled(MIB, 7)
    b = torch.empty_like(a, device="cuda:1")
    b.copy_(a)
    assert holds(b, 7)
    del a, b


def test_free_memory_callbacks_are_asked():
    """PyTorch registers such callbacks itself: they find nothing to free here, and do no harm."""
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            block(8 << 30)


def test_a_fork_after_the_first_use_is_refused_by_pytorch_and_harmless():
    code = """
    import os, torch
    a = torch.empty(1 << 20, device="cuda")
    if os.fork() == 0:
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            os._exit(7 if "forked subprocess" in str(error) else 8)
    print(os.waitstatus_to_exitcode(os.wait()[1]), torch.empty(1, device="cuda").device)
    """
    assert simulated.forked(code, whole=True).stdout == "7 cuda:0\n"


def test_the_library_is_sound_after_all_this():
    """Checks every structure of every pool."""
    import cenote

    library = ctypes.CDLL(cenote.library())
    gone = ctypes.c_void_p()
    for device in range(4):
        assert library.cenote_pool_default(device, ctypes.byref(gone)) == 0
        library.cenote_message.restype = ctypes.c_char_p
        assert library.cenote_pool_check(gone) == 0, library.cenote_message()


def test_pools_that_are_gone_leave_nothing_that_grows():
    """Only the latest of those pools keep their statistics."""
    kept = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(kept):
        a = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(300):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    last = tuple(pool.id)
    del pool
    by_pool = torch.cuda.memory.memory_stats_as_nested_dict().get("reserved_bytes_by_private_pools")
    if by_pool is None:
        pytest.skip("this torch does not count by pool")
    assert len(by_pool) <= 100
    assert by_pool[tuple(kept.id)]["all"]["current"] >= 1 << 20
    assert by_pool[last]["all"]["peak"] >= 1 << 20 and by_pool[last]["all"]["current"] == 0
    del a


def test_a_pool_that_ends_during_a_capture():
    """During a capture no memory can go back to the driver; the pool's memory goes when the capture is over."""
    pool, graph, source = torch.cuda.MemPool(), torch.cuda.CUDAGraph(), torch.ones(1 << 20, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    held = torch.cuda.memory_reserved()
    with torch.cuda.graph(graph):
        source.clone()
        del pool
    assert torch.cuda.memory_reserved() <= held - (24 << 20)  # with what the graph holds
    del graph, source
