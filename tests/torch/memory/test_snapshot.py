"""Snapshots, their history, and the tools of PyTorch that render them."""

import ctypes
import pickle
import random
import threading

import pytest
import torch

from contents import LONG, MIB, block, release

STATES = {"active_allocated", "active_pending_free", "active_awaiting_free", "inactive"}


@pytest.fixture
def history():
    """A history that begins with the test and ends with it."""
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python", clear_history=True)
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def segments(device=0):
    return [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == device]


def entries(device=0):
    return torch.cuda.memory._snapshot()["device_traces"][device]


def events(tensor_at: int, device=0):
    """The entries about the block at this address, without those about the segment that begins there."""
    return [entry for entry in entries(device) if entry.get("addr") == tensor_at and not entry["action"].startswith("segment")]


def actions(tensor_at: int, device=0):
    return [entry["action"] for entry in events(tensor_at, device)]


def find(at: int):
    """The block at this address."""
    found = [b for s in segments() for b in s["blocks"] if b["address"] == at]
    assert len(found) == 1
    return found[0]


def test_a_snapshot_has_its_parts():
    block(1)
    snapshot = torch.cuda.memory._snapshot()
    assert {"segments", "device_traces", "allocator_settings"} <= set(snapshot)
    assert len(snapshot["device_traces"]) == torch.cuda.device_count()


def test_the_segments_are_what_is_reserved():
    live = [block(size) for size in (100, 70_000, 3 * MIB, 33 * MIB)]
    assert sum(s["total_size"] for s in segments()) == torch.cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in segments()) == torch.cuda.memory_allocated()
    assert sum(s["active_size"] for s in segments()) == torch.cuda.memory_stats()["active_bytes.all.current"]
    assert sum(s["requested_size"] for s in segments()) == torch.cuda.memory_stats()["requested_bytes.all.current"]
    del live


def test_blocks_tile_their_segment():
    live = [block(size) for size in range(1000, 2_000_000, 99_991)]
    del live[::3]
    for segment in segments():
        at = segment["address"]
        for b in segment["blocks"]:
            assert b["address"] == at and b["state"] in STATES
            assert b["state"] == "inactive" or 0 < b["requested_size"] <= b["size"]
            at += b["size"]
        assert at == segment["address"] + segment["total_size"]


def test_segments_do_not_overlap():
    live = [block(size) for size in (100, 70_000, 3 * MIB, 33 * MIB)]
    ranges = sorted((s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot())
    assert all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:]))
    del live


def test_segments_are_in_the_order_of_addresses():
    """The later of two segments has the lower addresses: until the earlier one is made, the driver has no others to give."""
    driver, kept = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    torch.cuda.init()
    size = ctypes.c_size_t(8 << 30)
    assert not driver.cuMemAddressReserve(ctypes.byref(kept), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0))
    live = [block(600 * MIB)]
    assert not driver.cuMemAddressFree(kept, size)
    live.append(block(700 * MIB))  # too large for the addresses that cenote has by now
    addresses = [s["address"] for s in segments()]
    assert addresses == sorted(addresses)
    del live


def test_the_keys_of_a_segment():
    live = block(3 * MIB)
    keys = "device address total_size allocated_size active_size requested_size stream segment_type segment_pool_id is_expandable blocks"
    for segment in segments():
        assert set(keys.split()) <= set(segment)
        assert segment["segment_type"] in ("small", "large")
        is_ours = segment["address"] <= live.data_ptr() < segment["address"] + segment["total_size"]
        assert tuple(segment["segment_pool_id"]) == (0, 0) or not is_ours
    del live


def test_a_tensor_is_a_block():
    a = block(3 * MIB + 7)
    b = find(a.data_ptr())
    assert b["state"] == "active_allocated" and b["requested_size"] == 3 * MIB + 7


def test_what_is_free_shows_the_last_request(history):
    below, a, above = block(8 * MIB), block(3 * MIB + 7), block(8 * MIB)
    at = a.data_ptr()
    del a
    free = find(at)
    assert free["state"] == "inactive" and free["requested_size"] == 3 * MIB + 7
    del below, above


