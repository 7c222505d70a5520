"""Phases and kinds: tells libcenote what PyTorch is doing (phases), and what each block holds (kinds). Off unless `cenote.label()` or
CENOTE_LABELS=on switches it on.

While it is on, the call of nn.Module, the entry of autograd's engine and the steps of optimizers are wrapped. A phase is one of the whole process,
because autograd computes on threads of its own. The outermost module that a thread calls sets the phase; calls of modules inside it do not. After
such a call in training the forward phase lasts until backward begins, because the loss is computed there. marker.py gives kinds to the tensors of a
module after each such call, to gradients when they are accumulated, and to an optimizer's state after its step. names.py hears of each module that is
called, and knows by it where blocks are allocated; it works under PyTorch's own allocator, too, which knows neither phases nor kinds.

The class nn.Module is wrapped, because PyTorch's global module hooks make every call slow, and do not run at a KeyboardInterrupt. In code that
torch.compile compiles the wrappers do nothing: the call of the compiled module from outside sets the phase.

States: off <-> on; off removes all wrappers. LOCKING: the lock guards the list of phases; no code of PyTorch runs while it is held.
"""
import os
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, Callable, Optional

from cenote.base import lock
from cenote.labels import engine
from cenote.labels import names as naming
from cenote.labels.frames import Frames
from cenote.labels.marker import Marker
from cenote.labels.names import Names
from cenote.labels.visiting import Visiting
from cenote.native import bindings
from cenote.native.bindings import Error
from cenote.torch import features, patches, seams
from cenote.torch.patches import Undo

NONE, FORWARD, BACKWARD, OPTIMIZER, EVALUATION = range(5)  # a test compares them with phases.def

NO_NAMES = "cenote: memory has no labels: without its adapter cenote hears of no block"
NO_LABELS = f"cenote: memory has no labels: what gives them {lock.WORDS}"
CALL, ENGINE = "torch.nn.Module.__call__", "torch.autograd._engine_run_backward"


class Doing:
    """A phase that a thread is in."""

    __slots__ = ("phase", "optimizer", "thread")

    def __init__(self, phase: int, optimizer: int = 0) -> None:
        self.phase = phase
        self.optimizer = optimizer  # its id, 0: none
        self.thread = threading.get_ident()


class Phases:
    """The phases that all threads are in."""

    def __init__(self, frames: Frames, setters: "list[Callable[[int], Any]]") -> None:
        self.lock = threading.RLock()  # reentrant: a signal handler may interrupt the thread that holds it, and call a module
        self.doing: list[Doing] = []  # in order of their beginning
        self.lasts = False  # the forward phase goes on from the end of the outermost call until backward
        self.frames = frames
        self.setters = setters

    def set_phase(self) -> None:
        """Tells libcenote the phase of the process. A forward inside backward (recomputation) counts as backward, a forward inside an optimizer's
        step (a closure) as forward. LOCKING: the lock."""
        phases = [doing.phase for doing in self.doing]
        last = phases[-1] if phases else NONE
        if BACKWARD in phases:
            last = BACKWARD
        elif self.lasts and last in (NONE, OPTIMIZER):
            last = FORWARD
        for setter in self.setters:
            setter(last)

    def begin(self, phase: int, optimizer: int = 0) -> Doing:
        doing = Doing(phase, optimizer)
        with self.lock:
            self.lasts = self.lasts and phase == FORWARD
            self.doing.append(doing)
            self.set_phase()
        return doing

    def end(self, doing: Doing, lasts: bool = False) -> None:
        with self.lock:
            if doing in self.doing:
                self.doing.remove(doing)
            self.lasts = lasts
            self.set_phase()

    def end_steps(self, optimizer: int) -> None:
        """Ends the steps of this optimizer and, if this thread runs no step, its own: the hook after a step does not run if the step raised."""
        here = threading.get_ident()
        steps = [doing for doing in self.doing if doing.optimizer]
        if not steps:
            return
        is_in_one = self.frames.has(sys._getframe(), self.frames.step)
        for doing in steps:
            if doing.optimizer == optimizer or (doing.thread == here and not is_in_one):
                self.end(doing)

    def end_all(self) -> None:
        with self.lock:
            self.doing.clear()
            self.lasts = False
            self.set_phase()


