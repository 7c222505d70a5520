"""`cenote view`, `cenote replay`, `cenote-replay` and `cenote.memory_viz` agree about a file: good, with the same counts, or broken, at the same
line. There is one reader of traces, stats/records/reader.c; these tests make sure that no program around it judges a file by rules of its own."""
import gzip
import os
import pickle
import random
import re
import subprocess

import pytest
from conftest import ROOT
from test_damaged_files import SEED, TRIES, damaged
from test_view_command import small_records, torch_snapshot, trace_of

from cenote.base import inputs, progress
from cenote.native import records
from cenote.replay import trace_file
from cenote.view import memory_viz, viewer
from cenote.view.history import Broken

pytestmark = pytest.mark.simulation
HEAD = b"t_us,op,id,bytes\n"
ALL = b"t_us,op,id,bytes,stream,device,tag,address,label,reserved\n"

GOOD = {
    "plain": HEAD + b"0,a,1,512\n1,f,1,512\n",
    "without an end": HEAD + b"0,a,1,512\n1,f,1,512",
    "lines of other systems": HEAD.replace(b"\n", b"\r\n") + b"0,a,1,512\r\n1,f,1,\r\n",
    "op is the last column of such a file": b"t_us,id,bytes,op\r\n0,1,512,a\r\n1,1,,f\r\n",
    "op comes late": b",".join(b"column%d" % i for i in range(60)) + b",t_us,id,bytes,op\n" + b"," * 60 + b"0,1,512,a\n",
    "no device where it need not be": b"t_us,op,id,bytes,device\n0,a,1,512,1\n1,u,1,,\n2,f,1,,\n",
    "leading zeros": HEAD + b"000,a,0000000000000000000000001,00512\n1,f,1,512\n",
    "less than a nanosecond": HEAD + b"0.0000009,a,1,512\n0.0000001,f,1,\n",
    "all columns": ALL + b"0,a,1,512,1,2,3,4096,%FF%2c\xff,8192\n1,u,1,,2,,,,,\n2,f,1,,,,,,,\n3,s,,,,,,,,\n",
    "a foreign column": b"t_us,op,id,bytes,color,color\n0,a,1,512,red,blue\n",
    "many steps": HEAD + b"0,a,1,512\n" + b"1,s,,\n" * 70_000 + b"1,f,1,\n",
    "live at the end": HEAD + b"0,a,1,512\n0,a,2,512\n0,a,3,512\n0,f,2,\n",
    "the largest numbers": ALL + b"%d,a,%d,%d,65535,15,65535,%d,,%d\n" % (2**64 // 1000 - 1, (1 << 54) - 1, 1 << 40, (1 << 63) - 1, (1 << 63) - 1),
}
BROKEN = {
    "empty": b"", "no record": HEAD, "steps alone": HEAD + b"0,s,,\n", "no line": b"\n", "one byte": b"\x1f", "zeros": bytes(99),
    "nothing asked for": HEAD + b"0,a,1,0\n", "too much together": HEAD + b"0,a,1,%d\n0,a,2,9\n" % ((1 << 62) - 5),
    "a byte of nothing": HEAD + b"0,a,1,512\n1,f,1\0,\n", "two ends of a line": HEAD + b"0,a,1,512\r\r\n",
    "a line of 5000": HEAD + b"0,a,1,512\n1,f,1," + b"0" * 5000 + b"\n", "time of half": HEAD + b".5,a,1,512\n",
    "time and no more": HEAD + b"5.,a,1,512\n",
    "time without end": HEAD + b"99999999999999999,a,1,512\n", "time in e": HEAD + b"1e3,a,1,512\n",
    "a nanosecond back": HEAD + b"1.002,a,1,512\n1.001,f,1,\n",
    "a stream where none is asked": b"t_us,op,id,bytes,stream\n0,a,1,512,0\n1,f,1,,x\n",
    "a tag of a step": b"t_us,op,id,bytes,tag\n0,a,1,512,0\n1,s,,,65536\n",
    "an id of a step": HEAD + b"0,a,1,512\n1,s,x,\n", "an address that is none": ALL + b"0,a,1,512,,,,0x7f,,\n",
    "held less than nothing": ALL + b"0,a,1,512,,,,,,-1\n",
    "two addresses": b"t_us,op,id,bytes,address,address\n0,a,1,512,1,1\n", "another device": b"t_us,op,id,bytes,device\n0,a,1,512,1\n1,f,1,,0\n",
    "a quote": b'"t_us","op","id","bytes"\n0,a,1,512\n', "a mark of order": b"\xef\xbb\xbf" + HEAD + b"0,a,1,512\n",
    "65 columns": HEAD[:-1] + b",x" * 61 + b"\n",
    "free twice": HEAD + b"0,a,1,512\n0,f,1,\n0,f,1,\n", "words": b"hello\nworld\n",
}


def zipped():
    data = gzip.compress(HEAD + b"0,a,1,512\n1,f,1,512\n" * 1, 1)
    many = gzip.compress(HEAD + b"0,a,1,512\n" + os.urandom(30_000).hex("\n").encode(), 1)
    return {"whole": data, "two of them": data + gzip.compress(b"2,a,1,512\n"), "rubbish behind": data + b"rubbish",
    "zeros behind": data + bytes(512),
            "half": data[:-12], "no sum": data[:-8], "wrong sum": data[:-8] + bytes(8), "the start": data[:5], "two bytes": data[:2],
            "another method": data[:2] + b"\x09" + data[3:], "of nothing": gzip.compress(b""), "a byte changed": many[:9000] + b"\0" + many[9001:],
            "twice": gzip.compress(data)}


def by_view(path):
    """(verdict, records, live peak, streams): the verdict is "" or the message, without the name of the file."""
    reader = viewer.TraceReader(path.name, str(path))
    try:
        with inputs.opened(str(path)) as found:
            if found.kind != inputs.TRACE:
                raise Broken(f"{path.name}: another kind")
        histories = reader.read()
    except Broken as problem:
        return (str(problem).replace(path.name, "", 1),)
    changes = [(time, change) for history in histories for time, change in zip(history.time, history.change)]
    return "", reader.records, sum(change > 0 for _, change in changes), sum(change < 0 for _, change in changes), len(histories)


def by_replay(path):
    counts = {letter: 0 for letter in b"afus"}
    devices = set()
    try:
        with records.Reader(str(path)) as reader:
            for batch in reader.batches():
                for record in records.RECORD.iter_unpack(batch):
                    counts[record[1]] += 1
                    devices.add(record[5] if record[1] == records.A else -1)
        trace = trace_file.load(str(path))
        assert trace.records == sum(counts.values())
    except trace_file.BrokenTrace as problem:
        return (str(problem).replace(str(path), "", 1),)
    return "", trace.records, counts[records.A], counts[records.F], len(devices - {-1})


def by_the_library(path, program):
    done = subprocess.run([program, "--json", path], capture_output=True, timeout=120)
    if done.returncode == 2:
        return done.stderr.decode(errors="replace").strip().replace(str(path), "", 1)
    assert done.returncode in (0, 3), done.stderr  # 3: a card of 80 GiB is too small
    return ""


def by_picture(path):
    """(verdict, allocations, frees, devices) of cenote.memory_viz."""
    try:
        events = list(memory_viz.read_trace(path))
    except memory_viz.Broken as problem:
        return (str(problem).replace(str(path), "", 1),)
    allocations = sum(event.is_alloc for event in events)
    return "" if allocations else ": there is no allocation in it", allocations, len(events) - allocations, len({event.device for event in events})


def verdicts(path, program):
    view, replay, picture = by_view(path), by_replay(path), by_picture(path)
    assert view == replay, f"view: {view}; replay: {replay}"
    if "no column address" not in picture[0]:
        assert picture[0] == view[0] and (picture[0] or picture[1:] == view[2:]), f"view: {view}; picture: {picture}"
    assert by_the_library(path, program) == view[0]
    return view


@pytest.fixture
def program(simulation_library):
    return simulation_library.parents[1] / "bin/cenote-replay"


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("is_zipped", [False, True])
def test_good_files(tmp_path, program, name, is_zipped):
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(GOOD[name], 1) if is_zipped else GOOD[name])
    verdict, count, *_ = verdicts(path, program)
    assert verdict == "" and count == GOOD[name].strip().count(b"\n")