def test_a_block_that_waits_for_a_stream(sim):
    side, a = torch.cuda.Stream(), block(12 * MIB)
    at = a.data_ptr()
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    assert find(at)["state"] in ("active_pending_free", "active_awaiting_free")
    assert sum(s["allocated_size"] for s in segments()) == torch.cuda.memory_allocated()
    torch.cuda.synchronize()
    block(100)
    assert at not in {b["address"] for s in segments() for b in s["blocks"] if b["state"] != "inactive"}


def test_a_block_knows_its_stream():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a = block(12 * MIB)
    owner = [s for s in segments() if s["address"] <= a.data_ptr() < s["address"] + s["total_size"]]
    assert [s["stream"] for s in owner] == [side.cuda_stream]


def test_other_devices_are_in_the_snapshot():
    a = block(3 * MIB, "cuda:2")
    assert sum(s["allocated_size"] for s in segments(2)) >= 3 * MIB
    del a


# --- history


def test_without_a_history_there_is_none():
    torch.cuda.memory._record_memory_history(enabled=None, clear_history=True)
    block(3 * MIB)
    assert all("frames" not in b or b["frames"] == [] for s in segments() for b in s["blocks"])


def test_an_allocation_and_a_free_are_recorded(history):
    a = block(5 * MIB)
    at = a.data_ptr()
    del a
    assert actions(at)[-3:] == ["alloc", "free_requested", "free_completed"]
    alloc = [e for e in entries() if e.get("addr") == at and e["action"] == "alloc"][-1]
    assert alloc["size"] == 5 * MIB and alloc["stream"] == torch.cuda.current_stream().cuda_stream and alloc["time_us"] > 0


def test_the_order_of_time(history):
    for size in range(1, 30):
        block(size * MIB)
    times = [entry["time_us"] for entry in entries()]
    assert len(times) >= 3 * 29 and times == sorted(times)


def test_segments_are_in_the_history(history):
    release()
    block(40 * MIB)
    torch.cuda.empty_cache()
    kinds = {entry["action"] for entry in entries()}
    assert {"segment_alloc", "segment_free"} <= kinds or {"segment_map", "segment_unmap"} <= kinds


def named_for_the_history():
    return block(7 * MIB)


def test_the_stack_of_an_allocation(history):
    a = named_for_the_history()
    names = [frame["name"] for frame in find(a.data_ptr())["frames"]]
    assert "named_for_the_history" in names and "block" in names
    frame = find(a.data_ptr())["frames"][names.index("named_for_the_history")]
    assert frame["filename"].endswith("test_snapshot.py") and frame["line"] > 0


def test_the_stack_of_a_free(history):
    def drop(tensors):
        tensors.clear()

    live = [block(7 * MIB)]
    at = live[0].data_ptr()
    drop(live)
    requested = [e for e in entries() if e.get("addr") == at and e["action"] == "free_requested"][-1]
    assert "drop" in [frame["name"] for frame in requested["frames"]]


def test_stacks_with_frames_of_c():
    torch.cuda.memory._record_memory_history(stacks="all", max_entries=1000)
    a = block(7 * MIB)
    names = " ".join(frame["name"] for frame in find(a.data_ptr())["frames"])
    torch.cuda.memory._record_memory_history(enabled=None)
    assert "empty" in names and "block" in names


def test_history_of_the_state_alone():
    torch.cuda.memory._record_memory_history("state", stacks="python", clear_history=True)
    a = block(7 * MIB)
    frames, recorded = find(a.data_ptr())["frames"], entries()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert frames and [e for e in recorded if e["action"] == "alloc"] == []


def test_history_is_bounded():
    torch.cuda.memory._record_memory_history(max_entries=20, stacks="python", clear_history=True)
    for _ in range(100):
        block(3 * MIB)
    recorded = entries()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert len(recorded) <= 21
    times = [entry["time_us"] for entry in recorded]
    assert times == sorted(times)  # the newest entries, in order
    assert recorded[-2]["action"] == "free_completed" or recorded[-1]["action"] in ("free_completed", "snapshot")


def test_actions_are_left_out():
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True, skip_actions=["free_requested"])
    a = block(5 * MIB)
    at = a.data_ptr()
    del a
    kinds = actions(at)
    torch.cuda.memory._record_memory_history(enabled=None)
    assert kinds[-2:] == ["alloc", "free_completed"]


