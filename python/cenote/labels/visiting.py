"""Parameters that a library brings to the GPU for a while: accelerate those that it keeps on the host, FSDP2 those that it gathers (and
gradients, before it divides them).

No call of the outermost module ends while such a parameter is there, so each gets its name as it comes: the methods that bring them are wrapped, once
their modules are imported. `look` is called before each call of an outermost module.
"""
import sys
from types import ModuleType
from typing import Any, Callable, NamedTuple

from cenote.labels.marker import GRADIENTS, PARAMETERS, Marker
from cenote.labels.naming import join
from cenote.torch import features, patches

Named = Callable[[Marker, tuple[Any, ...]], None]  # names what has come; gets the arguments of the method


class Method(NamedTuple):
    module: str
    owner: str
    name: str
    named: Named


def align(marker: Marker, arguments: tuple[Any, ...]) -> None:
    marker.was_called(arguments[1])


def buffer(marker: Marker, group: Any, tensor: Any, kind: int, word: str) -> None:
    """What ranks send each other: of several parameters of a module."""
    if tensor is not None and group.modules:
        marker.tensor(tensor, kind, marker.several(*marker.place_of(group.modules[0]), word))


def gather(marker: Marker, arguments: tuple[Any, ...]) -> None:
    buffer(marker, arguments[0], getattr(arguments[0]._all_gather_result, "all_gather_output", None), PARAMETERS, "gathered")


def reduce(marker: Marker, arguments: tuple[Any, ...]) -> None:
    for state in arguments[0].comm_ctx.reduce_scatter_states[-1:]:
        buffer(marker, arguments[0], state.reduce_scatter_input, GRADIENTS, "to be reduced")


def unshard(marker: Marker, arguments: tuple[Any, ...]) -> None:
    for each in arguments[0].fsdp_params:
        parameter, info = getattr(each, "_unsharded_param", None), each._module_info
        if parameter is not None:
            root, name = marker.place_of(info.module)
            holder = marker.holder(root, join(name, info.param_name), parameter)
            marker.tensor(parameter, PARAMETERS, holder)
            if parameter.requires_grad:
                marker.names.name(parameter, holder)


GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
METHODS = (
    Method("accelerate.hooks", "AlignDevicesHook", "pre_forward", align),
    Method("accelerate.hooks", "CpuOffload", "pre_forward", align),
    Method(GROUP, "FSDPParamGroup", "unshard", gather),
    Method(GROUP, "FSDPParamGroup", "wait_for_unshard", unshard),
    Method(GROUP, "FSDPParamGroup", "post_backward", reduce),
)


class Visiting:
    """The methods that are wrapped."""

    def __init__(self, marker: Marker, is_compiling: Callable[[], bool]) -> None:
        self.marker, self.is_compiling = marker, is_compiling
        self.waiting = list(METHODS)
        self.undo: list[Callable[[], None]] = []

    def look(self) -> None:
        for method in [method for method in self.waiting if method.module in sys.modules]:
            self.waiting.remove(method)
            if method.module != GROUP or features.is_whole("gathered"):
                self.wrap(sys.modules[method.module], method)

    def wrap(self, module: ModuleType, method: Method) -> None:
        owner = getattr(module, method.owner, None)
        if not hasattr(owner, method.name):
            return

        def naming(inside: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = inside(*args, **kwargs)
                if not self.is_compiling():
                    try:
                        method.named(self.marker, args)
                    except (AttributeError, IndexError):  # of another version of the library: its parameters go by their place
                        pass
                return result
            return call
        self.undo.append(patches.replace("gathered", (owner, method.name), naming))

    def stop(self) -> None:
        while self.undo:
            self.undo.pop()()
        self.waiting = []
