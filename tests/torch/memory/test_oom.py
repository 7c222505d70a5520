"""Out of memory: what the message says, what the allocator tries first, and that everything works afterwards."""

import random
import re
import threading

import pytest
import torch

from contents import LONG, MIB, block, filled, holds, release

GIB = 1 << 30


def out_of_memory(size: int, device="cuda") -> str:
    """Asks for more than there is. Returns the message."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(size, device)
    return str(caught.value)


def room(device=0) -> int:
    """What can be allocated: a multiple of 64 MiB, so that no allocator's rounding matters."""
    release()
    return torch.cuda.mem_get_info(device)[0] // (64 * MIB) * 64 * MIB


def test_the_exception_is_one_type_with_two_names():
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    with pytest.raises(RuntimeError, match="out of memory"):
        block(8 * GIB)


@pytest.mark.parametrize(
    "words",
    [
        r"^CUDA out of memory\. ",
        r"Tried to allocate 8\.00 GiB\. ",
        r"GPU 0 has a total capacity of 4\.00 GiB of which [\d.]+ [GM]iB is free\. ",
        r"this process has [\d.]+ [GM]iB memory in use|Process \d+ has [\d.]+ [GM]iB memory in use",
        r"Of the allocated memory [\d.]+ (?:bytes|[KMG]iB) is allocated by PyTorch, and [\d.]+ (?:bytes|[KMG]iB) is reserved by PyTorch",
        r"expandable_segments:True",
        r"docs\.pytorch\.org/docs/stable/notes/cuda\.html",
    ],
)
def test_the_message_has(words):
    assert re.search(words, out_of_memory(8 * GIB))


def test_the_message_has_the_figures_of_now():
    live = block(256 * MIB)
    release()
    left = torch.cuda.mem_get_info()[0]
    said = out_of_memory(8 * GIB)
    assert f"of which {left / GIB:.2f} GiB is free" in said
    assert f"Of the allocated memory {torch.cuda.memory_allocated() / MIB:.2f} MiB is allocated by PyTorch" in said
    del live


def test_the_message_names_the_device():
    assert "GPU 2 has a total capacity" in out_of_memory(8 * GIB, "cuda:2")


def test_a_size_that_no_machine_has():
    assert "more than 1EB" in out_of_memory(2 << 60)


@pytest.mark.parametrize("size", [-1, -(1 << 40)])
def test_a_negative_size_is_another_error(size):
    with pytest.raises(RuntimeError, match="negative") as caught:
        block(size)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_everything_works_afterwards():
    live = filled(4 * MIB, 5)
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        out_of_memory(8 * GIB)
        assert torch.cuda.memory_allocated() == before
        assert holds(filled(8 * MIB, 6), 6)
    assert holds(live, 5)


def test_failures_are_counted():
    before = torch.cuda.memory_stats()
    for _ in range(3):
        out_of_memory(8 * GIB)
    after = torch.cuda.memory_stats()
    assert after["num_ooms"] - before["num_ooms"] == 3
    assert after["num_alloc_retries"] >= before["num_alloc_retries"]
    assert after["allocation.all.current"] == before["allocation.all.current"]


def test_all_free_memory_can_be_allocated():
    size = room()
    live = block(size)
    assert torch.cuda.memory_allocated() >= size
    del live


