"""Optimizer state that is still to come, because some parameters had no gradient yet: experts of a mixture that were not chosen, layers that are
unfrozen one after the other. For rise.py: memory grows then, and stops once each parameter has its state.

If in step FIRST a parameter of an optimizer has neither state nor gradient, and others have, then state and gradients do not count as growth in this
run, and the report says how much is still to come: as much for each byte of such a parameter as others have.

The same holds for a history of bounded length, as L-BFGS keeps it (`history_size`): to come is what is missing of it.
"""
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

FIRST = 2  # the step after which most optimizers have all their state


class ToCome(NamedTuple):
    parameters: int  # without state
    of: int
    bytes: dict[int, int]  # by device
    kept: int = 0  # steps of a history
    history: int = 0  # and how many it takes; 0: none is missing


def local(tensor: Any) -> Any:
    """What this rank has of a tensor that several ranks share."""
    return getattr(tensor, "_local_tensor", tensor)


def size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


class LateState:
    """The optimizers of the program, `optimizers()`, and whether they have parameters without state."""

    def __init__(self, torch: Any, optimizers: Callable[[], Iterable[Any]]) -> None:
        self.torch, self.optimizers = torch, optimizers
        self.is_late = self.has_late_parameters = False

    def parameters(self) -> Iterator[tuple[Any, Any]]:
        """Each that wants a gradient, with its state."""
        for optimizer in list(self.optimizers()):
            state = optimizer.state
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and parameter.is_cuda:
                        yield parameter, state.get(parameter) or {}

    def histories(self) -> Iterator[tuple[int, list[Any]]]:
        """How many steps an optimizer keeps, and tensors of those that it has."""
        for optimizer in list(self.optimizers()):
            most = next((group["history_size"] for group in optimizer.param_groups if type(group.get("history_size")) is int), 0)
            for state in optimizer.state.values() if most else ():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, list) and value and isinstance(value[0], self.torch.Tensor) and value[0].is_cuda:
                        yield most, value

    def look(self, step: int) -> None:
        if step == FIRST:
            has_some = [bool(state) or parameter.grad is not None for parameter, state in self.parameters()]
            has_histories = any(len(steps) < most for most, steps in self.histories())
            self.has_late_parameters = any(has_some) and not all(has_some) and not has_histories  # L-BFGS has one state for all
            self.is_late = self.has_late_parameters or has_histories

    def tensors(self) -> Iterator[Any]:
        for parameter, state in self.parameters():
            values = [*state.values(), parameter.grad] if isinstance(state, dict) else [parameter.grad]
            for value in values:
                if isinstance(value, self.torch.Tensor) and value.is_cuda:
                    yield local(value)
        for _, steps in self.histories():
            yield from steps

    def blocks(self) -> dict[int, dict[int, int]]:
        """Bytes of state and gradients, by device and address; empty if none is late."""
        found: dict[int, dict[int, int]] = {}
        for tensor in self.tensors() if self.is_late else ():
            try:
                memory = tensor.untyped_storage()
                found.setdefault(tensor.device.index, {})[memory.data_ptr()] = memory.nbytes()
            except (RuntimeError, NotImplementedError):
                continue
        return found

    def to_come(self) -> Optional[ToCome]:
        if not self.is_late:
            return None
        state_bytes = with_state = 0
        late: list[Any] = []
        count = 0
        for parameter, state in self.parameters():
            count += 1
            own = local(parameter)
            kept = sum(size(local(value)) for value in state.values() if isinstance(value, self.torch.Tensor) and value.is_cuda)
            if kept:
                state_bytes, with_state = state_bytes + kept, with_state + size(own)
            elif parameter.grad is None:
                late.append(own)
        ratio = 1 + (state_bytes / with_state if with_state else 0)  # its gradient, and its state
        found: dict[int, int] = {}
        late = late if self.has_late_parameters else []
        for own in late:
            found[own.device.index] = found.get(own.device.index, 0) + int(size(own) * ratio)
        kept = history = 0
        for most, steps in self.histories():
            if len(steps) < most:
                kept, history = len(steps), most
                device = steps[-1].device.index
                found[device] = found.get(device, 0) + (most - len(steps)) * size(steps[-1])
        return ToCome(len(late), count, found, kept, history) if late or history else None
