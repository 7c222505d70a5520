"""Weights, gradients, states of the optimizer and activations in bfloat16."""
import functools
from typing import Any, Callable

from cenote.labels.hooks import replace
from cenote.remedies.remedy import ROUNDED, Remedy

DEPTH = 4  # of lists and dictionaries in the arguments of a model


class HalfWeights(Remedy):
    name = "bfloat16"
    title = "weights and all in bfloat16"
    numerics = ROUNDED
    not_with = ("autocast",)
    lines = {"": "model.to(torch.bfloat16), and its inputs", "lightning": 'Trainer(precision="bf16-true")',
             "transformers": "model.to(torch.bfloat16), without bf16=True or fp16=True"}

    def begins(self) -> None:
        """A parameter becomes bfloat16 as a module gets it, so that it is never there in both types for long."""
        register, single, half = self.torch.nn.Module.register_parameter, self.torch.float32, self.torch.bfloat16

        @functools.wraps(register)
        def register_parameter(module: Any, name: str, parameter: Any) -> None:
            if isinstance(parameter, self.torch.nn.Parameter) and parameter.dtype is single and not parameter.is_meta:
                with self.torch.no_grad():
                    parameter.data = parameter.data.to(half)
            register(module, name, parameter)
        replace(self.torch.nn.Module, "register_parameter", register_parameter)

    def is_called(self, model: Any, is_training: bool) -> None:
        types = {parameter.dtype for parameter in model.parameters()}
        if self.is_on:
            model.to(self.torch.bfloat16)
            self.found()
        elif self.torch.float32 in types:
            self.found()
        elif self.why_not == self.nothing_seen:
            self.why_not = "the model has no float32 weights"

    def around(self, call: Callable[..., Any], module: Any, is_outermost: bool) -> Callable[..., Any]:
        if not is_outermost:
            return call

        def cast(module: Any, *args: Any, **kwargs: Any) -> Any:
            return call(module, *self.halved(args), **self.halved(kwargs))
        return cast

    def halved(self, value: Any, depth: int = DEPTH) -> Any:
        """With tensors of float32 in bfloat16."""
        if isinstance(value, self.torch.Tensor):
            return value.to(self.torch.bfloat16) if value.dtype is self.torch.float32 else value
        if depth and type(value) in (list, tuple):
            return type(value)(self.halved(part, depth - 1) for part in value)
        if depth and type(value) is dict:
            return {key: self.halved(part, depth - 1) for key, part in value.items()}
        return value
