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