def test_a_full_gpu_and_one_block_more():
    live = [block(64 * MIB) for _ in range(room() // (64 * MIB))]
    said = out_of_memory(128 * MIB)
    assert "Tried to allocate 128.00 MiB" in said
    del live[0]
    live.append(block(64 * MIB))
    del live[:2]
    live.append(block(30 * MIB))


def test_kept_memory_is_given_up_for_another_size():
    """A cache of one size is no reason to fail at another."""
    size = room()
    before = torch.cuda.memory_stats()["num_ooms"]
    cached = [block(64 * MIB) for _ in range(size // (64 * MIB))]
    del cached
    live = block(size)
    assert torch.cuda.memory_stats()["num_ooms"] == before
    del live


@pytest.mark.native("counts the native allocator's retry: cudaMalloc fails, the cache is flushed, cudaMalloc again")
def test_a_retry_is_counted():
    size = room()
    cached = [block(64 * MIB) for _ in range(size // (64 * MIB))]
    del cached
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    block(size)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == before + 1


def test_kept_memory_of_other_streams_is_given_up():
    size = room()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            block(size // 2)
    block(size)


def test_small_leftovers_do_not_hold_large_memory():
    """Blocks of one size are freed, and a few small tensors live on. The free memory must serve blocks of that size again."""
    size = room()
    large = [block(64 * MIB) for _ in range(size // (64 * MIB) - 1)]
    small = [block(10_000) for _ in range(50)]
    count = len(large)
    del large
    large = [block(64 * MIB) for _ in range(count)]
    del small, large


def test_pending_frees_are_waited_for(sim):
    """If another stream still uses the memory, the allocation waits instead of failing. A hundred times."""
    side = torch.cuda.Stream()
    each = room() // 3 // (2 * MIB) * 2 * MIB
    before = torch.cuda.memory_stats()["num_ooms"]
    for _ in range(100):
        a = block(each)
        sim.work(side, 10**9)
        a.record_stream(side)
        del a
    assert torch.cuda.memory_stats()["num_ooms"] == before


def test_pending_frees_of_another_size_are_waited_for(sim):
    side = torch.cuda.Stream()
    size = room()
    ooms = torch.cuda.memory_stats()["num_ooms"]
    pending = [block(64 * MIB) for _ in range(size // (64 * MIB))]
    sim.work(side, LONG)
    for a in pending:
        a.record_stream(side)
    del pending, a
    block(size)
    assert torch.cuda.memory_stats()["num_ooms"] == ooms


def test_live_memory_keeps_its_contents():
    live = [filled(32 * MIB, value) for value in range(1, 6)]
    torch.cuda.empty_cache()
    out_of_memory(torch.cuda.mem_get_info()[0] + 64 * MIB)
    assert all(holds(a, value) for value, a in enumerate(live, 1))


def test_memory_of_other_processes(sim):
    release()
    left = torch.cuda.mem_get_info()[0]
    sim.set_foreign(0, left - 100 * MIB)
    said = out_of_memory(200 * MIB)
    assert "of which 100.00 MiB is free" in said
    sim.set_foreign(0, 0)
    block(200 * MIB)


def test_a_failure_in_backward_loses_nothing(sim):
    release()
    before = torch.cuda.memory_allocated()
    x = torch.empty(16 * MIB, device="cuda", requires_grad=True)
    y = (x * 2).relu().exp()
    torch.cuda.empty_cache()
    grad = torch.empty_like(y)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0] - 8 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        y.backward(grad)
    sim.set_foreign(0, 0)
    (x * 2).relu().exp().backward(grad)
    assert x.grad.shape == x.shape
    del x, y, grad
    release()
    assert torch.cuda.memory_allocated() == before


def test_a_failure_on_one_thread_leaves_others_alone():
    failures, sizes = [], []

    def fail():
        for _ in range(20):
            try:
                block(8 * GIB)
            except torch.OutOfMemoryError as error:
                failures.append(error)

    def work():
        for size in range(1, 200):
            sizes.append(block(size * 10_000).numel())

    threads = [threading.Thread(target=f) for f in (fail, work, fail, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 40 and len(sizes) == 2 * 199


def test_observers_are_told():
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: told.append(what))
    out_of_memory(8 * GIB)
    device, asked, total, left = told[0]
    assert device == 0 and asked >= 8 * GIB
    assert 0 <= left <= total or 0 <= left <= 4 * GIB
    block(MIB)
    assert len(told) == 1


def test_random_sizes_until_it_is_full_again_and_again():
    generator = random.Random(4)
    release()
    live, failures = [], 0
    for step in range(600):
        size = generator.choice((1, 100, 5_000, MIB, 9 * MIB, 70 * MIB, 300 * MIB)) + generator.randrange(1000)
        try:
            live.append(block(size))
        except torch.OutOfMemoryError:
            failures += 1
            del live[:: generator.randint(2, 4)]
        if step % 7 == 0 and live:
            del live[generator.randrange(len(live))]
    assert failures > 3
    assert torch.cuda.memory_allocated() >= sum(a.numel() for a in live)
    del live


# --- a fraction of the device


def test_the_fraction_is_what_was_set():
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.25)
    assert torch.cuda.get_per_process_memory_fraction(1) == 1.0
    torch.cuda.set_per_process_memory_fraction(0.0)
    assert torch.cuda.get_per_process_memory_fraction() == 0.0


def test_the_fraction_is_a_limit():
    release()
    torch.cuda.set_per_process_memory_fraction(0.25)
    live = block(900 * MIB)
    said = out_of_memory(400 * MIB)
    assert "1024.00 MiB allowed" in said or "1.00 GiB allowed" in said
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = block(400 * MIB)
    del live, more


def test_kept_memory_is_given_up_for_the_fraction():
    release()
    torch.cuda.set_per_process_memory_fraction(0.25)
    for size in (900 * MIB, 500 * MIB, 950 * MIB, 10 * MIB, 940 * MIB):
        block(size)
    assert torch.cuda.memory_reserved() <= 1024 * MIB


def test_a_fraction_of_another_device():
    release()
    torch.cuda.set_per_process_memory_fraction(0.125, 1)
    try:
        block(1024 * MIB, "cuda:0")
        assert "GPU 1" in out_of_memory(600 * MIB, "cuda:1")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 1)
    block(600 * MIB, "cuda:1")


@pytest.mark.parametrize("fraction", [-0.1, 1.01, float("inf"), -1e-9])
def test_a_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.cuda.set_per_process_memory_fraction(fraction)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


@pytest.mark.parametrize("fraction", [1, "0.5", None])
def test_a_fraction_that_is_no_float(fraction):
    with pytest.raises(TypeError, match="must be `float`"):
        torch.cuda.set_per_process_memory_fraction(fraction)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
