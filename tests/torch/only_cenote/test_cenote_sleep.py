"""cenote.pause and cenote.resume under PyTorch: memory goes to the driver and comes back at its addresses with its contents.

Kernels do nothing on the simulated GPU; contents go by copies. A device that reads what sleeps is lost, so such a test runs in a process of its own.
"""

import gc
import pathlib
import sys

import pytest
import torch

import simulated

pytestmark = pytest.mark.skipif(simulated.allocator().get("CENOTE") != "on", reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "memory"))
sys.path.insert(0, str(simulated.ROOT / "python"))
import cenote  # noqa: E402
from contents import MIB, block, copied, filled, holds, places, release  # noqa: E402


def used(device=0):
    """Bytes of the card that are in use, as the driver says."""
    left, total = torch.cuda.mem_get_info(device)
    return total - left


def in_pool(pool, *sizes, first=1):
    with torch.cuda.use_mem_pool(pool):
        return [filled(size, first + i) for i, size in enumerate(sizes)]


@pytest.fixture(autouse=True)
def all_awake():
    release()
    yield
    torch.cuda.synchronize()
    gc.collect()
    cenote.resume()


# --- what sleeps


def test_all_memory_sleeps_and_wakes():
    tensors = [filled(size, i + 1) for i, size in enumerate((64 * MIB, 3 * MIB, 700, 5 * MIB + 512))]
    before, at, held = used(), [t.data_ptr() for t in tensors], cenote.stats()["reserved"].current
    slept = cenote.pause()
    assert used() == before - slept.memory and slept.memory == held > 72 * MIB
    assert slept.kept >= 72 * MIB and slept.discarded == slept.awake == 0
    woken = cenote.resume()
    assert woken.memory == slept.memory and woken.kept == slept.kept and used() == before
    assert [t.data_ptr() for t in tensors] == at
    assert all(holds(t, i + 1) for i, t in enumerate(tensors))


def test_a_pool_sleeps_alone():
    pool = torch.cuda.MemPool()
    own = in_pool(pool, 40 * MIB, 6 * MIB)
    other = filled(32 * MIB, 9)
    before = used()
    slept = cenote.pause(pool)
    assert slept.memory >= 46 * MIB and used() == before - slept.memory
    assert holds(other, 9)
    again = block(40 * MIB)
    assert not places([again]) & places(own)
    del again
    cenote.resume(pool)
    assert holds(own[0], 1) and holds(own[1], 2) and holds(other, 9)


def test_contents_are_discarded():
    pool = torch.cuda.MemPool()
    large, small = in_pool(pool, 40 * MIB, 700)
    slept = cenote.pause(pool, keep=False)
    assert slept.discarded == 40 * MIB and slept.kept < MIB
    cenote.resume(pool)
    assert not holds(large, 1)  # the simulated GPU fills new memory with something else
    assert holds(small, 2)  # programs write small ones once, and never again


def test_what_is_constant_is_copied_once():
    pool = torch.cuda.MemPool()
    (weights,) = in_pool(pool, 40 * MIB)
    kept = []
    for _ in range(3):
        kept.append(cenote.pause(pool, keep="constant").kept)
        cenote.resume(pool)
        assert holds(weights, 1)
    assert kept == [40 * MIB, 0, 0]
    weights.copy_(torch.full((40 * MIB,), 2, dtype=torch.uint8))
    assert cenote.pause(pool).kept == 40 * MIB
    cenote.resume(pool)
    assert holds(weights, 2)
    with pytest.raises(cenote.Error, match="not 'once'"):
        cenote.pause(pool, keep="once")


def test_several_pools_and_their_ids():
    pools = [torch.cuda.MemPool() for _ in range(3)]
    tensors = [in_pool(pool, 8 * MIB, first=i)[0] for i, pool in enumerate(pools)]
    before = used()
    slept = cenote.pause([pools[0], pools[1].id, pools[0]])
    assert slept.kept == 16 * MIB and used() == before - slept.memory
    assert holds(tensors[2], 2)
    assert cenote.resume(pools[1]).kept == cenote.resume(pools[0].id).kept == 8 * MIB
    assert all(holds(t, i) for i, t in enumerate(tensors))


def test_a_pool_of_two_devices():
    pool = torch.cuda.MemPool()
    tensors = in_pool(pool, 8 * MIB)
    with torch.cuda.device(1):
        tensors += in_pool(pool, 8 * MIB, first=7) if hasattr(pool, "device") and pool.device is None else [filled(8 * MIB, 7)]
    before = used(0), used(1)
    cenote.pause()
    assert used(0) < before[0] and used(1) < before[1]
    cenote.resume()
    assert (used(0), used(1)) == before
    assert holds(tensors[0], 1) and holds(tensors[1], 7)


