"""vLLM's sleep mode on cenote. vLLM itself is too large for a test: a module with the face of its CuMemAllocator (0.33.0) stands in. What vLLM's own
tests say on cenote is a table of docs/sleep.md."""

import pytest

import simulated

pytestmark = pytest.mark.skipif(simulated.allocator().get("CENOTE") != "on", reason="CENOTE_TEST_ALLOCATOR is not cenote")

FACE = """
import collections, logging
logger = logging.getLogger("vllm")
DEFERRABLE_TAGS = ("weights", "kv_cache")
AllocationData = collections.namedtuple("AllocationData", "handle tag cpu_backup_tensor is_asleep")

class CuMemAllocator:
    instance, default_tag = None, "default"

    @staticmethod
    def get_instance():
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    def __init__(self):
        self.pointer_to_data, self.current_tag, self.allocator_and_pools = {}, self.default_tag, {}

    def use_memory_pool(self, tag=None):
        raise AssertionError("vLLM's own allocator is used")
"""
BEGINNING = """
import gc, sys, torch
sys.path.insert(0, FOLDER)
import vllm.device_allocator.cumem as cumem
allocator, MIB = cumem.CuMemAllocator.get_instance(), 1 << 20

def used():
    left, total = torch.cuda.mem_get_info()
    return (total - left) // MIB

def filled(mib, value):
    return torch.full((mib * MIB,), value, dtype=torch.uint8).cuda()

def holds(tensor, value):
    return bool((tensor.cpu() == value).all())

def book():
    return sorted((data.tag, data.handle[1] // MIB, data.is_asleep) for data in allocator.pointer_to_data.values())
"""


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "vllm" / "device_allocator"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "cumem.py").write_text(FACE)
    return lambda code: simulated.forked(BEGINNING.replace("FOLDER", repr(str(tmp_path))) + code)


def test_levels_and_tags(run):
    """Level 1 keeps weights and discards the cache; a wake by tag defers weights and cache alone; addresses stay."""
    code = """
with allocator.use_memory_pool("weights"):
    weights = filled(64, 3)
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(128, 4)
with allocator.use_memory_pool():
    state = filled(8, 5)
outside = filled(32, 6)
before, at = used(), weights.data_ptr()
print(book(), allocator.get_current_usage() // MIB, allocator.current_tag)
allocator.sleep(offload_tags=("weights", "default"))
print(before - used(), {asleep for _, _, asleep in book()}, holds(outside, 6))
allocator.sleep(offload_tags=())  # what sleeps keeps its contents
allocator.wake_up(tags=["kv_cache"])
print(before - used(), holds(state, 5), book())
allocator.wake_up(["weights"])
print(before - used(), weights.data_ptr() == at, holds(weights, 3))
allocator.discard("kv_cache")
print(before - used(), book())
allocator.wake_up()
print(before - used())
"""
    assert run(code).stdout.splitlines() == [
        "[('default', 8, False), ('kv_cache', 128, False), ('weights', 64, False)] 200 default",
        "200 {True} True",
        "64 True [('default', 8, False), ('kv_cache', 128, False), ('weights', 64, True)]",
        "0 True True",
        "128 [('default', 8, False), ('kv_cache', 128, True), ('weights', 64, False)]",
        "0"]


def test_a_tag_that_is_entered_again(run):
    """Pools that hold nothing are let go; what lies in an older one sleeps with its tag. A pool of graphs keeps its id."""
    code = """
for step in range(20):
    with allocator.use_memory_pool("workspace"):
        scratch = filled(16, step)
print(len(allocator.allocator_and_pools["workspace"]) <= 2, allocator.get_current_usage() // MIB)
with allocator.use_memory_pool("workspace"):
    more = filled(16, 99)
before = used()
allocator.sleep("workspace")
print(before - used())
allocator.wake_up()
print(holds(scratch, 19), holds(more, 99))
with allocator.cudagraph_pool() as first, allocator.cudagraph_pool() as again:
    print(first == again, allocator.current_tag)
graph = torch.cuda.CUDAGraph()
x = torch.zeros(MIB, device="cuda")
with torch.cuda.graph(graph, pool=first):
    y = x + 1
print([tag for tag, _, _ in book()].count("cudagraph") > 0, allocator.current_tag)
"""
    assert run(code).stdout.splitlines() == ["True 16", "32", "True True", "True cudagraph", "True default"]


def test_no_room_to_wake(run):
    code = """
total = torch.cuda.mem_get_info()[1]
with allocator.use_memory_pool("weights"):
    weights = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
allocator.sleep(offload_tags=())
beside = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
try:
    allocator.wake_up()
except RuntimeError as error:
    print(type(error).__name__, "sleeps on" in str(error))
del beside
allocator.wake_up()
print(book()[0][2])
"""
    assert run(code).stdout.splitlines() == ["OutOfMemoryError True", "False"]
