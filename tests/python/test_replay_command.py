"""`cenote replay` with good and bad files and arguments; its figures are those of PyTorch's allocators and of cenote-replay."""
import gzip
import json
import os
import pathlib
import pickle
import subprocess

import pytest

from cenote.launch import command_line
from cenote.replay import comparison, report, torch_trace, trace_file

HEAD = "t_us,op,id,bytes,stream,device,tag\n"
MIB = 1 << 20


@pytest.fixture
def made(tmp_path):
    """made("name.csv", "a,1,512"...): the path of a trace with these records, one after the other in time. Bytes are written as they are."""
    def make(name, *lines, contents=None):
        path = tmp_path / name
        text = HEAD + "".join(f"{i},{line}{',' * (5 - line.count(','))}\n" for i, line in enumerate(lines))
        path.write_bytes(text.encode() if contents is None else contents)
        return path
    return make


@pytest.fixture
def refuse(capsys, monkeypatch):
    """refuse(ARGUMENT...): the one line that the command prints; it must run nothing."""
    monkeypatch.setattr(comparison, "check_torch", lambda: None)
    monkeypatch.setattr(comparison.Stage, "begin", lambda *_: pytest.fail("it was not refused"))

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            comparison.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert end.value.code == 2 and said.out == ""
        assert len(said.err.splitlines()) == 1 and said.err.startswith("cenote replay: "), said.err
        return said.err
    return call


# --- arguments

@pytest.mark.parametrize("option, value", [
    ("--under", "cudaMalloc"), ("--under", ""), ("--under", "cenote,"), ("--sim", "80"), ("--sim", "8GiB,x"), ("--page", "3"), ("--page", "64MiB"),
    ("--page", "0"), ("--page", "-2"), ("--lag", "2"), ("--lag", "-0.1"), ("--lag", "nan"), ("--lag", "%"), ("--lag", "1e-3"), ("--lag", "٣"),
    ("--repeat", "0"), ("--repeat", "1001"), ("--repeat", "x"), ("--prices", "none"), ("--prices", "/dev/zero"), ("--prices", "h100,"),
])
def test_a_value_that_is_none(refuse, made, option, value):
    assert option in refuse(option, value, made("good.csv", "a,1,512"))


def test_values_in_lists():
    options = comparison.make_parser().parse_intermixed_args("--page 2,8MiB --lag 0,5% --sim 8GiB,8g,1TiB --under native,cenote x.csv y.csv".split())
    assert (options.page, options.lag, options.sim) == ([2, 8], [0, 0.05], [8 << 30, 1 << 40]) and options.traces == ["x.csv", "y.csv"]
    assert len(comparison.variants(options)) == 2 * 2 * 3


def test_no_trace_no_place_to_write(refuse, made, tmp_path):
    good = made("good.csv", "a,1,512")
    assert "no trace" in refuse()
    assert "--what" in refuse("--what", good)
    assert "No such file" in refuse("--json", tmp_path / "no/where.json", good)
    assert "Is a directory" in refuse("--plot", tmp_path, good)


def test_a_plot_without_matplotlib(refuse, made, monkeypatch):
    monkeypatch.setattr(comparison.importlib.util, "find_spec", lambda name: None)
    assert "pip install matplotlib" in refuse("--plot", "x.png", made("good.csv", "a,1,512"))


