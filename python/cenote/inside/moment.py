"""Describes the moment of an allocation for cenote_pool_explain: the phase, whether operations keep history, the bytes of gradients.

libcenote calls `look` on the thread that ran out of memory or calls cenote_pool_explain; that may be a thread of autograd. ctypes takes Python's lock
for the call. `look` reads frames and flags; it imports nothing, allocates no memory on a GPU and raises nothing. A field that it cannot fill keeps
libcenote's value. `stop` removes it before Python ends.
"""
import atexit
import ctypes
import sys
import threading
from types import FrameType, ModuleType
from typing import Any, Optional

from cenote.labels.frames import Frames
from cenote.labels.hooks import BACKWARD, EVALUATION, FORWARD, NONE, OPTIMIZER
from cenote.native import bindings
from cenote.native.bindings import MomentStruct

THREAD = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]  # the outermost frame of a thread that Python started
_kept: list[Any] = []  # the function, kept alive as long as libcenote may call it


class Moment:
    def __init__(self, torch: ModuleType) -> None:
        self.frames = Frames(torch)
        self.is_grad_enabled = torch.is_grad_enabled
        self.frame_of = sys._getframe
        self.frames_of_all = sys._current_frames

    def look(self, pool: Any, moment: Any, argument: Any) -> None:
        try:
            self.fill(moment.contents)
        except BaseException:  # the caller is C, and cannot handle it
            pass

    def fill(self, moment: MomentStruct) -> None:
        frame = self.frame_of(2)  # the frame that called into PyTorch; None on a thread of autograd
        module = self.frames.outermost_module(frame)
        keeps = self.is_grad_enabled()
        moment.keeps_history = keeps
        if moment.phase == NONE:
            moment.phase = self.phase(frame, module, keeps)
        if not moment.gradients and module is not None:
            moment.gradients = gradients(module)

    def phase(self, frame: Optional[FrameType], module: Any, keeps: bool) -> int:
        if self.frames.has(frame, self.frames.engine) or (self.is_not_pythons(frame) and self.is_backward_going_on()):
            return BACKWARD
        if module is not None:
            return FORWARD if keeps and module.training else EVALUATION
        return OPTIMIZER if self.frames.has(frame, self.frames.step) else NONE

    @staticmethod
    def is_not_pythons(frame: Optional[FrameType]) -> bool:
        """Whether Python did not start this thread, as one of autograd. It may still run Python functions."""
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        return frame is None or (frame.f_code is not THREAD and threading.get_ident() != threading.main_thread().ident)

    def is_backward_going_on(self) -> bool:
        return any(self.frames.has(frame, self.frames.engine) for frame in self.frames_of_all().values())


def gradients(module: Any) -> int:
    """Bytes of the gradients of the module's parameters; gradients that share memory count once."""
    found: dict[int, int] = {}
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.is_cuda:
            memory = gradient.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
    return sum(found.values())


def entry(adapter: ctypes.CDLL) -> Any:
    """The adapter's function, which leaves the adapter's gate before it asks for Python's lock; without the adapter, libcenote's own."""
    on_moment: Any = getattr(adapter, "cenote_torch_on_moment", None) or bindings.function("cenote_on_moment")
    on_moment.restype, on_moment.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return on_moment


def watch(torch: ModuleType, adapter: ctypes.CDLL) -> None:
    """Makes libcenote call `look` from now on until Python ends."""
    if _kept:
        return
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(MomentStruct), ctypes.c_void_p)(Moment(torch).look)
    on_moment = entry(adapter)
    on_moment(function, None, ctypes.sizeof(MomentStruct))
    _kept.extend((function, on_moment))
    atexit.register(stop)


def stop() -> None:
    if _kept:
        _kept[1](None, None, ctypes.sizeof(MomentStruct))
