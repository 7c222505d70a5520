"""Plays traces through PyTorch's allocator on the simulated GPU. comparison.py starts this program once for each allocator.

The program imports torch once, and forks for each line of standard input, a JSON object that says what to play. It answers with lines of JSON. Only
the child uses CUDA, so that each replay has a simulated machine of its own, with its own capacity and pages.

Each record is one call of PyTorch: an allocation calls the function behind torch.cuda.caching_allocator_alloc, a free the one behind
caching_allocator_delete. A block that a second stream uses is a tensor, because in Python only tensors have record_stream. Each stream of the trace
is a CUDA stream made for it, not one of PyTorch's pool. The device's clock stands still; if the job has a lag, it advances by a tick at each record.
"""
from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import signal
import sys
import time
from typing import Any, Callable, Iterator, Optional, Sequence

from cenote.replay import trace_file
from cenote.replay.trace_file import ALLOC, DEVICE, FREE, STEP, TENSOR_ALLOC, TENSOR_FREE, USE
from cenote.torch import features, seams

PR_SET_PDEATHSIG = 1
TICK_NS = 1000  # the device's clock advances by this at each record
SAMPLES = 300  # of held memory, for the picture
BOOKS = ("used used_peak reserved handles mappings reservations allocations pools events streams contexts kernels calls cost_ns violations").split()


class Books(ctypes.Structure):
    """struct sim_books of sim/sim.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in BOOKS]
    used: int
    used_peak: int
    calls: int
    cost_ns: int
    violations: int


def read_books(driver: Any) -> Books:
    books = Books()
    driver.sim_books(ctypes.byref(books))
    return books


class Calls:
    """The function to call for each kind of record."""

    alloc: Callable[[int, int], Any]
    free: Callable[[int], Any]
    tensor: Callable[[int, int], Any]
    use: Callable[[Any, int], Any]
    step: Callable[[], Any]
    device: Callable[[int], Any]


class EmptyCalls(Calls):
    """Functions that do nothing, to measure the time of the loop itself."""

    def __init__(self) -> None:
        self.alloc = self.tensor = self.use = operator.or_
        self.free = self.device = operator.index
        self.step = dict


class Torch(Calls):
    """PyTorch's functions."""

    def __init__(self, torch: Any, job: dict[str, Any]) -> None:
        self.torch = torch
        runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
        self.streams = [self.make_stream(runtime, *place) for place in job["streams"]]
        self.handles = [stream.cuda_stream for stream in self.streams]
        why = features.why_not("replay")
        if why:
            raise RuntimeError(why)
        self.alloc = seams.get("torch._C._cuda_cudaCachingAllocator_raw_alloc")
        self.free = seams.get("torch._C._cuda_cudaCachingAllocator_raw_delete")
        self.device = seams.get("torch._C._cuda_setDevice")
        self.set_stream = seams.get("torch._C._cuda_setStream")
        self.step = self.no_step
        if job["allocator"] == "cenote":
            from cenote.labels import step_counter
            self.step = step_counter.step
        self.current: Any = None  # the stream that `tensor` set last

    def make_stream(self, runtime: Any, device: int, number: int) -> Any:
        self.torch.cuda.set_device(device)
        if not number:
            return self.torch.cuda.default_stream(device)
        handle = ctypes.c_void_p()
        if runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1):  # cudaStreamNonBlocking
            raise RuntimeError("a stream could not be created")
        return self.torch.cuda.ExternalStream(handle.value, device=device)

    def no_step(self) -> None:
        pass

    def tensor(self, size: int, place: int) -> Any:
        stream = self.streams[place]
        if stream is not self.current:
            self.set_stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
            self.current = stream
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def use(self, block: Any, place: int) -> None:
        if isinstance(block, self.torch.Tensor):
            block.record_stream(self.streams[place])


Part = tuple[bytes, Sequence[int], Sequence[int], Sequence[int]]


def play(part: Part, blocks: list[Any], handles: Sequence[int], calls: Calls, tick: Optional[Callable[[], Any]]) -> None:
    """Makes one call for each record."""
    alloc, free, tensor, use = calls.alloc, calls.free, calls.tensor, calls.use
    for op, block, size, place in zip(*part):
        if op == ALLOC:
            blocks[block] = alloc(size, handles[place])
        elif op == FREE:
            free(blocks[block])
        elif op == TENSOR_ALLOC:
            blocks[block] = tensor(size, place)
        elif op == TENSOR_FREE:
            blocks[block] = None
        elif op == USE:
            use(blocks[block], place)
        elif op == STEP:
            calls.step()
        elif op == DEVICE:
            calls.device(block)
            continue  # DEVICE is no record of the file: no tick
        if tick is not None:
            tick()


def parts(arrays: Part, length: int) -> Iterator[tuple[int, Part]]:
    """Parts of the arrays with `length` operations each, and the index of the first."""
    count = len(arrays[0])
    for at in range(0, count, length):
        end = min(at + length, count)
        yield at, (arrays[0][at:end], *(array[at:end].tolist() for array in arrays[1:]))  # type: ignore[attr-defined]


