"""Smaller types of numbers: matrix products and convolutions in bfloat16, by torch.autocast, or all of a model in bfloat16."""
import functools
from typing import Any, Callable

from cenote.remedies import trainers
from cenote.remedies.remedy import ROUNDED, Remedy
from cenote.torch import patches

DEPTH = 4  # of lists and dictionaries in the arguments of a model


def disabled(inside: Callable[..., Any]) -> Callable[..., Any]:
    def init(made: Any, *args: Any, **kwargs: Any) -> None:
        inside(made, *args, **kwargs)
        made._enabled = False
    return init


class Smaller(Remedy):
    """The base class: for models with weights in float32. `cast` is a call of such a model."""

    numerics = ROUNDED

    def starts(self) -> None:
        def noticed(context: Any) -> None:
            if context.device == "cuda" and context._enabled and not self.is_on:
                self.has_autocast()
        patches.around("remedies", "torch.autocast.__enter__", noticed, patches.nothing)

    def has_autocast(self) -> None:
        """The program uses autocast itself."""

    def is_called(self, model: Any, is_training: bool) -> None:
        if any(parameter.dtype is self.torch.float32 for parameter in model.parameters()):
            self.found()
        elif self.why_not == self.nothing_seen:
            self.why_not = "the model has no float32 weights"

    def around(self, call: Callable[..., Any], module: Any, is_model: bool) -> Callable[..., Any]:
        return functools.partial(self.cast, call) if is_model else call

    def cast(self, call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Autocast(Smaller):
    """What matrix products and convolutions make, and keep, is half as large."""

    name = "autocast"
    title = "autocast to bfloat16"
    not_with = ("bfloat16",)
    lines = {"": 'with torch.autocast("cuda", torch.bfloat16): output = model(x)'}
    options = {"transformers": {"bf16": True}, "lightning": {"precision": "bf16-mixed"}}

    def has_autocast(self) -> None:
        self.refuse("the program uses autocast already")

    def cast(self, call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        with self.torch.autocast("cuda", self.torch.bfloat16):
            return call(model, *args, **kwargs)


class HalfWeights(Smaller):
    """Weights, gradients, states of the optimizer and activations."""

    name = "bfloat16"
    title = "weights and all in bfloat16"
    not_with = ("autocast",)
    lines = {"": "model.to(torch.bfloat16) before the optimizer is built; cast inputs that are floating point, not token ids",
             "transformers": "model.to(torch.bfloat16), without bf16=True or fp16=True"}
    options = {"lightning": {"precision": "bf16-true"}}
    without = ""  # what the program uses beside, and the remedy switches off

    def has_autocast(self) -> None:
        self.without = "; without autocast and GradScaler"

    def report(self) -> dict[str, Any]:
        found = super().report()
        return {**found, "line": found["line"] + self.without} if found["line"] == self.lines[""] else found

    def begins(self) -> None:
        """A parameter becomes bfloat16 as a module gets it, so that it is never there in both types for long."""
        trainers.set_options("transformers", {"bf16": False, "fp16": False})
        for kind in (self.torch.autocast, self.torch.amp.GradScaler):
            patches.replace("remedies", (kind, "__init__"), disabled)
        single, half = self.torch.float32, self.torch.bfloat16

        def halve(module: Any, name: str, parameter: Any = None) -> None:
            if isinstance(parameter, self.torch.nn.Parameter) and parameter.dtype is single and not parameter.is_meta:
                with self.torch.no_grad():
                    parameter.data = parameter.data.to(half)
        patches.around("remedies", "torch.nn.Module.register_parameter", halve, patches.nothing)

    def is_called(self, model: Any, is_training: bool) -> None:
        super().is_called(model, is_training)
        if self.is_on:
            model.to(self.torch.bfloat16)

    def cast(self, call: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        return call(model, *self.halved(args), **self.halved(kwargs))

    def halved(self, value: Any, depth: int = DEPTH) -> Any:
        """With tensors of float32 in bfloat16."""
        if isinstance(value, self.torch.Tensor):
            return value.to(self.torch.bfloat16) if value.dtype is self.torch.float32 else value
        if depth and type(value) in (list, tuple):
            return type(value)(self.halved(part, depth - 1) for part in value)
        if depth and type(value) is dict:
            return {key: self.halved(part, depth - 1) for key, part in value.items()}
        return value