def test_a_graph_replays_after_waking():
    """Its pool sleeps too: also pages on which nothing lives between replays."""
    source = filled(8 * MIB, 5)
    graph, target = copied(source)
    graph.replay()
    before, at = used(), target.data_ptr()
    slept = cenote.pause(graph)
    assert slept.memory >= 8 * MIB and used() == before - slept.memory
    cenote.resume(graph)
    assert target.data_ptr() == at and holds(target, 5)
    source.copy_(filled(8 * MIB, 6))
    graph.replay()
    assert holds(target, 6)
    cenote.pause()
    cenote.resume()
    source.copy_(filled(8 * MIB, 8))
    graph.replay()
    assert holds(target, 8)


# --- meanwhile


def test_tensors_die_and_are_born_meanwhile():
    pool = torch.cuda.MemPool()
    first, second, third = in_pool(pool, 16 * MIB, 16 * MIB, 16 * MIB)
    before = used()
    cenote.pause(pool)
    asleep = places([first, second, third])
    del second
    born = in_pool(pool, 16 * MIB, 8 * MIB, first=20)  # awake
    assert not places(born) & asleep
    cenote.resume(pool)
    assert used() <= before + 32 * MIB
    assert holds(first, 1) and holds(third, 3) and holds(born[0], 20) and holds(born[1], 21)


def test_a_pool_dies_in_its_sleep():
    pool = torch.cuda.MemPool()
    tensors = in_pool(pool, 16 * MIB, 4 * MIB)
    before = used()
    cenote.pause(pool)
    del pool, tensors
    release()
    assert cenote.resume().memory == 0
    assert used() <= before - 20 * MIB


def test_figures_while_it_sleeps():
    pool = torch.cuda.MemPool()
    tensors = in_pool(pool, 40 * MIB, 3 * MIB)
    allocated, reserved, before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), used()
    slept = cenote.pause(pool)
    assert torch.cuda.memory_allocated() == allocated  # they are the program's, and their addresses are taken
    assert torch.cuda.memory_reserved() == reserved - slept.memory
    assert cenote.stats()["asleep"] == slept.memory
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] == reserved - slept.memory
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == reserved
    assert sum(segment["allocated_size"] for segment in segments) == allocated
    cenote.resume(pool)
    assert torch.cuda.memory_reserved() == reserved and used() == before and cenote.stats()["asleep"] == 0
    assert [holds(t, i + 1) for i, t in enumerate(tensors)] == [True, True]


def test_a_history_of_sleep():
    """What the driver gets and gives back is in PyTorch's history, and its viewer's file is written while memory sleeps."""
    torch.cuda.memory._record_memory_history(max_entries=10000)
    try:
        tensor = filled(24 * MIB, 3)
        cenote.pause()
        asleep = torch.cuda.memory._snapshot()
        cenote.resume()
        awake = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    at = tensor.data_ptr()
    for picture in (asleep, awake):
        assert any(b["address"] == at and b["state"] == "active_allocated" for s in picture["segments"] for b in s["blocks"])
    assert holds(tensor, 3)


# --- errors


def test_no_memory_to_wake():
    pool = torch.cuda.MemPool()
    (tensor,) = in_pool(pool, 256 * MIB)
    cenote.pause(pool)
    room = torch.cuda.mem_get_info()[0]
    simulated.Hand().set_foreign(0, room - 100 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"sleeps on.*\n*.*CUDA out of memory"):
        cenote.resume(pool)
    simulated.Hand().set_foreign(0, 0)
    assert cenote.resume(pool).kept == 256 * MIB
    assert holds(tensor, 1)


def test_a_capture_is_open():
    tensor, graph = filled(8 * MIB, 4), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target = torch.empty_like(tensor)
        target.copy_(tensor)
        with pytest.raises(cenote.Error, match="capture") as raised:
            cenote.pause()
        with pytest.raises(cenote.Error, match="capture"):
            cenote.resume()
    assert raised.value.name == "CAPTURE"
    graph.replay()
    assert holds(target, 4)


def test_what_is_named_wrongly():
    with pytest.raises(cenote.Error, match="no pool 91,4"):
        cenote.pause((91, 4))
    with pytest.raises(TypeError, match="not 3.5"):
        cenote.pause(3.5)


def test_another_allocator():
    code = """
        import cenote, torch
        torch.ones(1, device="cuda")
        cenote.pause()
    """
    done = simulated.forked(code, check=False, CENOTE="off")
    assert done.returncode and "cenote is not PyTorch's allocator here" in done.stderr
    done = simulated.forked(code, check=False, CENOTE="on", CENOTE_CONF="provider:plain")
    assert done.returncode == 0, done.stderr