def test_out_of_memory_is_in_the_history(history):
    with pytest.raises(torch.OutOfMemoryError):
        block(8 << 30)
    oom = [entry for entry in entries() if entry["action"] == "oom"]
    assert len(oom) == 1 and oom[0]["size"] >= 8 << 30
    assert 0 <= oom[0]["device_free"] <= 4 << 30


def test_a_free_that_waits_is_completed_later(history, sim):
    side, a = torch.cuda.Stream(), block(12 * MIB)
    at = a.data_ptr()
    sim.work(side, LONG)
    a.record_stream(side)
    del a
    assert actions(at)[-1] == "free_requested"
    torch.cuda.synchronize()
    block(100)
    assert actions(at)[-1] == "free_completed"


def test_words_for_the_history(history):
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        pytest.skip("this PyTorch has no metadata")
    torch.cuda.memory._set_memory_metadata("step 7")
    a = block(5 * MIB)
    torch.cuda.memory._set_memory_metadata("")
    alloc = [e for e in entries() if e.get("addr") == a.data_ptr() and e["action"] == "alloc"]
    assert alloc[-1]["user_metadata"] == "step 7"


def test_history_from_threads(history):
    def work():
        for _ in range(50):
            block(3 * MIB)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([e for e in entries() if e["action"] == "alloc"]) == 200


def test_history_of_a_capture(history):
    graph = torch.cuda.CUDAGraph()
    a = block(5 * MIB)
    with torch.cuda.graph(graph):
        b = a.clone()
    assert find(b.data_ptr())["frames"]
    owner = next(s for s in segments() if s["address"] <= b.data_ptr() < s["address"] + s["total_size"])
    assert tuple(owner["segment_pool_id"]) == tuple(graph.pool())


def test_the_stack_of_one_block(history):
    traceback = getattr(torch.cuda.memory, "_allocation_traceback", None)
    if not traceback:
        pytest.skip("this PyTorch cannot be asked for the stack of one block")
    a = named_for_the_history()
    assert "named_for_the_history" in [frame["name"] for frame in traceback(a.data_ptr())]
    assert traceback(a.data_ptr() + 1) is None and traceback(0) is None


@pytest.mark.parametrize("context, of_blocks, of_allocations, of_frees", [(None, 0, 0, 0), ("state", 1, 0, 0), ("alloc", 1, 1, 0), ("all", 1, 1, 1)])
def test_which_stacks_are_kept(context, of_blocks, of_allocations, of_frees):
    def drop(tensors):
        tensors.clear()

    torch.cuda.memory._record_memory_history(context=context, stacks="python", clear_history=True)
    live = [named_for_the_history()]
    at = live[0].data_ptr()
    block_names = [frame["name"] for frame in find(at)["frames"]]
    drop(live)
    names = {e["action"]: [frame["name"] for frame in e.get("frames", [])] for e in entries() if e.get("addr") == at}
    torch.cuda.memory._record_memory_history(enabled=None)
    assert ("named_for_the_history" in block_names) == of_blocks
    assert ("named_for_the_history" in names["alloc"]) == of_allocations
    assert ("drop" in names["free_requested"]) == ("drop" in names["free_completed"]) == of_frees


def test_a_history_that_is_cleared():
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    a = block(5 * MIB)
    torch.cuda.memory._record_memory_history(stacks="python")
    assert actions(a.data_ptr()) == ["alloc"]
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    assert actions(a.data_ptr()) == [] and find(a.data_ptr())["frames"]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert entries() == [] and find(a.data_ptr())["frames"]  # a live block keeps its stack until it is freed
    at = a.data_ptr()
    del a
    b = block(5 * MIB)
    assert all(not piece["frames"] for s in segments() for piece in s["blocks"] if piece["address"] in (at, b.data_ptr()))


def test_history_in_the_words_of_older_versions():
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=50, trace_alloc_record_context=True)
    a = block(5 * MIB)
    assert actions(a.data_ptr())[-1] == "alloc" and find(a.data_ptr())["frames"]
    torch.cuda.memory._record_memory_history(False)
    del a


def test_an_action_that_is_none():
    with pytest.raises(RuntimeError, match="nonsense"):
        torch.cuda.memory._record_memory_history(skip_actions=["nonsense"])
    block(3 * MIB)


