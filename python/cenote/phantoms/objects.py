"""The object collectives of torch.distributed, among real ranks and phantoms.

PyTorch's own exchange the sizes of pickled objects as tensors, on a group that knows only the GPU by kernels, which compute nothing here. Here real
ranks exchange pickled objects through the store. A phantom's object is a copy of ours where all ranks give one; what one rank gives is that rank's
alone, and if that rank is a phantom, it has to become real (world.need).
"""
import pickle
from typing import Any, Callable, Optional

import torch.distributed.distributed_c10d as c10d

from cenote.phantoms.world import World


class Objects:
    """The replacements: `functions` has them by their names."""

    def __init__(self, world: World, store: Any) -> None:
        self.world, self.store = world, store
        self.calls: dict[str, int] = {}  # of each kind and group so far: real ranks make them in the same order
        self.functions: dict[str, Callable[..., Any]] = {
            one.__name__: one for one in (self.all_gather_object, self.gather_object, self.broadcast_object_list, self.scatter_object_list,
                                          self.send_object_list, self.recv_object_list)}

    def ranks(self, group: Any) -> list[int]:
        return list(c10d.get_process_group_ranks(group if group is not None else c10d._get_default_group()))

    def key(self, what: str, group: Any) -> str:
        name = f"cenote-objects/{(group if group is not None else c10d._get_default_group()).group_name}/{what}"
        self.calls[name] = self.calls.get(name, -1) + 1
        return f"{name}/{self.calls[name]}"

    def is_outside(self, group: Any, what: str) -> bool:
        if c10d._rank_not_in_group(group):
            c10d._warn_not_in_group(what)
            return True
        return False

    def take(self, key: str, rank: int, what: str) -> Any:
        """What that real rank has put, or will put."""
        self.store.wait_for(rank, key, what)
        return pickle.loads(self.store.inner.get(key))

    def put(self, key: str, what: Any) -> None:
        self.store.inner.set(key, pickle.dumps(what))

    def one_rank(self, ranks: list[int], rank: Optional[int], group_rank: Optional[int]) -> int:
        if group_rank is not None:
            return ranks[group_rank]
        return 0 if rank is None else rank

    # --- where all ranks give an object

    def everyones(self, what: str, own: Any, group: Any) -> list[Any]:
        ranks, key, text = self.ranks(group), self.key(what, group), pickle.dumps(own)
        self.store.inner.set(f"{key}/{self.world.rank}", text)
        return [self.take(f"{key}/{rank}", rank, "the object for all_gather_object") if rank != self.world.rank and self.world.is_real(rank) else
                pickle.loads(text) for rank in ranks]

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False) -> None:
        if not self.is_outside(group, "all_gather_object"):
            found = self.everyones("all", obj, group)
            object_list[:len(found)] = found

    def gather_object(self, obj: Any, object_gather_list: Optional[list[Any]] = None, dst: Optional[int] = None, group: Any = None,
                      group_dst: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "gather_object"):
            return
        ranks, key = self.ranks(group), self.key("gather", group)
        to = self.one_rank(ranks, dst, group_dst)
        self.put(f"{key}/{self.world.rank}", obj)
        if to != self.world.rank:
            return
        if object_gather_list is None:
            raise ValueError("Argument object_gather_list must be specified on destination rank.")
        real = [rank if self.world.is_real(rank) else self.world.rank for rank in ranks]
        object_gather_list[:len(ranks)] = [self.take(f"{key}/{rank}", rank, "the object for gather_object") for rank in real]

    # --- where one rank gives objects

    def given(self, what: str, objects: Any, group: Any, rank: Optional[int], group_rank: Optional[int]) -> tuple[bool, Any]:
        """Whether they are this rank's own, and what they are."""
        source, key = self.one_rank(self.ranks(group), rank, group_rank), self.key(what, group)
        if source == self.world.rank:
            self.put(key, list(objects))
            return True, objects
        if not self.world.is_real(source):
            self.world.need(source, "the objects")
        return False, self.take(key, source, f"the objects of {what}_object_list")

    def broadcast_object_list(self, object_list: list[Any], src: Optional[int] = None, group: Any = None, device: Any = None,
                              group_src: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "broadcast_object_list"):
            return
        is_own, found = self.given("broadcast", object_list, group, src, group_src)
        if not is_own:
            object_list[:] = found

    def scatter_object_list(self, scatter_object_output_list: list[Any], scatter_object_input_list: Optional[list[Any]] = None,
                            src: Optional[int] = None, group: Any = None, group_src: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "scatter_object_list"):
            return
        _, found = self.given("scatter", scatter_object_input_list or [], group, src, group_src)
        scatter_object_output_list[0] = found[self.ranks(group).index(self.world.rank)]

    # --- from one rank to another

    def send_object_list(self, object_list: Any, dst: Optional[int] = None, group: Any = None, device: Any = None, group_dst: Optional[int] = None,
                         use_batch: bool = False, weights_only: bool = False) -> None:
        if self.is_outside(group, "send_object_list"):
            return
        to = self.one_rank(self.ranks(group), dst, group_dst)
        key = self.key(f"from {self.world.rank} to {to}", group)
        if self.world.is_real(to):
            self.put(key, list(object_list))

    def recv_object_list(self, object_list: list[Any], src: Optional[int] = None, group: Any = None, device: Any = None,
                         group_src: Optional[int] = None, use_batch: bool = False, weights_only: bool = False) -> int:
        if self.is_outside(group, "recv_object_list"):
            return -1
        source = self.one_rank(self.ranks(group), src, group_src)
        key = self.key(f"from {source} to {self.world.rank}", group)
        if not self.world.is_real(source):
            self.world.need(source, "the objects that it sends")
        object_list[:] = self.take(key, source, "the objects of recv_object_list")
        return source
