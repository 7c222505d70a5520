"""The object collectives of torch.distributed, among real ranks and phantoms, and among ranks that are all real.

PyTorch's own exchange the sizes of pickled objects as tensors, on a group that knows only the GPU by kernels, which compute nothing here. Here real
ranks exchange pickled objects through the store, and then do on the GPU what PyTorch does there (on_device.py). A phantom's object is a copy of ours
where all ranks give one; what one rank gives is that rank's alone, and if that rank is a phantom, it has to become real (world.need).
"""
import functools
import inspect
import pickle
from typing import Any, Callable, Optional, Union

import torch.distributed.distributed_c10d as c10d

from cenote.phantoms import on_device
from cenote.phantoms.world import Whole, World
from cenote.torch import seams


def is_not_of(group: Any) -> bool:
    """Whether this rank is not in the group."""
    return group is not None and group == c10d.GroupMember.NON_GROUP_MEMBER


def whole(group: Any) -> Any:
    return group if group is not None else c10d.group.WORLD


class Objects:
    """The replacements: `functions` has them by their names."""

    def __init__(self, world: Union[World, Whole], store: Any) -> None:
        self.world, self.store = world, store
        self.calls: dict[str, int] = {}  # of each kind and group so far: real ranks make them in the same order
        self.functions: dict[str, Callable[..., Any]] = {
            one.__name__: one for one in (self.all_gather_object, self.gather_object, self.broadcast_object_list, self.scatter_object_list,
                                          self.send_object_list, self.recv_object_list)}

    def ranks(self, group: Any) -> list[int]:
        return list(c10d.get_process_group_ranks(whole(group)))

    def key(self, what: str, group: Any) -> str:
        name = f"cenote-objects/{whole(group).group_name}/{what}"
        self.calls[name] = self.calls.get(name, -1) + 1
        return f"{name}/{self.calls[name]}"

    def is_outside(self, group: Any, what: str) -> bool:
        if is_not_of(group):
            seams.get("torch.distributed.distributed_c10d._warn_not_in_group")(what)
        return is_not_of(group)

    def take(self, key: str, rank: int, what: str) -> bytes:
        """What that real rank has put, or will put."""
        self.store.wait_for(rank, key, what)
        return bytes(self.store.inner.get(key))

    def one_rank(self, ranks: list[int], rank: Optional[int], group_rank: Optional[int]) -> int:
        if group_rank is not None:
            return ranks[group_rank]
        return 0 if rank is None else rank

    # --- where all ranks give an object

    def everyones(self, what: str, own: bytes, key: str, ranks: list[int]) -> list[bytes]:
        """A phantom's is a copy of ours."""
        return [self.take(f"{key}/{rank}", rank, f"the object for {what}") if rank != self.world.rank and self.world.is_real(rank) else own
                for rank in ranks]

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "all_gather_object"):
            return
        ranks, key, text = self.ranks(group), self.key("all", group), pickle.dumps(obj)
        self.store.inner.set(f"{key}/{self.world.rank}", text)
        found = self.everyones("all_gather_object", text, key, ranks)
        if device := on_device.device_of(group):
            on_device.all_gather(group, len(text), [len(one) for one in found], device)
        object_list[:len(found)] = map(pickle.loads, found)

    def gather_object(self, obj: Any, object_gather_list: Optional[list[Any]] = None, dst: Optional[int] = None, group: Any = None,
                      group_dst: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "gather_object"):
            return
        ranks, key, text = self.ranks(group), self.key("gather", group), pickle.dumps(obj)
        to, device = self.one_rank(ranks, dst, group_dst), on_device.device_of(group)
        if to == self.world.rank and object_gather_list is None:
            raise ValueError("Argument object_gather_list must be specified on destination rank.")
        self.store.inner.set(f"{key}/{self.world.rank}", text)
        found = self.everyones("gather_object", text, key, ranks) if to == self.world.rank or device else []
        if device:
            on_device.gather(group, len(text), [len(one) for one in found], ranks.index(to), device)
        if to == self.world.rank and object_gather_list is not None:
            object_gather_list[:len(ranks)] = map(pickle.loads, found)

    # --- where one rank gives objects

    def put(self, key: str, objects: list[Any]) -> list[bytes]:
        texts = [pickle.dumps(one) for one in objects]
        self.store.inner.set(key, pickle.dumps(texts))
        return texts

    def given(self, what: str, objects: Optional[list[Any]], group: Any, source: int) -> list[bytes]:
        """By the source, which has them."""
        key = self.key(what, group)
        if source == self.world.rank:
            return self.put(key, objects or [])
        if not self.world.is_real(source):
            self.world.need(source, "the objects")
        return list(pickle.loads(self.take(key, source, f"the objects of {what}_object_list")))

    def broadcast_object_list(self, object_list: list[Any], src: Optional[int] = None, group: Any = None, device: Any = None,
                              group_src: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "broadcast_object_list"):
            return
        ranks = self.ranks(group)
        source = self.one_rank(ranks, src, group_src)
        found = self.given("broadcast", object_list, group, source)
        is_own, sizes = source == self.world.rank, [len(one) for one in found]
        if where := on_device.device_of(group, device):
            send = functools.partial(c10d.broadcast, group_src=ranks.index(source), group=group)
            on_device.given(sizes, where, send) if is_own else on_device.taken(sizes, where, send)
        if not is_own:
            object_list[:] = map(pickle.loads, found)

    def scatter_object_list(self, scatter_object_output_list: list[Any], scatter_object_input_list: Optional[list[Any]] = None,
                            src: Optional[int] = None, group: Any = None, group_src: Optional[int] = None, weights_only: bool = False) -> None:
        if self.is_outside(group, "scatter_object_list"):
            return
        ranks = self.ranks(group)
        source = self.one_rank(ranks, src, group_src)
        found = self.given("scatter", scatter_object_input_list, group, source)
        if device := on_device.device_of(group):
            on_device.scatter(group, [len(one) for one in found], ranks.index(source), device)
        scatter_object_output_list[0] = pickle.loads(found[ranks.index(self.world.rank)])

    # --- from one rank to another

    def send_object_list(self, object_list: Any, dst: Optional[int] = None, group: Any = None, device: Any = None, group_dst: Optional[int] = None,
                         use_batch: bool = False, weights_only: bool = False) -> None:
        if self.is_outside(group, "send_object_list"):
            return
        ranks = self.ranks(group)
        to = self.one_rank(ranks, dst, group_dst)
        texts = self.put(self.key(f"from {self.world.rank} to {to}", group), list(object_list))
        if where := on_device.device_of(group, device):
            on_device.given([len(one) for one in texts], where, on_device.by_pairs(c10d.send, group, ranks.index(to), use_batch))

    def recv_object_list(self, object_list: list[Any], src: Optional[int] = None, group: Any = None, device: Any = None,
                         group_src: Optional[int] = None, use_batch: bool = False, weights_only: bool = False) -> int:
        if self.is_outside(group, "recv_object_list"):
            return -1
        ranks = self.ranks(group)
        source = self.one_rank(ranks, src, group_src)
        key = self.key(f"from {source} to {self.world.rank}", group)
        if not self.world.is_real(source):
            self.world.need(source, "the objects that it sends")
        found = list(pickle.loads(self.take(key, source, "the objects of recv_object_list")))
        if where := on_device.device_of(group, device):
            on_device.taken([len(one) for one in found], where, on_device.by_pairs(c10d.recv, group, ranks.index(source), use_batch))
        object_list[:] = map(pickle.loads, found)
        return source


def on_gpu_only(ours: Callable[..., Any]) -> Callable[..., Any]:
    """In place of PyTorch's function, where all ranks are real: objects of a group that knows the CPU go their own way."""
    pytorchs = getattr(c10d, ours.__name__)

    @functools.wraps(pytorchs)
    def call(*arguments: Any, **named: Any) -> Any:
        given = inspect.signature(pytorchs).bind(*arguments, **named).arguments
        group = given.get("group")
        is_ours = not is_not_of(group) and on_device.device_of(group, given.get("device"))
        return (ours if is_ours else pytorchs)(*arguments, **named)
    return call
