"""Kinds: tells what live blocks hold: parameters and buffers of a module, gradients, the state of an optimizer, and which of them.

All of this happens only when a tensor lies in a block that has no holder yet: C++ looks for such tensors, watches gradients, and tells libcenote the
kinds (plugins/names/marking.cpp).

A block is found by an address inside it, and loses its kind when it is freed; this module keeps no tensor and no module. Tensors that share a
storage, views and flat parameters lead to the same block. Tensors without memory on a GPU are skipped: meta and fake tensors, lazy parameters,
parameters whose memory was freed for a while. Workspaces of cuBLAS and cuDNN look like any other memory of an operation: their kind follows from
the phase.
"""
import gc
import os
import weakref
from types import ModuleType
from typing import Any

from cenote.labels.names import UNNAMED, Holder, Names
from cenote.labels.naming import inside, join, own_modules
from cenote.torch import seams

SEARCHES_MAX = 4  # for modules that were not called and have parameters of an optimizer: each looks at all objects of Python. Chosen.
MUCH = 32  # modules that were not called are looked for if a 32nd of the live bytes has no name, and a quarter more than last time. Chosen.

OTHER, PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, WORKSPACES = range(7)  # a test compares them with kinds.def


def address_of(tensor: Any) -> int:
    """An address in the tensor's block: for a view, such as a gradient in a bucket, the start of its storage."""
    return tensor.untyped_storage().data_ptr() if tensor.storage_offset() else tensor.data_ptr()  # type: ignore[no-any-return]


def shape_of(tensor: Any) -> str:
    try:
        return f"{'x'.join(map(str, tensor.shape)) or 'one'} {str(tensor.dtype).removeprefix('torch.')}"
    except Exception:  # lazy, or code of a subclass
        return ""


def is_part(tensor: Any) -> bool:
    """Whether the tensor is half of its block at most: a block of several tensors does not go by the name of one."""
    try:
        return bool(2 * tensor.nbytes <= tensor.untyped_storage().nbytes())
    except Exception:  # it has no storage, or code of a subclass
        return False


