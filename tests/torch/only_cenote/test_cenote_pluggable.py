"""cenote behind torch.cuda.memory.CUDAPluggableAllocator, if no adapter can be compiled: in a process of its own, without a compiler."""

import simulated

BEGIN = """
import sys
sys.path.insert(0, {folder!r})
import torch
from simulated import Hand
sim = Hand()
torch.cuda.init()
assert torch.cuda.get_allocator_backend() == "pluggable"
"""


def without_a_compiler(code: str, tmp_path) -> None:
    begin = BEGIN.format(folder=str(simulated.ROOT / "tests/torch"))
    simulated.fresh(begin + code, CENOTE="on", CENOTE_BUILD=str(simulated.folder().parent), CXX="/nonexistent/c++", XDG_CACHE_HOME=str(tmp_path))


def test_limits_streams_and_the_cache(tmp_path):
    without_a_compiler("""
# Memory that the device still uses goes back, too: empty_cache waits for the device.
before, side = sim.books().used, torch.cuda.Stream()
with torch.cuda.stream(side):
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    sim.set_lag(1000000)
    sim.work(side, 1000000)
    del x
assert sim.books().used >= before + (64 << 20)
torch.cuda.empty_cache()
assert sim.books().used == before, (sim.books().used, before)
sim.set_lag(0)

# record_stream on memory that cenote did not allocate does nothing.
import ctypes
driver, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4096)) == 0
class Foreign:
    __cuda_array_interface__ = {"shape": (4096,), "typestr": "|u1", "data": (at.value, False), "version": 3}
other = torch.as_tensor(Foreign(), device="cuda")
other.record_stream(side)
torch.cuda.synchronize()
assert driver.cuMemFree_v2(at) == 0

# A fraction of nothing is nothing, and all of it no limit.
def fits(size):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        return True
    except RuntimeError:
        return False
torch.cuda.set_per_process_memory_fraction(0.0)
assert not fits(1 << 20)
torch.cuda.set_per_process_memory_fraction(1.0)
assert fits(1 << 30)
""", tmp_path)
