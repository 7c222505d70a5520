"""`cenote view --at` and `cenote diff`: the rows of each kind of file, what is refused, and what a second command may not replace."""
import gzip
import json
import pickle

import pytest

from cenote.view import diff, moments, viewer
from cenote.view.history import Broken
from test_memory_viz import files  # noqa: F401  (a fixture: a pool's own snapshot and trace)
from test_view_command import MIB, NASTY, small, small_records, trace_of, view  # noqa: F401  (fixtures, and what they are made of)

pytestmark = pytest.mark.simulation


def held(path, at="peak", by=None):
    moment, = viewer.moments_of(str(path), at)
    divisions = moments.chosen([moment], by)
    return moment, {key: (row.bytes, row.blocks) for key, row in moments.sums(moment, divisions).items()}


def dry_run(path, rows, total, **more):
    """What `cenote dry-run --json` writes, as far as it is read here. Rows: (kind, name, line, bytes)."""
    names = {"rows": [{"kind": kind, "name": name, "line": line, "bytes": size, "blocks": 1} for kind, name, line, size in rows]}
    figures = {"live_peak": total, "reserved_peak": 2 * total, "peak_step": 2, "kinds": {}, "names": names}
    path.write_text(json.dumps({"processes": [{"devices": {"0": figures}}], "largest": None, **more}))
    return path


def pytorchs(path, lines):
    """A snapshot of PyTorch: a live block of 1 MiB for each (file, line, function)."""
    blocks = [{"size": MIB, "state": "active_allocated", "address": number << 20,
               "frames": [{"filename": f"/programs/{file}", "line": line, "name": name}]} for number, (file, line, name) in enumerate(lines, 1)]
    segment = {"device": 0, "address": MIB, "total_size": 64 * MIB, "stream": 0, "blocks": blocks}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    return path


# --- moments

def test_a_trace_at_its_peak_at_its_end_and_in_a_step(small):  # noqa: F811
    moment, rows = held(small)
    assert (moment.bytes, moment.at, moment.unit) == (104 * MIB - 100, "at the peak, in step 2", "requested")
    assert rows == {("no tag",): (64 * MIB - 100, 1), ("act",): (32 * MIB, 1), (NASTY,): (8 * MIB, 1)}
    assert held(small, "end")[1] == {(NASTY,): (8 * MIB, 1)}
    for step, size in (("1", 40 * MIB), ("2", 104 * MIB - 100), ("3", 40 * MIB)):
        assert held(small, step)[0].bytes == size
    with pytest.raises(Broken, match="has no step 4: it has 3 steps"):
        held(small, "4")


def test_a_page_holds_what_its_trace_holds(small, tmp_path):  # noqa: F811
    page = tmp_path / "page.html"
    page.write_bytes(viewer.draw(viewer.read(str(small)), "page.html"))
    for at in ("peak", "end", "1", "2", "3"):
        (ours, rows), (theirs, others) = held(page, at), held(small, at)
        assert rows == others and ours._replace(title="", holdings=[]) == theirs._replace(title="", holdings=[])


def test_a_page_with_a_time_line_and_a_snapshot_is_counted_once(small, files, tmp_path):  # noqa: F811
    """As is written when memory runs out."""
    snapshot = next(path for path in files if str(path).endswith(".json"))
    histories = [*viewer.read(str(small)), *viewer.read(str(snapshot))]
    devices = {history.device for history in histories}
    page = tmp_path / "oom.html"
    page.write_bytes(viewer.draw(histories, "oom.html"))
    found = viewer.moments_of(str(page), "peak")
    assert len(histories) > len(devices) == len(found) == 1 and found[0].bytes == viewer.moments_of(str(small), "peak")[0].bytes


def test_what_a_page_left_out_has_a_row(tmp_path, monkeypatch):
    """A page has the largest blocks of a long trace: what it lacks at the peak is a row of its own."""
    monkeypatch.setattr("cenote.view.html_page.BLOCKS", 1)
    path = tmp_path / "long.csv"
    path.write_text(trace_of([("a", i, (i > 0) * MIB + 512, 0, 1, 0x1000 + i * 2 * MIB, "all") for i in range(2001)]))
    page = tmp_path / "page.html"
    page.write_bytes(viewer.draw(viewer.read(str(path)), "page.html"))
    moment, rows = held(page)
    assert moment.bytes == 2001 * 512 + 2000 * MIB and sum(size for size, _ in rows.values()) == moment.bytes
    assert rows[(moments.SMALLER,)] == (512, 0)


