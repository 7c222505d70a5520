"""What only cenote promises about snapshots and histories. For CENOTE_TEST_ALLOCATOR=cenote; tests/torch/memory/ has what any allocator promises."""

import pathlib
import sys
import threading

import pytest
import torch

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "memory"))
MIB = 1 << 20


def block(size: int, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


@pytest.fixture
def history():
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def active(snapshot: dict) -> dict:
    """Address and requested bytes of each block that is not free."""
    return {b["address"]: b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive"}


def test_picture_and_history_are_of_one_moment(history):
    """While threads allocate: the blocks that are live by the entries are those that the snapshot shows."""
    before = active(torch.cuda.memory._snapshot())

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(number % 2)):
            live: list = []
            for turn in range(200):
                live.append(block((turn + 1) * 7919 % (2 * MIB) + 1, f"cuda:{number % 2}"))
                del live[: max(0, len(live) - 20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    snapshots = []
    while any(thread.is_alive() for thread in threads) or not snapshots:
        snapshots.append(torch.cuda.memory._snapshot())
    for thread in threads:
        thread.join()
    for snapshot in snapshots:
        said = dict(before)
        for entry in (e for trace in snapshot["device_traces"] for e in trace):
            if entry["action"] == "alloc":
                assert entry["addr"] not in said
                said[entry["addr"]] = entry["size"]
            elif entry["action"] == "free_completed":
                assert said.pop(entry["addr"]) == entry["size"]
        assert said == active(snapshot)


def test_an_observer_takes_a_snapshot():
    """The observer runs before the failed allocation returns, and is the last thing that many programs run."""
    code = """
    import torch
    torch.cuda.memory._record_memory_history(stacks="python")
    taken = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: taken.append(torch.cuda.memory._snapshot()))
    try:
        torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print(len(taken), taken[0]["device_traces"][0][-1]["action"])
    """
    assert simulated.forked(code, timeout=60).stdout == "1 oom\n"


def test_stacks_go_while_others_wait_for_python():
    """A thread that makes or frees a stack may take Python's lock, while the thread that holds the lock waits for memory (pytorch#97833)."""
    code = """
    import gc, threading, time, torch
    torch.cuda.memory._record_memory_history(max_entries=7, stacks="python")
    end = time.monotonic() + 4

    def work(number):
        live = []
        with torch.cuda.stream(torch.cuda.Stream()):
            while time.monotonic() < end:
                live.append(torch.empty(number * 7919 % 3_000_000 + 1, dtype=torch.uint8, device="cuda"))
                live[0].record_stream(torch.cuda.default_stream())
                del live[: max(0, len(live) - 8)]
                number += 1
                time.sleep(0.0005)

    def backward():
        x = torch.ones(1000, 100, device="cuda", requires_grad=True)
        while time.monotonic() < end:
            (x * 2).sum().backward()
            x.grad = None

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)] + [threading.Thread(target=backward)]
    for thread in threads:
        thread.start()
    turn = 0
    while time.monotonic() < end:
        torch.cuda.memory_snapshot()
        torch.cuda.memory._record_memory_history(enabled="all" if turn % 5 else None, max_entries=7, stacks="python")
        gc.collect(0)
        turn += 1
    for thread in threads:
        thread.join()
    print("done")
    """
    assert simulated.forked(code, timeout=60).stdout == "done\n"


def test_a_child_frees_what_its_parent_recorded():
    code = """
    import os, torch
    torch.cuda.memory._record_memory_history(stacks="python")
    a = torch.empty(1 << 20, device="cuda")
    if os.fork() == 0:
        del a
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]), len(torch.cuda.memory_snapshot()))
    """
    assert simulated.forked(code, whole=True).stdout == "7 1\n"


@pytest.mark.parametrize("provider, kinds", [("vmm", ["segment_map", "segment_unmap"]), ("plain", ["segment_alloc", "segment_free"])])
def test_how_memory_comes_and_goes(provider, kinds):
    code = """
    import torch
    torch.cuda.memory._record_memory_history(stacks="python")
    torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    expandable = [s["is_expandable"] for s in torch.cuda.memory_snapshot()]
    torch.cuda.empty_cache()
    said = [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"].startswith("segment")]
    print(*expandable, *(e["action"] for e in said), *(e["size"] >> 20 for e in said), [f["name"] for f in said[1]["frames"]][0])
    """
    said = simulated.forked(code, CENOTE_CONF=f"provider:{provider}").stdout.split()
    assert said == [str(provider == "vmm"), *kinds, "40", "40", "empty_cache"]


def test_the_segments_of_a_foreign_allocator_are_segments(history, tmp_path):
    from foreign import Foreign

    foreign = Foreign(tmp_path)
    pool = torch.cuda.MemPool(foreign.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        a = block(5 * MIB)
    (segment,) = [s for s in torch.cuda.memory_snapshot() if s["address"] <= a.data_ptr() < s["address"] + s["total_size"]]
    assert not segment["is_expandable"] and tuple(segment["segment_pool_id"]) == tuple(pool.id)
    del a, pool
    torch.cuda.empty_cache()
    actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e.get("addr") == segment["address"]]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]


def test_a_free_that_is_refused_is_not_in_the_history(history):
    a = block(5 * MIB)
    at = a.data_ptr()
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(at + 512)
    said = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e.get("addr") in (at, at + 512)]
    assert said[-1] == "alloc"
    del a


def test_pinned_memory_records_its_own_history():
    code = """
    import torch
    torch.cuda.memory._record_memory_history(stacks="python", record_pinned_host_memory=True)
    a = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
    s = torch.cuda.memory._snapshot()
    print(len(s["host_segments"]) > 0, [e["action"] for e in s["host_traces"]])
    """
    native = simulated.forked(code, CENOTE="off", check=False, whole=True)
    ours = simulated.forked(code, check=False, whole=True)
    assert (native.returncode, native.stdout) == (ours.returncode, ours.stdout)
