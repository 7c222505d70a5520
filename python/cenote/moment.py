"""What Python knows of the moment at which libcenote explains something: which phase this is, whether operations keep history, which gradients are held.

libcenote calls `look` on the thread that ran out of memory, or that asks: one of the program's or of autograd's, with or without Python's lock,
which ctypes takes. It looks at frames and flags; it imports nothing, takes no memory of a GPU and raises nothing: what it cannot find out stays as
libcenote has it. When Python ends it is taken away.
"""
import atexit
import ctypes
import sys
from types import FrameType, ModuleType
from typing import Any, Optional

from cenote import bindings
from cenote.bindings import MomentStruct
from cenote.frames import Frames
from cenote.hooks import BACKWARD, EVALUATION, FORWARD, NONE, OPTIMIZER

_kept: list[Any] = []  # the function that libcenote has, as long as it may call it


class Moment:
    def __init__(self, torch: ModuleType) -> None:
        self.frames = Frames(torch)
        self.is_grad_enabled = torch.is_grad_enabled
        self.frame_of = sys._getframe
        self.frames_of_all = sys._current_frames

    def look(self, pool: Any, moment: Any, argument: Any) -> None:
        try:
            self.fill(moment.contents)
        except BaseException:  # there is nobody to tell
            pass

    def fill(self, moment: MomentStruct) -> None:
        if moment.struct_size < ctypes.sizeof(MomentStruct):
            return
        frame = self.frame_of(2)  # who called into PyTorch; None on a thread of autograd's
        module = self.frames.outermost_module(frame)
        keeps = self.is_grad_enabled()
        moment.keeps_history = keeps
        if moment.phase == NONE:
            moment.phase = self.phase(frame, module, keeps)
        if not moment.gradients and module is not None:
            moment.gradients = gradients(module)

    def phase(self, frame: Optional[FrameType], module: Any, keeps: bool) -> int:
        if self.frames.has(frame, self.frames.engine) or (frame is None and self.is_backward_going_on()):
            return BACKWARD
        if module is not None:
            return FORWARD if keeps and module.training else EVALUATION
        return OPTIMIZER if self.frames.has(frame, self.frames.step) else NONE

    def is_backward_going_on(self) -> bool:
        return any(self.frames.has(frame, self.frames.engine) for frame in self.frames_of_all().values())


def gradients(module: Any) -> int:
    """Bytes of the gradients that its parameters hold, each memory once."""
    found: dict[int, int] = {}
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.is_cuda:
            memory = gradient.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
    return sum(found.values())


def watch(torch: ModuleType) -> None:
    """Has libcenote ask, from now on until Python ends."""
    if _kept:
        return
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(MomentStruct), ctypes.c_void_p)(Moment(torch).look)
    bindings.call("cenote_on_moment", function, None)
    _kept.append(function)
    atexit.register(stop)


def stop() -> None:
    if _kept:
        bindings.function("cenote_on_moment")(None, None)
