"""FSDP: parameters, gradients and the optimizer's state divided among k GPUs, by torch's fully_shard.

The program runs as rank 0 of k, and each rank has batches as large as the program's; the other ranks are phantoms (docs/ranks.md).

What is sharded is the model, whole: also the weights of it that do not train, and those that are on the GPU before an optimizer is built. A part that
moves to the GPU alone is not taken for the model (PEFT moves each adapter): it is sharded with what it is a part of.
"""
import gc
import os
import sys
import weakref
from typing import Any, Callable

from cenote.remedies import trainers
from cenote.remedies.checkpointing import repeated
from cenote.remedies.remedy import SAME, Remedy
from cenote.torch import patches, seams


class Sharded(Remedy):
    name = "fsdp"
    title = "FSDP"
    numerics = SAME
    nothing_seen = "no model was called in training"
    worlds = (2, 4, 8)
    accelerated = ("Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy=\"transformer_based_wrap\")); "
                   "accelerate launch")
    lines = {"": "from torch.distributed.fsdp import fully_shard; fully_shard(block) for each block, then fully_shard(model), before the optimizer "
             "is built; torchrun"}

    def is_called(self, model: Any, is_training: bool) -> None:
        library = trainers.calling()
        if self.torch.distributed.is_available() and self.torch.distributed.is_initialized():
            self.refuse("the program has ranks of its own: give it more with --world")
        elif library:
            self.refuse(f"the Trainer of {library} shards by itself: give it the option, and --world 4 to this command")
        elif is_training:
            state = sys.modules.get("accelerate.state")
            self.found(line=self.accelerated if state is not None and state.is_initialized() else "")

    def begins(self) -> None:
        """A model is sharded as it is moved to the GPU, block by block, so that it is never there whole; else as an optimizer gets its parameters."""
        from torch.nn.modules.module import register_module_module_registration_hook
        self.parts: weakref.WeakSet[Any] = weakref.WeakSet()  # of modules
        register_module_module_registration_hook(lambda module, name, part: self.parts.add(part) if part is not None else None)
        trainers.set_options("accelerate", {"evaluation_mode": True})  # prepare() would wrap the shards in DistributedDataParallel, which has none
        for name in ("cuda", "to"):
            patches.replace("remedies", (self.torch.nn.Module, name), self.moved)

    def moved(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        def move(model: Any, *args: Any, **kwargs: Any) -> Any:
            device = seams.get("torch._C._nn._parse_to")(*args, **kwargs)[0] if inside.__name__ == "to" else self.torch.device("cuda")
            is_moved = device is not None and device.type == "cuda" and any(not parameter.is_cuda for parameter in model.parameters())
            if is_moved and model not in self.parts:
                self.shard(model)
            return inside(model, *args, **kwargs)
        return move

    def shard(self, model: Any) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard
        distributed: Any = self.torch.distributed
        if not distributed.is_initialized():
            self.torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            distributed.init_process_group("nccl")
        for part in [*repeated(model), model]:
            if not isinstance(part, FSDPModule):
                fully_shard(part)
        for part in model.modules():  # what was added to a block once that was sharded: adapters of a model that was on the GPU before
            if not isinstance(part, FSDPModule) and any(self.is_whole(parameter) for parameter in part.parameters(recurse=False)):
                fully_shard(part)

    def is_whole(self, parameter: Any) -> bool:
        return not hasattr(parameter, "_local_tensor")

    def given(self, parameters: Any) -> Any:
        """The parameters for an optimizer: those of models that are not sharded yet are replaced by their shards."""
        if isinstance(parameters, self.torch.Tensor):
            return parameters
        groups = [dict(one, params=list(one["params"])) if isinstance(one, dict) else one for one in parameters]
        wanted = {id(one) for group in groups for one in (group["params"] if isinstance(group, dict) else [group])}
        places = {id(parameter): (module, name) for module in self.unsharded(wanted) for module in module.modules()
                  for name, parameter in module.named_parameters(recurse=False)}
        for model in self.unsharded(wanted):
            self.shard(model)

        def new(one: Any) -> Any:
            return getattr(*places[id(one)]) if id(one) in places else one
        return [{**group, "params": [new(one) for one in group["params"]]} if isinstance(group, dict) else new(group) for group in groups]

    def unsharded(self, wanted: set[int]) -> list[Any]:
        """The outermost modules that have one of these parameters, and one that is whole, be it another one."""
        modules = [one for one in gc.get_objects() if isinstance(one, self.torch.nn.Module)]
        parts = {id(part) for module in modules for part in module.children()}
        outermost = [module for module in modules if id(module) not in parts]
        return [module for module in outermost if any(id(parameter) in wanted for parameter in module.parameters())
                and any(self.is_whole(parameter) for parameter in module.parameters())]
