"""Pinned memory from libcenote_host.so (CENOTE_HOST=on), in processes of their own.

tests/torch/memory/test_pinned.py, which judges any allocator, runs here once more.
"""

import os

import pytest

import simulated

ROOM = "glibc.rtld.optional_static_tls=16384"
HOST = {"CENOTE": "on", "CENOTE_HOST": "on", "GLIBC_TUNABLES": ROOM, "CENOTE_BUILD": str(simulated.folder().parent)}
BEGIN = """
import ctypes, torch
driver = ctypes.CDLL("libcuda.so.1")
driver.sim_registered.restype = ctypes.c_uint64
"""

LIBRARY = os.path.join(HOST["CENOTE_BUILD"], "libcenote_host.so.0")
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="libcenote_host.so was not built: hwloc was not there")


def test_the_tests_of_pinned_memory_pass():
    """All of test_pinned.py again, with this allocator."""
    code = "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/torch/memory/test_pinned.py']))"
    assert " passed" in simulated.fresh(code, **{**HOST, "CENOTE_TEST_ALLOCATOR": "cenote"}).stdout


IN_ONE_PROCESS = """
# Importing touches no driver: a process that has imported torch may fork, and both may pin.
import os
assert not torch.cuda.is_initialized()
child = os.fork()
assert torch.zeros(1000).pin_memory().is_pinned()
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

# Blocks are packed, and registered.
host = [torch.empty(33 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(8)]
assert all(h.is_pinned() for h in host) and driver.sim_registered(None) >= 1
torch.cuda.init()
stats = torch.cuda.host_memory_stats()
assert stats["active_requests.current"] == 8 and stats["active_bytes.current"] == 8 * 33 << 20
assert stats["allocated_bytes.current"] <= 2 + 8 * 34 << 20, stats   # powers of two would be 512 MiB
assert stats["num_host_alloc"] - stats["num_host_free"] == driver.sim_registered(None)
try:
    torch.empty(400 << 20, dtype=torch.uint8, pin_memory=True)
    raise SystemExit("no error")
except torch.OutOfMemoryError as error:
    assert "limit" in str(error), error
del host

# Workers that fork with pinned tensors around.
from torch.utils.data import DataLoader, TensorDataset
held = torch.zeros(5000).pin_memory()
total = 0.0
for (batch,) in DataLoader(TensorDataset(torch.arange(4096.0)), batch_size=100, num_workers=2, pin_memory=True):
    assert batch.is_pinned()
    total += batch.to("cuda", non_blocking=True).cpu().sum().item()
assert total == 4096 * 4095 / 2, total
del held, batch

# Memory of a captured copy stays with the graph.
here, graph = torch.zeros(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    host = torch.empty(1 << 20, pin_memory=True)
    at = host.data_ptr()
    host.copy_(here, non_blocking=True)
del host
others = [torch.empty(1 << 20, pin_memory=True) for _ in range(10)]
assert at not in {other.data_ptr() for other in others}
del graph, others

# Emptying the cache while a graph is captured does not wait for the device.
late, other, graph = torch.empty(1 << 20, pin_memory=True), torch.cuda.Stream(), torch.cuda.CUDAGraph()
torch.cuda.synchronize()
driver.sim_set_lag(ctypes.c_uint64(400_000_000))
with torch.cuda.graph(graph, capture_error_mode="relaxed"):
    with torch.cuda.stream(other):
        here.copy_(late, non_blocking=True)
        event = other.record_event()
    del late
    torch._C._host_emptyCache()
    assert not event.query()
del graph
torch.cuda.synchronize()
driver.sim_set_lag(ctypes.c_uint64(0))
torch._C._host_emptyCache()
assert torch.cuda.host_memory_stats()["active_requests.current"] == 0, torch.cuda.host_memory_stats()
assert driver.sim_registered(None) <= 1    # what jemalloc keeps of small blocks
"""


def test_pinned_memory():
    simulated.fresh(BEGIN + IN_ONE_PROCESS, **HOST, CENOTE_HOST_CONF="limit:400MiB")


def test_without_room_for_jemalloc_it_says_what_helps():
    """The allocator is installed all the same, whole, and PyTorch pins memory itself."""
    code = """
import torch, cenote
print(cenote.status().allocator, cenote.status().adapter is not None, torch.empty(4, device="cuda").device, torch.empty(4).pin_memory().is_pinned())
cenote.install()
"""
    done = simulated.fresh(code, **{**HOST, "GLIBC_TUNABLES": ""})
    assert done.stdout == "cenote True cuda:0 True\n"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("cenote:")]
    assert line.startswith("cenote: pinned did not begin, ") and "LD_PRELOAD=libjemalloc.so.2" in done.stderr
    assert line.endswith(": PyTorch pins memory itself")
