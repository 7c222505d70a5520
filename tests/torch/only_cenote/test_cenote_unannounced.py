"""With announced:0 cenote waits for the streams that it was told of. The adapter tells it of those that PyTorch never ends, also of streams on which
a graph was replayed and nothing was ever allocated."""

import os

import pytest

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
BEGIN = f"""
import sys, torch
sys.path.insert(0, {str(simulated.ROOT / "tests/torch")!r})
from simulated import Hand
sim, MIB, LONG = Hand(), 1 << 20, 60 * 10**9

def replay_late(graph):
    sim.set_lag(10**6)
    stream = torch.cuda.Stream(priority=-1)
    sim.work(stream, LONG)
    with torch.cuda.stream(stream):
        graph.replay()
    return stream
"""
DEVICE = """
torch.cuda.set_per_process_memory_fraction(512 * MIB / torch.cuda.mem_get_info()[1])
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x = torch.full((300 * MIB,), 1, dtype=torch.uint8, device="cuda")
stream = replay_late(graph)
del x, graph
y = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
assert stream.query(), "memory of a replay that runs was handed out"
"""
PINNED = """
graph, there = torch.cuda.CUDAGraph(), torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
with torch.cuda.graph(graph):
    here = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    there.copy_(here, non_blocking=True)
stream = replay_late(graph)
del here, graph
others = []
for _ in range(4):  # each allocation looks whether something has come back
    sim.advance(10**9)
    others.append(torch.empty(8, pin_memory=True))
assert not stream.query()
assert torch.cuda.host_memory_stats()["active_requests.current"] == 5, "pinned memory of a replay that runs came back"
del others
torch.cuda.synchronize()
torch._C._host_emptyCache()
assert torch.cuda.host_memory_stats()["active_requests.current"] == 0, torch.cuda.host_memory_stats()
"""


def test_a_replay_on_a_stream_that_never_allocated():
    simulated.forked(BEGIN + DEVICE, CENOTE_CONF="announced:0")


@pytest.mark.skipif(not os.path.exists(simulated.folder().parent / "libcenote_host.so.0"), reason="hwloc was not there")
def test_a_replay_that_copies_pinned_memory():
    simulated.fresh(BEGIN + PINNED, CENOTE_CONF="announced:0", CENOTE_HOST="on", GLIBC_TUNABLES="glibc.rtld.optional_static_tls=16384")


SIDE = """
sys.path.insert(0, {memory!r})
from contents import block, filled, holds
torch.cuda.set_per_process_memory_fraction(512 * MIB / torch.cuda.mem_get_info()[1])
"""
# A tensor is freed while a side stream copies from it, and then its own stream is ordered behind that one. Another stream wants the memory. PyTorch's
# own allocator hands out what is freed on a stream to others only after a wait for the device.
READ_WITHOUT_A_WORD = """
other, target, x, y = torch.cuda.Stream(), block(100 * MIB), filled(100 * MIB, 1), filled(200 * MIB, 1)
torch.cuda.synchronize()
sim.set_lag(10**6)
side.wait_stream(torch.cuda.current_stream())
sim.work(side, LONG)
with torch.cuda.stream(side):
    target.copy_(x)
del x, y
with torch.cuda.stream(other):
    small = block(90 * MIB) # looks how far the device has got
torch.cuda.current_stream().wait_stream(side)
sim.advance(10**9)
with torch.cuda.stream(other):
    z = filled(240 * MIB, 2)
del z
torch.cuda.synchronize()
"""
FOREIGN = """
import ctypes
driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
block(1)
assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
side = torch.cuda.ExternalStream(handle.value)
"""
DIES = """
sim.set_lag(10**6)
with torch.cuda.stream(side):
    x = block(300 * MIB)
    sim.work(side, LONG)
del x
"""
SIDE = BEGIN + SIDE.format(memory=str(simulated.ROOT / "tests/torch/memory"))


def test_a_stream_of_pytorch_that_never_allocated_reads():
    simulated.forked(SIDE + "side = torch.cuda.Stream()" + READ_WITHOUT_A_WORD + "assert holds(target, 1)", CENOTE_CONF="announced:0")


@pytest.mark.parametrize("announced", (1, 0))
def test_a_stream_of_another_library_reads(announced):
    """By default a fence over the context covers it. With announced:0 it has to be recorded: this is why announced:0 is not the default
    (docs/pytorch.md)."""
    simulated.forked(SIDE + FOREIGN + READ_WITHOUT_A_WORD + f"assert holds(target, 1) == {announced == 1}", CENOTE_CONF=f"announced:{announced}")


def test_a_stream_that_ends_without_a_word():
    """Its memory comes back when the program waits for the device, and not before. cenote.retire is the word."""
    ends = "assert driver.cuStreamDestroy_v2(handle) == 0\ntorch.cuda.empty_cache()\n"
    silent = "assert torch.cuda.memory_reserved() >= 300 * MIB\ntorch.cuda.synchronize()\ntorch.cuda.empty_cache()\n"
    gone = "assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()\n"
    simulated.forked(SIDE + FOREIGN + DIES + ends + silent + gone, CENOTE_CONF="announced:0")
    simulated.forked(SIDE + FOREIGN + DIES + "import cenote\ncenote.retire(side)\n" + ends + gone, CENOTE_CONF="announced:0")


def test_a_stream_that_cannot_be_retired():
    code = "import cenote\ntry:\n    cenote.retire(torch.cuda.Stream())\nexcept RuntimeError as error:\n    assert 'immortal' in str(error)\n"
    simulated.forked(SIDE + FOREIGN + code + "else:\n    raise AssertionError\n", CENOTE_CONF="announced:0")
