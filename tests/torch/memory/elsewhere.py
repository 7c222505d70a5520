"""Runs tests in other processes: those that need another backend of the allocator, and those that lose the device.

`@elsewhere(PYTORCH_CUDA_ALLOC_CONF=...)` runs the test in a process with that environment. Tests of one environment share the process.
With `alone=True` the process, which has imported PyTorch and not touched the GPU, forks for each test: that child may break what it likes.
The test gets the fixture `sim` of its process, and whatever other arguments it has.
"""

import functools
import importlib
import json
import os
import pickle
import select
import subprocess
import sys
import traceback

INSIDE = "CENOTE_TEST_ELSEWHERE"
SECONDS = 100
_processes: dict = {}


class Ended(AssertionError):
    """The process is gone."""


class Process:
    def __init__(self, shape: str, alone: bool, environ: dict) -> None:
        import simulated

        self.alone = alone
        ask, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        environment = simulated.environment(shape, **environ, **{INSIDE: f"{ask} {answer} {int(alone)}"})
        self._process = subprocess.Popen([sys.executable, __file__], env=environment, pass_fds=(ask, answer))
        os.close(ask)
        os.close(answer)

    def run(self, module: str, name: str, arguments: dict) -> None:
        import pytest
        from patience import patience

        try:
            os.write(self._ask, pickle.dumps((module, name, arguments)))
        except BrokenPipeError:
            raise Ended(f"the process of the test had ended with status {self.end()}") from None
        ready, _, _ = select.select([self._answer], [], [], patience(SECONDS))
        answer = os.read(self._answer, 1 << 16) if ready else b""
        if not answer:
            status = self.end()
            raise Ended(f"the process of the test ended with status {status}" if ready else f"no answer in {patience(SECONDS)} s")
        outcome, words = json.loads(answer)
        if outcome == "skipped":
            pytest.skip(words)
        if outcome == "failed":
            raise AssertionError(words)

    def end(self) -> int:
        """Closes the input of the process, so that it ends. If it does not end, it is killed."""
        os.close(self._ask)
        os.close(self._answer)
        try:
            return self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def end_all(but_alone: bool = False) -> None:
    for key, process in list(_processes.items()):
        if but_alone and process.alone:
            continue
        del _processes[key]
        process.end()


def elsewhere(shape: str = "", alone: bool = False, **environ: str):
    def wrap(test):
        if INSIDE in os.environ:
            return test

        @functools.wraps(test)
        def run(**arguments):
            import simulated

            arguments.pop("sim", None)
            arguments.pop("request", None)
            key = (shape, alone, *sorted(environ.items()))
            process = _processes.get(key)
            if not process:
                process = _processes[key] = Process(shape or simulated.SHAPE, alone, environ)
            try:
                process.run(test.__module__, test.__name__, arguments)
            except Ended:
                del _processes[key]
                raise

        return run

    return wrap


def _perform(module: str, name: str, arguments: dict, sim) -> tuple:
    import pytest

    try:
        test = getattr(importlib.import_module(module), name)
        wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
        violations = sim.books().violations
        test(**arguments, **({"sim": sim} if "sim" in wanted else {}))
        marks = {mark.name for mark in getattr(test, "pytestmark", [])}
        if "violates" not in marks and sim.books().violations != violations:
            return "failed", sim.last_violation()
        return "passed", ""
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped)
    except BaseException:  # noqa: BLE001
        return "failed", traceback.format_exc()[-60_000:]


def _perform_here(request: tuple, sim) -> tuple:
    return _perform(*request, sim)


def _perform_in_child(request: tuple, sim) -> tuple:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(_perform(*request, sim)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        outcome = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(outcome) if outcome else ("failed", f"the process of the test ended with status {os.waitstatus_to_exitcode(status)}")


def _serve() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [here, os.path.dirname(here)]
    import simulated
    import torch

    ask, answer, alone = map(int, os.environ[INSIDE].split())
    sim = simulated.Hand()
    while request := os.read(ask, 1 << 16):
        outcome = (_perform_in_child if alone else _perform_here)(pickle.loads(request), sim)
        os.write(answer, json.dumps(outcome).encode())
        if not alone:
            sim.set_lag(0)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    _serve()
