"""torch_memory_saver on cenote: its regions and graphs sleep and wake by cenote.pause and cenote.resume (docs/sleep.md).

The package stays as it is installed. Where it would take memory past PyTorch's allocator and unmap it by itself, its pools are PyTorch's, and so
cenote's. What other libraries take by cudaMalloc while its own library is preloaded still sleeps and wakes by that. Seen with 0.0.10.
"""
import collections
import os
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

from cenote.base import awaited
from cenote.inside import sleep
from cenote.torch import features, patches

FEATURE = "memory-saver"
MODULE = "torch_memory_saver.entrypoint"
YES = ("1", "true", "yes", "TRUE", "YES")
DEFAULT = "default"  # the tag of what is taken outside of regions, with TMS_INIT_ENABLE


class Pools:
    """What one saver has made: pools by tag, and whether contents are kept. A graph's pool is known by its id, and lives as long as the graph."""

    def __init__(self, torch: ModuleType) -> None:
        self.regions: dict[Any, Any] = collections.defaultdict(torch.cuda.MemPool)  # by tag, kinds of backup, and device
        self.graphs: dict[tuple[int, int], tuple[str, bool]] = {}

    def of(self, tag: Optional[str]) -> Iterator[tuple[Any, bool]]:
        for key, pool in list(self.regions.items()):
            if tag in (None, key[0]):
                yield pool, True in key[1:3]
        for number, (name, keep) in list(self.graphs.items()):
            if not sleep.is_in_use(number):
                del self.graphs[number]
            elif tag in (None, name):
                yield number, keep


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "") in YES


def watch(torch: ModuleType) -> None:
    awaited.when_imported(MODULE, lambda module: begin_with(torch, module))


def begin_with(torch: ModuleType, module: ModuleType) -> None:
    features.begin(FEATURE, lambda: begin(torch, module))


def begin(torch: ModuleType, module: ModuleType) -> None:
    saver = getattr(module, "_TorchMemorySaverImpl")

    def replace(name: str, make: Callable[[Any], Any]) -> None:
        patches.replace(FEATURE, (saver, name), make)
    replace("__init__", lambda inside: lambda own, *args, **kwargs: made(torch, inside, own, args, kwargs))
    replace("cuda_graph", lambda inside: contextmanager(lambda own, *args, **kwargs: captured(inside, own, args, kwargs)))
    replace("pause", lambda inside: lambda own, tag=None: pause(inside, own, tag))
    replace("resume", lambda inside: lambda own, tag=None: resume(inside, own, tag))
    replace("get_cpu_backup", lambda inside: lambda own, x, zero_copy=False: backup(torch, x))


def made(torch: ModuleType, inside: Any, own: Any, args: Any, kwargs: Any) -> None:
    inside(own, *args, **kwargs)
    own.cenote_pools = Pools(torch)
    own._mem_pools = own.cenote_pools.regions


def captured(inside: Any, own: Any, args: Any, kwargs: Any) -> Iterator[None]:
    with inside(own, *args, **kwargs):
        yield
    graph = kwargs["cuda_graph"] if "cuda_graph" in kwargs else args[0]
    own.cenote_pools.graphs[graph.pool()] = kwargs.get("tag", DEFAULT), kwargs.get("enable_cpu_backup", False)


def has_outside(tag: Optional[str]) -> bool:
    return tag in (None, DEFAULT) and is_set("TMS_INIT_ENABLE")


def pause(inside: Any, own: Any, tag: Optional[str]) -> None:
    inside(own, tag)
    for pool, keep in own.cenote_pools.of(tag):
        sleep.pause(pool, keep)
    if has_outside(tag):
        sleep.pause(sleep.OUTSIDE, is_set("TMS_INIT_ENABLE_CPU_BACKUP"))


def resume(inside: Any, own: Any, tag: Optional[str]) -> None:
    if has_outside(tag):
        sleep.resume(sleep.OUTSIDE)
    for pool, _ in own.cenote_pools.of(tag):
        sleep.resume(pool)
    inside(own, tag)


def backup(torch: ModuleType, tensor: Any) -> Any:
    """Always a copy. None: the tensor is awake, or its contents were discarded."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy if tensor.is_contiguous() and sleep.read_asleep(tensor, copy) else None
