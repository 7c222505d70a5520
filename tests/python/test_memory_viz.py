"""The snapshot and the trace of a C program, converted for PyTorch's viewer. The program is PROGRAM, in ctypes, on the simulated GPU."""
import gzip
import json
import pickle
import subprocess
import sys

import pytest

from cenote.view import memory_viz

PROGRAM = """
import ctypes, sys
driver, cenote = ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL), ctypes.CDLL(sys.argv[1])
pool, context = ctypes.c_void_p(), ctypes.c_void_p()

def do(error):
    if error:
        cenote.cenote_message.restype = ctypes.c_char_p
        sys.exit(cenote.cenote_message().decode())

def take(bytes):
    block = ctypes.c_void_p()
    do(cenote.cenote_alloc(pool, ctypes.c_size_t(bytes), None, ctypes.byref(block)))
    return block

do(driver.cuInit(0))
do(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
do(driver.cuCtxPushCurrent_v2(context))
do(cenote.cenote_pool_default(0, ctypes.byref(pool)))
old = take(5000)
do(cenote.cenote_pool_record(pool, ctypes.c_uint64(1000)))
do(cenote.cenote_tag_push("größe, 50%".encode()))
held = [take(bytes) for bytes in (100, 200_000, 30 << 20)]
do(cenote.cenote_tag_pop())
do(cenote.cenote_free(held[1]))
do(cenote.cenote_pool_step(pool))
do(cenote.cenote_free(old))
for name in sys.argv[2:]:
    do((cenote.cenote_pool_snapshot if "json" in name else cenote.cenote_pool_record_save)(pool, name.encode()))
"""


@pytest.fixture
def files(clean, simulation_library, tmp_path):
    build = simulation_library.parent.parent
    names = [str(tmp_path / name) for name in ("a.json", "a.json.gz", "a.csv", "a.csv.gz")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(build / "libcenote.so"), *names], capture_output=True, text=True, timeout=60,
                          env={**clean, "LD_LIBRARY_PATH": str(build / "sim"), "CENOTE_SIM": "capacity:1GiB", "CENOTE_CONF": "sites:4"})
    assert done.returncode == 0, done.stderr
    return names


@pytest.mark.simulation
def test_a_program_without_pytorch(files):
    plain, zipped, trace, zipped_trace = files
    with open(plain, encoding="utf-8") as file, gzip.open(zipped, "rt", encoding="utf-8") as again:
        first, second = json.load(file), json.load(again)
    assert first["segments"] == second["segments"] and first["counters"]["blocks"]["current"] == 2
    with open(trace, encoding="utf-8") as file, gzip.open(zipped_trace, "rt", encoding="utf-8") as again:
        assert file.read() == again.read()

    picture = memory_viz.to_memory_viz(memory_viz.read_snapshot(zipped), memory_viz.read_trace(zipped_trace))
    blocks = [block for segment in picture["segments"] for block in segment["blocks"]]
    live = {block["requested_size"]: block for block in blocks if block["state"] == "active_allocated"}
    assert set(live) == {100, 30 << 20}
    frames = live[100]["frames"]
    assert frames[-1]["name"] == "größe, 50%" and len(frames) > 1 and "libffi" in frames[0]["filename"]  # the frame that ctypes called from
    assert sum(segment["total_size"] for segment in picture["segments"]) == first["counters"]["reserved"]["current"]
    actions = [event["action"] for event in picture["device_traces"][0]]
    assert actions == ["alloc"] * 4 + ["free_requested", "free_completed"] * 2
    assert picture["device_traces"][0][0]["frames"] == [] and picture["device_traces"][0][1]["frames"][0]["name"] == "größe, 50%"


@pytest.mark.simulation
def test_the_command_writes_a_picture(files, clean, tmp_path):
    plain, _, trace, _ = files

    def run(*arguments):
        command = [sys.executable, "-m", "cenote.memory_viz", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)

    done = run(plain, tmp_path / "picture.pickle", trace)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "picture.pickle", "rb") as file:
        assert pickle.load(file) == memory_viz.to_memory_viz(memory_viz.read_snapshot(plain), memory_viz.read_trace(trace))
    assert run(plain).returncode == 2
    missing = run(tmp_path / "none.json", tmp_path / "picture.pickle")
    assert missing.returncode == 1 and missing.stderr.count("\n") == 1 and "none.json" in missing.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"snapshot":2}', "\xff"])
def test_other_files_are_no_snapshots(tmp_path, text):
    for name in ("x.json", "x.json.gz", "zipped.json"):
        data = text.encode("latin-1")
        (tmp_path / name).write_bytes(gzip.compress(data, 1) if name == "zipped.json" else data)
        with pytest.raises(memory_viz.Broken, match=name):
            memory_viz.read_snapshot(tmp_path / name)


@pytest.mark.simulation
@pytest.mark.parametrize("text", ["", "t_us,op,id,bytes\n0,a,1,1\n", "\xff\xfe", "{}", "\x80"])
def test_other_files_are_no_traces(tmp_path, text):
    (tmp_path / "x.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(memory_viz.Broken, match="x.csv"):
        list(memory_viz.read_trace(tmp_path / "x.csv"))


def test_a_block_that_waits_still_was_not_freed():
    trace = [memory_viz.Event(op == "a", 0, 0, 0, address, 512, "")
             for op, address in (("a", 512), ("f", 512), ("a", 512), ("f", 512), ("a", 1024), ("f", 1024))]
    events = memory_viz._events(trace, 0, {512})
    assert [(event["action"], event["addr"]) for event in events] == [
        ("alloc", 512), ("free_requested", 512), ("free_completed", 512), ("alloc", 512), ("free_requested", 512),
        ("alloc", 1024), ("free_requested", 1024), ("free_completed", 1024)]


@pytest.mark.simulation
def test_a_free_that_tells_nothing_of_its_block(tmp_path):
    """Such a free means the block as it was allocated, as for every other reader of traces."""
    (tmp_path / "x.csv").write_text("t_us,op,id,bytes,stream,device,tag,address,label\n0,a,1,700,2,1,3,4096,a%2Fb\n5.5,f,1,,,,,,\n")
    assert list(memory_viz.read_trace(tmp_path / "x.csv")) == [memory_viz.Event(True, 0, 1, 2, 4096, 700, "a/b"),
                                                               memory_viz.Event(False, 5, 1, 2, 4096, 700, "a/b")]


def test_pytorchs_viewer_reads_the_protocol(tmp_path, monkeypatch):
    """The second byte of the file. The viewer of PyTorch's site knows 4, and Python 3.14 writes 5 unless it is told; here each Python does."""
    dump = pickle.dump
    monkeypatch.setattr(pickle, "dump", lambda content, file, protocol=5: dump(content, file, protocol))
    monkeypatch.setattr(memory_viz, "to_memory_viz", lambda snapshot, trace: {"segments": [], "device_traces": []})
    monkeypatch.setattr(memory_viz, "read_snapshot", lambda path: None)
    memory_viz.write_memory_viz(tmp_path / "pool.json", tmp_path / "x.pickle")
    assert (tmp_path / "x.pickle").read_bytes()[:2] == b"\x80\x04"