def test_a_pools_snapshot_has_one_moment(files):  # noqa: F811
    snapshot = next(path for path in files if str(path).endswith(".json"))
    assert viewer.moments_of(str(snapshot), "end") == viewer.moments_of(str(snapshot), "peak")
    with pytest.raises(Broken, match="is a snapshot, which has one moment"):
        viewer.moments_of(str(snapshot), "2")


def test_pytorchs_snapshots_go_by_line(tmp_path):
    path = pytorchs(tmp_path / "a.pickle", [("a.py", 3, "f"), ("a.py", 3, "f"), ("b.py", 9, "g")])
    assert held(path)[1] == {("a.py:3 f",): (2 * MIB, 2), ("b.py:9 g",): (MIB, 1)}


def test_a_dry_run_tells_its_peak_and_what_it_does_not_list(tmp_path):
    path = dry_run(tmp_path / "a.json", [("parameters", "layers.0.w", "a.py:1", 3), ("parameters", "layers.1.w", "a.py:1", 4)], 10)
    moment, rows = held(path)
    assert rows == {("parameters", "layers.*.w", "a.py:1"): (7, 2), (moments.SMALLER, "", ""): (3, 0)}
    assert (moment.bytes, moment.reserved, moment.at) == (10, 20, "at the peak, in step 2")
    with pytest.raises(Broken, match="at no other moment: --at peak"):
        held(path, "end")
    with pytest.raises(Broken, match="searches of several cards"):
        held(dry_run(path, [], 1, searches=[]))
    largest = json.loads(dry_run(path, [("inputs", "x", "a.py:1", 50)], 50).read_text())
    assert held(dry_run(path, [], 8, largest=largest))[0].bytes == 50


def test_names_that_are_lines_keep_their_numbers():
    assert moments.name_of("name", "train.py:9") == "train.py:9" and moments.name_of("name", "h.3.w") == "h.*.w"


# --- the command

def test_view_prints_what_was_held(view, small):  # noqa: F811
    lines = view("--at", "peak", "--top", "2", small).splitlines()
    assert lines[0] == "small.csv, GPU 0: 104.0 MiB requested at the peak, in step 2"
    assert lines[1].split() == ["bytes", "share", "blocks", "tag"]
    assert lines[2].split("  ")[-1] == "no tag" and lines[4].endswith("1 row more") and len(lines) == 5
    found, = json.loads(view("--at", "peak", "--json", "--by", "size", small))
    assert found["rows"][0] == {"size": "32 to 128 MiB", "bytes": 96 * MIB - 100, "blocks": 2} and found["bytes"] == 104 * MIB - 100
    assert "\x1b" not in view("--at", "end", small)


def test_view_refuses_what_it_cannot_answer(view, small, tmp_path):  # noqa: F811
    assert "does not tell 'kind'; there is tag" in view("--at", "peak", "--by", "kind", small, status=2)
    assert "belong to --at" in view("--json", small, status=2)
    assert "leave one of them out" in view("--at", "end", "-o", "x.png", small, status=2)
    assert "'0' is neither peak, nor end" in view("--at", "0", small, status=2)
    (tmp_path / "none.html").write_text("<!DOCTYPE html><p>hello")
    assert "none that cenote wrote" in view("--at", "peak", tmp_path / "none.html", status=2)
    (tmp_path / "half.html").write_text('<!DOCTYPE html>const DATA = {"views":[{"title":')
    assert "is a damaged page" in view("--at", "peak", tmp_path / "half.html", status=2)
    assert "is a page already" in view(tmp_path / "half.html", status=2)


