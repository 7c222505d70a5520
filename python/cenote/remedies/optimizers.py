"""Remedies that another way to step gives: a fused step, states of 8 bits, steps within backward, and gradients that are freed after the step."""
import functools
import inspect
import weakref
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

from cenote.remedies.remedy import ROUNDED, SAME, Remedy
from cenote.torch import patches

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # of torch.optim: those that have a fused step for CUDA


def class_of(torch: Any, optimizer: Any) -> str:
    """The name of its class if that is one of PyTorch's own, else nothing: of others it is not known how they step."""
    kind: Any = getattr(type(optimizer), "cenote_stands_for", type(optimizer))
    name = str(kind.__name__)
    return name if getattr(torch.optim, name, None) is kind else ""


def parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


class OfOptimizer(Remedy):
    """The base class of those that change how an optimizer is built: `look` at one that steps, in a run that changes nothing."""

    nothing_seen = "no optimizer stepped"

    def steps(self, optimizer: Any) -> None:
        if not self.is_on:
            self.look(optimizer, class_of(self.torch, optimizer))

    def look(self, optimizer: Any, name: str) -> None:
        raise NotImplementedError


class Fused(OfOptimizer):
    """The default step of Adam and others is foreach: it makes copies of all parameters of a group at one time."""

    name = "fused"
    title = "fused step of the optimizer"
    numerics = SAME
    not_with = ("8bit", "in-backward")
    options = {"transformers": {"optim": "adamw_torch_fused"}}

    def look(self, optimizer: Any, name: str) -> None:
        if optimizer.defaults.get("fused"):
            self.refuse("the optimizer is fused already")
        elif optimizer.defaults.get("foreach") is False:
            self.refuse("the optimizer steps without foreach already")
        elif name and "foreach" in optimizer.defaults and not optimizer.defaults.get("differentiable"):
            (option, value), = self.setting_of(optimizer, name).items()
            self.found("" if option == "fused" else f"{option}={value}", f"{name}(..., {option}={value})", has_option=name == "AdamW")
        elif self.why_not:
            self.why_not = f"of {type(optimizer).__name__} no other way to step is known"

    def setting_of(self, optimizer: Any, name: str) -> dict[str, bool]:
        return {"fused": True} if name in FUSED and "fused" in optimizer.defaults else {"foreach": False}

    def is_built(self, optimizer: Any) -> None:
        name = class_of(self.torch, optimizer)
        if self.is_on and name and "foreach" in optimizer.defaults:
            setting = self.setting_of(optimizer, name)
            for options in (optimizer.defaults, *optimizer.param_groups):
                options.update({"foreach": False, **setting})
            optimizer._step_supports_amp_scaling = "fused" in setting  # as its own __init__ does


class EightBit(OfOptimizer):
    """Adam's two states in a byte each, with a float32 scale for each 256 of them: Adam8bit and AdamW8bit of bitsandbytes 0.50.2, as its
    bitsandbytes/optim/optimizer.py makes them (Optimizer2State.init_state, fill_qmap). Its kernels update in place; here nothing is computed."""

    name = "8bit"
    title = "Adam with states of 8 bits, modelled on bitsandbytes"
    numerics = ROUNDED
    not_with = ("fused", "fsdp")  # bitsandbytes knows no DTensor
    lines = {"transformers": 'TrainingArguments(optim="adamw_bnb_8bit")'}
    BLOCK, LEAST, MAP = 256, 4096, 256  # numbers with one scale; a tensor with fewer than LEAST has states of float32; what a byte can stand for

    def look(self, optimizer: Any, name: str) -> None:
        if name not in ("Adam", "AdamW"):
            self.why_not = f"the optimizer is {type(optimizer).__name__}, and no Adam or AdamW of torch.optim" if self.why_not else ""
        elif optimizer.defaults.get("amsgrad"):
            self.refuse("the optimizer has amsgrad=True, which bitsandbytes has not for states of 8 bits")
        else:
            self.found("", f"bitsandbytes.optim.{name}8bit(...)")

    def builds(self, optimizer: Any) -> None:
        if self.is_on and class_of(self.torch, optimizer) in ("Adam", "AdamW"):
            optimizer.__class__ = stepping(self.torch, type(optimizer), self.keep)

    def keep(self, optimizer: Any, parameter: Any) -> None:
        if not optimizer.state[parameter]:
            optimizer.state[parameter].update(self.new_state(optimizer, parameter))
        optimizer.state[parameter]["step"] += 1

    def new_state(self, optimizer: Any, parameter: Any) -> dict[str, Any]:
        torch = self.torch
        count = getattr(parameter, "_local_tensor", parameter).numel()
        if count < self.LEAST:
            return {"step": 0, **{name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}}
        maps = optimizer.__dict__.setdefault("maps_of_bytes", {})
        device = parameter.device
        maps.setdefault(device, tuple(torch.zeros(self.MAP, device=device) for _ in range(2)))
        scales = -(-count // self.BLOCK)
        state = {"step": 0, "qmap1": maps[device][0], "qmap2": maps[device][1]}
        for number in "12":
            state[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            state[f"absmax{number}"] = torch.zeros(scales, device=device)
        return state


class OptimizerOnHost(OfOptimizer):
    """The optimizer has copies of the parameters in the host's memory, and its state is of these: gradients are copied there, it steps there, and
    the parameters are copied back. The GPU keeps parameters and gradients. Nothing is copied here."""

    name = "optimizer-offload"
    title = "optimizer in the host's memory"
    numerics = SAME
    not_with = ("fused", "8bit", "in-backward", "fsdp")

    def look(self, optimizer: Any, name: str) -> None:
        tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, self.torch.Tensor)]
        if name in ("", "LBFGS"):
            self.refuse(f"of {type(optimizer).__name__} it is not known that it steps each parameter by itself")
        elif any(tensor.is_cuda and tensor.numel() > 1 for tensor in tensors):
            self.found("", f"torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.{name})")
        elif self.why_not:
            self.why_not = "the optimizer has no state on the GPU"

    def builds(self, optimizer: Any) -> None:
        if self.is_on and class_of(self.torch, optimizer) not in ("", "LBFGS"):
            optimizer.__class__ = stepping(self.torch, type(optimizer), lambda optimizer, parameter: None)


