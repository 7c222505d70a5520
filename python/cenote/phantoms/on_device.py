"""What PyTorch's object collectives do on the GPU: they send sizes and pickled objects as small tensors, which take memory and connect ranks.

Each function here makes the tensors and the collectives of its namesake in torch/distributed/distributed_c10d.py, line by line, but for reading
values back: the sizes are known here (objects.py), and on the simulated GPU no kernel computes them. What is in the tensors does not matter. A group
that knows the CPU does nothing here: its objects take no memory of a device.
"""
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed.distributed_c10d as c10d

from cenote.torch import seams


def device_of(group: Any, device: Any = None) -> Optional[torch.device]:
    """None: objects stay on the host."""
    found = torch.device(device or seams.get("torch.distributed.distributed_c10d._get_object_coll_device")(group))
    return found if found.type == "cuda" else None


def text(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8).to(device)


def number(device: torch.device) -> torch.Tensor:
    return torch.LongTensor([0]).to(device)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def largest(numbers: Sequence[torch.Tensor]) -> None:
    """Python's max() compares each one with the largest so far."""
    for other in numbers[1:]:
        other > numbers[0]


def to_objects(sizes: torch.Tensor) -> None:
    offset: Any = 0
    for size in sizes:
        offset + size
        offset += size


def all_gather(group: Any, own: int, sizes: Sequence[int], device: torch.device) -> None:
    given, size = text(own, device), number(device)
    all_sizes = torch.zeros(len(sizes), dtype=torch.long, device=device)
    c10d.all_gather_single(all_sizes, size, group=group)
    all_sizes.max()
    given.resize_(max(sizes))
    found = torch.empty(max(sizes) * len(sizes), dtype=torch.uint8, device=device)
    c10d.all_gather_single(found, given, group=group)


def gather(group: Any, own: int, sizes: Sequence[int], to: int, device: torch.device) -> None:
    """`to`: its number in the group."""
    given, size = text(own, device), number(device)
    all_sizes = torch.zeros(len(sizes), dtype=torch.long, device=device)
    parts = [all_sizes[i].unsqueeze(dim=0) for i in range(len(sizes))]
    c10d.all_gather(parts, size, group=group)
    largest(parts)
    given.resize_(max(sizes))
    found = None
    if c10d.get_rank(group) == to:
        found = list(torch.empty(max(sizes) * len(sizes), dtype=torch.uint8, device=device).chunk(len(sizes)))
    c10d.gather(given, gather_list=found, group_dst=to, group=group)


def given(sizes: Sequence[int], device: torch.device, send: Callable[[torch.Tensor], Any]) -> None:
    """By the rank that gives the objects: to all by broadcast, or to one."""
    tensors = [(text(size, device), number(device)) for size in sizes]
    all_sizes = torch.cat([size for _, size in tensors])  # which lives as long as PyTorch's
    send(all_sizes)
    send(joined([one for one, _ in tensors]))


def taken(sizes: Sequence[int], device: torch.device, receive: Callable[[torch.Tensor], Any]) -> None:
    all_sizes = torch.empty(len(sizes), dtype=torch.long, device=device)
    receive(all_sizes)
    torch.sum(all_sizes)
    objects = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    receive(objects)
    to_objects(all_sizes)


def scatter(group: Any, sizes: Sequence[int], source: int, device: torch.device) -> None:
    """`sizes`: of the objects for all ranks, known to the source and, if they are together as large, to all."""
    is_source = c10d.get_rank(group) == source
    tensors = [(text(size, device), number(device)) for size in sizes] if is_source else []
    largest([size for _, size in tensors])
    for one, _ in tensors:
        one.resize_(max(sizes))
    most = tensors[0][1] if is_source else torch.tensor([0], dtype=torch.long, device=device)
    c10d.broadcast(most, group_src=source, group=group)
    found = torch.empty(max(sizes), dtype=torch.uint8, device=device)
    c10d.scatter(found, scatter_list=[one for one, _ in tensors] if is_source else None, group_src=source, group=group)
    size = torch.tensor([0], dtype=torch.long, device=device)
    c10d.scatter(size, scatter_list=[size for _, size in tensors] if is_source else None, group_src=source, group=group)


def by_pairs(kind: Any, group: Any, peer: int, use_batch: bool) -> Callable[[torch.Tensor], Any]:
    """`kind`: send or recv of c10d; `peer`: its number in the group."""
    if not use_batch:
        named = {"group_dst": peer} if kind is c10d.send else {"group_src": peer}
        return lambda tensor: kind(tensor, group=group, **named)
    alone = c10d.isend if kind is c10d.send else c10d.irecv
    return lambda tensor: c10d.batch_isend_irecv([c10d.P2POp(alone, tensor, group_peer=peer, group=group)]).pop().wait()