class Player:
    """One replay, in a process of its own."""

    def __init__(self, torch: Any, job: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.torch, self.job, self.send = torch, job, send
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.sim_last_violation.restype = ctypes.c_char_p
        self.arrays = trace_file.restore(job["file"], job["count"])
        for device in range(job["devices"]):  # makes a context and cenote's pool before the first record
            torch.zeros(0, device=f"cuda:{device}")
        self.calls = Torch(torch, job)
        self.tick = self.make_tick(round(job["lag"] * job["records"]) * TICK_NS)
        self.books_before = read_books(self.driver)
        self.driver_calls: list[int] = []  # by repetition
        self.samples: list[tuple[int, int]] = []  # record, bytes held
        self.ns = 0

    def make_tick(self, lag_ns: int) -> Optional[Callable[[], Any]]:
        """A function that advances the device's clock, or None if the device is not behind."""
        if not lag_ns:
            return None
        self.driver.sim_set_lag(ctypes.c_uint64(lag_ns))
        return functools.partial(self.driver.sim_advance, ctypes.c_uint64(TICK_NS))

    def play_once(self, is_first: bool) -> Optional[dict[str, Any]]:
        """Plays the trace. Returns None, or the record and the bytes of the allocation for which there was no memory."""
        blocks: list[Any] = [None] * self.job["blocks"]
        record = 0
        for at, part in parts(self.arrays, max(1, self.job["count"] // SAMPLES)):
            tracked = (iter(part[0]), *part[1:])  # the iterator's length hint tells how far `play` came
            begin = time.process_time_ns()
            try:
                play(tracked, blocks, self.calls.handles, self.calls, self.tick)  # type: ignore[arg-type]
            except self.torch.OutOfMemoryError:
                played = len(part[0]) - operator.length_hint(tracked[0])
                record += played - part[0].count(DEVICE, 0, played)
                return {"record": record, "bytes": part[2][played - 1]}
            finally:
                self.ns += time.process_time_ns() - begin
            record += len(part[0]) - part[0].count(DEVICE)
            if is_first and record <= self.job["records"]:
                self.samples.append((record, read_books(self.driver).used))
            self.send({"played": at + len(part[0])})
        return None

    def loop_ns(self) -> int:
        """The time that the loop in `play` takes without the calls."""
        blocks: list[Any] = [0] * self.job["blocks"]
        empty, ns = EmptyCalls(), 0
        for _, part in parts(self.arrays, max(1, self.job["count"] // SAMPLES)):
            begin = time.process_time_ns()
            play(part, blocks, self.calls.handles, empty, self.tick)
            ns += time.process_time_ns() - begin
        return ns

    def play_all(self) -> dict[str, Any]:
        oom, calls = None, self.books_before.calls
        for i in range(self.job["repeat"]):
            oom = self.play_once(i == 0)
            now = read_books(self.driver).calls
            self.driver_calls.append(now - calls)
            calls = now
            if oom is not None:
                break
        return self.figures(oom)

    def figures(self, oom: Optional[dict[str, Any]]) -> dict[str, Any]:
        books = read_books(self.driver)
        if books.violations > self.books_before.violations:
            raise RuntimeError(f"the simulated GPU refuses a use of memory: {self.driver.sim_last_violation().decode()}")
        address = pages = None
        if self.job["allocator"] == "cenote":
            from cenote.inside import reports
            stats: list[dict[str, Any]] = [{**reports.stats(device)} for device in range(self.job["devices"])]
            address = sum(each["address_used"] for each in stats)
            pages = stats[0]["page_bytes"]
        count = self.job["count"]
        loop = self.loop_ns() / count
        return {
            "reserved_peak_bytes": books.used_peak, "address_bytes": address, "page_bytes": pages,
            "driver_calls_first": self.driver_calls[0], "driver_calls_last": self.driver_calls[-1],
            "driver_ns": books.cost_ns - self.books_before.cost_ns,
            "cpu_ns_per_record": None if oom else round(max(0.0, self.ns / count / self.job["repeat"] - loop), 1),
            "loop_ns_per_record": round(loop, 1),
            "oom": oom, "samples": self.samples, "torch": self.torch.__version__,
        }


# --- the process

def send(output: int, answer: dict[str, Any]) -> None:
    os.write(output, (json.dumps(answer) + "\n").encode())


def failure(problem: Exception) -> dict[str, Any]:
    return {"failed": f"{type(problem).__name__}: {' '.join(str(problem).split())[:500]}"}


def play_job(torch: Any, job: dict[str, Any], output: int) -> None:
    """Runs one replay, in the child, and sends its figures or why it failed."""
    send_here = functools.partial(send, output)
    try:
        os.environ.update(job["environment"])
        send_here({"done": Player(torch, job, send_here if job["progress"] else lambda answer: None).play_all()})
    except Exception as problem:
        send_here(failure(problem))


def end_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare(allocator: str) -> Any:
    """Imports torch and checks that it has this allocator."""
    import torch
    if not torch.version.cuda:
        raise RuntimeError(f"torch {torch.__version__} is built without CUDA")
    if allocator == "cenote":
        from cenote.inside import plugin
        from cenote.labels import step_counter
        plugin.install()
        step_counter.stop_watching()
        if torch.cuda.get_allocator_backend() != "cenote":
            raise RuntimeError(plugin.status().note)
    elif torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(f"PyTorch's allocator is {torch.cuda.get_allocator_backend()}")
    return torch


def main() -> int:
    end_with_parent()
    output = os.dup(1)
    os.dup2(2, 1)  # sends what libraries print to standard error, so that the old standard output has answers only
    try:
        torch = prepare(sys.argv[1])
    except Exception as problem:
        send(output, failure(problem))
        return 1
    send(output, {"ready": 1})
    for line in sys.stdin:
        child = os.fork()
        if not child:
            end_with_parent()
            play_job(torch, json.loads(line), output)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        send(output, {"ended": os.waitstatus_to_exitcode(status)})
    return 0