class Thread(threading.local):
    is_inside = False  # a call of a module


_thread = Thread()


# --- wrappers

def keeps_history(result: Any, torch: ModuleType) -> bool:
    """Whether the program may call backward on the result."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else (result,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return not tensors or any(tensor.requires_grad for tensor in tensors)


class Labels:
    """Exists while phases and kinds are on; at most one."""

    def __init__(self, torch: ModuleType, names: Names) -> None:
        self.torch, self.names = torch, names
        setters: list[Callable[[int], Any]] = [bindings.function("cenote_phase_set")] if bindings.is_torchs(torch) else []
        self.phases = Phases(Frames(torch), [*setters, names.set_phase])
        self.marker = Marker(torch, names)
        self.visiting = Visiting(self.marker, torch.compiler.is_compiling)
        self.stepping: "Optional[weakref.ref[Any]]" = None  # the optimizer that stepped last
        self.is_tracing = seams.find("torch._C._get_tracing_state")
        self.undo: list[Undo] = [self.wrap_modules(), patches.replace("labels", ENGINE, self.telling), patches.replace("labels", ENGINE, sharing),
                                 self.hook_optimizers()]

    def stop(self) -> None:
        while self.undo:
            self.undo.pop()()
        self.visiting.stop()
        self.phases.end_all()
        self.names.stop()

    def wrap_modules(self) -> Undo:
        thread, is_compiling, call_outermost = _thread, self.torch.compiler.is_compiling, self.call_module
        enter, leave = self.names.enter, self.names.leave

        def labelling(inside: Any) -> Any:
            def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return inside(self, *args, **kwargs)
                if not thread.is_inside:
                    return call_outermost(inside, self, args, kwargs)
                depth = enter(self)
                try:
                    return inside(self, *args, **kwargs)
                finally:
                    leave(depth)
            return call_module
        return patches.replace("labels", CALL, labelling)

    def call_module(self, function: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """The outermost module of a thread is called."""
        self.phases.end_steps(0)
        is_training = getattr(module, "training", True) and self.torch.is_grad_enabled()
        looks = not self.is_tracing()  # a trace has in it what is asked of a tensor, and torch.jit.trace compares two of them
        depth = self.enter(module, args, kwargs, looks)
        if looks:
            self.visiting.look()
            self.marker.first_call(module)
        doing = self.phases.begin(FORWARD if is_training else EVALUATION)
        _thread.is_inside, lasts = True, False
        try:
            result = function(module, *args, **kwargs)
            lasts = is_training and keeps_history(result, self.torch)
        finally:
            _thread.is_inside = False
            self.phases.end(doing, lasts)
            self.names.leave(depth)
        if looks:
            self.marker.was_called(module)
        return result

    def settle(self, device: int) -> None:
        """Before a report: names what the optimizer that steps now has allocated (other hooks may look before ours runs), and what the program has
        moved from one tensor to another."""
        optimizer = self.stepping() if self.stepping is not None else None
        if optimizer is not None:
            self.marker.optimizer(optimizer)
        self.marker.look_again(device)

    def enter(self, module: Any, args: Any, kwargs: Any, looks: bool) -> int:
        if looks:
            self.names.inputs((args, kwargs))
        depth: int = self.names.enter(module)
        return depth

    def telling(self, inside: Any) -> Any:
        """Around the entry of autograd's engine."""
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.torch.compiler.is_compiling():
                return inside(*args, **kwargs)
            doing = self.phases.begin(BACKWARD)
            try:
                return inside(*args, **kwargs)
            finally:
                self.phases.end(doing)
        return backward

    def hook_optimizers(self) -> Undo:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        is_compiling = self.torch.compiler.is_compiling

        def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not is_compiling():
                self.phases.end_steps(id(optimizer))
                self.stepping = weakref.ref(optimizer)
                self.marker.gradients(optimizer)
                self.phases.begin(OPTIMIZER, id(optimizer))

        def ended(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not is_compiling():
                self.phases.end_steps(id(optimizer))
                self.marker.optimizer(optimizer)
        handles = [register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ended)]

        def remove() -> None:
            for handle in handles:
                handle.remove()
        return remove


