"""torch.cuda._use_uvm(): tensors in managed memory, by a pool whose allocator is written in Python.

cuda.bindings.runtime has a CUDA runtime of its own, which the simulated driver refuses: what PyTorch uses of it stands here, over the runtime of
the process."""

import pytest
import torch

from simulated import forked


@pytest.mark.skipif(not hasattr(torch.cuda, "_use_uvm"), reason="this PyTorch has no torch.cuda._use_uvm")
def test_managed_memory_beside_the_allocators_own():
    forked("""
import ctypes, gc, sys, types
import torch
runtime = ctypes.CDLL("libcudart.so.13")
taken, given = [], []
def managed(size, flags):
    at = ctypes.c_void_p()
    error = runtime.cudaMallocManaged(ctypes.byref(at), ctypes.c_size_t(size), flags)
    taken.append(at.value)
    return error, at.value
def free(at):
    given.append(at)
    return (runtime.cudaFree(ctypes.c_void_p(at)),)
names = types.SimpleNamespace
module = types.ModuleType("cuda.bindings.runtime")
module.__dict__.update(cudaError_t=names(cudaSuccess=0), cudaMemAttachGlobal=1, cudaMallocManaged=managed, cudaFree=free, cudaDeviceAttr=names())
package = types.ModuleType("cuda.bindings")
package.runtime = module
sys.modules.update({"cuda": types.ModuleType("cuda"), "cuda.bindings": package, "cuda.bindings.runtime": module})

outside = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
with torch.cuda._use_uvm() as pool:
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    x.copy_(torch.full((64 << 20,), 5, dtype=torch.uint8))
after = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
assert len(taken) == 1 and taken[0] <= x.data_ptr() < taken[0] + (80 << 20)
assert all(not taken[0] <= t.data_ptr() < taken[0] + (64 << 20) for t in (outside, after))
assert bool((x.cpu() == 5).all())
del x, pool
gc.collect()
torch.cuda.empty_cache()
assert given == taken, (given, taken)
""")
