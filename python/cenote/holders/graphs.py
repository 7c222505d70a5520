"""Autograd's graphs, from the tensors that have one: what operations keep for their backward, how long a history is, how far it goes back.

Tensors are read by PyTorch's own descriptors, past whatever a subclass makes of them. No hook of a saved tensor runs: unpacking may copy to the
device, or compute a checkpoint's forward again. An operation is read while a reference to it is held: what PyTorch hands out of one is invalid after.
"""
import heapq
import sys
from itertools import count
from typing import Any, Iterator

from cenote.holders.parts import by_type, own_dict

OPERATIONS = 200_000  # of graphs, in one search
LEAF = 1 << 63  # sequence numbers from here on are of leaves, which are not operations


class Reader:
    """PyTorch's own ways to read a tensor, past whatever a subclass makes of them."""

    def __init__(self) -> None:
        self.rests = True  # no backward is under way: what operations keep does not go while it is read
        self.may_read_gradients = True  # nor do gradients
        torch: Any = sys.modules["torch"]
        base = vars(torch._C.TensorBase)
        self.tensor = torch.Tensor
        self.storage = torch.UntypedStorage
        self.is_cuda, self.is_leaf, self.grad_fn, self.grad = (base[name].__get__ for name in ("is_cuda", "is_leaf", "grad_fn", "grad"))
        self.address = base.get("const_data_ptr", base["data_ptr"])
        self.untyped = base["untyped_storage"]
        self.saved_type = torch._C._autograd.SavedTensor

    def address_of(self, tensor: Any) -> int:
        """Where its memory is, 0: nowhere that is known."""
        try:
            return int(self.address(tensor) or self.untyped(tensor).data_ptr()) if self.is_cuda(tensor) else 0
        except (RuntimeError, NotImplementedError, TypeError):
            return 0  # sparse, fake, functional: what they consist of is found by itself, or is nowhere

    def gradient_of(self, tensor: Any) -> Any:
        return self.grad(tensor) if self.may_read_gradients and self.is_leaf(tensor) else None

    def saved_by(self, node: Any) -> Iterator[Any]:
        """Tensors that an operation of a graph keeps for its backward, while they live."""
        for name in saved_names(type(node)) if self.rests else ():
            try:
                raw = getattr(node, "_raw" + name)
                has_hooks = any(one.unpack_hook is not None for one in (raw if isinstance(raw, (tuple, list)) else (raw,)))
                if not has_hooks:
                    value = getattr(node, name if name != "_saved_tensors" else "saved_tensors")
                else:  # what a hook made of it: unpacking would run the program's code, or a checkpoint's forward
                    value = [one.data for one in (raw if isinstance(raw, (tuple, list)) else (raw,))]
            except (RuntimeError, AttributeError):
                continue  # freed by backward, or changed in place
            yield from self.tensors_in(value)
        yield from self.tensors_in(own_dict(node))
        leaf = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
        if leaf is not None:
            yield leaf
            if self.gradient_of(leaf) is not None:
                yield self.gradient_of(leaf)

    def tensors_in(self, value: Any, depth: int = 3) -> Iterator[Any]:
        kind = type(value)
        if issubclass(kind, self.tensor):
            yield value
        elif depth and kind in (tuple, list):
            for item in value:
                yield from self.tensors_in(item, depth - 1)
        elif depth and kind is dict:
            for item in list(value.values()):
                yield from self.tensors_in(item, depth - 1)


@by_type
def saved_names(kind: type) -> tuple[str, ...]:
    """`_saved_self`, `_saved_result`... of a type of operations; `_saved_tensors` of those written in Python."""
    return tuple(name[4:] for name in dir(kind) if name.startswith("_raw_saved_"))


def inputs_of(node: Any) -> list[Any]:
    return [source for source, _ in node.next_functions if source is not None]


def length_of(node: Any) -> int:
    """Operations in a history, up to OPERATIONS of them."""
    seen, stack = {id(node): node}, [node]
    while stack and len(seen) < OPERATIONS:
        for source in inputs_of(stack.pop()):
            if id(source) not in seen:
                seen[id(source)] = source
                stack.append(source)
    return len(seen)


def reaches_back_to(node: Any, room: int, enough: int = -1) -> tuple[int, int]:
    """The lowest sequence number in a history that is seen within `room` operations, the oldest known first, or the first below `enough`; and how
    many were looked at."""
    lowest, order = LEAF, count()
    heap = [(node._sequence_nr(), next(order), node)]
    seen, looked = {id(node)}, 0
    while heap and looked < room and lowest >= enough:
        number, _, node = heapq.heappop(heap)
        lowest, looked = min(lowest, number), looked + 1
        for source in inputs_of(node):
            if id(source) not in seen:
                seen.add(id(source))
                number = source._sequence_nr()
                if number < LEAF:
                    heapq.heappush(heap, (number, next(order), source))
    return lowest, looked
