"""Several devices: memory of each, copies between them, guards."""

import pytest
import torch

from contents import LONG, MIB, block, comes_back, filled, holds, release
from simulated import ROOT, forked


def test_every_device_has_memory_of_its_own():
    before = [torch.cuda.memory_allocated(device) for device in range(4)]
    live = [block((device + 1) * 2 * MIB, f"cuda:{device}") for device in range(4)]
    assert [torch.cuda.memory_allocated(device) - before[device] for device in range(4)] == [2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB]
    assert [a.device.index for a in live] == [0, 1, 2, 3]


def test_a_guard_sets_the_device_of_new_memory():
    with torch.cuda.device(2):
        assert torch.cuda.current_device() == 2
        assert block(100).device.index == 2
        with torch.cuda.device(1):
            assert block(100).device.index == 1
        assert block(100).device.index == 2
    assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(block(100, "cuda:3")):
        assert torch.cuda.current_device() == 3


def test_copies_between_devices():
    a = filled(5 * MIB, 7, "cuda:0")
    around = a.to("cuda:1").to("cuda:3").to("cuda:0")
    assert holds(around, 7) and around.data_ptr() != a.data_ptr()


def test_copies_between_devices_follow_both_streams(sim):
    """The copy waits for the source's stream, and the target's stream for the copy."""
    source, target = filled(4 * MIB, 1, "cuda:0"), filled(4 * MIB, 0, "cuda:1")
    fresh = filled(4 * MIB, 8, "cuda:0")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    sim.work(torch.cuda.current_stream(0), 10**10)
    source.copy_(fresh)
    target.copy_(source, non_blocking=True)
    assert holds(target, 8)


def test_peers_can_see_each_other():
    assert torch.cuda.can_device_access_peer(0, 1) and torch.cuda.can_device_access_peer(3, 2)
    assert not torch.cuda.can_device_access_peer(1, 1)


def touched(sim, device: int, tensor: torch.Tensor) -> bool:
    """Says whether a kernel of that device may use the tensor, which lies on another device."""
    before = sim.books().violations
    with torch.cuda.device(device):
        sim.touch(torch.cuda.current_stream(), tensor)
        torch.cuda.synchronize()
    return sim.books().violations == before


def test_kernels_on_memory_of_a_peer(sim):
    """When PyTorch copies from one device to another, it lets the first use all memory of the second."""
    there = filled(3 * MIB, 1, "cuda:3")
    filled(MIB, 2, "cuda:2").to("cuda:3")
    assert touched(sim, 2, there)
    later = [block(size * MIB, "cuda:3") for size in (1, 5, 30, 100)]
    assert all(touched(sim, 2, each) for each in later)
    side = torch.cuda.Stream(device=3)
    with torch.cuda.stream(side):
        assert touched(sim, 2, block(7 * MIB, "cuda:3"))
    del there, later
    release()
    assert touched(sim, 2, block(50 * MIB, "cuda:3"))


def test_memory_of_a_private_pool_is_open_to_a_peer(sim):
    with torch.cuda.device(3):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            before = block(9 * MIB)
    filled(MIB, 2, "cuda:2").to("cuda:3")
    with torch.cuda.device(3), torch.cuda.use_mem_pool(pool):
        after = block(40 * MIB)
    assert touched(sim, 2, after) and touched(sim, 2, before)
    with torch.cuda.device(3):
        del before, after, pool


def test_memory_of_another_device_is_shut_by_default():
    out = forked(
        f"""
        import sys, torch
        sys.path.insert(0, {str(ROOT / "tests/torch")!r})
        import simulated
        sim = simulated.Hand()
        sim.set_quiet(True)
        a = torch.empty(100, device="cuda:0")
        with torch.cuda.device(1):
            sim.touch(torch.cuda.current_stream(), a)
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                print("illegal" in str(error))
        """
    ).stdout
    assert out == "True\n"


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_copies_between_devices_that_cannot_reach_each_other(settings):
    """PyTorch uses the driver's copy between peers."""
    forked(
        """
        import torch
        assert not torch.cuda.can_device_access_peer(0, 1)
        a = torch.full((5 << 20,), 7, dtype=torch.uint8).to("cuda:0")
        b = a.to("cuda:1")
        assert bool((b.cpu() == 7).all())
        a.copy_(torch.full((5 << 20,), 9, dtype=torch.uint8))
        b[1 << 20 :].copy_(a[1 << 20 :], non_blocking=True)
        torch.cuda.synchronize(0)
        assert bool((b[: 1 << 20].cpu() == 7).all()) and bool((b[1 << 20 :].cpu() == 9).all())
        side = torch.cuda.Stream(device=1)
        with torch.cuda.stream(side):
            c = b.to("cuda:0")
        torch.cuda.synchronize(0)
        assert bool((c[1 << 20 :].cpu() == 9).all())
        """,
        shape="capacity:1GiB,devices:2,peers:0",
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )


