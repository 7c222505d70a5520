"""Tags of Python's threads: which path libcenote has, whatever a program does with tags. No torch, no GPU."""
import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import types

import pytest

import cenote
from cenote.torch import patches
from patience import patience


@pytest.fixture(autouse=True)
def path():
    """path(): the tags that this thread has pushed and not popped, as libcenote accepted them."""
    from cenote import places
    from cenote.labels import tags
    from cenote.native import bindings
    try:
        bindings.loaded()
    except places.NotBuilt as missing:
        pytest.skip(str(missing))
    here = threading.local()

    def stack():
        if not hasattr(here, "names"):
            here.names = []
        return here.names
    real_push, real_pop = bindings.function("cenote_tag_push"), bindings.function("cenote_tag_pop")

    def push(name):
        error = real_push(name)
        if not error:
            stack().append(name.decode())
        return error

    def pop():
        error = real_pop()
        if not error:
            stack().pop()
        return error
    saved = tags._push, tags._pop
    tags._push, tags._pop = push, pop
    yield lambda: "/".join(stack())
    tags._push, tags._pop = saved
    gc.collect()
    assert real_pop() != 0, "a tag was left on the stack"
    assert stack() == [] and tags._thread.stack.pushes == []


def test_tags_nest_and_end(path):
    with cenote.tag("train") as outer:
        assert path() == "train" and outer.name == "train"
        with cenote.tag("encoder"), outer:
            assert path() == "train/encoder/train"
        assert path() == "train"
    assert path() == ""


def test_exceptions_end_them(path):
    with pytest.raises(KeyboardInterrupt), cenote.tag("a"), cenote.tag("b"):
        raise KeyboardInterrupt
    assert path() == ""

    @cenote.tag("c")
    def fails():
        raise ValueError(path())
    with pytest.raises(ValueError, match="^c$"):
        fails()
    assert path() == ""


def test_a_decorated_function_is_what_it_was(path):
    @cenote.tag("layer")
    def double(x: int, *, more: int = 0) -> str:
        """Doubles."""
        return f"{path()} {2 * x + more}"
    assert double(4, more=1) == "layer 9" and double.__name__ == "double" and double.__doc__ == "Doubles."
    assert list(inspect.signature(double).parameters) == ["x", "more"]

    class Model:
        @cenote.tag("method")
        def forward(self, depth):
            return path() if depth == 0 else self.forward(depth - 1)
    assert Model().forward(2) == "method/method/method"
    assert cenote.tag("lambda")(lambda: path())() == "lambda"


def test_a_decorated_generator_is_within_while_it_runs(path):
    @cenote.tag("loader")
    def batches():
        got = []
        try:
            while len(got) < 3:
                try:
                    got.append((yield path()))
                except KeyError:
                    got.append("error " + path())
        finally:
            got.append("end " + path())
            ends.append(got)
        return got
    ends = []
    with cenote.tag("train"):
        generator = batches()
        assert inspect.isgenerator(generator) and next(generator) == "train/loader" and path() == "train"
        with cenote.tag("step"):
            assert generator.send(1) == "train/step/loader" and path() == "train/step"
        assert generator.throw(KeyError()) == "train/loader"
        with pytest.raises(StopIteration) as stop:
            generator.send(2)
        assert stop.value.value == [1, "error train/loader", 2, "end train/loader"] == ends.pop()
        second = batches()
        next(second)
        second.close()
        assert ends.pop() == ["end train/loader"] and path() == "train"
        third = batches()
        next(third)
        with pytest.raises(OSError):
            third.throw(OSError())
        fourth = batches()
        next(fourth)
    del fourth
    assert path() == "" and ends.pop() == ["end loader"]


def test_a_generator_that_holds_one_may_end_in_any_order(path):
    def holds(name):
        with cenote.tag(name):
            yield
    first, second, third = holds("first"), holds("second"), holds("third")
    for generator in (first, second, third):
        next(generator)
    assert path() == "first/second/third"
    second.close()
    assert path() == "first/third"
    first.close()
    assert path() == "third"
    with cenote.tag("more"):
        third.close()
        assert path() == "more"
    assert path() == ""


def test_a_generator_that_ends_in_another_thread(path):
    def holds():
        with cenote.tag("held"):
            yield
    generator = holds()
    next(generator)
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    assert path() == "held"  # another thread cannot remove it from this thread's stack
    with cenote.tag("next"):
        assert path() == "next"
    assert path() == ""


def test_each_thread_has_its_own(path):
    seen = {}
    tag = cenote.tag("shared")
    barrier = threading.Barrier(4)

    def work(number):
        for _ in range(200):
            with cenote.tag(f"thread {number}"), tag:
                barrier.wait(10)
                seen[number] = path()
        seen[number, "end"] = path()
    with tag:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert path() == "shared"
    assert tag.begun == []
    assert [seen[number] for number in range(4)] == [f"thread {number}/shared" for number in range(4)]
    assert [seen[number, "end"] for number in range(4)] == [""] * 4


