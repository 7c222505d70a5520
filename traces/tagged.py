"""Runs a program of examples/torch under cenote, with what a trace can tell beside sizes: tags and steps. record.py starts it.

    cenote run --allocator cenote --trace out.csv.gz traces/tagged.py PROGRAM.py [ARGUMENT...]

What is allocated before the first call of a module is tagged "model"; then "forward" or "inference" is the outermost module of a thread, below it
goes the class of a module whose parts have no parts ("forward/GPT2MLP"); "backward" is autograd's, "optimizer" a step of the optimizer. What a
checkpoint computes again is "forward" too. The rest has no tag. A step of the trace is one of figures.steps(). The program itself knows nothing of
it and allocates what it would without.
"""
import os
import runpy
import sys
import threading
import weakref
from typing import Any, Iterator

import torch

import cenote
from cenote.labels import step_counter

model = cenote.tag("model")  # from the start to the first call of a module
has_called = False


class Thread(threading.local):
    is_inside = False  # a module


thread = Thread()


class Parts:
    """Modules that are made of modules, and those of nothing else: an attention, a perceptron, a convolution with its norm."""

    def __init__(self) -> None:
        self.known: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()

    def has(self, module: Any) -> bool:
        if module not in self.known:
            children = list(module.children())
            self.known[module] = bool(children) and not any(True for child in children for _ in child.children())
        return self.known[module]


def tag_modules() -> None:
    inside, is_compiling, parts = torch.nn.Module.__call__, torch.compiler.is_compiling, Parts()

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        global has_called
        if not has_called:
            has_called = True
            model.__exit__(None, None, None)
        thread.is_inside = True
        try:
            with cenote.tag("forward" if torch.is_grad_enabled() else "inference"):
                return inside(module, *args, **kwargs)
        finally:
            thread.is_inside = False

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # of what is compiled this is no part
            return inside(module, *args, **kwargs)
        if not thread.is_inside:
            return outermost(module, args, kwargs)
        if not parts.has(module):
            return inside(module, *args, **kwargs)
        with cenote.tag(type(module).__name__):
            return inside(module, *args, **kwargs)
    setattr(torch.nn.Module, "__call__", call)


def tag_backward() -> None:
    """To be called after the first tag has begun: from then on cenote gives autograd's threads the tag of the thread that calls backward, which has
    to be this one."""
    torch.autograd._engine_run_backward = cenote.tag("backward")(torch.autograd._engine_run_backward)


def tag_optimizers() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    tags: list[Any] = []

    def begins(*_: Any) -> None:
        tags.append(cenote.tag("optimizer"))
        tags[-1].__enter__()

    def ended(*_: Any) -> None:
        tags.pop().__exit__(None, None, None)
    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(ended)


def count_steps(folder: str) -> None:
    sys.path.insert(0, folder)
    import figures
    inside = figures.steps

    def steps(count: int) -> Iterator[int]:
        for step in inside(count):
            yield step
            cenote.step()
    figures.steps = steps
    step_counter.stop_watching()  # optimizer.step() counts otherwise until the first cenote.step()


def main() -> None:
    program = os.path.abspath(sys.argv[1])
    sys.argv = [program, *sys.argv[2:]]
    count_steps(os.path.dirname(program))
    model.__enter__()
    tag_modules()
    tag_backward()
    tag_optimizers()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
