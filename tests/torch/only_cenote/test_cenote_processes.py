"""Processes with cenote as PyTorch's allocator: forks, every way a Python program with tensors can end, interrupts, and a device that is lost.

Each runs in a process of its own, on a simulated driver that shuts down with the process as a real one does (shuts_down:1).
"""

import re

import pytest

import simulated
from spoken import said

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
SHAPE = "capacity:4GiB,devices:1,context_bytes:300MiB,shuts_down:1"

# Tensors in globals: plain, in use on another stream, in flight, kept by a graph of autograd.
BUSY = """
import atexit, gc, os, sys, threading, time, torch
kept = [torch.randn(300_000 * (i + 1), device="cuda", requires_grad=True) for i in range(4)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    other = kept[0] * 2
other.record_stream(torch.cuda.current_stream())
kept[1].data.record_stream(side)
loss = sum((k ** 2).sum() for k in kept)
freed = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
del freed

def allocate():
    x = torch.ones(3 << 20, device="cuda")
    y = x * 2
    torch.cuda.synchronize()
    del x, y
    torch.cuda.empty_cache()
"""

ENDS = {
    "the end of the program": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "an exception": ("raise ValueError('the program')", 1),
    "an exception in the middle of a stream": ("with torch.cuda.stream(side):\n    y = kept[2] + 1\n    raise ValueError('the program')", 1),
    "handlers that use tensors": ("atexit.register(allocate); atexit.register(kept.clear); atexit.register(lambda: loss.backward())", 0),
    "an object that allocates when it dies": ("class Late:\n    def __del__(self):\n        allocate()\nlate = Late()", 0),
    "a cycle of tensors": ("gc.disable()\nclass Ring: pass\nring = Ring(); ring.me = ring; ring.held = kept; ring.more = kept[0] + 1", 0),
    "a thread that goes on": ("def run():\n    time.sleep(0.2)\n    allocate()\n    kept.clear()\nthreading.Thread(target=run).start()", 0),
}


@pytest.mark.parametrize("road", ENDS)
def test_the_end_of_a_program(road):
    """The background thread is at work. cenote prints nothing."""
    end, status = ENDS[road]
    done = simulated.forked(BUSY + end + "\n", shape=SHAPE, check=False, whole=True, CENOTE_CONF="decay_ms:1,background:1")
    assert done.returncode == status, done.stderr
    if status == 1:
        assert done.stderr.rstrip().endswith("ValueError: the program") and said(done.stderr).count("Error") == 1
    else:
        assert not re.search("Traceback|rror|violation|terminate|cenote", said(done.stderr)), done.stderr


def test_a_handler_from_before_the_import():
    """The handler runs after all handlers of PyTorch: the driver may be gone by then."""
    code = """
        import atexit
        def late():
            kept.clear()
            print("done", flush=True)
        atexit.register(late)
        import torch
        kept = [torch.empty(5 << 20, device="cuda")]
    """
    done = simulated.fresh(code, shape=SHAPE)
    assert done.stdout == "done\n" and "rror" not in said(done.stderr)


def test_workers_that_fork():
    """DataLoader's workers do not use CUDA, and do not own the tensors of their parent. A worker that does use CUDA gets PyTorch's error."""
    code = """
        import os, torch
        from torch.utils.data import DataLoader, Dataset
        kept = torch.full((1 << 20,), 7.0, device="cuda")
        class Numbers(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, i):
                return torch.full((1000,), float(i))
        before = torch.cuda.memory_allocated()
        total = 0.0
        for epoch in range(2):
            for batch in DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
                total += batch.to("cuda", non_blocking=True).nelement()
        assert total == 2 * 64 * 1000 and torch.cuda.memory_allocated() - before <= 8 * 1000 * 4 + 512
        child = os.fork()
        if not child:
            try:
                torch.empty(1, device="cuda")
            except RuntimeError as problem:
                os._exit(21 if "spawn" in str(problem) else 22)
            os._exit(23)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 21
        child = os.fork()
        if not child:
            del kept  # a child that drops what it inherited, and leaves as Python does
            raise SystemExit(24)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 24
        assert kept.nelement() == 1 << 20 and torch.cuda.memory_allocated() >= before
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    """
    done = simulated.forked(code, shape=SHAPE, whole=True, CENOTE_CONF="decay_ms:1,background:1")
    assert not done.stderr