def test_coroutines_and_asynchronous_generators(path):
    @cenote.tag("task")
    async def work(name):
        seen = [path()]
        with cenote.tag(name):
            seen.append(path())
        await asyncio.sleep(0)
        return [*seen, path()]

    @cenote.tag("stream")
    async def stream():
        for i in range(2):
            yield path()
            await asyncio.sleep(0)

    async def main():
        assert path() == ""
        results = await asyncio.gather(work("a"), work("b"))
        assert results == [["task", f"task/{name}", "task"] for name in "ab"]
        seen = []
        async for item in stream():
            seen.append((item, path()))
        assert seen == [("stream", "")] * 2
        generator = stream()
        assert await generator.asend(None) == "stream"
        await generator.aclose()
        failing = work("c")
        with pytest.raises(asyncio.CancelledError):
            task = asyncio.ensure_future(failing)
            await asyncio.sleep(0)
            task.cancel()
            await task
        assert path() == ""
    assert inspect.iscoroutinefunction(work) or asyncio.iscoroutinefunction(work)
    asyncio.run(main())


# --- mistakes

@pytest.mark.parametrize("name", ["", "a/b", "new\nline", "\x7f", "x" * 64, "é" * 32, "nul\0", "\ud800", "\udcff"])
def test_names_that_cannot_be(path, name):
    with pytest.raises(cenote.Error) as error:
        with cenote.tag("outer"), cenote.tag(name):
            pytest.fail("it began")
    assert error.value.name == "INVALID" and "\n" not in str(error.value) and "tag" in str(error.value)
    assert path() == ""


@pytest.mark.parametrize("name", ["x" * 63, "é" * 31, "数据", "a.b:c d%s%n", "\\", "😀"])
def test_names_that_can(path, name):
    with cenote.tag(name):
        assert path() == name


@pytest.mark.parametrize("name", [None, 7, b"bytes", ["a"], object])
def test_a_name_is_text(name):
    with pytest.raises(TypeError, match="the name of a tag is a str"):
        cenote.tag(name)


def test_an_end_without_a_beginning(path):
    with pytest.raises(cenote.Error, match="'lost' ends, and did not begin"):
        cenote.tag("lost").__exit__(None, None, None)
    used = cenote.tag("used")
    with used:
        pass
    with pytest.raises(cenote.Error, match="did not begin"), cenote.tag("other"):
        used.__exit__(None, None, None)
    assert path() == ""


def test_what_cannot_be_decorated():
    for wrong in (7, "f", int):
        with pytest.raises(TypeError, match="a tag decorates functions"):
            cenote.tag("x")(wrong)


def test_more_paths_than_there_may_be(clean):
    """The first path over the limit is refused, and the others go on working. `many` is one, too. Paths are never freed: so a process of its own."""
    code = """
import cenote
most = 0
with cenote.tag("many"):
    try:
        for most in range(20000):
            with cenote.tag(f"path {most}"):
                pass
    except cenote.Error as error:
        print(error.name, most, len(str(error).splitlines()))
    with cenote.tag("path 0"):
        pass
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "OUT_OF_HOST_MEMORY 16382 1\n"


def test_a_backward_that_begins_while_another_ends_keeps_its_tag(monkeypatch):
    """ctypes lets go of Python's lock while the library is told that no backward runs any more."""
    from cenote.labels import hooks
    from cenote.native import bindings
    ends, is_inside, go_on = threading.Event(), threading.Event(), threading.Event()
    told = []

    def share(on):
        if not on:
            ends.set()
            is_inside.wait(0.2)  # the other one has to wait for us, and no event says that it does
        told.append(bool(on))
    autograd = types.SimpleNamespace(_engine_run_backward=lambda work: work())
    torch = types.SimpleNamespace(autograd=autograd, compiler=types.SimpleNamespace(is_compiling=lambda: False))
    monkeypatch.setattr(bindings, "function", lambda name: share)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "torch.autograd", raising=False)
    monkeypatch.setattr(hooks, "_shares", False)
    hooks.share_tags()

    def other():
        assert ends.wait(patience(20))
        autograd._engine_run_backward(lambda: (is_inside.set(), go_on.wait(patience(20))))
    thread = threading.Thread(target=other)
    thread.start()
    try:
        autograd._engine_run_backward(lambda: None)
        assert is_inside.wait(patience(20)) and told[-1], told
    finally:
        go_on.set()
        thread.join()
        patches.put_back("tags")
    assert not told[-1]
