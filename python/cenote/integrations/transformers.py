"""Adds GPU memory to the log of the Trainer of Transformers (docs/ci.md):

    trainer = Trainer(...)
    trainer.add_callback(MemoryCallback(trainer))

The callback needs the trainer: callbacks that report to others, as to TensorBoard, run before those of the user, so a callback that added to the
log when it is called would come too late for them. So it adds where the Trainer itself logs.
"""
import functools
from typing import Any, Optional

from transformers import TrainerCallback  # type: ignore[import-untyped, unused-ignore]

from cenote.integrations.training import Memory

__all__ = ["MemoryCallback"]


class MemoryCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """While the trainer trains, each entry of its log has figures of memory, and the line that makes memory grow once that is known."""

    def __init__(self, trainer: Any) -> None:
        self.memory: Optional[Memory] = None
        inside = trainer.log

        @functools.wraps(inside)
        def log(logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if self.memory is None:
                return inside(logs, *args, **kwargs)
            told = {**self.memory.figures(), **self.memory.growth()}
            whole = {**logs, **told}
            result = inside(whole, *args, **kwargs)
            logs.update((name, value) for name, value in whole.items() if name not in told)  # evaluate() returns what log() adds, too
            return result
        trainer.log = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()
        self.memory = Memory()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()

    def end(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