def test_each_thread_has_words_of_its_own(history):
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        pytest.skip("this PyTorch has no metadata")

    def work():
        torch.cuda.memory._set_memory_metadata("theirs")
        theirs.append(block(5 * MIB))

    theirs: list = []
    torch.cuda.memory._set_memory_metadata({"step": 7})
    assert torch.cuda.memory._get_memory_metadata() == '{"step":7}'
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    mine = block(5 * MIB)
    torch.cuda.memory._set_memory_metadata("")
    said = {e["addr"]: e["user_metadata"] for e in entries() if e["action"] == "alloc"}
    assert said[theirs[0].data_ptr()] == "theirs" and said[mine.data_ptr()] == '{"step":7}'


def test_a_tensor_is_annotated(history):
    annotate = getattr(torch.cuda.memory, "_annotate_tensor", None)
    if not annotate:
        pytest.skip("this PyTorch has no annotations")
    a = block(5 * MIB)
    annotate(a[1000:], "packed")
    annotate(a, "twice")
    said = events(a.data_ptr())
    assert [e["action"] for e in said] == ["alloc", "annotate", "annotate"]
    assert [e["user_metadata"] for e in said] == ["", "packed", "twice"] and said[1]["size"] == 5 * MIB


def test_names_of_ranges_are_annotations(history):
    with torch.autograd.profiler.record_function("## forward ##"):
        block(5 * MIB)
    said = [(a["name"], a["stage"]) for a in torch.cuda.memory._snapshot()["external_annotations"]]
    assert said[-2:] == [("## forward ##", "START"), ("## forward ##", "END")]


def test_what_a_compiled_region_allocates():
    compiled, outside = torch.compile(lambda a: a.clone(), backend="eager"), block(5 * MIB)
    compiled(outside)
    torch.cuda.memory._record_memory_history(stacks="python", compile_context=True, clear_history=True)
    inside, outside = compiled(outside), block(5 * MIB)
    said = {e["addr"]: e["compile_context"] for e in entries() if e["action"] == "alloc"}
    torch.cuda.memory._record_memory_history(enabled=None)
    assert said[inside.data_ptr()].startswith("Torch-Compiled Region: ") and said[outside.data_ptr()] == "N/A"


def test_history_of_another_device(history):
    a = block(5 * MIB, "cuda:2")
    assert actions(a.data_ptr(), 2) == ["alloc"] and actions(a.data_ptr(), 0) == []


def test_the_snapshot_of_a_pool(history):
    pool, other = torch.cuda.MemPool(), block(5 * MIB)
    with torch.cuda.use_mem_pool(pool):
        a = block(9 * MIB)
    mine = pool.snapshot()
    assert {tuple(s["segment_pool_id"]) for s in mine} == {tuple(pool.id)}
    assert sum(s["allocated_size"] for s in mine) == 9 * MIB
    assert {tuple(e["pool_id"]) for e in entries() if e.get("addr") == a.data_ptr()} == {tuple(pool.id)}
    assert {(0, 0), tuple(pool.id)} <= {tuple(s["segment_pool_id"]) for s in segments()}
    del a, other, pool


def test_snapshots_while_threads_run(history):
    """Every snapshot is consistent: blocks tile their segments, nothing overlaps, and each block has its stack."""

    def work(device):
        live: list = []
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for turn in range(150):
                live.append(block(turn * 7919 % (3 * MIB) + 1, f"cuda:{device}"))
                del live[: max(0, len(live) - 20)]

    older = {b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] != "inactive"}
    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    pictures = []
    while any(thread.is_alive() for thread in threads) or not pictures:
        pictures.append(torch.cuda.memory_snapshot())
    for thread in threads:
        thread.join()
    for picture in pictures:
        ends = 0
        for s in sorted(picture, key=lambda s: (s["device"], s["address"])):
            at = s["address"]
            for b in s["blocks"]:
                assert b["address"] == at and (b["state"] == "inactive" or b["frames"] or at in older)
                at += b["size"]
            assert at == s["address"] + s["total_size"]
            ends += 1
        assert ends == len(picture) > 0


