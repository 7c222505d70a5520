"""Fewer activations on the GPU. Checkpointing: of each repeated block only its inputs are kept, and backward computes the rest again. Offloading:
what forward keeps for backward lies in the host's memory meanwhile."""
import functools
import weakref
from typing import Any, Callable, Iterator

from cenote.remedies.remedy import Remedy
from cenote.torch import patches

CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")
BY_LIBRARY = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # of models of Transformers; the first one that is there
INSIDE = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")  # what torch.utils.checkpoint.checkpoint calls
LEAST = 2  # blocks of one class in a row


class Checkpointing(Remedy):
    name = "checkpointing"
    title = "checkpointing"
    lines = {"": "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"}
    options = {"transformers": {"gradient_checkpointing": True}}

    def starts(self) -> None:
        self.blocks: weakref.WeakSet[Any] = weakref.WeakSet()
        checkpoints: Any = self.torch.utils.checkpoint
        for owner, name in [(checkpoints, name) for name in INSIDE] + [(checkpoints.CheckpointFunction, "apply")]:
            if hasattr(owner, name):
                patches.replace("remedies", (owner, name), self.noticed)

    def noticed(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.refuse("the program checkpoints already")
            return inside(*args, **kwargs)
        return call

    def is_called(self, model: Any, is_training: bool) -> None:
        if not is_training:
            self.why_not = "no model was called in training" if self.why_not == self.nothing_seen else self.why_not
            return
        if is_compiled(model):
            self.refuse("the model is compiled, and torch.compile chooses what is kept")
            return
        library = [module for module in model.modules() if getattr(module, "supports_gradient_checkpointing", False)][:1]
        enable = next((name for name in BY_LIBRARY for module in library if hasattr(module, name)), "")
        blocks = list(repeated(model))
        if enable and not any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            self.found(f"by {type(library[0]).__name__}", f"model.{enable}()")
            if self.is_on:
                getattr(library[0], enable)()
        elif enable:
            self.refuse("the model checkpoints already")
        elif blocks:
            self.found(f"{len(blocks)} blocks {type(blocks[0]).__name__}")
            self.blocks.update(blocks if self.is_on else ())
        elif self.why_not:
            self.why_not = f"{type(model).__name__} has no list of {LEAST} or more equal blocks"

    def around(self, call: Callable[..., Any], module: Any, is_model: bool) -> Callable[..., Any]:
        if module not in self.blocks or not module.training or not self.torch.is_grad_enabled():
            return call

        def checkpointed(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self.torch.utils.checkpoint.checkpoint(functools.partial(call, module, **kwargs), *args, use_reentrant=False)
        return checkpointed


class OnHost(Remedy):
    """torch.autograd.graph.save_on_cpu(pin_memory=True), without the copies: the host's memory need not have room for them here."""

    name = "offload"
    title = "activations in the host's memory"
    nothing_seen = "no model was called in training"
    not_with = ("checkpointing", "fsdp")
    lines = {"": "with torch.autograd.graph.save_on_cpu(pin_memory=True): output = model(x)"}

    def is_called(self, model: Any, is_training: bool) -> None:
        if is_compiled(model):
            self.refuse("the model is compiled, and torch.compile chooses what is kept")
        elif is_training:
            self.found()

    def around(self, call: Callable[..., Any], module: Any, is_model: bool) -> Callable[..., Any]:
        if not is_model or not module.training or not self.torch.is_grad_enabled():
            return call

        def offloaded(*args: Any, **kwargs: Any) -> Any:
            with self.torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
                return call(*args, **kwargs)
        return offloaded

    def pack(self, tensor: Any) -> Any:
        if not tensor.is_cuda:
            return tensor
        if not tensor.is_contiguous():
            tensor.contiguous()  # as a copy to the host does
        return tensor.size(), tensor.dtype, tensor.device

    def unpack(self, packed: Any) -> Any:
        return self.torch.empty(packed[0], dtype=packed[1], device=packed[2]) if isinstance(packed, tuple) else packed


def is_compiled(model: Any) -> bool:
    return any(type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) for module in model.modules())


def repeated(module: Any) -> Iterator[Any]:
    """Blocks of a class of which a container has several. A block has parts, and parameters; blocks within blocks do not count."""
    own = list(module.children())
    blocks: list[Any] = []
    if type(module).__name__ in CONTAINERS:
        kinds = [type(child) for child in own]
        blocks = [child for child in own if kinds.count(type(child)) >= LEAST and any(child.children()) and any(True for _ in child.parameters())]
    for child in own:
        if child in blocks:
            yield child
        else:
            yield from repeated(child)
