"""Kinds: tells libcenote what live blocks hold: parameters and buffers of a module, gradients, the state of an optimizer.

A block is found by an address inside it, and loses its kind when it is freed; this module keeps no tensor and no module. Tensors that share a
storage, views and flat parameters lead to the same block. Tensors without memory on a GPU are skipped: meta and fake tensors, lazy parameters,
parameters whose memory was freed for a while. Workspaces of cuBLAS and cuDNN look like any other memory of an operation: their kind follows from
the phase.
"""
import ctypes
import weakref
from types import ModuleType
from typing import Any, Callable

from cenote.native import bindings

Kind = Callable[[int, int], int]  # cenote_block_set_kind. It is fast for the start of a block, slow for other addresses

OTHER, PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, WORKSPACES = range(7)  # a test compares them with kinds.def


def kind_function() -> Kind:
    """cenote_block_set_kind, called with Python's lock held: the call takes less time than to release and take the lock."""
    found = ctypes.PyDLL(bindings.loaded()._name).cenote_block_set_kind
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return found


def address_of(tensor: Any) -> int:
    """An address in the tensor's block: for a view, such as a gradient in a bucket, the start of its storage."""
    return tensor.untyped_storage().data_ptr() if tensor.storage_offset() else tensor.data_ptr()  # type: ignore[no-any-return]


class Marker:
    """Sets the kinds of the tensors in modules and optimizers."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.kind = kind_function()
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.hook = self.accumulated  # one object, so that watch_gradient recognises it
        self.handles: list[Any] = []  # of hooks on parameters; they keep no tensor alive
        self.handles_most = 1000
        self.called: dict[int, "weakref.ref[Any]"] = {}  # outermost modules that were called, by id

    def tensor(self, tensor: Any, kind: int) -> None:
        """Sets the kind of the tensor's block, or blocks, if it is on a GPU."""
        if type(tensor) not in self.plain:
            self.composed(tensor, kind)
        elif tensor.is_cuda:
            try:
                self.kind(address_of(tensor), kind)
            except RuntimeError:  # it has no storage
                self.composed(tensor, kind)

    def composed(self, tensor: Any, kind: int) -> None:
        """For a tensor made of others (DTensor, sparse, nested, quantised) or a lazy parameter."""
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
        except Exception:  # code of a subclass may raise anything: the tensor gets no kind
            return
        for part in parts:
            if part is not tensor:
                self.tensor(part, kind)

    # --- modules

    def first_call(self, module: Any) -> None:
        """Before a module's first call: sets the kinds of its tensors. Before later calls they are set already, after the call before."""
        known = self.called.get(id(module))
        if known is None or known() is not module:
            if len(self.called) > 10000:  # most of these modules are gone
                self.called.clear()
            self.called[id(module)] = weakref.ref(module)
            self.module(module)

    def module(self, module: Any) -> None:
        """Buffers first, then parameters: a storage that has both counts as parameters."""
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
        """Sets the kind of the parameter's gradient whenever it is accumulated. False if it is watched already, or cannot be."""
        hooks = parameter._post_accumulate_grad_hooks
        if hooks is not None and self.hook in hooks.values():
            return False
        try:
            handle = parameter.register_post_accumulate_grad_hook(self.hook)
        except (RuntimeError, ValueError):  # not a leaf, or lazy
            return False
        if len(self.handles) > self.handles_most:
            self.handles = [handle for handle in self.handles if handle.hooks_dict_ref() is not None]
            self.handles_most = 2 * len(self.handles) + 1000
        self.handles.append(handle)
        return True

    # --- optimizers

    def gradients(self, optimizer: Any) -> None:
        """Gradients that were not accumulated, such as buckets of DistributedDataParallel, and parameters that belong to no module."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and self.watch_gradient(parameter):
                    self.tensor(parameter, PARAMETERS)
                self.accumulated(parameter)

    def optimizer(self, optimizer: Any) -> None:
        for state in optimizer.state.values():
            self.state(state, 3)

    def state(self, state: Any, depth: int) -> None:
        """Tensors in nested dictionaries and lists, as in L-BFGS."""
        for value in state.values() if isinstance(state, dict) else state:
            if isinstance(value, self.torch.Tensor):
                self.tensor(value, OPTIMIZER)
            elif depth and isinstance(value, (dict, list, tuple)):
                self.state(value, depth - 1)

    def forget(self) -> None:
        while self.handles:
            self.handles.pop().remove()