class Marker:
    """Sets the kinds of the tensors in modules and optimizers."""

    def __init__(self, torch: ModuleType, names: Names) -> None:
        self.torch, self.names = torch, names
        self.has_mode = seams.find("torch._C._is_torch_function_mode_enabled")
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.searched: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers for whose parameters modules were looked for
        self.searches = 0
        self.accepted: dict[int, int] = {}  # bytes of a device without a name, when all modules were looked for
        self.called: dict[int, "weakref.ref[Any]"] = {}  # outermost modules that were called, by id

    def tensor(self, tensor: Any, kind: int, holder: int = UNNAMED) -> None:
        """Sets the kind and the holder of the tensor's block, or blocks, if it is on a GPU."""
        if type(tensor) not in self.plain:
            self.composed(tensor, kind, holder)
        elif tensor.is_cuda:
            try:
                self.names.hold(address_of(tensor), kind, UNNAMED if is_part(tensor) else holder)
            except RuntimeError:  # it has no storage
                self.composed(tensor, kind, holder)

    def composed(self, tensor: Any, kind: int, holder: int) -> None:
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
                    self.names.hold(address_of(tensor), kind, holder)
        except Exception:  # code of a subclass may raise anything: the tensor gets no kind
            return
        for part in parts:
            if part is not tensor:
                self.tensor(part, kind, holder)

    def holder(self, root: int, name: str, tensor: Any, of: int = -1) -> int:
        return self.names.number(Holder(root, name, shape_of(tensor), of))

    def several(self, root: int, name: str, word: str) -> int:
        """Of tensors of a module that have one block; `word` stands in place of a shape."""
        return self.names.number(Holder(root, name, word))

    # --- modules

    def first_call(self, module: Any) -> None:
        """Before a module's first call: sets the kinds of its tensors. Before later calls they are set already, after the call before."""
        known = self.called.get(id(module))
        if known is None or known() is not module:
            if len(self.called) > 10000:  # most of these modules are gone
                self.called.clear()
            self.called[id(module)] = weakref.ref(module)
            self.module(module)

    def was_called(self, module: Any) -> None:
        if self.names.lacks_module(module):
            self.module(module)

    def module(self, module: Any) -> None:
        """Buffers first, then parameters: a storage that has both counts as parameters."""
        root, prefix = self.place_of(module)
        flat: dict[int, list[str]] = {}
        parts = [(join(prefix, name), part) for name, part in inside(module) if part._parameters or part._buffers]
        for name, part in parts:
            for own, buffer in part._buffers.items():
                if buffer is not None:
                    self.part(buffer, BUFFERS, self.holder(root, join(name, own), buffer), flat)
        for name, part in parts:
            for own, parameter in part._parameters.items():
                if parameter is not None:
                    holder = self.holder(root, join(name, own), parameter)
                    self.part(parameter, PARAMETERS, holder, flat)
                    if parameter.requires_grad:
                        self.names.name(parameter, holder)

    def look_again(self, device: int) -> None:
        """All modules that were called: a block may have become another tensor's (`a.data, b.data = b.data, a.data`). After each call only a block
        without a holder is looked for, which costs less. If much memory has no name, also modules that were not called yet."""
        if self.has_mode():  # a mode of the program sees each attribute that is read
            return
        for reference in list(self.called.values()):
            module = reference()
            if module is not None:
                self.module(module)
        unnamed = self.unnamed(device)
        if unnamed * MUCH <= self.names.levels(device).now or 4 * unnamed <= 5 * self.accepted.get(device, 0):
            return
        self.modules_that_were_not_called()
        self.accepted[device] = self.unnamed(device)

    def modules_that_were_not_called(self) -> None:
        for module in self.outermost():
            if self.names.lacks_module(module) and self.names.naming.give(module, 0):
                self.module(module)

    def unnamed(self, device: int) -> int:
        """Bytes of live blocks that no module has allocated, and that have no holder."""
        paths: dict[int, int] = {}
        found = 0
        for block in self.names.blocks(device, False):
            if not block.holder:
                if block.place not in paths:
                    paths[block.place] = self.names.place(block.place).path
                found += 0 if paths[block.place] else block.size
        return found

    def outermost(self) -> list[Any]:
        """All modules that no module has. To find them looks at all objects of Python: a tenth of a second for a million."""
        modules = [each for each in gc.get_objects() if issubclass(type(each), self.torch.nn.Module)]
        parts = {id(part) for module in modules for part in own_modules(module).values()}
        return [module for module in modules if id(module) not in parts]

    def part(self, tensor: Any, kind: int, holder: int, flat: dict[int, list[str]]) -> None:
        """A tensor of a module. A block of several, as of LSTM or of a flat buffer, goes by what their names begin with. `flat`: that, by block."""
        self.tensor(tensor, kind, holder)
        of = self.names.holder(holder)
        if of is None or type(tensor) not in self.plain or not tensor.is_cuda or not is_part(tensor):
            return
        block, names = tensor.untyped_storage().data_ptr(), of.name.split(".")[:-1]
        names = flat[block] = list(os.path.commonprefix([flat.get(block, names), names]))
        self.names.hold(block, kind, self.several(of.root, ".".join(names), "several in one block"))

    def place_of(self, module: Any) -> tuple[int, str]:
        """The root that the module belongs to, and its name there."""
        path = self.names.naming.paths[self.names.naming.known(module)]
        return path.root, path.name

    # --- optimizers

    def gradients(self, optimizer: Any) -> None:
        """Gradients that were not accumulated, such as buckets of DistributedDataParallel, and parameters that belong to no module."""
        for at, group in enumerate(optimizer.param_groups):
            parameters = group["params"]
            if type(parameters) is list and not self.names.lacks_gradients(parameters):
                continue
            for number, parameter in enumerate(parameters):
                holder = self.parameter_of(optimizer, at, number, parameter)
                gradient = parameter.grad
                if gradient is not None:
                    self.tensor(gradient, GRADIENTS, holder)

    def parameter_of(self, optimizer: Any, group: int, number: int, parameter: Any) -> int:
        """The number of the parameter's name. One of no module gets a name here: of no module that was called, as in a function that is compiled, nor
        of any other."""
        holder: int = self.names.number_of(parameter)
        if holder < 0 and self.searches < SEARCHES_MAX and optimizer not in self.searched:
            self.searches += 1
            self.searched.add(optimizer)
            self.modules_that_were_not_called()
            holder = self.names.number_of(parameter)
        if holder >= 0:
            self.names.name(parameter, holder)  # the program may have removed our hook with its own
        else:
            holder = self.holder(-1, f"parameter {number} of {type(optimizer).__name__}" + (f", group {group}" if group else ""), parameter)
            if parameter.requires_grad:
                self.tensor(parameter, PARAMETERS, holder)
            self.names.name(parameter, holder)
        return holder

    def optimizer(self, optimizer: Any) -> None:
        if not self.names.lacks_state(optimizer.state):
            return
        for parameter, state in optimizer.state.items():
            of = parameter if isinstance(parameter, self.torch.Tensor) else None
            self.state(state, 3, -1 if of is None else self.names.number_of(of), "", of)

    def state(self, state: Any, depth: int, of: int, name: str, parameter: Any) -> None:
        """Tensors in nested dictionaries and lists, as in L-BFGS, which keeps the state of all parameters at the first: a larger tensor than the
        parameter is not of that alone."""
        if not isinstance(state, (dict, list, tuple)):
            return
        for key, value in list(state.items()) if isinstance(state, dict) else enumerate(state):
            inner = join(name, str(key)[:60])
            if isinstance(value, self.torch.Tensor):
                is_of_more = parameter is not None and value.numel() > parameter.numel()
                self.tensor(value, OPTIMIZER, self.holder(-1, inner, value, -1 if is_of_more else of))
            elif depth and isinstance(value, (dict, list, tuple)):
                self.state(value, depth - 1, of, inner, parameter)
