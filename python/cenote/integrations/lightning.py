"""Adds GPU memory to the log of Lightning's Trainer (docs/ci.md):

    trainer = L.Trainer(callbacks=[MemoryCallback()])

Loggers of Lightning take numbers: the line that makes memory grow is printed.
"""
from typing import Any, Optional

import torch

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment, no-redef, import-not-found, import-untyped, unused-ignore]

from cenote.integrations.training import Memory

__all__ = ["MemoryCallback"]


class MemoryCallback(Callback):
    """Logs figures of memory after each batch, as a module does by `log_dict`."""

    def __init__(self) -> None:
        self.memory: Optional[Memory] = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.end()
        self.memory = Memory()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.memory is not None:  # as tensors of the host: the log would put numbers on the GPU
            pl_module.log_dict({name: torch.tensor(value) for name, value in self.memory.figures().items()}, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.end()

    def end(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
