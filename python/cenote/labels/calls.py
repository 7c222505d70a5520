"""The calls of modules that the program itself makes: of each thread the outermost one. What a module calls inside is no such call.

The class nn.Module is wrapped, as in hooks.py, which says why. Each use of `watch` has its own idea of what is inside: none disturbs another.
"""
import threading
from typing import Any, Callable, Optional

from cenote.torch import patches

Around = Callable[[Callable[..., Any], Any, bool], Callable[..., Any]]


class Thread(threading.local):
    is_inside = False  # a call of a module


def nothing() -> None:
    pass


def watch(feature: str, torch: Any, begins: Callable[[Any], None], ends: Callable[[], None] = nothing, around: Optional[Around] = None) -> None:
    """From now on `begins(module)` runs before a call that the program makes, and `ends()` after it, in its thread. `around(call, module,
    is_outermost)`: what is called in place of `call(module, ...)`, for each call of any module."""
    thread, is_compiling = Thread(), torch.compiler.is_compiling

    def noticing(inside: Any) -> Any:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return inside(module, *args, **kwargs)
            is_outermost = not thread.is_inside
            try:
                if is_outermost:
                    begins(module)
                    thread.is_inside = True
                function = inside if around is None else around(inside, module, is_outermost)
                return function(module, *args, **kwargs)
            finally:
                if is_outermost:
                    thread.is_inside = False
                    ends()
        return call
    patches.replace(feature, "torch.nn.Module.__call__", noticing)
