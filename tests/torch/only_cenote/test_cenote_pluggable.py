"""cenote behind torch.cuda.memory.CUDAPluggableAllocator, if no adapter can be compiled: in a process of its own, without a compiler."""

import pytest

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


def without_a_compiler(code: str, tmp_path, **more: str) -> str:
    """What the program says on stderr."""
    begin = BEGIN.format(folder=str(simulated.ROOT / "tests/torch"))
    variables = {"CENOTE": "fallback", "CENOTE_BUILD": str(simulated.folder().parent), "CXX": "/nonexistent/c++", "XDG_CACHE_HOME": str(tmp_path)}
    return simulated.fresh(begin + code, **variables, **more).stderr


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


def test_the_accelerator_asks_the_same_allocator(tmp_path):
    without_a_compiler("""
before = sim.books().used
x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.accelerator.memory_allocated()
    raise SystemExit("a figure that is not kept")
except RuntimeError as error:
    assert "getDeviceStats" in str(error), error
if hasattr(torch.accelerator, "get_memory_info"):
    assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
del x
assert sim.books().used >= before + (64 << 20)
torch.accelerator.empty_cache()
assert sim.books().used == before, (sim.books().used, before)
""", tmp_path)


def test_a_replay_on_a_stream_that_never_allocated(tmp_path):
    """With announced:0 the memory of a graph comes back when the streams are done that cenote was told of: they are all that PyTorch hands out."""
    without_a_compiler("""
MIB = 1 << 20
torch.cuda.set_per_process_memory_fraction(512 * MIB / torch.cuda.mem_get_info()[1])
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x = torch.full((300 * MIB,), 1, dtype=torch.uint8, device="cuda")
sim.set_lag(10**6)
stream = torch.cuda.Stream(priority=-1)
sim.work(stream, 60 * 10**9)
with torch.cuda.stream(stream):
    graph.replay()
del x, graph
y = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
assert stream.query(), "memory of a replay that runs was handed out"
""", tmp_path, CENOTE_CONF="announced:0")


def test_running_out_is_pytorchs_error(tmp_path):
    without_a_compiler("""
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "Tried to allocate 1024.00 GiB" in str(error), error
else:
    assert False
""", tmp_path)


def test_a_graph_keeps_its_memory_until_it_goes(tmp_path):
    without_a_compiler("""
import gc
def held():
    torch.cuda.empty_cache()
    return sim.books().used
x = torch.ones(1 << 20, device="cuda")
before = held()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    y.zero_()
    at = y.data_ptr()
    del y
assert held() >= before + (64 << 20), "what a graph writes to was given back"
assert not at <= torch.empty(64 << 20, dtype=torch.uint8, device="cuda").data_ptr() < at + (64 << 20), "another tensor got it"
graph.replay()
torch.cuda.synchronize()
again = torch.cuda.CUDAGraph()
with torch.cuda.graph(again, pool=graph.pool()):
    assert torch.empty(64 << 20, dtype=torch.uint8, device="cuda").data_ptr() == at, "a graph of the same pool got other memory"
del graph, again
gc.collect()
assert held() <= before, (held(), before)
assert sim.books().violations == 0, sim.last_violation()
""", tmp_path)


def test_a_capture_that_failed_is_over(tmp_path):
    """Otherwise empty_cache would give nothing back for ever."""
    without_a_compiler("""
x = torch.ones(1 << 20, device="cuda")
before = sim.books().used
big = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.cpu()
except RuntimeError:
    pass
else:
    assert False
del big
torch.cuda.set_stream(torch.cuda.default_stream())
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert sim.books().used <= before + (4 << 20), (sim.books().used, before)
""", tmp_path)


def test_a_pool_of_the_program(tmp_path):
    without_a_compiler("""
import gc
torch.empty(1, device="cuda")
before = sim.books().used
pool = torch.cuda.MemPool()
assert isinstance(pool, torch.cuda.MemPool) and pool.use_count() == 1
with torch.cuda.use_mem_pool(pool):
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert pool.use_count() == 2
at = x.data_ptr()
del x
assert torch.empty(64 << 20, dtype=torch.uint8, device="cuda").data_ptr() != at, "memory of the pool went to a tensor outside"
with torch.cuda.use_mem_pool(pool):
    assert torch.empty(64 << 20, dtype=torch.uint8, device="cuda").data_ptr() == at
del pool
gc.collect()
torch.cuda.empty_cache()
assert sim.books().used <= before, (sim.books().used, before)
for options in {"use_on_oom": True}, {"no_split": True}, {"allocator": torch.cuda.memory._get_current_allocator().allocator()}:
    try:
        torch.cuda.MemPool(**options)
    except RuntimeError as error:
        assert "needs the adapter" in str(error)
    else:
        assert False, options
""", tmp_path)


def test_a_forked_worker_drops_tensors_in_silence(tmp_path):
    said = without_a_compiler("""
import os
x = [torch.ones(4, device="cuda") for _ in range(3)]
pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x[0] + 1
child = os.fork()
if not child:
    del x, y, graph, pool
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""", tmp_path)
    assert "could not be freed" not in said


@pytest.mark.parametrize("follows", ["0", "1"])
def test_a_process_group_of_nccl(tmp_path, follows):
    """It may follow the allocator's memory, which this interface refuses: the destructor of PyTorch 2.15's group ended the process."""
    without_a_compiler("""
import tempfile
import torch.distributed as dist
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    dist.destroy_process_group()
""", tmp_path, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=follows)


def test_the_block_of_an_address(tmp_path):
    without_a_compiler("""
import ctypes
from cenote import places
library = ctypes.CDLL(places.pluggable_library())
library.cenote_pluggable_base.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
library.cenote_pluggable_base.restype = ctypes.c_void_p
x, size = torch.empty(1 << 20, dtype=torch.uint8, device="cuda"), ctypes.c_size_t()
assert library.cenote_pluggable_base(x.data_ptr() + 4096, size) == x.data_ptr() and size.value == 1 << 20
""", tmp_path)


@pytest.mark.parametrize("shape", [simulated.SHAPE, "capacity:1GiB,devices:2,peers:0"])
def test_copies_between_devices(tmp_path, shape):
    """Devices that can reach each other's memory, and others."""
    without_a_compiler("""
x = torch.full((1 << 20,), 3, dtype=torch.uint8).to("cuda:0")
y = x.to("cuda:1")
z = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1").to("cuda:0")
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
assert y.cpu().eq(3).all()
""", tmp_path, shape=shape)


def test_a_tensor_for_another_process_is_refused_on_both_sides(tmp_path):
    """A queue pickles in a thread of its own. What that raised was printed, and the other process waited for ever."""
    said = without_a_compiler("""
sys.path.insert(0, str(sys.modules["simulated"].ROOT / "tests"))
import torch.multiprocessing
from patience import patience
context = torch.multiprocessing.get_context("fork")
there, back = context.Queue(), context.Queue()
def other():
    for _ in range(2):
        try:
            back.put((there.get() + 1).tolist())
        except RuntimeError as error:
            back.put(str(error))
process = context.Process(target=other, daemon=True)
process.start()
there.put(torch.ones(4, device="cuda"))
assert "needs the adapter" in back.get(timeout=patience(20))
there.put(torch.ones(2))
assert back.get(timeout=patience(20)) == [2, 2]
process.join(patience(20))
try:
    context.Pipe()[1].send(torch.nn.Parameter(torch.ones(4, device="cuda")))
except RuntimeError as error:
    assert "needs the adapter" in str(error)
else:
    assert False
""", tmp_path)
    assert said.count("Send tensor.cpu()") == 1 and "Traceback" not in said, said
