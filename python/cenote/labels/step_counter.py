"""Steps: an iteration of the program is over. Said by `cenote.step()`, or seen at `optimizer.step()`.

A program with several optimizers counts by one of them, the leader: the first that stepped. When another one has stepped twice since the leader
did, that one leads. So an iteration counts once whatever number of optimizers steps in it, and however often gradients were accumulated before; a
step that GradScaler leaves out because of an infinity counts too. From the first `cenote.step()` on only those count.

States: not watching (no PyTorch, or cenote is not its allocator) -> automatic (one hook on all optimizers) -> said (the hook is gone, for good).
"""
import weakref
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

from cenote.native import bindings
from cenote.native.bindings import Device, Error, StepStruct


class Step(NamedTuple):
    """What a step left behind on one device, in bytes."""

    number: int  # from 1
    seconds: float  # since the device's memory was first used
    live: int  # allocated when it ended
    reserved: int  # held from the driver when it ended
    peak: int  # of what was allocated, within it


_is_said = False
_undo: list[Callable[[], None]] = []  # what takes the hooks away
_leader: Optional["weakref.ref[Any]"] = None
_others: "weakref.WeakSet[Any]" = weakref.WeakSet()  # that have stepped since the leader did
_heard = 0  # steps of optimizers so far
_listeners: list[Callable[[], None]] = []


def end_step() -> None:
    for pool in bindings.pools().values():
        bindings.call("cenote_pool_step", pool)
    for listener in list(_listeners):
        listener()


def step() -> None:
    """One iteration of the program is over, on all devices. From the first call on `optimizer.step()` is not counted by itself any more.

        for batch in batches:
            train(batch)
            cenote.step()
    """
    global _is_said
    _is_said = True
    stop_watching()
    end_step()


def steps(device: Device = None) -> list[Step]:
    """The last steps, up to 256 of them, the oldest first.

        print(max(step.peak for step in cenote.steps()))
    """
    notes = bindings.all_of("cenote_pool_steps", StepStruct, bindings.pool(device))
    return [Step(note.step, note.ns / 1e9, note.live, note.reserved, note.peak) for note in reversed(notes)]


def on_step(listener: Callable[[], None]) -> Callable[[], None]:
    """Calls `listener` after each step, until what is returned is called. It must not raise: it runs inside optimizer.step()."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
    return stop


# --- steps that nobody said

def has_stepped(optimizer: Any) -> None:
    """An optimizer's step is over, or was left out. An error of the library's is not the optimizer's."""
    global _leader, _heard
    _heard += 1
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
    """From now on steps of optimizers are seen, unless the program has said one itself."""
    if _undo or _is_said:
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook
    is_compiling = torch.compiler.is_compiling

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():  # a step that is compiled is not seen: nothing may be left in its graph
            has_stepped(optimizer)
    _undo.append(register_optimizer_step_post_hook(stepped).remove)
    scaler = torch.amp.GradScaler
    step_of = scaler._maybe_opt_step

    def maybe_step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a step that is left out no hook hears."""
        before = _heard
        result = step_of(self, optimizer, state, *args, **kwargs)
        if _heard == before:
            has_stepped(optimizer)
        return result
    scaler._maybe_opt_step = maybe_step

    def restore() -> None:
        if scaler._maybe_opt_step is maybe_step:
            scaler._maybe_opt_step = step_of
    _undo.append(restore)


def stop_watching() -> None:
    while _undo:
        _undo.pop()()
