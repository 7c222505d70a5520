"""Tells from the Python frames of a thread what PyTorch is doing there: calling a module, computing gradients, stepping an optimizer.

No frame is kept. PyTorch's functions are known by their code objects; if a version of PyTorch lacks one, it is never found.
"""
from types import CodeType, FrameType, ModuleType
from typing import Any, Optional

from cenote.torch import seams


def code_of(function: Any) -> Optional[CodeType]:
    return getattr(function, "__code__", None)


class Frames:
    def __init__(self, torch: ModuleType) -> None:
        self.call = code_of(seams.find("torch.nn.Module._call_impl"))
        self.engine = code_of(seams.find("torch.autograd.graph._engine_run_backward"))
        wrap = code_of(getattr(torch.optim.Optimizer, "profile_hook_step", None))
        inner = [part for part in wrap.co_consts if isinstance(part, CodeType)] if wrap else []
        self.step = inner[0] if inner else None  # PyTorch's wrapper around the step of every optimizer

    @staticmethod
    def has(frame: Optional[FrameType], code: Optional[CodeType]) -> bool:
        """Whether the frame, or one of its callers, runs the code."""
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None

    def outermost_module(self, frame: Optional[FrameType]) -> Any:
        """The outermost module whose call led to the frame; None if no module's did."""
        found = None
        while frame is not None:
            if frame.f_code is self.call:
                found = frame
            frame = frame.f_back
        return None if found is None else found.f_locals.get("self")