def stepping(torch: Any, kind: Any, keep: Callable[[Any, Any], None]) -> Any:
    """The class that steps in place of this one: it writes to each parameter, after `keep` has had it, and makes no other tensor."""
    def step(self: Any, closure: Optional[Callable[[], Any]] = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for parameter in parameters_of(self):
                if parameter.grad is not None:
                    keep(self, parameter)
                    parameter.mul_(1)  # in place, as the kernel
        return loss
    return type(kind.__name__, (kind,), {"step": step, "cenote_stands_for": kind, "__module__": kind.__module__})


class InBackward(Remedy):
    """Each parameter is stepped as soon as backward has its gradient, which is freed then."""

    name = "in-backward"
    title = "step in backward"
    numerics = SAME
    nothing_seen = "no optimizer stepped"
    not_with = ("fused", "freed-gradients")
    lines = {"": "parameter.register_post_accumulate_grad_hook(lambda p: (optimizers[p].step(), optimizers[p].zero_grad())), one optimizer for each"}

    def starts(self) -> None:
        self.counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # gradients of an optimizer's first parameter since its step
        for owner in ("torch.nn.utils", "torch.nn.utils.clip_grad"):
            self.refuse_at(f"{owner}.clip_grad_norm_", "the program clips the norm of all gradients together")
            self.refuse_at(f"{owner}.clip_grad_value_", "the program clips gradients between backward and the step")
        for name in ("torch.amp.GradScaler.unscale_", "torch.amp.GradScaler.step"):
            self.refuse_at(name, "GradScaler looks at all gradients before the step", lambda scaler, *args: bool(scaler.is_enabled()))

    def refuse_at(self, name: str, why: str, if_so: Callable[..., bool] = lambda *args: True) -> None:
        patches.around("remedies", name, lambda *args: self.refuse(why) if if_so(*args) else None, patches.nothing)

    def is_built(self, optimizer: Any) -> None:
        parameters = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
        if not self.is_on:
            for parameter in parameters[:1]:
                parameter.register_post_accumulate_grad_hook(functools.partial(self.count, weakref.ref(optimizer)))
        elif class_of(self.torch, optimizer) not in ("", "LBFGS"):
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(functools.partial(self.step, weakref.ref(optimizer)))

    def count(self, optimizer: Any, parameter: Any) -> None:
        if optimizer() is not None:
            self.counts[optimizer()] = self.counts.get(optimizer(), 0) + 1

    def steps(self, optimizer: Any) -> None:
        if self.is_on:
            return
        count = self.counts.pop(optimizer, 0)
        if class_of(self.torch, optimizer) in ("", "LBFGS"):
            self.refuse(f"of {type(optimizer).__name__} it is not known that it steps each parameter by itself")
        elif count > 1:
            self.refuse(f"gradients are summed over {count} calls of backward")
        else:
            self.found()

    def step(self, reference: Any, parameter: Any) -> None:
        optimizer = reference()
        if optimizer is None:
            return
        groups = optimizer.param_groups
        own = next((group for group in groups if any(one is parameter for one in group["params"])), None)
        if own is None:
            return
        optimizer.param_groups = [{**own, "params": [parameter]}]
        try:
            with self.torch.no_grad():
                inspect.unwrap(type(optimizer).step)(optimizer)  # without the hooks of a step: it is a part of one
        finally:
            optimizer.param_groups = groups
        parameter.grad = None


class FreedGradients(Remedy):
    """Gradients live from one step into the next forward if the program sets them to zero in place, or frees them later than it could."""

    name = "freed-gradients"
    title = "gradients freed after the step"
    numerics = SAME
    nothing_seen = "no optimizer stepped"
    lines = {"": "optimizer.zero_grad() right after optimizer.step(), and without set_to_none=False"}

    def __init__(self, torch: ModuleType) -> None:
        super().__init__(torch)
        self.stepped: Optional[weakref.ref[Any]] = None  # an optimizer, until the next model is called

    def has_stepped(self, optimizer: Any) -> None:
        if self.is_on:
            for parameter in parameters_of(optimizer):
                parameter.grad = None
        elif self.why_not:
            self.stepped, self.why_not = weakref.ref(optimizer), "no gradient lives from one step into the next forward"

    def calls(self, model: Any, is_training: bool) -> None:
        optimizer = self.stepped() if self.stepped is not None and is_training else None
        if optimizer is not None:
            self.stepped = None
            if any(parameter.grad is not None for parameter in parameters_of(optimizer)):
                self.found()