def test_a_worker_in_the_middle_of_allocations():
    """Forks while other threads allocate: the child does not wait for a lock of those threads."""
    code = """
        import os, threading, torch
        over = False
        def run():
            while not over:
                x = torch.empty(torch.randint(1, 9 << 20, (1,)).item(), dtype=torch.uint8, device="cuda")
                del x
        torch.empty(1, device="cuda")
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(25):
            child = os.fork()
            if not child:
                import signal
                signal.alarm(20 * int(os.environ["CENOTE_TEST_PATIENCE"]))
                try:
                    torch.cuda.memory_allocated()
                    torch.empty(1, device="cuda")
                except RuntimeError:
                    pass
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        over = True
        for thread in threads:
            thread.join()
        assert torch.cuda.memory_allocated() <= 512
    """
    simulated.forked(code, shape=SHAPE)


def test_interrupts_while_allocating():
    """KeyboardInterrupt at any moment: no block is lost, and exactly the tensors that the program keeps are allocated."""
    code = """
        import gc, signal, threading, torch
        torch.empty(1, device="cuda")
        side, kept, seen, inside = torch.cuda.Stream(), [], 0, False
        def interrupt(*_):
            global inside
            if inside:
                inside = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        while seen < 150:
            try:
                inside = True
                for size in range(1, 40):
                    x = torch.empty(size * 100_000, dtype=torch.uint8, device="cuda")
                    x.record_stream(side)
                    kept.append(x)
                    if size % 13 == 0:
                        torch.cuda.empty_cache()
                        kept.clear()
                inside = False
            except KeyboardInterrupt:
                seen += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        x = None
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == sum((k.nelement() + 511) // 512 * 512 for k in kept), "some are lost"
        kept.clear()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == 0
        print(seen >= 150)
    """
    assert simulated.forked(code, shape=SHAPE).stdout == "True\n"


def test_an_interrupt_that_ends_the_program():
    """If the program does not catch the error, Python prints its traceback and sets the status, and cenote adds nothing."""
    interrupt = "import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\n"
    code = BUSY + interrupt + "while True:\n    allocate()\n"
    done = simulated.forked(code, shape=SHAPE, check=False, whole=True)
    assert done.returncode == -2 and done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "cenote" not in said(done.stderr).split("KeyboardInterrupt")[-1]


LOST = """
import ctypes, gc, sys, torch
driver = ctypes.CDLL("libcuda.so.1")
kept = [torch.empty(3 << 20, device="cuda") for _ in range(5)]
del kept[0]
{loses}
for size in (100 << 20, 1 << 20):
    try:
        torch.empty(size, device="cuda")
    except RuntimeError as problem:
        print(type(problem).__name__, str(problem).splitlines()[0])
kept.clear()
gc.collect()
print("allocated", torch.cuda.memory_allocated())
"""


def test_every_refusal_names_the_error_of_the_driver():
    """Programs recognize a lost device by these words, whatever they called."""
    loses = """
from torch.cuda.memory import MemPool
calls = [lambda: torch.cuda.empty_cache(), lambda: torch.cuda.set_per_process_memory_fraction(0.5), lambda: MemPool(),
         lambda: kept[1].record_stream(torch.cuda.Stream()), lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda")]
driver.sim_set_quiet(True); driver.sim_lose_context(0, 700)
for call in calls:
    try:
        call()
        print("served")
    except RuntimeError as problem:
        print(str(problem).splitlines()[0])
"""
    done = simulated.forked(LOST.format(loses=loses), shape=SHAPE, whole=True)
    *said, allocated = done.stdout.splitlines()
    assert len(said) >= 5 and all("CUDA error: an illegal memory access" in words or words == "served" for words in said), done.stdout
    assert "served" not in said[:2] and allocated == "allocated 0"


@pytest.mark.parametrize("loses, words", [
    ("driver.sim_set_quiet(True); driver.sim_lose_context(0, 700)", "illegal|ILLEGAL"),
    ("driver.sim_set_quiet(True); driver.cuDevicePrimaryCtxReset_v2(0)", "reset|DESTROYED|destroyed"),
], ids=["an illegal address", "a reset"])
def test_a_device_that_goes(loses, words):
    """An allocation on a lost device gives a clear error, frees succeed, and the program comes to its end."""
    done = simulated.forked(LOST.format(loses=loses), shape=SHAPE, whole=True)
    *errors, allocated = done.stdout.splitlines()
    assert errors and all(re.search(words, error) for error in errors) and allocated == "allocated 0", done.stdout + done.stderr
