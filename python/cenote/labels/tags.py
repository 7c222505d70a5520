"""Tags: names for reports. What a thread allocates between a tag's begin and end is listed under it; tags do not change where memory is.

libcenote has a stack of tags for each thread, with push and pop. This module remembers which Tag pushed what, because tags need not end in order: a
`with` inside a generator lives as long as the generator, which may outlive a tag that began later, and may end in another thread. If a tag ends below
others, it is removed from under them. If it ends in another thread, its own thread removes it when it begins or ends its next tag.

A decorated generator or coroutine is within the tag while its body runs, and not while it is suspended.
"""
import functools
import inspect
import sys
import threading
import types
from typing import Any, AsyncGenerator, Callable, Coroutine, Generator, Optional, TypeVar, cast

from cenote.native import bindings
from cenote.native.bindings import Error

Function = TypeVar("Function", bound=Callable[..., Any])


class Stack:
    """What a thread has pushed, the innermost last: the same as libcenote's stack of the thread."""

    __slots__ = ("pushes", "has_some_over")

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self.has_some_over = False


class Push:
    """One begin of a tag: on the stack of a thread until that thread has removed it."""

    __slots__ = ("tag", "stack", "is_over")

    def __init__(self, tag: "Tag", stack: Stack) -> None:
        self.tag = tag
        self.stack = stack
        self.is_over = False


class Thread(threading.local):
    def __init__(self) -> None:
        self.stack = Stack()


_thread = Thread()
_push: Optional[Callable[[bytes], int]] = None
_pop: Optional[Callable[[], int]] = None


def push(name: bytes) -> None:
    global _push
    if _push is None:
        _push = bindings.function("cenote_tag_push")
        watch_backward()
    code = _push(name)
    if code:
        bindings.check(code)


def pop() -> None:
    global _pop
    if _pop is None:
        _pop = bindings.function("cenote_tag_pop")
    code = _pop()
    if code:
        bindings.check(code)


def watch_backward() -> None:
    """Autograd's threads get the tag of the thread that calls backward: see hooks.share_tags."""
    from cenote.labels import hooks
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "autograd"):
        hooks.share_tags()


def clear(stack: Stack) -> None:
    """Removes the pushes that are over from anywhere in the stack of this thread."""
    pushes = stack.pushes
    deepest = next((i for i, push in enumerate(pushes) if push.is_over), len(pushes))
    above = pushes[deepest:]
    stack.has_some_over = False
    for _ in above:
        pop()
    del pushes[deepest:]
    for entry in above:
        if not entry.is_over:
            push(entry.tag.bytes)
            pushes.append(entry)


class Tag:
    """A context manager and a decorator. A tag can be entered many times, by many threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes = bindings.text_bytes(name, "the name of a tag")
        self.begun: list[Push] = []  # of all threads

    def __enter__(self) -> "Tag":
        stack = _thread.stack
        if stack.has_some_over:
            clear(stack)
        push(self.bytes)
        begun = Push(self, stack)
        stack.pushes.append(begun)
        self.begun.append(begun)
        return self

    def __exit__(self, *why: object) -> None:
        stack = _thread.stack
        pushes = stack.pushes
        if pushes and pushes[-1].tag is self and not stack.has_some_over:  # in order, as nearly always
            self.begun.remove(pushes.pop())
            pop()
            return
        begun = next((push for push in reversed(pushes) if push.tag is self and not push.is_over), None)
        if begun is None:  # a generator that ends in another thread than the one in which it began
            begun = self.begun[-1] if self.begun else None
        if begun is None:
            raise Error(f"the tag {self.name!r} ends, and did not begin: call __enter__ before __exit__, or use `with`")
        self.begun.remove(begun)
        begun.is_over = begun.stack.has_some_over = True
        if begun.stack is stack:
            clear(stack)

    def __call__(self, function: Function) -> Function:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"a tag decorates functions, not {function!r:.60}: decorate its methods, or use `with`")
        return cast(Function, self.wrap(function))

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = self.name
        if inspect.isasyncgenfunction(function):
            @functools.wraps(function)
            def within_asynchronous_generator(*args: Any, **kwargs: Any) -> Any:
                return drive_asynchronous(name, function(*args, **kwargs))
            return within_asynchronous_generator
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def within_coroutine(*args: Any, **kwargs: Any) -> Any:
                return await awaited(name, function(*args, **kwargs))
            return within_coroutine
        if inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def within_generator(*args: Any, **kwargs: Any) -> Any:
                return (yield from drive(name, function(*args, **kwargs)))
            return within_generator

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with Tag(name):
                return function(*args, **kwargs)
        return within


# --- generators and coroutines

def drive(name: str, inner: "Generator[Any, Any, Any] | Coroutine[Any, Any, Any]") -> Generator[Any, Any, Any]:
    """Does what `inner` does, within the tag."""
    resume: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        try:
            with Tag(name):
                out = resume(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield out
            resume = inner.send
        except GeneratorExit:
            with Tag(name):
                inner.close()
            raise
        except BaseException as error:
            value, resume = error, inner.throw


@types.coroutine
def awaited(name: str, inner: "Coroutine[Any, Any, Any]") -> Generator[Any, Any, Any]:
    return (yield from drive(name, inner))


async def one(awaitable: Any) -> Any:
    return await awaitable


async def drive_asynchronous(name: str, inner: "AsyncGenerator[Any, Any]") -> "AsyncGenerator[Any, Any]":
    resume: Callable[[Any], Any] = inner.asend
    value: Any = None
    while True:
        try:
            out = await awaited(name, one(resume(value)))
        except StopAsyncIteration:
            return
        try:
            value = yield out
            resume = inner.asend
        except GeneratorExit:
            await awaited(name, inner.aclose())
            raise
        except BaseException as error:
            value, resume = error, inner.athrow