def test_without_an_adapter():
    """All memory sleeps, and pools cannot be told apart."""
    code = """
        import cenote, torch
        tensor = torch.ones(1 << 20, dtype=torch.uint8).cuda()
        cenote.pause()
        cenote.resume()
        print(bool((tensor.cpu() == 1).all()))
        cenote.pause(torch.cuda.graph_pool_handle())
    """
    done = simulated.fresh(code, check=False, CENOTE="fallback", **simulated.WITHOUT_ADAPTER)
    assert done.stdout == "True\n" and "pools of PyTorch sleep with the adapter alone" in done.stderr


def test_what_touches_sleeping_memory():
    """A copy is refused, and a kernel loses the device, as under any allocator whose memory is gone: no library sees what a kernel will touch."""
    code = """
        import sys, torch, torch.multiprocessing.reductions, cenote
        sys.path.insert(0, "tests/torch")
        import simulated
        tensor = torch.full((1 << 23,), 3, dtype=torch.uint8).cuda()
        cenote.pause()
        try:
            tensor.cpu()
        except RuntimeError as refused:
            print("refused:", "invalid argument" in str(refused))
        try:
            torch.multiprocessing.reductions.reduce_tensor(tensor)
        except RuntimeError as refused:
            print("not sent:", "sleep" in str(refused))
        simulated.Hand().touch(torch.cuda.current_stream(), tensor)
        torch.cuda.synchronize()
    """
    done = simulated.forked(code, check=False)
    assert done.returncode and "refused: True" in done.stdout and "not sent: True" in done.stdout and "illegal memory access" in done.stderr


# --- blocks by what holds them


def test_a_tag():
    """What was allocated within it, also within tags inside. A page that other blocks share stays."""
    with cenote.tag("engine"):
        with cenote.tag("kv_cache"):
            cache = filled(64 * MIB, 3)
        weights = filled(32 * MIB, 4)
    other = filled(16 * MIB, 5)
    before = used()
    slept = cenote.pause("kv_cache")
    assert slept.memory == 64 * MIB == before - used() and holds(weights, 4) and holds(other, 5)
    assert cenote.pause("engine").memory == 32 * MIB
    assert cenote.resume("engine/kv_cache").kept == 64 * MIB
    assert holds(cache, 3)
    cenote.resume("engine")
    assert holds(weights, 4) and used() == before
    with pytest.raises(cenote.Error, match="no memory was allocated with the tag"):
        cenote.pause("cache")


def test_an_optimizer_and_its_model():
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(3))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    known = []
    for number, tensor in enumerate([*model.parameters(), *(v for s in optimizer.state.values() for v in s.values() if v.is_cuda)]):
        tensor.data.copy_(torch.full(tensor.shape, float(number)))
        known.append((tensor.data, float(number)))
    release()
    before = used()
    states = cenote.pause(optimizer)
    assert states.memory >= 2 * 3 * 16 * MIB - 4 * MIB and used() == before - states.memory
    assert all(bool((tensor.cpu() == value).all()) for tensor, value in known[:6])
    rest = cenote.pause([model, [optimizer]])
    assert states.memory + rest.memory >= 4 * 3 * 16 * MIB  # moments, parameters and gradients
    cenote.resume([optimizer, model])
    assert used() == before
    assert all(bool((tensor.cpu() == value).all()) for tensor, value in known)


def test_what_is_called_in_its_sleep():
    """An error comes before a kernel is launched, however it is woken then."""
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model.weight.grad, model.bias.grad = torch.zeros_like(model.weight), torch.zeros_like(model.bias)
    optimizer.step()
    given = torch.zeros(1, 1024, device="cuda")
    for again in (lambda: cenote.resume(), lambda: cenote.resume([model, optimizer])):
        cenote.pause({"model": model, "optimizer": optimizer})
        cenote.pause(model)
        with pytest.raises(cenote.Error, match="this Linear sleeps"):
            model(given)
        with pytest.raises(cenote.Error, match="this SGD sleeps"):
            optimizer.step()
        again()
        model(given)
        optimizer.step()
        assert not model._forward_pre_hooks
    cenote.pause(optimizer)
    model(given)
    cenote.resume(optimizer)


def test_tensors():
    """A view is its storage; what has no memory on a GPU is nothing."""
    tensors = [filled(8 * MIB, i) for i in range(3)]
    slept = cenote.pause([tensors[0][5:9], {"a": tensors[1], "b": torch.ones(3), "c": torch.empty(0, device="cuda")}])
    assert slept.memory + slept.awake >= 16 * MIB  # the first and the last page may be others', too
    assert 6 * MIB <= cenote.resume(tensors[1]).memory <= 10 * MIB
    assert holds(tensors[1], 1) and holds(tensors[2], 2)
    cenote.resume(tensors)
    assert holds(tensors[0], 0)
