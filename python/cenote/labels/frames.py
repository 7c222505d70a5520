"""What the Python frames of a thread say that PyTorch is doing there: calling a module, computing gradients, stepping an optimizer.

Frames are looked at and not kept. Knows PyTorch's functions by their code; one that a version of PyTorch does not have is never found.
"""
from types import CodeType, FrameType, ModuleType
from typing import Any, Optional


def code_of(function: Any) -> Optional[CodeType]:
    return getattr(function, "__code__", None)


class Frames:
    def __init__(self, torch: ModuleType) -> None:
        self.call = code_of(getattr(torch.nn.Module, "_call_impl", None))
        self.engine = code_of(getattr(torch.autograd.graph, "_engine_run_backward", None))
        wrap = code_of(getattr(torch.optim.Optimizer, "profile_hook_step", None))
        inner = [part for part in wrap.co_consts if isinstance(part, CodeType)] if wrap else []
        self.step = inner[0] if inner else None  # what PyTorch puts around the step of every optimizer

    @staticmethod
    def has(frame: Optional[FrameType], code: Optional[CodeType]) -> bool:
        """The code is at work in the frame or in one that called it."""
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None

    def outermost_module(self, frame: Optional[FrameType]) -> Any:
        """The module whose call led to the frame, and that no other module called; None: no module did."""
        found = None
        while frame is not None:
            if frame.f_code is self.call:
                found = frame
            frame = frame.f_back
        return None if found is None else found.f_locals.get("self")
