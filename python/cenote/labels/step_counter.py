"""Counts the program's steps: by its calls of `cenote.step()` or, without them, at each `optimizer.step()`.

If a program has several optimizers, one of them counts, the leader: the first that stepped, or another one once that has stepped twice since the
leader did. So an iteration counts once, no matter how many optimizers step in it and how often gradients were accumulated. A step that GradScaler
skips because of an infinity counts, too. From the first `cenote.step()` on only these calls count.

States: not watching (no PyTorch, or another allocator) -> automatic (one hook on all optimizers) -> by calls (the hook is removed for good).
"""
import weakref
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

from cenote.native import bindings
from cenote.native.bindings import Device, Error, StepStruct
from cenote.torch import features, patches


class Step(NamedTuple):
    """One step on one device, in bytes."""

    number: int  # from 1
    seconds: float  # since the device's memory was first used
    live: int  # allocated when it ended
    reserved: int  # held from the driver when it ended
    peak: int  # most that was allocated at one time during the step


_is_by_calls = False
_undo: list[Callable[[], None]] = []  # functions that remove the hooks
_leader: Optional["weakref.ref[Any]"] = None
_others: "weakref.WeakSet[Any]" = weakref.WeakSet()  # optimizers that have stepped since the leader did
_seen = 0  # steps of optimizers so far
_listeners: list[Callable[[], None]] = []


def end_step() -> None:
    for pool in bindings.pools().values():
        bindings.call("cenote_pool_step", pool)
    for listener in list(_listeners):
        listener()


def step() -> None:
    """See cenote.step."""
    global _is_by_calls
    _is_by_calls = True
    stop_watching()
    end_step()


def steps(device: Device = None) -> list[Step]:
    """See cenote.steps."""
    found = bindings.all_of("cenote_pool_steps", StepStruct, bindings.pool(device))
    return [Step(one.step, one.ns / 1e9, one.live, one.reserved, one.peak) for one in reversed(found)]


def seen() -> int:
    """Steps of optimizers so far, of all of them."""
    return _seen


def on_step(listener: Callable[[], None]) -> Callable[[], None]:
    """Calls `listener` after each step, until the returned function is called. `listener` must not raise: it runs inside optimizer.step()."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
    return stop


# --- automatic steps

def has_stepped(optimizer: Any) -> None:
    """Called when an optimizer's step has ended, or was skipped. An error of the library is dropped: it must not end the program's step."""
    global _leader, _seen
    _seen += 1
    leader = _leader() if _leader is not None else None
    if leader is not optimizer:
        if leader is not None and optimizer not in _others:
            _others.add(optimizer)
            return
        _leader = weakref.ref(optimizer)
    if _others:
        _others.clear()
    try:
        end_step()
    except Error:
        pass


def watch(torch: ModuleType) -> None:
    """From now on steps of optimizers count, unless the program has called cenote.step()."""
    if _undo or _is_by_calls:
        return
    features.begin("steps", lambda: _undo.append(hook_steps(torch)))
    features.begin("skipped-steps", lambda: _undo.append(patches.replace("skipped-steps", "torch.amp.GradScaler.step", counting)))


def hook_steps(torch: ModuleType) -> Callable[[], None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    is_compiling = torch.compiler.is_compiling

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():  # a compiled step does not count: a call here would become a part of its graph
            has_stepped(optimizer)
    return register_optimizer_step_post_hook(stepped).remove


def counting(inside: Any) -> Any:
    """Counts a step that GradScaler skips: the optimizer's hooks do not run then."""
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = _seen
        result = inside(self, optimizer, *args, **kwargs)
        if _seen == before:
            has_stepped(optimizer)
        return result
    return step


def stop_watching() -> None:
    while _undo:
        _undo.pop()()
