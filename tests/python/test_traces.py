"""The traces in traces/torch agree with their manifest. cenote's reader reads them; what a replay does not need, the tests read line by line."""
import collections
import gzip
import hashlib
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from cenote.replay import comparison, trace_file
from spoken import said

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "traces/torch"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
MOST_BYTES = 10_000_000
NAMES = [line["name"] for line in MANIFEST]


def rows(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        columns = file.readline().rstrip("\n").split(",")
        return [dict(zip(columns, line.rstrip("\n").split(","))) for line in file]


def told(path):
    """The manifest's figures of a file, computed in another way than record.py does."""
    live, peak, blocks, streams, found = 0, 0, {}, set(), rows(path)
    for row in found:
        if row["op"] == "a":
            blocks[row["id"]] = int(row["bytes"])
            live += blocks[row["id"]]
        elif row["op"] == "f":
            live -= blocks.pop(row["id"])
        if row["op"] in "au":
            streams.add((row["device"], row["stream"]))
        peak = max(peak, live)
    ops = collections.Counter(row["op"] for row in found)
    return {"records": len(found), "allocations": ops["a"], "uses": ops["u"], "steps": ops["s"], "streams": len(streams), "live_peak_bytes": peak,
            "tags": sorted({row["label"] for row in found} - {""}), "file_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_the_set():
    assert len(set(NAMES)) == len(NAMES) >= 10
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(["manifest.json", *(f"{name}.csv.gz" for name in NAMES)])
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
    assert sum(line["streams"] > 1 for line in MANIFEST) >= 3
    assert {line["live_peak_bytes"] > 4 << 30 for line in MANIFEST} == {True}  # full scale


@pytest.mark.parametrize("line", MANIFEST, ids=NAMES)
def test_a_trace_is_what_the_manifest_says(line):
    found = told(FOLDER / line["file"])
    assert {name: line[name] for name in found} == found
    assert [str(line["steps"])] == line["arguments"] and (ROOT / line["program"]).exists()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", line["date"]) and line["torch"] and line["cenote"]


@pytest.mark.simulation
@pytest.mark.parametrize("line", MANIFEST, ids=NAMES)
def test_the_reader_reads_it(line):
    trace = trace_file.load(str(FOLDER / line["file"]))
    assert (trace.records, trace.live_peak, len(trace.streams)) == (line["records"], line["live_peak_bytes"], line["streams"])
    assert trace.devices == 1 and trace.live_peak < comparison.CAPACITY


def test_a_trace_that_was_changed_is_found(tmp_path):
    """The comparison above can fail: with one block larger, one record less, or other bytes for the same records."""
    line = MANIFEST[NAMES.index("lstm")]
    text = gzip.decompress((FOLDER / line["file"]).read_bytes())
    lines = text.split(b"\n")
    at = next(i for i, text_line in enumerate(lines) if b",a," in text_line)
    larger = lines[at].split(b",")
    larger[3] = str(int(larger[3]) + (1 << 40)).encode()
    changed = {
        "records": text[:text.rindex(b"\n", 0, -1) + 1],
        "sha256": text,
        "live_peak_bytes": b"\n".join([*lines[:at], b",".join(larger), *lines[at + 1:]]),
    }
    for name, contents in changed.items():
        (tmp_path / "x.csv.gz").write_bytes(gzip.compress(contents, 1))
        assert told(tmp_path / "x.csv.gz")[name] != line[name], name


def test_record_names_what_there_is():
    """Checks record.py without a recording: it must have the programs of examples/torch/table.py, so that no new one is forgotten."""
    done = subprocess.run([sys.executable, ROOT / "traces/record.py", "no_such"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no program 'no_such'" in done.stderr and "Traceback" not in said(done.stderr)
    programs = re.findall(r'^    Program\("(\w+)\.py"', (ROOT / "examples/torch/table.py").read_text(), re.M)
    assert sorted(programs) == sorted(NAMES)


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("record", ROOT / "traces/record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trace_that_disagrees_with_pytorch_is_refused(record):
    program, line = record.Program("lstm", 3), {"live_peak_bytes": 512, "steps": 3}
    record.check(program, line, {"requested_peak": 512})
    for bad, said in (({**line, "steps": 2}, {"requested_peak": 512}), (line, {"requested_peak": 513})):
        with pytest.raises(record.Failed, match="lstm"):
            record.check(program, bad, said)


def test_rank_0_is_found_and_nothing_else_taken_for_it(record, tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_bytes(gzip.compress("\n".join(("t_us,op,id,bytes,stream,device,tag,address,label", *lines, "")).encode()))
    write("7.csv.gz", "0.000,s,,,0,0,0,,")
    write("7.2.csv.gz", "0.000,a,1,512,0,1,0,4096,")
    program = record.Program("ddp", 3, ranks=2)
    with pytest.raises(record.Failed, match="0 traces"):
        record.of_rank_0(program, tmp_path)
    write("8.csv.gz", "0.000,s,,,0,0,0,,", "1.500,a,1,512,0,0,3,4096,model")
    assert record.of_rank_0(program, tmp_path) == tmp_path / "8.csv.gz"
    for with_addresses, text in ((True, "1,a,1,512,0,0,3,4096,model\n"), (False, "1,a,1,512,0,0,3,model\n")):
        record.pack(tmp_path / "8.csv.gz", tmp_path / "packed", with_addresses)
        assert gzip.decompress((tmp_path / "packed").read_bytes()).decode().endswith(text)
    write("9.csv.gz", "0.000,a,1,512,0,0,0,4096,")
    with pytest.raises(record.Failed, match="2 traces"):
        record.of_rank_0(program, tmp_path)


def test_a_program_that_fails_leaves_one_line(record, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "FOLDER", tmp_path / "torch")
    monkeypatch.setattr(record, "command", lambda program, trace: [sys.executable, "-c", "raise SystemExit('no such card')"])
    monkeypatch.setattr(sys, "argv", ["record.py", "lstm"])
    assert record.main() == 1
    assert capsys.readouterr().err.strip() == "record.py: lstm ended with status 1; 0 of 1 ranks said their figures: no such card"
    assert list((tmp_path / "torch").iterdir()) == []
    monkeypatch.setattr(record, "command", lambda program, trace: ["sleep", "60"])
    monkeypatch.setattr(record, "MOST_SECONDS", 0.2)
    assert record.main() == 1 and "took more than 0.2 s" in capsys.readouterr().err


@pytest.mark.simulation
def test_the_library_alone_replays_them(tmp_path, simulation_library):
    """cenote-replay plays the shortest of the traces; docs/results.md has all of them, through PyTorch."""
    program = simulation_library.parents[1] / "bin/cenote-replay"
    line = min(MANIFEST, key=lambda each: each["records"])
    shutil.copy(FOLDER / line["file"], tmp_path)
    done = subprocess.run([program, "--json", tmp_path / line["file"]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["records"], figures["live_peak_bytes"], figures["ooms"]) == (line["records"], line["live_peak_bytes"], 0)
    assert line["live_peak_bytes"] <= figures["reserved_peak_bytes"] < 1.1 * line["live_peak_bytes"]