_labels: Optional[Labels] = None


def switch_on(torch: ModuleType, names: Names) -> None:
    global _labels
    _labels = Labels(torch, names)


def label(torch: ModuleType, on: bool) -> None:
    """Switches phases and kinds on or off. A second call changes nothing."""
    global _labels
    if on and _labels is None:
        if lock.is_off():
            raise Error(f"cenote.label {lock.WORDS}", 8, "NOT_SUPPORTED")
        if not bindings.is_torchs(torch):
            name = torch.cuda.get_allocator_backend()
            raise Error(f"cenote is not PyTorch's allocator here, {name} is: call cenote.install() before the first use of a GPU, or "
                        "set CENOTE=on", 8, "NOT_SUPPORTED")
        why = features.why_not("labels")
        if why:
            raise Error(why, 8, "NOT_SUPPORTED")
        said: list[str] = []
        names = naming.begin(torch, said.append)
        if names is None:
            raise Error(" ".join(said) or NO_NAMES, 8, "NOT_SUPPORTED")
        switch_on(torch, names)
    elif not on and _labels is not None:
        _labels.stop()
        _labels = None


def label_if_possible(torch: ModuleType) -> None:
    """By a variable: `import torch` must not end by it."""
    def start() -> None:
        try:
            label(torch, True)
        except Error as why:
            features.turn_off("labels", str(why))
    if lock.is_off():
        features.turn_off("labels", NO_LABELS)
    else:
        features.begin("labels", start)


def label_names(torch: ModuleType, say: Callable[[str], None]) -> Optional[Names]:
    """Switches labels on under any allocator, and returns the names of blocks. None: there are no labels, and why was said."""
    def start() -> None:
        made = naming.begin(torch, say)
        if made is not None:
            switch_on(torch, made)
    if lock.is_off():
        features.turn_off("labels", NO_LABELS)
    elif _labels is None:
        features.begin("labels", start)
    return names()


def names() -> Optional[Names]:
    """The names of blocks; None: there are no labels."""
    return None if _labels is None else _labels.names


def settle(device: int) -> None:
    if _labels is not None:
        _labels.settle(device)


# --- the entry of autograd's engine: tags, and readers of graphs

_sharing = threading.RLock()  # a signal handler may call backward in the thread that holds it
_running = 0  # calls of backward that share the tag of their thread
_depth = threading.local()  # how many of them are of this thread
_shares = False


def share(by: int) -> None:
    """A backward begins or ends. LOCKING: the lock, so that the library is told what is so: ctypes lets go of Python's lock for the call."""
    global _running
    with _sharing:
        _running += by
        _depth.here = getattr(_depth, "here", 0) + by
        if by > 0 or not _running:
            bindings.function("cenote_tag_share")(by > 0)


def forked() -> None:
    """In a forked child, where only this thread goes on."""
    global _sharing, _running
    _sharing, _running = threading.RLock(), getattr(_depth, "here", 0)


os.register_at_fork(after_in_child=forked)


def sharing(inside: Any) -> Any:
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return inside(*args, **kwargs)
        share(1)
        try:
            return inside(*args, **kwargs)
        finally:
            share(-1)
    return backward


def share_tags() -> None:
    """From now on autograd's threads get the tag of the thread that calls backward, as long as backward runs. Called at the first tag."""
    global _shares
    if not _shares:
        _shares = True
        features.begin("tags", lambda: patches.replace("tags", ENGINE, sharing))


def guard_graphs(torch: ModuleType) -> Undo:
    """From now on until the returned function is called, graphs are read only while no thread is in backward. See engine.py."""
    is_compiling = torch.compiler.is_compiling

    def guarding(inside: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            return inside(*args, **kwargs) if is_compiling() else engine.run(inside, args, kwargs)
        return backward
    return patches.replace("growth", ENGINE, guarding)
