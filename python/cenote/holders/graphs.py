"""Reads autograd's graphs: the tensors that operations keep for backward, the length of a history, and how far back it goes.

Tensors are read by PyTorch's own descriptors, so that no code of a subclass runs. No hook of a saved tensor runs: unpacking may copy to the device,
or compute a checkpoint's forward again. A reference to an operation is held while it is read: what PyTorch returns from one is invalid without it.
"""
import heapq
import sys
from itertools import count
from typing import Any, Iterator

from cenote.holders.parts import by_type, own_dict
from cenote.torch import seams

OPERATIONS = 200_000  # of graphs, in one search
OF_PYTHON = "_raw_saved_tensors"  # of an operation that is written in Python
LEAF = 1 << 63  # sequence numbers from here on belong to leaves, which are not operations


class Reader:
    """PyTorch's own descriptors for tensors."""

    def __init__(self) -> None:
        self.rests = True  # no backward is running, which could free what operations keep while it is read
        self.may_read_gradients = True  # no other thread could free gradients while they are read
        torch: Any = sys.modules["torch"]
        base = vars(seams.find("torch._C.TensorBase"))
        self.tensor = torch.Tensor
        self.storage = torch.UntypedStorage
        self.is_cuda, self.is_leaf, self.grad_fn, self.grad = (base[name].__get__ for name in ("is_cuda", "is_leaf", "grad_fn", "grad"))
        self.address = base.get("const_data_ptr", base["data_ptr"])
        self.untyped = base["untyped_storage"]

    def address_of(self, tensor: Any) -> int:
        """The address of its memory on a GPU, 0 if it has none."""
        try:
            return int(self.address(tensor) or self.untyped(tensor).data_ptr()) if self.is_cuda(tensor) else 0
        except (RuntimeError, NotImplementedError, TypeError):
            return 0  # sparse, fake, functional: these have no memory of their own

    def gradient_of(self, tensor: Any) -> Any:
        return self.grad(tensor) if self.may_read_gradients and self.is_leaf(tensor) else None

    def saved_by(self, node: Any) -> Iterator[Any]:
        """The tensors that an operation keeps for backward."""
        for name in saved_names(type(node)) if self.rests else ():
            try:
                raw = getattr(node, "_raw" + name)
                has_hooks = any(one.unpack_hook is not None for one in (raw if isinstance(raw, (tuple, list)) else (raw,)))
                if not has_hooks:
                    value = getattr(node, name if f"_raw{name}" != OF_PYTHON else "saved_tensors")
                else:  # the packed form: unpacking would run the program's code, or a checkpoint's forward
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
    """`_saved_self`, `_saved_result`... of a type of operations; `_saved_tensors` for operations written in Python."""
    return tuple(name[4:] for name in dir(kind) if name.startswith("_raw_saved_"))


def inputs_of(node: Any) -> list[Any]:
    return [source for source, _ in node.next_functions if source is not None]


def length_of(node: Any) -> int:
    """The number of operations in a history, at most OPERATIONS."""
    seen, stack = {id(node): node}, [node]
    while stack and len(seen) < OPERATIONS:
        for source in inputs_of(stack.pop()):
            if id(source) not in seen:
                seen[id(source)] = source
                stack.append(source)
    return len(seen)


def reaches_back_to(node: Any, room: int, enough: int = -1) -> tuple[int, int]:
    """The lowest sequence number found in a history, and the number of operations that were read. Reads the oldest known operation first, and stops
    after `room` operations or at a number below `enough`."""
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
