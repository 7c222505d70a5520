"""What tests put into device memory and read back. Kernels do nothing on the simulated GPU: contents go by copies and by memset."""

import contextlib
import gc

import pytest
import torch

MIB = 1 << 20
LONG = 10**12  # ns of work: longer than any test runs, so that the GPU is far behind


def fails_before(version: str, why: str):
    """Marks a test that the native allocator of an older PyTorch fails, with the reason."""
    have, want = (tuple(int(part) for part in v.split(".")[:2]) for v in (torch.__version__, version))
    return pytest.mark.skipif(have < want, reason=f"PyTorch before {version} {why}")


def block(size: int, device="cuda") -> torch.Tensor:
    """Memory of that many bytes."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def pinned(size: int, value: int = 0) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8).pin_memory()


def filled(size: int, value: int, device="cuda") -> torch.Tensor:
    """Memory that holds `value` in each byte when the function returns."""
    return torch.full((size,), value, dtype=torch.uint8).to(device)


def fill(tensor: torch.Tensor, value: int) -> torch.Tensor:
    """Copies from pageable memory, so that the copy is complete when the function returns."""
    return tensor.copy_(torch.full(tensor.shape, value, dtype=torch.uint8))


def holds(tensor: torch.Tensor, value: int) -> bool:
    """Each byte is `value`, as the current stream sees it."""
    return bool((tensor.cpu() == value).all())


def places(tensors) -> set:
    return {t.data_ptr() for t in tensors}


def comes_back(at: int, size: int, device="cuda") -> bool:
    """One of a few new blocks of this size begins at this address."""
    return at in places([block(size, device) for _ in range(3)])


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    a_at, b_at = a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()
    return a_at < b_at + b.untyped_storage().nbytes() and b_at < a_at + a.untyped_storage().nbytes()


def copied(source: torch.Tensor, graph=None, **options):
    """A graph that copies `source` to a tensor of its own. Returns both."""
    graph = graph or torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        target = block(source.numel())
        target.copy_(source)
    return graph, target


@contextlib.contextmanager
def uncached():
    """PyTorch takes each block from the device, and gives it back when it is freed."""
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        yield
    finally:
        torch.cuda.memory.caching_allocator_enable(True)


def let_go() -> None:
    """Collects Python's garbage, and drops the cuBLAS workspaces that PyTorch keeps."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()


def release() -> None:
    """Gives all free memory back to the driver, and reads a counter: cenote may defer an empty_cache() until then."""
    let_go()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.mem_get_info()
