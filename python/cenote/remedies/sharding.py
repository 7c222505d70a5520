"""FSDP: parameters, gradients and the optimizer's state divided among k GPUs, by torch's fully_shard.

The program runs as rank 0 of k, and each rank has batches as large as the program's; the other ranks are phantoms (docs/ranks.md).

What is sharded is the model, whole: also the weights of it that do not train, and those that are on the GPU before an optimizer is built. A part that
moves to the GPU alone is not taken for the model (PEFT moves each adapter): it is sharded with what it is a part of.

    on the host ---- moved to the GPU ----> without memory ---- the optimizer gets its parameters, or it is called ----> sharded

A model that moves to the GPU is not complete yet: it may get adapters, which by hand are sharded with their block. Until it is sharded, its
parameters say that they are on the GPU, and have no memory there.
"""
import gc
import os
import sys
import weakref
from types import ModuleType
from typing import Any, Callable

from cenote.base import awaited
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
        if self.is_on and any(map(self.is_empty, model.parameters())):
            self.shard(model)
        library = trainers.calling()
        if self.torch.distributed.is_available() and self.torch.distributed.is_initialized():
            self.refuse("the program has ranks of its own: give it more with --world")
        elif library:
            self.refuse(f"the Trainer of {library} shards by itself: give it the option, and --world 4 to this command")
        elif is_training:
            state = sys.modules.get("accelerate.state")
            self.found(line=self.accelerated if state is not None and state.is_initialized() else "")

    def begins(self) -> None:
        from torch.nn.modules.module import register_module_module_registration_hook
        self.parts: weakref.WeakSet[Any] = weakref.WeakSet()  # of modules
        register_module_module_registration_hook(lambda module, name, part: self.parts.add(part) if part is not None else None)
        trainers.set_options("accelerate", {"evaluation_mode": True})  # prepare() would wrap the shards in DistributedDataParallel, which has none
        awaited.when_imported("transformers.modeling_utils", self.watch_loads)
        for name in ("cuda", "to"):
            patches.replace("remedies", (self.torch.nn.Module, name), self.moved)

    def moved(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        def move(model: Any, *args: Any, **kwargs: Any) -> Any:
            device, dtype = seams.get("torch._C._nn._parse_to")(*args, **kwargs)[:2] if inside.__name__ == "to" else (self.torch.device("cuda"), None)
            if device is not None and device.type == "cuda" and model not in self.parts:
                self.empty_out(model, dtype)
            return inside(model, *args, **kwargs)
        return move

    # from_pretrained(device_map="cuda") would put the whole model on the GPU as it reads it, and there is none to put there: its weights go to the
    # host, and from there as any other's.

    def watch_loads(self, module: ModuleType) -> None:
        self.is_loading = False
        if hasattr(module, "check_and_set_device_map"):  # Transformers 5
            patches.replace("remedies", (module, "check_and_set_device_map"), self.unmapped)
            patches.replace("remedies", (self.torch.nn.Module, "eval"), self.loaded)  # the first that is done to a model that was read

    def unmapped(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        def check(*args: Any, **kwargs: Any) -> Any:
            self.is_loading = inside(*args, **kwargs) is not None
        return check

    def loaded(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(model: Any) -> Any:
            if self.is_loading and hasattr(model, "config"):
                self.is_loading = False
                model.cuda()
            return inside(model)
        return evaluate

    def empty_out(self, model: Any, dtype: Any) -> None:
        """Its parameters are on the GPU from now on, and have no memory there."""
        self.join()
        for parameter in model.parameters():
            if parameter.device.type == "cpu":
                new = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
                parameter.data = self.torch.empty_like(parameter, dtype=new, device="cuda")
                parameter.untyped_storage().resize_(0)

    def join(self) -> None:
        distributed: Any = self.torch.distributed
        if not distributed.is_initialized():
            self.torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            distributed.init_process_group("nccl")

    def shard(self, model: Any) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard
        self.join()
        for part in [*repeated(model), model]:
            if not isinstance(part, FSDPModule):
                for parameter in part.parameters():
                    if self.is_empty(parameter):
                        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
                fully_shard(part)
        for part in model.modules():  # what was added to a block once that was sharded
            if not isinstance(part, FSDPModule) and any(self.is_whole(parameter) for parameter in part.parameters(recurse=False)):
                fully_shard(part)

    def is_whole(self, parameter: Any) -> bool:
        return not hasattr(parameter, "_local_tensor")

    def is_empty(self, parameter: Any) -> bool:
        return self.is_whole(parameter) and parameter.is_cuda and parameter.numel() > 0 and not parameter.untyped_storage().nbytes()

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
