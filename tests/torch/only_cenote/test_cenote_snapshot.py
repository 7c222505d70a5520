"""The library's snapshot and trace, converted for PyTorch's viewer, compared with the snapshot of PyTorch's adapter at the same moment."""
import pathlib
import pickle
import random
import sys

import pytest
import torch
from torch.cuda import _memory_viz

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(simulated.ROOT / "python"))
MIB = 1 << 20
SIZES = ("address", "total_size", "allocated_size", "active_size", "requested_size", "device", "stream", "is_expandable")
BLOCK = ("address", "size", "requested_size", "state")


def block(size: int):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def work(stream):
    random.seed(1)
    held = []
    for i in range(300):
        size = random.choice((100, 3000, 70_000, MIB, 9 * MIB)) + random.randrange(1000)
        with torch.cuda.stream(stream if i % 3 else torch.cuda.current_stream()):
            held.append(block(size))
        if len(held) > 20:
            del held[random.randrange(len(held))]
    return held


@pytest.fixture
def pictures(tmp_path, sim):
    """The converted snapshot and PyTorch's own, of one moment, at which a freed block waits for another stream."""
    import cenote
    from cenote.view import memory_viz

    torch.cuda.init()
    stream = torch.cuda.Stream()
    cenote.record(100_000)
    with cenote.tag("inputs"):
        held = work(stream)
    torch.cuda.synchronize()
    waiting = block(3 * MIB)
    sim.set_lag(10**6)
    sim.work(stream, 60 * 10**9)
    waiting.record_stream(stream)
    del waiting
    theirs = torch.cuda.memory._snapshot()
    cenote.save_trace(tmp_path / "trace.csv.gz")
    cenote.snapshot(tmp_path / "pool.json")
    cenote.record(0)
    memory_viz.write_memory_viz(tmp_path / "pool.json", tmp_path / "picture.pickle", tmp_path / "trace.csv.gz")
    with open(tmp_path / "picture.pickle", "rb") as file:
        yield pickle.load(file), theirs
    del held


def of_device(picture, device=0):
    return [segment for segment in picture["segments"] if segment["device"] == device]


def test_segments_and_blocks_are_those_of_the_adapter(pictures):
    ours, theirs = (of_device(picture) for picture in pictures)
    assert any(b["state"] == "active_pending_free" for segment in ours for b in segment["blocks"])
    assert [[segment[name] for name in SIZES] for segment in ours] == [[segment[name] for name in SIZES] for segment in theirs]
    for mine, other in zip(ours, theirs):
        assert [[b[name] for name in BLOCK] for b in mine["blocks"]] == [[b[name] for name in BLOCK] for b in other["blocks"]]


def test_it_has_what_the_adapters_has(pictures):
    ours, theirs = pictures
    assert set(ours) >= {"segments", "device_traces", "allocator_settings", "external_annotations"} & set(theirs)
    assert set(of_device(theirs)[0]) - set(of_device(ours)[0]) <= {"registration_counter"}
    assert set(of_device(theirs)[0]["blocks"][0]) - set(of_device(ours)[0]["blocks"][0]) <= {"user_metadata"}


def test_the_trace_ends_with_the_live_blocks(pictures):
    ours, _ = pictures
    live = {}
    for event in ours["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            assert live.pop(event["addr"]) == event["size"]
    blocks = [b for segment in of_device(ours) for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert {b["address"]: (b["requested_size"] + 511) // 512 * 512 for b in blocks} == live


@pytest.mark.parametrize("name", ["segments", "memory"])
def test_flame_graphs(pictures, name):
    lines = getattr(_memory_viz, name)(pictures[0], format_flamegraph=lambda text: text).splitlines()
    inside = [line for line in lines if "tag:0:inputs" in line]
    assert sum(int(line.split()[-1]) for line in inside) > 10 * MIB
    total = sum(int(line.split()[-1]) for line in lines)
    assert total == sum(segment["total_size"] for segment in pictures[0]["segments"])


def test_text_and_plots(pictures):
    ours, _ = pictures
    assert "total_allocated" in _memory_viz.segsum(ours)
    assert _memory_viz.trace(ours).count(" = ") >= 300
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "snapshot.pickle" in plot(ours)
    assert _memory_viz.compare(ours["segments"], ours["segments"], format_flamegraph=lambda text: text) == ""
    freed = _memory_viz.trace_plot(ours, filter_freed=True)
    assert "snapshot.pickle" in freed and all(event["action"] == "alloc" for event in ours["device_traces"][0])


def test_paths_are_taken_as_they_are(tmp_path):
    import cenote

    folder = tmp_path / "ä b%,"
    folder.mkdir()
    cenote.snapshot(folder / "x.json")
    assert [path.name for path in pathlib.Path(folder).iterdir()] == ["x.json"]
