"""Phases and kinds: what PyTorch is doing, and what its memory turns out to be. Off unless `cenote.label()` or CENOTE_LABELS=on asks for it.

While it is on, the call of nn.Module, the entry of autograd's engine and the steps of optimizers are wrapped. Phases belong to the process, since
autograd computes on threads of its own; of modules the outermost that a thread calls decides, and what that calls is a part of it. After such a
call in training the forward phase lasts until backward begins: that is where losses are computed. marking.py marks what a module has after each
such call, gradients when they are accumulated, an optimizer's state after its step.

The class is wrapped, and not each module hooked: PyTorch's hooks on all modules take every call off its fast road, and do not hear of a
KeyboardInterrupt. Of what is compiled the wrappers are no part: they do nothing there, and the call from outside is the one that counts.

States: off <-> on; off, everything is as it was. LOCKING: the lock guards which phases are going on; it is not held when anything of PyTorch's runs.
"""
import sys
import threading
from types import ModuleType
from typing import Any, Callable, Optional

from cenote import bindings
from cenote.marking import Marker

VARIABLE = "CENOTE_LABELS"
NONE, FORWARD, BACKWARD, OPTIMIZER, EVALUATION = range(5)  # a test compares them with phases.def

Undo = Callable[[], None]


class Doing:
    """A phase that a thread is in."""

    __slots__ = ("phase", "optimizer", "thread")

    def __init__(self, phase: int, optimizer: int = 0) -> None:
        self.phase = phase
        self.optimizer = optimizer  # its id, 0: none
        self.thread = threading.get_ident()


class Phases:
    """What is going on, in all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.doing: list[Doing] = []  # in order of their beginning
        self.lasts = False  # forward, from the end of the outermost call until backward
        self.set = bindings.function("cenote_phase_set")

    def settle(self) -> None:
        """What is computed again for backward is a part of backward. LOCKING: the lock."""
        phases = [doing.phase for doing in self.doing]
        self.set(BACKWARD if BACKWARD in phases else phases[-1] if phases else FORWARD if self.lasts else NONE)

    def begin(self, phase: int, optimizer: int = 0) -> Doing:
        doing = Doing(phase, optimizer)
        with self.lock:
            self.lasts = self.lasts and phase == FORWARD
            self.doing.append(doing)
            self.settle()
        return doing

    def end(self, doing: Doing, lasts: bool = False) -> None:
        with self.lock:
            if doing in self.doing:
                self.doing.remove(doing)
            self.lasts = lasts
            self.settle()

    def end_optimizer(self, optimizer: int) -> None:
        for doing in [doing for doing in self.doing if doing.optimizer == optimizer]:
            self.end(doing)

    def end_broken_steps(self) -> None:
        """Of a step that was ended by an exception nobody hears: it is over if this thread is not in one."""
        here = threading.get_ident()
        mine = [doing for doing in self.doing if doing.optimizer and doing.thread == here]
        if mine and not is_in_a_step():
            for doing in mine:
                self.end(doing)


def is_in_a_step() -> bool:
    """PyTorch's wrapper around the steps of all optimizers is on the stack."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_qualname_ != STEP if hasattr(frame, "co_qualname_") else frame is not None:
        frame = frame.f_back
    return frame is not None