def test_without_zlib_the_file_is_not_read_and_the_message_says_why(tmp_path, program):
    """zlib is found at run time: nothing is linked to it, and a build needs none of it."""
    (tmp_path / "libz.so.1").touch()
    path = tmp_path / "trace.csv"
    path.write_bytes(next(iter(GOOD.values())))
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=120, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 2 and done.stderr == f"{path}:1: cannot be opened: libz.so.1 was not found\n", done.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path, program, name):
    path = tmp_path / "trace.csv"
    path.write_bytes(BROKEN[name])
    verdict, = verdicts(path, program)
    assert re.match(r":(\d+:)? ", verdict), verdict


@pytest.mark.parametrize("name", zipped())
def test_gzip_files(tmp_path, program, name):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(zipped()[name])
    assert (verdicts(path, program)[0] == "") == (name in ("whole", "two of them", "rubbish behind", "zeros behind"))


def test_damaged_files(tmp_path, program):
    choose = random.Random(f"{SEED} verdicts")
    sample, seen = trace_of(small_records()).encode(), {False: 0, True: 0}
    for attempt in range(TRIES // 5):
        content = damaged(sample, choose)
        path = tmp_path / f"damaged-{attempt}"
        path.write_bytes(gzip.compress(content, 1) if attempt % 4 == 0 else content)
        seen[bool(verdicts(path, program)[0])] += 1
    assert all(seen.values())


@pytest.mark.parametrize("is_pipe", [False, True])
@pytest.mark.parametrize("kind", ["trace", "pickle", "zipped pickle"])
def test_any_kind_through_a_pipe(tmp_path, kind, is_pipe):
    """`view` read a snapshot of PyTorch from a gzip file and from a pipe, and `replay` did not."""
    content = {"trace": lambda: GOOD["plain"], "pickle": lambda: pickle.dumps(torch_snapshot()),
               "zipped pickle": lambda: gzip.compress(pickle.dumps(torch_snapshot()))}[kind]()
    (tmp_path / "file").write_bytes(content)
    counts = []
    for read in (lambda path: len(viewer.read(path)), lambda path: trace_file.load(path).devices):
        path = tmp_path / "file"
        if is_pipe:
            path = tmp_path / f"pipe{len(counts)}"
            os.mkfifo(path)
        with subprocess.Popen(["cp", tmp_path / "file", path] if is_pipe else ["true"]):
            counts.append(read(str(path)))
    assert counts == [1, 1]


# --- files without an end

def test_more_records_than_are_read(tmp_path, program, monkeypatch):
    """Records of any kind count: when uses and steps did not, 40 million of them in 0.9 MB kept `view` busy."""
    assert records.MOST == int(re.search(r"TRACE_RECORDS_MAX (\d+)", (ROOT / "stats/records/records.h").read_text())[1])
    for letter in ("s,,", "u,1,"):
        path = tmp_path / "long.csv"
        path.write_bytes(HEAD + b"0,a,1,512\n" + f"1,{letter}\n".encode() * 100)
        for module, read in (("view.trace", by_view), ("replay.trace_file", by_replay)):
            monkeypatch.setattr(f"cenote.{module}.MOST", 100)
            assert read(path) == (":102: more than 100 records: take a part of it (zcat FILE | head -n 100), or record fewer of them "
                                  "(CENOTE_CONF=record:1000000)",)
            monkeypatch.setattr(f"cenote.{module}.MOST", 101)
            assert read(path)[:2] == ("", 101)


def test_steps_take_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr("cenote.view.history.MOST_STEPS", 64)
    path = tmp_path / "steps.csv"
    path.write_bytes(HEAD + b"0,s,,\n" * 500 + b"".join(b"1,a,%d,512\n1,s,,\n" % i for i in range(500)))
    history, = viewer.read(str(path))
    assert history.all_steps == 1000 and len(history.steps) < 64 and list(history.steps) == sorted(history.steps)
    assert history.steps[-1] > 450 and history.every == 16 or history.every == 32


def test_a_snapshot_that_was_zipped_to_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps({"segments": [], "device_traces": [], "x": "x" * (4 << 20)})))
    with pytest.raises(Broken, match="more than 0 GiB"):
        viewer.read(str(path))
    with pytest.raises(trace_file.BrokenTrace, match="a snapshot of more than 0 GiB"):
        trace_file.load(str(path))


class Terminal:
    def __init__(self, is_one):
        self.is_one, self.text = is_one, ""

    def isatty(self):
        return self.is_one

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress(tmp_path, monkeypatch, is_terminal):
    """Progress shows on a terminal at once, elsewhere as a line after some seconds of a clock that the test moves."""
    path = tmp_path / "long.csv"
    path.write_bytes(HEAD + b"0,a,1,512\n" + b"0,u,1,\n" * (3 * records.BATCH))
    now = [100.0]

    def clock():
        now[0] += 6
        return now[0]
    monkeypatch.setattr(progress.time, "monotonic", clock)
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
    seen = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", seen)
    assert viewer.main([str(path), "-o", str(tmp_path / "x.html")]) == 0
    assert f": {records.BATCH:,} records" in seen.text and "reading long.csv" in seen.text
    assert ("\r" in seen.text) == is_terminal and (is_terminal or all(line.startswith("cenote: ") for line in seen.text.splitlines()))