def test_view_writes_over_no_page_of_another_command(run, small, tmp_path):  # noqa: F811
    """`cenote run --report small.html` and `cenote view small.csv` would write the same file, and the first knows lines."""
    report, ours = tmp_path / "small.html", tmp_path / "small.view.html"
    report.write_bytes(viewer.draw(viewer.read(str(small)), "small.html"))
    before = report.read_bytes()
    for _ in range(2):
        done = run("view", small, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith("small.view.html: ")
        assert report.read_bytes() == before and ours.exists()
    ours.write_text("of someone")
    done = run("view", small, cwd=tmp_path)
    assert done.returncode == 2 and "name another file with -o" in done.stderr and ours.read_text() == "of someone"
    report.unlink()
    for _ in range(2):  # its own page may be replaced
        assert run("view", small, cwd=tmp_path).stdout.startswith("small.html: ")


@pytest.fixture
def compared(run):
    def call(*arguments, status=0):
        done = run("diff", *arguments)
        assert done.returncode == status, done.stderr
        if status == 2:
            assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote diff: ")
        assert ("is above --fail-above" in done.stderr) == (status == 1)
        return done.stderr if status == 2 else done.stdout
    return call


def test_diff_sorts_by_the_difference(compared, small, tmp_path):  # noqa: F811
    after = tmp_path / "after.csv.gz"
    records = [(op, *(rest[:1] + (rest[1] + 16 * MIB,) + rest[2:] if rest[-1:] == ("act",) else rest)) for op, *rest in map(tuple, small_records())
               for rest in [tuple(rest)] if rest[-1:] != (NASTY,)]
    after.write_bytes(gzip.compress(trace_of(records).encode()))
    found = json.loads(compared("--json", small, after))
    assert [(row["tag"], row["change"], row["blocks_before"], row["blocks_after"]) for row in found["rows"]] == [
        ("act", 16 * MIB, 1, 1), (NASTY, -8 * MIB, 1, 0), ("no tag", 0, 1, 1)]
    assert found["change"] == 8 * MIB
    text = compared(small, after)
    assert "together +8.0 MiB (+7.7 %)" in text and "1 row holds the same" in text and "gone" in text


@pytest.mark.parametrize("limit, status", [("10%", 1), ("11%", 1), ("12%", 0), ("0.5 GiB", 2), ("11", 2), ("11b", 0), ("10b", 1), ("1KiB", 0),
                                           ("many", 2)])
def test_diff_fails_above_a_limit(compared, tmp_path, limit, status):
    before, after = dry_run(tmp_path / "a.json", [], 98), dry_run(tmp_path / "b.json", [], 109)
    compared("--fail-above", limit, before, after, status=status)
    compared("--fail-above", "0%", after, before)  # it holds less


def test_diff_finds_lines_that_moved():
    by = ("kind", "line")
    before = {("a", "x.py:9 f"): moments.Sum(1, 1), ("a", "x.py:12 f"): moments.Sum(2, 1), ("a", "x.py:20 g"): moments.Sum(3, 1)}
    after = {("a", "x.py:10 f"): moments.Sum(1, 1), ("a", "x.py:13 f"): moments.Sum(7, 1), ("a", "y.py:20 g"): moments.Sum(3, 1)}
    pairs = {key: (one.bytes, other.bytes) for key, one, other in diff.paired(before, after, by)}
    assert pairs == {("a", "x.py:10 f"): (1, 1), ("a", "x.py:13 f"): (2, 7), ("a", "y.py:20 g"): (0, 3), ("a", "x.py:20 g"): (3, 0)}


def test_diff_finds_a_script_with_another_name():
    by = ("kind", "line")
    before = {("a", "old.py:9 f"): moments.Sum(1, 1), ("b", "model.py:3 g"): moments.Sum(2, 1), ("c", "no line"): moments.Sum(5, 1)}
    after = {("a", "new.py:11 f"): moments.Sum(4, 1), ("b", "model.py:3 g"): moments.Sum(2, 1)}
    pairs = {key: (one.bytes, other.bytes) for key, one, other in diff.paired(before, after, by)}
    assert pairs == {("a", "new.py:11 f"): (1, 4), ("b", "model.py:3 g"): (2, 2), ("c", "no line"): (5, 0)}
    more = {**after, ("a", "third.py:9 f"): moments.Sum(7, 1)}  # which of the two was it?
    assert (("a", "old.py:9 f"), moments.Sum(1, 1), diff.NONE) in diff.paired(before, more, by)


def test_what_has_the_name_of_its_line_moves_with_it(compared, tmp_path):
    before = dry_run(tmp_path / "a.json", [("inputs", "train.py:9", "train.py:9", 5)], 5)
    after = dry_run(tmp_path / "b.json", [("inputs", "train.py:10", "train.py:10", 7)], 7)
    row, = json.loads(compared("--json", before, after))["rows"]
    assert (row["name"], row["before"], row["after"]) == ("train.py:10", 5, 7)


def test_diff_takes_files_of_two_kinds(compared, small, files, tmp_path):  # noqa: F811
    trace = next(path for path in files if ".csv" in str(path))
    assert "together" in compared(small, trace)
    theirs = pytorchs(tmp_path / "b.pickle", [("a.py", 1, "f"), ("a.py", 2, "f")])
    text = compared(dry_run(tmp_path / "a.json", [("inputs", "x", "a.py:1", 5)], 5), theirs)
    assert "a.py:1 f" in text and "gone" in text
    assert "do not tell 'module'" in compared("--by", "module", small, trace, status=2)
    assert "No such file" in compared(small, tmp_path / "none", status=2)