def undo(snapshot, device=0):
    """Goes from the segments of the end back through the history, as a program that draws memory at every moment. Yields contradictions."""
    there = sorted((s["address"], s["address"] + s["total_size"], s["stream"]) for s in snapshot["segments"] if s["device"] == device)
    for entry in reversed(snapshot["device_traces"][device]):
        action, begin = entry["action"], entry.get("addr", 0)
        end = begin + entry["size"]
        if action in ("alloc", "free_requested", "free_completed"):
            if not any(a <= begin < b for a, b, _ in there):
                yield f"{action} at {begin:#x}: in no segment"
        elif action in ("segment_map", "segment_alloc"):
            holds = [s for s in there if s[0] <= begin and end <= s[1]]
            if not holds:
                yield f"{action} at {begin:#x}: the range is in no segment"
                continue
            (a, b, stream) = holds[0]
            there.remove(holds[0])
            there += [(a, begin, stream)] * (a < begin) + [(end, b, stream)] * (end < b)
        elif action in ("segment_unmap", "segment_free"):
            if any(a < end and begin < b for a, b, _ in there):
                yield f"{action} at {begin:#x}: the segment is still there"
            for a, b, stream in [s for s in there if action == "segment_unmap" and s[2] == entry["stream"] and begin <= s[1] and s[0] <= end]:
                there.remove((a, b, stream))
                begin, end = min(begin, a), max(end, b)
            there.append((begin, end, entry["stream"]))


@pytest.mark.parametrize("most", [100_000, 200])
def test_the_history_leads_to_the_picture(most):
    """Memory moves between streams and goes back to the driver; some of it was allocated before the history began."""
    at_random, streams = random.Random(3), [torch.cuda.Stream() for _ in range(3)]
    before = [block(5 * MIB) for _ in range(5)]
    torch.cuda.memory._record_memory_history(max_entries=most, context=None, clear_history=True)
    torch.cuda.set_per_process_memory_fraction(0.15)
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 3]):
            live = [block(at_random.randint(1, (3, 17, 40)[turn % 3] * MIB)) for _ in range(10)]
        del live[:: 1 + turn % 2]
        if turn == 20:
            before.clear()
        if turn % 10 == 9:
            torch.cuda.empty_cache()
        if turn % 7 == 6:
            snapshot = torch.cuda.memory._snapshot()
            assert list(undo(snapshot)) == [] and 0 < len(snapshot["device_traces"][0]) <= most
            assert sum(s["total_size"] for s in snapshot["segments"] if s["device"] == 0) == torch.cuda.memory_reserved()
    torch.cuda.memory._record_memory_history(enabled=None)


# --- rendered


@pytest.fixture
def eventful(history):
    """A snapshot with everything in it."""
    live = [block(size) for size in (100, 3 * MIB, 40 * MIB)]
    del live[1]
    with pytest.raises(torch.OutOfMemoryError):
        block(8 << 30)
    yield torch.cuda.memory._snapshot()
    del live


@pytest.mark.parametrize("render", ["trace_plot", "segment_plot"])
def test_a_snapshot_is_rendered_as_a_page(eventful, render):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    page = getattr(viz, render)(eventful)
    assert "<html" in page.lower() or "<!doctype html" in page.lower() or "<script" in page


def test_a_snapshot_is_rendered_as_text(eventful):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    text = viz.segsum(eventful)
    assert "Segments: " in text or "segments" in text.lower()
    assert "40.0MiB" in viz.trace(eventful) and "OutOfMemoryError" in viz.trace(eventful)


def test_a_snapshot_is_rendered_as_flames(eventful):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    lines = []
    viz.segments(eventful, format_flamegraph=lambda text, *_: lines.append(text))
    viz.memory(eventful, format_flamegraph=lambda text, *_: lines.append(text))
    viz.compare(eventful["segments"], eventful["segments"], format_flamegraph=lambda text, *_: lines.append(text))
    assert len(lines) == 3 and "active_allocated" in lines[0] and str(40 * MIB) in lines[1]


def test_a_snapshot_goes_to_a_file(eventful, tmp_path):
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    assert sum(s["allocated_size"] for s in snapshot["segments"]) == sum(s["allocated_size"] for s in eventful["segments"])
    assert any(entry["action"] == "oom" for entry in snapshot["device_traces"][0])
