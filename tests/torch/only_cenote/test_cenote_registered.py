"""What libraries that register memory find under cenote: what PyTorch's settings tell their guards, and which allocations lie under the blocks of
a pool that does not split."""

import pytest

import simulated
from spoken import said

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
SHAPE = "capacity:4GiB,devices:1,context_bytes:300MiB"

SETTINGS = """
import torch
torch.ones(1, device="cuda")
settings = torch.cuda.memory._snapshot()["allocator_settings"]
print(settings["expandable_segments"], settings["garbage_collection_threshold"])
"""


@pytest.mark.parametrize(
    "conf, given, told",
    [
        ("", "", "True 0.0"),
        ("", "garbage_collection_threshold:0.5", "True 0.5"),
        ("", "backend:native", "True 0.0"),
        ("", "expandable_segments:False", "False 0.0"),  # the program's own setting wins
        ("", "expandable_segments:True", "True 0.0"),
        ("provider:plain", "", "False 0.0"),  # there are no pages
        ("provider:async", "", "False 0.0"),
    ],
)
def test_what_the_settings_say(conf, given, told):
    more = {"PYTORCH_CUDA_ALLOC_CONF": given} if given else {}
    assert simulated.forked(SETTINGS, shape=SHAPE, whole=True, CENOTE_CONF=conf, **more).stdout.split("\n")[0] == told


def test_a_device_without_pages_is_not_expandable():
    for given in ("garbage_collection_threshold:0.5", "backend:native,garbage_collection_threshold:0.5"):
        done = simulated.forked(SETTINGS, shape=f"{SHAPE},vmm:0", whole=True, PYTORCH_CUDA_ALLOC_CONF=given)
        assert done.stdout.split("\n")[0] == "False 0.5"


def test_nccl_registers_no_pages_by_itself(tmp_path):
    """PyTorch's own guard reads the settings, and then does not attach NCCL's hook to the default pool."""
    code = f"""
        import torch, torch.distributed as dist
        dist.init_process_group("nccl", init_method="file://{tmp_path}/store", world_size=1, rank=0)
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        dist.destroy_process_group()
    """
    done = simulated.fresh(code, shape=SHAPE, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1", TORCH_CPP_LOG_LEVEL="INFO")
    assert "compatible with CUDA allocator expandable segments mode" in said(done.stderr)  # "incompatible", and before 2.15 "not compatible"


def test_blocks_of_a_pool_that_does_not_split_are_one_allocation_each():
    """UCX asks for the buffer id: all of a tensor has one id, no other tensor has it, and it stays as long as the pool."""
    code = """
        import ctypes, torch
        cuda, MIB = ctypes.CDLL("libcuda.so.1"), 1 << 20
        def buffer(address):
            number = ctypes.c_ulonglong()
            assert not cuda.cuPointerGetAttribute(ctypes.byref(number), 7, ctypes.c_uint64(address))  # CU_POINTER_ATTRIBUTE_BUFFER_ID
            return number.value
        def buffers(tensor):
            return {buffer(at) for at in range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel(), MIB // 2)}
        torch.cuda.memory._record_memory_history()
        ordinary = torch.empty(37 * MIB, dtype=torch.uint8, device="cuda")
        pool = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            live = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (512, 37 * MIB, MIB, 5 * MIB)]
        under = [buffers(tensor) for tensor in live]
        assert all(len(each) == 1 for each in under) and len(set.union(*under)) == 4 and len(buffers(ordinary)) > 10
        at = [tensor.data_ptr() for tensor in live]
        snapshot = torch.cuda.memory._snapshot()
        kinds = {segment["address"]: segment["is_expandable"] for segment in snapshot["segments"]}
        assert sorted(kinds.values()) == [False] * 4 + [True] and all(kinds[each] is False for each in at)
        told = [entry["action"] for entry in snapshot["device_traces"][0] if entry["action"].startswith("segment")]
        assert told == ["segment_map"] + ["segment_alloc"] * 4, told
        del live
        for size in (3000, 1500):  # outside of the pool, memory moves and is short
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        assert [{buffer(each)} for each in at] == under
        del pool
        torch.cuda.empty_cache()
        assert "segment_free" in [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
    """
    simulated.forked(code, shape=SHAPE)
