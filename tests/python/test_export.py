"""`cenote export --perfetto`, and the files of others that `cenote view` reads: Kineto's, with its memory events, and RMM's logs."""
import json

import pytest

from cenote.view import kineto, rmm_log, viewer
from cenote.view.history import Broken
from test_view_command import FOLDER, MIB, NASTY, data_of, small, small_records, trace_of, view  # noqa: F401  (fixtures, and what they are made of)

pytestmark = pytest.mark.simulation


@pytest.fixture
def export(run, tmp_path):
    def call(*arguments, status=0):
        done = run("export", *arguments, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        if status:
            assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote export: ")
        return done.stderr if status else done.stdout
    return call


def counters(path):
    found = {}
    for row in json.loads(path.read_text())["traceEvents"]:
        if row["ph"] == "C":
            found.setdefault(row["name"], []).append((row["ts"], row["args"]["bytes"]))
    return found


def memory_events(shift, wrong_address=0):
    """The events that Kineto writes for small_records(), in one line each, `shift` microseconds later."""
    at, allocated = {}, 0
    for i, (op, *rest) in enumerate(small_records()):
        if op == "a":
            at[rest[0]] = (rest[4] + wrong_address, rest[1])
            allocated += rest[1]
            address, size = at[rest[0]]
        elif op == "f":
            address, size = at.pop(rest[0])
            size = -size
            allocated += size
        else:
            continue
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size, "Total Allocated": allocated, "Total Reserved": 128 * MIB}
        yield {"ph": "i", "name": "[memory]", "ts": i * 10 + shift, "args": args}
    yield {"ph": "i", "name": "[memory]", "ts": 0.5, "args": {"Device Type": 0, "Device Id": -1, "Addr": 1, "Bytes": 8}}
    yield {"ph": "X", "name": "aten::mul", "ts": shift, "dur": 3, "pid": 7, "tid": 7}


def write_kineto(path, shift, **how):
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 17, "traceEvents": list(memory_events(shift, **how))}))
    return path


def test_a_trace_becomes_counters_and_instants(export, small, tmp_path):  # noqa: F811
    assert export("--perfetto", "x.json", small).startswith("x.json: ")
    found = counters(tmp_path / "x.json")
    assert max(bytes for _, bytes in found["requested"]) == 104 * MIB - 100
    assert set(found) == {"requested", "allocated", "tag: no tag", "tag: act", f"tag: {NASTY}"}
    assert found["tag: act"] == [(0.0, 0), (10.0, 32 * MIB), (20.0, 0), (40.0, 32 * MIB), (70.0, 0), (90.0, 32 * MIB), (100.0, 0)]
    names = [row["name"] for row in json.loads((tmp_path / "x.json").read_text())["traceEvents"] if row["ph"] == "i"]
    assert names == ["step 1 ends", "step 2 ends", "step 3 ends"]


def test_memory_that_went_back_and_memory_that_ran_out_are_instants(tmp_path):
    from cenote.view import export as exported
    path = tmp_path / "x.csv"
    path.write_text("t_us,op,id,bytes,reserved\n1,a,1,5,134217728\n2,f,1,5,0\n")
    history, = viewer.read(str(path))
    history.marks.append((2, "memory ran out"))
    assert [(row["name"], row["ts"]) for row in exported.instants(history, 1, 0)] == [
        ("memory ran out", 2.0), ("128.0 MiB went back to the driver", 2.0)]


def test_a_file_of_kineto_is_joined_on_its_clock(export, small, tmp_path):  # noqa: F811
    profile = write_kineto(tmp_path / "kineto.json", 5_000_000.25)
    export("--perfetto", "both.json", "--kineto", profile, small)
    rows = json.loads((tmp_path / "both.json").read_text())
    assert rows["baseTimeNanoseconds"] == 17 and [row for row in rows["traceEvents"] if row["name"] == "aten::mul"]
    assert counters(tmp_path / "both.json")["requested"][2] == (5_000_010.25, 40 * MIB)
    write_kineto(profile, 5.0, wrong_address=512)
    assert "no allocations in common" in export("--perfetto", "both.json", "--kineto", profile, small, status=2)


def test_what_export_refuses(export, small, tmp_path):  # noqa: F811
    profile = tmp_path / "kineto.json"
    profile.write_text(json.dumps({"traceEvents": []}))
    assert "profile_memory=True" in export("--perfetto", "x.json", "--kineto", profile, small, status=2)
    profile.write_text("{}")
    assert "is no file of Kineto" in export("--perfetto", "x.json", "--kineto", profile, small, status=2)
    assert "--perfetto" in export(small, status=2)
    assert not (tmp_path / "x.json").exists()


def test_kinetos_memory_events_are_a_history(view, tmp_path):  # noqa: F811
    history, = viewer.read(str(write_kineto(tmp_path / "kineto.json", 100.0)))
    assert list(history.change) == [8 * MIB, 32 * MIB, -32 * MIB, 32 * MIB, 64 * MIB - 100, 100 - 64 * MIB, -32 * MIB, 32 * MIB, -32 * MIB]
    assert history.live_first == 0 and set(history.reserved) == {128 * MIB}
    rows = [row for row in memory_events(0) if row["name"] == "[memory]"][1:]  # recording began after the first block
    later, = kineto.read("x", {"traceEvents": rows})
    assert later.live_first == 8 * MIB and max(later.change) == 64 * MIB - 100
    view("--at", "peak", tmp_path / "kineto.json")
    (tmp_path / "kineto.json").write_text('{"traceEvents": [{"name": "[memory]", "args": {"Device Type": 1}}]}')
    assert "damaged file of Kineto" in view("--at", "peak", tmp_path / "kineto.json", status=2)


def test_logs_of_rmm_are_read(view, tmp_path):  # noqa: F811
    path = tmp_path / "rmm.csv"
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,23:59:59:500000,allocate,0x7f00,1048576,0x0\n"
                    "1,00:00:00:250000,allocate,0x8f00,2097152,0x1\n1,00:00:01:000000,allocate failure,0x0,4096,0x0\n"
                    "1,00:00:01:500000,free,0x7f00,1048576,0x0\n1,00:00:02:0,free,0x1,5,0x0\n")
    history, = viewer.read(str(path))
    assert list(history.change) == [MIB, 2 * MIB, -MIB] and list(history.time) == pytest.approx([0, 750_000, 2_000_000])
    assert history.marks == [(2, "out of memory: 4,096 bytes")]
    assert "3.0 MiB requested at the peak" in view("--at", "peak", path)
    assert rmm_log.microseconds("01:02:03.5") == 3_723_500_000
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,noon,allocate,0x7f00,1048576,0x0\n")
    with pytest.raises(Broken, match="damaged log of RMM"):
        viewer.read(str(path))


def test_what_is_read_is_not_written_over(export, small):  # noqa: F811
    before = small.read_bytes()
    assert "name another file" in export("--perfetto", small, small, status=2)
    assert small.read_bytes() == before