def test_freeing_on_one_device_while_another_is_current():
    with torch.cuda.device(1):
        a = block(12 * MIB)
    at = a.data_ptr()
    before = torch.cuda.memory_allocated(1)
    del a
    assert before - torch.cuda.memory_allocated(1) == 12 * MIB
    with torch.cuda.device(1):
        assert block(12 * MIB).data_ptr() == at


def test_empty_cache_is_for_all_devices():
    for device in range(4):
        block(40 * MIB, f"cuda:{device}")
    release()
    reserved = [torch.cuda.memory_reserved(device) for device in range(4)]
    for device in range(4):
        block(40 * MIB, f"cuda:{device}")
    release()
    assert [torch.cuda.memory_reserved(device) for device in range(4)] == reserved


def test_one_device_is_full_another_is_not():
    release()
    size = torch.cuda.mem_get_info(1)[0] // (64 * MIB) * 64 * MIB
    full = block(size, "cuda:1")
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1"):
        block(128 * MIB, "cuda:1")
    assert holds(filled(128 * MIB, 2, "cuda:0"), 2)
    del full


def test_a_stream_of_another_device():
    side = torch.cuda.Stream(device=2)
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 2
        assert torch.cuda.current_stream() == side
        a = block(MIB)
    assert a.device.index == 2 and torch.cuda.current_device() == 0


def test_recorded_memory_waits_for_a_stream_of_another_device(sim):
    side = torch.cuda.Stream(device=1)
    a = block(12 * MIB, "cuda:0")
    at = a.data_ptr()
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    assert block(12 * MIB, "cuda:0").data_ptr() != at
    torch.cuda.synchronize(1)
    assert comes_back(at, 12 * MIB)


def test_an_event_between_devices(sim):
    event = torch.cuda.Event()
    one, two = torch.cuda.Stream(device=0), torch.cuda.Stream(device=1)
    sim.work(one, LONG)
    event.record(one)
    two.wait_event(event)
    assert not two.query()
    two.synchronize()
    assert one.query()


def test_synchronize_is_for_one_device(sim):
    sim.work(torch.cuda.Stream(device=1), LONG)
    behind = torch.cuda.Stream(device=1)
    sim.work(behind, LONG)
    torch.cuda.synchronize(0)
    assert not behind.query()
    torch.cuda.synchronize(1)
    assert behind.query()


def test_a_device_that_does_not_exist():
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        block(100, "cuda:9")
    with pytest.raises(RuntimeError):
        torch.cuda.set_device(9)
    assert torch.cuda.current_device() == 0 and holds(filled(100, 1), 1)


def test_properties_say_how_much_memory_there_is():
    for device in range(4):
        properties = torch.cuda.get_device_properties(device)
        assert properties.total_memory == torch.cuda.mem_get_info(device)[1] == 4 << 30
        assert properties.multi_processor_count > 0 and properties.major >= 7


def test_a_graph_on_another_device():
    with torch.cuda.device(1):
        source, graph = filled(3 * MIB, 6), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # the stream that PyTorch keeps for captures belongs to one device
            target = source.clone()
        graph.replay()
        assert target.device.index == 1 and holds(target, 6)


def test_a_batch_is_scattered_and_gathered():
    from torch.nn.parallel import comm

    whole = torch.arange(4 * MIB, dtype=torch.int64).to(torch.uint8)
    parts = comm.scatter(whole, [0, 1, 2, 3])
    assert [part.device.index for part in parts] == [0, 1, 2, 3]
    assert torch.equal(torch.cat([part.cpu() for part in parts]), whole)


def test_a_device_that_is_not_used_has_no_context():
    """A context takes hundreds of MB of its device. A rank that sees all devices and works on one must not make contexts on the others."""
    code = """
    import ctypes, torch
    def has_context(device):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        assert not ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        return active.value
    torch.cuda.set_device(2)
    block = torch.empty(1 << 20, device="cuda")
    del block
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(1)
    torch.cuda.memory_stats(1), torch.cuda.memory_snapshot(), torch.cuda.memory_summary(3)
    torch.cuda.set_per_process_memory_fraction(0.5, 3)
    print([has_context(device) for device in (1, 2, 3)])
    """
    assert forked(code).stdout == "[0, 1, 0]\n"
