"""torch.autocast to bfloat16 around each call of a model: what matrix products and convolutions make, and keep, is half as large."""
from typing import Any, Callable

from cenote.remedies.remedy import ROUNDED, Remedy


class Autocast(Remedy):
    name = "autocast"
    title = "autocast to bfloat16"
    numerics = ROUNDED
    not_with = ("bfloat16",)
    lines = {"": 'with torch.autocast("cuda", torch.bfloat16): output = model(x)', "transformers": "TrainingArguments(bf16=True)",
             "lightning": 'Trainer(precision="bf16-mixed")'}

    def is_called(self, model: Any, is_training: bool) -> None:
        if self.torch.is_autocast_enabled("cuda"):
            self.refuse("the program uses autocast already")
        elif any(parameter.dtype is self.torch.float32 for parameter in model.parameters()):
            self.found()
        elif self.why_not == self.nothing_seen:
            self.why_not = "the model has no float32 weights"

    def around(self, call: Callable[..., Any], module: Any, is_outermost: bool) -> Callable[..., Any]:
        if not is_outermost or self.torch.is_autocast_enabled("cuda"):
            return call

        def cast(*args: Any, **kwargs: Any) -> Any:
            with self.torch.autocast("cuda", self.torch.bfloat16):
                return call(*args, **kwargs)
        return cast
