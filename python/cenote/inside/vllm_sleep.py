"""vLLM's sleep mode on cenote: what its CuMemAllocator holds sleeps and wakes by cenote.pause and cenote.resume (docs/sleep.md).

vLLM gives its pools an allocator of its own, which maps and unmaps past PyTorch's. Here the pools are PyTorch's, and so cenote's. The class keeps its
name, its calls and its book of allocations, which is made when it is asked for. Seen with vLLM 0.33.0.
"""
import gc
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Iterator, Optional, Union

from cenote.base import awaited
from cenote.inside import sleep
from cenote.native import bindings
from cenote.torch import features, patches

FEATURE = "vllm-sleep"
MODULE = "vllm.device_allocator.cumem"
GRAPHS = "cudagraph"  # vLLM's tag for memory of CUDA graphs
Tags = Union[tuple[str, ...], str]


def watch(torch: ModuleType) -> None:
    awaited.when_imported(MODULE, lambda module: begin_with(torch, module))


def begin_with(torch: ModuleType, module: ModuleType) -> None:
    features.begin(FEATURE, lambda: begin(torch, module))


def begin(torch: ModuleType, module: ModuleType) -> None:
    patches.replace(FEATURE, (module, "CuMemAllocator"), lambda inside: type(inside.__name__, (OnCenote, inside), {"torch": torch, "module": module}))


def blocks_of(pool: Any) -> Iterator[tuple[int, bindings.PieceStruct]]:
    for device, ours in bindings.pools().items():
        group = sleep.group_of(device, pool.id)
        if group:
            pieces = bindings.all_of("cenote_pool_pieces", bindings.PieceStruct, ours, group)
            yield from ((device, piece) for piece in pieces if piece.state == bindings.LIVE and not piece.lent)


class OnCenote:
    """The methods that vLLM calls, before those of its own class."""

    torch: Any
    module: Any
    allocator_and_pools: dict[str, list[tuple[Any, None]]]
    default_tag: str

    def __init__(self) -> None:
        self.current_tag: str = self.default_tag
        self.asleep: set[int] = set()  # starts of blocks
        super().__init__()

    @property
    def pointer_to_data(self) -> dict[int, Any]:
        """vLLM's book: for each block its device, bytes, address and tag, and whether it sleeps. A copy; contents on the host are not in it."""
        return {piece.address: self.module.AllocationData((device, piece.size, piece.address, 0), tag, None, piece.address in self.asleep)
                for tag, pool in self.pools() for device, piece in blocks_of(pool)}

    @pointer_to_data.setter
    def pointer_to_data(self, _: Any) -> None:
        pass

    def pools(self) -> Iterator[tuple[str, Any]]:
        return ((tag, pool) for tag, entries in list(self.allocator_and_pools.items()) for pool, _ in list(entries))

    def get_current_usage(self) -> int:
        return sum(data.handle[1] for data in self.pointer_to_data.values())

    @contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        tag, before = self.default_tag if tag is None else tag, self.current_tag
        entries = self.allocator_and_pools.setdefault(tag, [])
        if tag != before:
            entries[:] = [entry for entry in entries if any(blocks_of(entry[0]))]  # vLLM takes nothing from an older pool any more
        entries.append((self.torch.cuda.MemPool(), None))
        self.current_tag = tag
        try:
            with self.torch.cuda.use_mem_pool(entries[-1][0]):
                yield
        finally:
            self.current_tag = before

    @contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        pool, _ = self.allocator_and_pools.setdefault(GRAPHS, [(self.torch.cuda.MemPool(), None)])[0]
        before, self.current_tag = self.current_tag, GRAPHS
        try:
            yield pool.id
        finally:
            self.current_tag = before

    def sleep(self, offload_tags: Optional[Tags] = None) -> None:
        kept = (self.default_tag,) if offload_tags is None else of(offload_tags)
        self.pause({tag: tag in kept for tag in self.allocator_and_pools})
        gc.collect()
        self.torch.accelerator.empty_cache()

    def discard(self, tags: Tags) -> None:
        self.pause(dict.fromkeys(of(tags), False))

    def pause(self, keeps: dict[str, bool]) -> None:
        memory = discarded = 0
        for tag, pool in self.pools():
            if tag in keeps and sleep.is_in_use(pool.id):
                slept = sleep.pause(pool, keeps[tag])
                memory, discarded = memory + slept.memory, discarded + slept.discarded
                self.asleep.update(piece.address for _, piece in blocks_of(pool))
        self.module.logger.info("CuMemAllocator on cenote: %.2f GiB went back to the driver; %.2f GiB were discarded, the rest is kept on the host.",
                           memory / (1 << 30), discarded / (1 << 30))

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        gc.collect()
        self.torch.accelerator.empty_cache()
        for tag, pool in self.pools():
            if (tags is None or tag in tags or tag not in self.module.DEFERRABLE_TAGS) and sleep.is_in_use(pool.id):
                sleep.resume(pool)
                self.asleep.difference_update(piece.address for _, piece in blocks_of(pool))


def of(tags: Tags) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
