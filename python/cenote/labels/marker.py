"""Kinds: tells libcenote what live blocks turned out to be: parameters and buffers of a module, gradients, the state of an optimizer.

Nothing here holds a tensor or a module: a block is found by an address inside it, now, and forgets its kind when it is freed. Tensors that
share a storage, views and flat parameters lead to the same block. What is not on a GPU, or has no memory, is passed over: meta and fake tensors,
parameters that are not there yet, those whose memory was given back for a while. Workspaces of cuBLAS and cuDNN cannot be told from what else an
operation needs: they are of the kind of the phase.
"""
import ctypes
import weakref
from types import ModuleType
from typing import Any, Callable

from cenote.native import bindings

Kind = Callable[[int, int], int]  # cenote_block_set_kind. It finds the start of a block at once, and what lies inside one slowly

OTHER, PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, WORKSPACES = range(7)  # a test compares them with kinds.def


def kind_function() -> Kind:
    """libcenote's, called without giving up Python's lock: it takes less time than that."""
    found = ctypes.PyDLL(bindings.loaded()._name).cenote_block_set_kind
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return found


def address_of(tensor: Any) -> int:
    """In the block under it: of a view, as a gradient in a bucket is one, where the storage begins."""
    return tensor.untyped_storage().data_ptr() if tensor.storage_offset() else tensor.data_ptr()  # type: ignore[no-any-return]


class Marker:
    """Marks what torch's objects hold."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.kind = kind_function()
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.hook = self.accumulated  # one object, so that it is found again
        self.handles: list[Any] = []  # of hooks on parameters; they hold no tensor
        self.handles_most = 1000
        self.called: dict[int, "weakref.ref[Any]"] = {}  # modules that were called from outside of modules, by id

    def tensor(self, tensor: Any, kind: int) -> None:
        """Whatever makes up the tensor, if it is on a GPU."""
        if type(tensor) not in self.plain:
            self.composed(tensor, kind)
        elif tensor.is_cuda:
            try:
                self.kind(address_of(tensor), kind)
            except RuntimeError:  # it has no memory of its own
                self.composed(tensor, kind)

    def composed(self, tensor: Any, kind: int) -> None:
        """A tensor made of others: DTensor, sparse, nested, quantised; or a parameter that is not there yet."""
        try:
            if hasattr(tensor, "__tensor_flatten__"):
                parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            elif tensor.layout is self.torch.sparse_coo:
                parts = [tensor._indices(), tensor._values()]
            elif tensor.layout is not self.torch.strided:
                parts = [tensor.values()]
            else:
                parts = []
                if tensor.is_cuda:
                    self.kind(address_of(tensor), kind)
        except Exception:  # whatever a subclass may do: this one has no address that we could know
            return
        for part in parts:
            if part is not tensor:
                self.tensor(part, kind)

    # --- modules

    def first_call(self, module: Any) -> None:
        """What it has before it is called the first time. Later the call before has marked it."""
        known = self.called.get(id(module))
        if known is None or known() is not module:
            if len(self.called) > 10000:  # most of them dead
                self.called.clear()
            self.called[id(module)] = weakref.ref(module)
            self.module(module)

    def module(self, module: Any) -> None:
        """The buffers, and the parameters after them: where one storage serves both it is a parameter's."""
        parts = [part for part in module.modules() if part._parameters or part._buffers]
        for part in parts:
            for buffer in part._buffers.values():
                if buffer is not None:
                    self.tensor(buffer, BUFFERS)
        for part in parts:
            for parameter in part._parameters.values():
                if parameter is not None:
                    self.tensor(parameter, PARAMETERS)
                    if parameter.requires_grad:
                        self.watch_gradient(parameter)

    def accumulated(self, parameter: Any) -> None:
        gradient = parameter.grad
        if gradient is not None:
            self.tensor(gradient, GRADIENTS)

    def watch_gradient(self, parameter: Any) -> bool:
        """From now on its gradient is marked when it is there. False: it was watched before, or cannot be."""
        hooks = parameter._post_accumulate_grad_hooks
        if hooks is not None and self.hook in hooks.values():
            return False
        try:
            handle = parameter.register_post_accumulate_grad_hook(self.hook)
        except (RuntimeError, ValueError):  # no leaf, or not there yet
            return False
        if len(self.handles) > self.handles_most:
            self.handles = [handle for handle in self.handles if handle.hooks_dict_ref() is not None]
            self.handles_most = 2 * len(self.handles) + 1000
        self.handles.append(handle)
        return True

    # --- optimizers

    def gradients(self, optimizer: Any) -> None:
        """Those that came from elsewhere, as the buckets of DistributedDataParallel, and parameters that belong to no module."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and self.watch_gradient(parameter):
                    self.tensor(parameter, PARAMETERS)
                self.accumulated(parameter)

    def optimizer(self, optimizer: Any) -> None:
        for state in optimizer.state.values():
            self.state(state, 3)

    def state(self, state: Any, depth: int) -> None:
        """Tensors in dictionaries and lists, as L-BFGS keeps them."""
        for value in state.values() if isinstance(state, dict) else state:
            if isinstance(value, self.torch.Tensor):
                self.tensor(value, OPTIMIZER)
            elif depth and isinstance(value, (dict, list, tuple)):
                self.state(value, depth - 1)

    def forget(self) -> None:
        while self.handles:
            self.handles.pop().remove()