def test_no_torch(made, capsys, monkeypatch):
    monkeypatch.setattr(comparison.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        comparison.main([str(made("good.csv", "a,1,512"))])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "torch is not installed" in said and len(said.splitlines()) == 1


# --- traces

@pytest.mark.simulation
@pytest.mark.parametrize("lines, why", [
    (["f,1"], ":2: id 1 is not live"), (["a,1,512", "f,1", "f,1"], ":4: id 1 is not live"), (["a,1,-512"], ':2: bytes is "-512"'),
    (["a,1,512", "a,1,512"], ":3: id 1 is allocated again"), (["a,-1,512"], ':2: id is "-1"'), (["x,1,512"], ':2: op is "x"'),
    (["u,1"], ":2: id 1 is not live"), (["a,1,512", "f,1,1024"], "was allocated with 512 bytes"), (["a,1,512,0,64"], "device"),
    (["a,1,512,0,16"], "device 16; the simulated machine has 16 at most"), ([f"a,1,{1 << 50}"], "more than any card has"),
    ([], "no allocation in it"), (["s"], "no allocation in it"),
])
def test_records_that_cannot_be(refuse, made, lines, why):
    assert why in refuse(made("bad.csv", *lines))


@pytest.mark.simulation
@pytest.mark.parametrize("name, contents, why", [
    ("empty.csv", b"", "the file is empty"), ("noise.csv", bytes(range(1, 256)) * 40, "column t_us is missing"),
    ("zero.csv", bytes(9), "this is not text"),
    ("short.csv.gz", gzip.compress(HEAD.encode() + b"1,a,1,512,,,\n" * 99)[:-20], "ends too early"),
    ("half.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\3", "early"),
    ("columns.csv", b"op,id\na,1\n", "t_us is missing"), ("long.csv", b"t_us," + b"a" * 9999, "longer than"),
    ("back.csv", HEAD.encode() + b"2,s,,,,,\n1,s,,,,,\n", "time goes back"), ("fields.csv", HEAD.encode() + b"2,s\n", "fewer columns"),
])
def test_files_that_are_no_traces(refuse, made, name, contents, why):
    said = refuse(made(name, contents=contents))
    assert why in said and name in said


@pytest.mark.simulation
def test_files_that_cannot_be_read(refuse, made, tmp_path):
    assert "No such file" in refuse(tmp_path / "missing.csv")
    assert "directory" in refuse(tmp_path)
    assert "null" in refuse("a\0b")
    assert "bad.csv:2" in refuse(made("good.csv", "a,1,512"), made("bad.csv", "f,1"))  # the command reads all files before it runs anything


@pytest.mark.simulation
def test_ten_gigabytes_of_nothing_are_not_read(refuse, tmp_path):
    for name, start, why in (("large.csv", b"", "not text|longer"), ("large.pickle", b"\x80\x04", "more than 4 GiB")):
        with open(tmp_path / name, "wb") as file:
            file.write(start)
            file.truncate(10 << 30)
        said = refuse(tmp_path / name)
        assert any(word in said for word in why.split("|")), said


@pytest.mark.simulation
def test_more_records_than_fit(refuse, made, monkeypatch):
    monkeypatch.setattr(trace_file, "MOST", 100)
    assert "more than 100 records" in refuse(made("long.csv", *["s"] * 101))


@pytest.mark.simulation
def test_a_trace_of_several_batches(refuse, made):
    lines = ["a,1,512", "f,1"] * trace_file.BATCH + ["s"]
    trace = trace_file.load(str(made("long.csv", *lines)))
    assert trace.records == len(lines) and trace.live_peak == 512 and len(trace.op) == len(lines) + 1 and trace_file.SAMPLES <= len(trace.live)
    assert f"bad.csv:{len(lines) + 2}: id 1 is not live" in refuse(made("bad.csv", *lines, "f,1"))


@pytest.mark.simulation
def test_what_is_made_of_a_trace(made):
    trace = trace_file.load(str(made("small.csv.gz", contents=gzip.compress(
        (HEAD + "0,a,7,512,0,0,\n1,a,8,1024,3,1,\n2,u,8,,4,1,\n3,f,7,,,0,\n4,s,,,,,\n5,a,9,256,3,1,\n").encode()))))
    assert (trace.name, trace.records, trace.live_peak, trace.devices, trace.blocks) == ("small", 6, 1536, 2, 3)
    assert trace.streams == [(0, 0), (1, 3), (1, 4)]
    assert list(trace.op) == [trace_file.DEVICE, trace_file.ALLOC, trace_file.DEVICE, trace_file.TENSOR_ALLOC, trace_file.USE, trace_file.FREE,
                              trace_file.STEP, trace_file.ALLOC, trace_file.TENSOR_FREE, trace_file.FREE]  # the live blocks are freed at the end
    assert trace.live == [512, 1536, 1536, 1536, 1024, 1280] and trace.every == 1


@pytest.mark.simulation
def test_a_pipe(made, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cp", made("good.csv", "a,1,512", "f,1"), tmp_path / "pipe"]):
        assert trace_file.load(str(tmp_path / "pipe")).records == 2


# --- PyTorch's snapshots

def event(action, addr, size, at, stream=0):
    return {"action": action, "addr": addr, "size": size, "time_us": 1000 + at, "stream": stream, "frames": []}


def snapshot():
    """A was allocated before the trace and is freed, B was allocated before and stays, C lives within, another stream uses D after its free."""
    events = [event("alloc", 0xC000, 300, 0), event("segment_alloc", 0xF000, 999, 0),
              event("free_requested", 0xA000, 100, 1), event("free_completed", 0xA000, 100, 1),
              event("free_requested", 0xC000, 300, 2), event("free_completed", 0xC000, 300, 2), event("alloc", 0xA000, 90, 3, 0x7F00),
              event("alloc", 0xD000, 400, 4), event("free_requested", 0xD000, 400, 5)]
    blocks = [{"address": 0xA000, "size": 512, "requested_size": 90, "state": "active_allocated"},
              {"address": 0xB000, "size": 512, "requested_size": 200, "state": "active_allocated"},
              {"address": 0xC000, "size": 512, "requested_size": 300, "state": "inactive"},
              {"address": 0xD000, "size": 512, "requested_size": 400, "state": "active_awaiting_free"}]
    return {"segments": [{"device": 0, "address": 0xA000, "stream": 0, "blocks": blocks}], "device_traces": [events]}


def test_the_records_of_a_snapshot(made):
    path = made("s.pickle", contents=pickle.dumps(snapshot()))
    with open(path, "rb") as file:
        got = [(chr(op), size, stream) for _, op, _, size, stream, *_ in torch_trace.records(str(path), file)]
    assert got == [("a", 100, 0), ("a", 200, 0), ("a", 300, 0), ("f", 100, 0), ("f", 300, 0), ("a", 90, 1), ("a", 400, 0)]
    trace = trace_file.load(str(path))
    assert (trace.name, trace.live_peak, trace.records, trace.blocks) == ("s", 690, 7, 4)


class Harm:
    def __reduce__(self):
        return os.system, ("touch harm",)


@pytest.mark.parametrize("change, why", [
    (lambda s: [], "no memory snapshot"), (lambda s: {"segments": []}, "device_traces and segments"),
    (lambda s: {**s, "device_traces": [[]]}, "no allocation"),
    (lambda s: {**s, "device_traces": [[{"action": "alloc", "addr": -1, "size": 1, "time_us": 0}]]}, "addr is -1"),
    (lambda s: {**s, "device_traces": [[{"action": "alloc", "addr": 1, "size": "x", "time_us": 0}]]}, "size is 'x'"),
    (lambda s: {**s, "device_traces": [7]}, "event 0 of device 0 is broken"), (lambda s: {**s, "segments": [7]}, "segment of device 0 is broken"),
    (lambda s: {**s, "device_traces": [s["device_traces"][0][:1] * 2]}, "which is live"), (lambda s: {**s, "device_traces": [[]] * 17}, "17 devices"),
    (lambda s: Harm(), "system"),
])
def test_snapshots_that_are_broken(refuse, made, tmp_path, monkeypatch, change, why):
    monkeypatch.chdir(tmp_path)
    said = refuse(made("bad.pickle", contents=pickle.dumps(change(snapshot()))))
    assert why in said
    assert not (tmp_path / "harm").exists()


def test_a_half_written_snapshot(refuse, made):
    for end in (1, 40, -1):
        assert "damaged or no memory snapshot" in refuse(made("half.pickle", contents=pickle.dumps(snapshot())[:end]))


# --- the search, and the table

def test_the_smallest_card():
    tried = []

    def play(capacity, enough):
        tried.append(capacity)
        return {"oom_record": None if capacity >= enough else 7}
    for enough in (100 * MIB, 5 << 30, 79 << 30, 90 << 30, 1 << 40):
        tried.clear()
        found, _ = comparison.smallest(lambda capacity: play(capacity, enough), 2 * MIB, 80 << 30)
        assert enough <= found <= enough + max(found // 100, comparison.SEARCH_DISTANCE) and len(tried) < 20
    assert comparison.smallest(lambda capacity: play(capacity, 2 << 40), 2 * MIB, 80 << 30) is None
    assert max(tried) <= command_line.MOST_CAPACITY


def test_sizes_are_short():
    sizes = [report.size(n) for n in (0, 700, 1536, 150 * MIB, 2 << 30, 80 << 30)]
    assert sizes == ["0 B", "700 B", "1.50 KiB", "150 MiB", "2.00 GiB", "80.0 GiB"]


def test_a_table_for_terminals(capsys):
    pytest.importorskip("rich")
    columns = [report.Column("trace", None, False), report.Column("ns", None)]
    report.print_rich(columns, [["[bold]x", "12"]])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["trace", "ns"], ["[bold]x", "12"]]


def test_a_picture_of_many_traces_shows_the_waste(tmp_path):
    """Each run has a bar as long as its waste; a run that ran out of memory says so."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    drawn = []
    runs = [{"trace": f"t{i}", "allocator": name, "page_bytes": 2 * MIB if name == "cenote" else None, "capacity_bytes": 1 << 30, "lag": 0.0,
             "requested_peak_bytes": 100 * MIB, "waste_percent": None if (name, i) == ("native", 3) else 10.0 * i + 1,
             "oom_record": 7 if (name, i) == ("native", 3) else None} for i in range(7) for name in ("cenote", "native")]
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k)))
        report.plot(str(tmp_path / "many.png"), [None] * 7, runs)
    axis = drawn[0].axes[0]
    assert [bar.get_width() for bar in axis.patches][:14] == [run["waste_percent"] or 0 for run in runs]
    said = [text.get_text() for text in axis.texts]
    assert said[7] == "out of memory" and said[6] == "+31.0 %" and [label.get_text() for label in axis.get_yticklabels()][6] == "t6\n100 MiB"
    assert (tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")


# --- replays

TRACE = [*(f"a,{i},{(i % 7 + 1) * 3 * MIB + i},{i % 3},{i % 2}" for i in range(60)), *(f"u,{i},,{(i + 1) % 3},{i % 2}" for i in range(0, 60, 4)), "s",
         *(f"f,{i},,,{i % 2}" for i in range(0, 60, 3)), *(f"a,{i},{(i % 5 + 1) * 4 * MIB},{i % 3},{i % 2}" for i in range(100, 130)), "s"]


def figures(done):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)["runs"]


@pytest.mark.simulation
@pytest.mark.torch
@pytest.mark.slow
def test_three_allocators(run, made, tmp_path):
    """Two traces at once: a plain one with uses and two devices, and a snapshot."""
    plain, picture = made("plain.csv", *TRACE), tmp_path / "out.png"
    taken = made("taken.pickle", contents=pickle.dumps(snapshot()))
    runs = figures(run("replay", "--lag", "0,20%", "--sim", "2GiB", "--page", "2", "--repeat", "2", "--json", "-", plain, taken))
    assert [(r["trace"], r["allocator"], r["lag"]) for r in runs] == [
        (name, under, lag) for name in ("plain", "taken") for lag in (0, 0.2) for under in ("cenote", "native", "expandable")]
    assert not any(r["oom_record"] for r in runs) and all(r["driver_calls_first"] > 0 and r["cpu_ns_per_record"] > 0 for r in runs)
    assert all(r["reserved_peak_bytes"] >= r["requested_peak_bytes"] for r in runs)
    by = {(r["trace"], r["allocator"], r["lag"]): r for r in runs}
    native, expandable = by["plain", "native", 0], by["plain", "expandable", 0]
    assert native["reserved_peak_bytes"] % (2 * MIB) == 0 and native["reserved_peak_bytes"] != expandable["reserved_peak_bytes"]
    # If the device is behind, blocks that other streams use have to wait.
    assert by["plain", "native", 0.2]["driver_calls_last"] > native["driver_calls_last"]
    # The same library, with PyTorch and without it.
    binary = pathlib.Path(os.environ.get("CENOTE_BUILD") or pathlib.Path(__file__).parents[2] / "build") / "bin/cenote-replay"
    alone = subprocess.run([binary, "--json", "--capacity", "2GiB", "--page-mib", "2", "--repeat", "2", plain],
                           capture_output=True, text=True, check=True)
    assert by["plain", "cenote", 0]["reserved_peak_bytes"] == json.loads(alone.stdout)["reserved_peak_bytes"]
    assert by["plain", "cenote", 0]["address_bytes"] == json.loads(alone.stdout)["address_peak_bytes"]
    assert not picture.exists()


@pytest.mark.simulation
@pytest.mark.torch
@pytest.mark.slow
def test_the_end_of_memory_and_the_smallest_card(run, made, tmp_path):
    """One block of 1200 MiB is freed; 20 blocks of 60 MiB take its place, every other one is freed, and 6 of 90 MiB do not fit into the gaps."""
    trace = made("gaps.csv", f"a,99,{1200 * MIB}", "f,99", *(f"a,{i},{60 * MIB}" for i in range(20)),
                 *(f"f,{i}" for i in range(0, 20, 2)), *(f"a,{i},{90 * MIB}" for i in range(20, 26)))
    picture = tmp_path / "picture.png"
    done = run("replay", "--under", "native,cenote", "--sim", "2000MiB", "--plot", picture, "--json", tmp_path / "o.json", trace)
    assert done.returncode == 0, done.stderr
    native, cenote = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert cenote["oom_record"] is None and cenote["waste_percent"] < 20
    assert native["oom_record"] == 36 and native["oom_bytes"] == 90 * MIB and native["waste_percent"] is None
    table = done.stdout.splitlines()
    assert table[1].endswith("out of memory") and table[2].endswith("at record 36") and "Simulated GPU, 1.95 GiB" in table[0] and len(table) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    runs = {r["allocator"]: r for r in figures(run("replay", "--under", "native,cenote", "--smallest", "--json", "-", trace))}
    assert 1700 * MIB <= runs["cenote"]["smallest_bytes"] < 1800 * MIB  # the context takes 500 MiB
    assert 2240 * MIB <= runs["native"]["smallest_bytes"] < 2340 * MIB
    assert runs["native"]["smallest_bytes"] == runs["native"]["capacity_bytes"] and runs["native"]["oom_record"] is None


@pytest.mark.simulation
@pytest.mark.parametrize("torch, status, why", [
    ("raise ImportError('libc10.so is not there')", 2, "PyTorch under native: ImportError: libc10.so is not there"),
    ("class version: cuda = None\n__version__ = '9.9'", 2, "torch 9.9 is built without CUDA"),
    ("import os; os.abort()", 1, "ended with status -6"),
])
def test_a_torch_that_does_not_work(run, made, tmp_path, torch, status, why):
    (tmp_path / "torch.py").write_text(torch)
    done = run("replay", "--under", "native", made("good.csv", "a,1,512"), PYTHONPATH=f"{tmp_path}:{pathlib.Path(__file__).parents[2] / 'python'}")
    assert done.returncode == status and why in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.simulation
@pytest.mark.torch
def test_options_that_cenote_refuses(run, made):
    done = run("replay", "--under", "cenote", made("good.csv", "a,1,512"), CENOTE_CONF="page_mib:x")
    assert done.returncode == 1 and "page_mib" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
