"""cenote as PyTorch's allocator without the adapter: libcenote_pluggable.so behind torch.cuda.memory.CUDAPluggableAllocator, by all its eight hooks.

That interface makes no pools: torch.cuda.MemPool, which would raise, is replaced by a class that has what does not need the adapter. Nor does it
send a tensor to another process: both processes are told.
"""
import ctypes
import os
import sys
import threading
from types import ModuleType
from typing import Any

from cenote import places
from cenote.launch import environment
from cenote.torch import features, patches, seams

# The hooks of CUDAPluggableAllocator beside allocation and freeing.
HOOKS = {"set_init_fn": "init", "set_reset_fn": "reset", "set_memory_fraction_fn": "fraction", "set_base_alloc_fn": "base",
         "set_record_stream_fn": "use", "set_begin_allocate_to_pool": "begin", "set_end_allocate_to_pool_fn": "end", "set_release_pool": "release"}

LINE = """cenote: no adapter for torch {version} could be made: {why}.
cenote: it is PyTorch's allocator all the same, through CUDAPluggableAllocator. {lacks}memory_stats and functions that use it, snapshots, histories,
memory in the profiler, PYTORCH_ALLOC_CONF, tensors sent to other processes, torch.compile with CUDA graphs, and pools with options or begun within a
capture do not work."""


NOT_SENT = ("cenote: to send a tensor on a GPU to another process needs the adapter, which cenote has not here: `cenote doctor` says why. "
            "Send tensor.cpu()")
FEEDER = "QueueFeederThread"  # of multiprocessing.Queue: what it raises is printed, and the process that waits for the object waits for ever


def begin(torch: ModuleType) -> ctypes.CDLL:
    path = places.pluggable_library()
    library = ctypes.CDLL(path)
    if torch.cuda.is_initialized():
        raise RuntimeError("cenote.install: PyTorch has used a GPU already: install cenote before the first tensor on one")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "cenote_pluggable_alloc", "cenote_pluggable_free")
    inside = allocator.allocator()
    for hook, name in HOOKS.items():
        if hasattr(inside, hook):
            getattr(inside, hook)(ctypes.cast(getattr(library, f"cenote_pluggable_{name}"), ctypes.c_void_p).value)
    features.begin("fallback-nccl", let_nccl_register_nothing)
    torch.cuda.memory.change_current_allocator(allocator)
    library.cenote_pluggable_register()
    features.is_whole("fallback")
    made = pools(torch, library)
    for name in ("torch.cuda.MemPool", "torch.cuda.memory.MemPool"):
        patches.replace("fallback", name, lambda inside: made)
    refuse_to_send(torch)
    return library


def let_nccl_register_nothing() -> None:
    """Process groups of NCCL follow the allocator's memory to register it, and this interface refuses that. The one that PyTorch 2.15 takes always
    does so, and its destructor ends the process. The older one does so if the user wishes, but not for expandable segments: cenote's pages are as
    those."""
    os.environ.setdefault("TORCH_DIST_USE_NCCL2", "0")
    given = next((os.environ[name] for name in reversed(environment.ALLOCATOR_VARIABLES) if os.environ.get(name)), "")
    seams.get("torch._C._accelerator_setAllocatorSettings")(",".join(filter(None, (given, "expandable_segments:True"))))


class NotSent:
    """Is sent in place of a tensor: the process that receives it gets the error."""

    def __reduce__(self) -> Any:
        return not_sent, ()


def not_sent() -> None:
    raise RuntimeError(NOT_SENT)


def refuse_to_send(torch: ModuleType) -> None:
    from multiprocessing.reduction import ForkingPickler

    def reduce(tensor: Any) -> Any:
        if not tensor.is_cuda:
            return torch.multiprocessing.reductions.reduce_tensor(tensor)
        if threading.current_thread().name != FEEDER:
            not_sent()
        print(NOT_SENT, file=sys.stderr)
        return NotSent().__reduce__()
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def line(torch: ModuleType, library: ctypes.CDLL, why: str) -> str:
    """What the user is told, in one paragraph."""
    library.cenote_pluggable_lacks.restype = ctypes.c_char_p
    lacks = library.cenote_pluggable_lacks().decode()
    return LINE.format(version=torch.__version__, why=why, lacks=f"This PyTorch hides what is needed for {lacks}. " if lacks else "")


def pools(torch: ModuleType, library: ctypes.CDLL) -> type:
    class MemPool:
        """torch.cuda.MemPool, without an adapter: memory of cenote's own, as long as the object lives."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
            if allocator is not None or use_on_oom or no_split:
                raise RuntimeError("torch.cuda.MemPool with an allocator, use_on_oom or no_split needs the adapter, which cenote has not: "
                                   "`cenote doctor` says why")
            torch.cuda.init()
            self.device = torch.cuda.current_device()
            self.allocator = None
            self.id = torch.cuda.graph_pool_handle()
            self._numbers = (ctypes.c_int(self.device), *map(ctypes.c_ulonglong, self.id))
            if library.cenote_pluggable_keep(*self._numbers):
                raise RuntimeError("torch.cuda.MemPool: there is no memory for a pool, or this process was forked from one that uses the GPU")

        def use_count(self) -> int:
            return int(library.cenote_pluggable_uses(*self._numbers))

        def snapshot(self, include_traces: bool = True) -> Any:
            return torch.cuda.memory_snapshot(self.id, include_traces=include_traces)

        def __del__(self) -> None:
            if hasattr(self, "_numbers"):
                library.cenote_pluggable_drop(*self._numbers)
    MemPool.__module__, MemPool.__qualname__ = "torch.cuda.memory", "MemPool"
    return MemPool
