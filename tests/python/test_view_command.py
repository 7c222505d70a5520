"""`cenote view`: what it reads, what it refuses, and its page in a real browser. A message on the browser's console is a failure."""
import gzip
import itertools
import json
import pickle
import random
import re
import struct

import pytest

import browser
from cenote.view import html_page, leak, viewer
from cenote.view.history import FOR_EVER, Broken, History
from test_memory_viz import files  # noqa: F401  (a fixture: a pool's own snapshot and trace)

pytestmark = pytest.mark.simulation  # needs the reader of traces, which the build makes
MIB = 1 << 20
COLUMNS = "t_us,op,id,bytes,stream,device,tag,address,label"
NASTY = "</script><script>alert(1)</script><!-- \u2028\"'\\ größe 🕳"
FOLDER = 0x7F0000000000


def escaped(label):
    return "".join(letter if letter not in ',"%' and letter >= " " else f"%{ord(letter):02X}" for letter in label)


def trace_of(records):
    """Lines of a trace: ("a", id, bytes, stream, tag, address, label), ("f", id) or ("s",)."""
    lines = [COLUMNS]
    for i, (op, *rest) in enumerate(records):
        if op == "a":
            number, size, stream, tag, address, label = rest
            lines.append(f"{i * 10}.000,a,{number},{size},{stream},0,{tag},{address},{escaped(label)}")
        else:
            lines.append(f"{i * 10}.000,{op},{rest[0] if rest else ''},,,,,,")
    return "\n".join(lines) + "\n"


def small_records():
    """Three steps: 8 MiB stay, 32 MiB come and go, and in the second step 64 MiB more."""
    yield "a", 1, 8 * MIB, 0, 1, FOLDER, NASTY
    for step in range(3):
        yield "a", 2, 32 * MIB, 1, 2, FOLDER + 8 * MIB, "act"
        if step == 1:
            yield "a", 3, 64 * MIB - 100, 0, 0, FOLDER + (1 << 40), ""
            yield "f", 3
        yield "f", 2
        yield ("s",)


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(trace_of(small_records()), encoding="utf-8")
    return path


@pytest.fixture
def view(run, tmp_path):
    def call(*arguments, status=0, **variables):
        done = run("view", *arguments, **variables)
        assert done.returncode == status, done.stderr
        if status:
            assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote view: "), done.stderr
        return done.stderr if status else done.stdout
    return call


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.JSONDecoder().raw_decode(text, text.index("const DATA = ") + len("const DATA = "))[0]["views"]


# --- what is read

def test_a_trace_is_read(small):
    history, = viewer.read(str(small))
    assert list(history.change) == [8 * MIB, 32 * MIB, -32 * MIB, 32 * MIB, 64 * MIB - 100, 100 - 64 * MIB, -32 * MIB, 32 * MIB, -32 * MIB]
    assert list(zip(history.born, history.gone)) == [(1, FOR_EVER), (2, 3), (4, 7), (5, 6), (8, 9)]
    assert list(history.steps) == [3, 7, 9]
    names, numbers = history.groups["tag"]
    assert [names.names[number] for number in numbers] == [NASTY, "act", "act", "no tag", "act"]
    picture = html_page.Condensed(history)
    assert picture.peak == 5 and picture.levels[5] == 104 * MIB - 100
    assert picture.series()["allocated"][5] == 104 * MIB
    assert dict(zip(picture.groups("tag"), picture.stacks["tag"][5])) == {"no tag": 64 * MIB - 100, "act": 32 * MIB, NASTY: 8 * MIB}


def test_what_was_reserved(small, tmp_path):
    """The reserved bytes that cenote records; a line without a figure repeats the last one."""
    lines = small.read_text(encoding="utf-8").rstrip("\n").split("\n")
    held = ["reserved", 8 * MIB, 40 * MIB, "", "", 40 * MIB, 104 * MIB]
    path = tmp_path / "held.csv"
    path.write_text("".join(f"{line},{held[i] if i < len(held) else ''}\n" for i, line in enumerate(lines)), encoding="utf-8")
    history, = viewer.read(str(path))
    picture = html_page.Condensed(history)
    assert picture.series()["reserved"] == [0, 8 * MIB, *[40 * MIB] * 3, *[104 * MIB] * 5]
    assert not any("reserved" in note for note in history.notes)
    assert "reserved" not in html_page.Condensed(viewer.read(str(small))[0]).series()
    path.write_text(path.read_text(encoding="utf-8").replace(f",{104 * MIB}", ",-1"), encoding="utf-8")
    with pytest.raises(Broken, match='held.csv:7: reserved is "-1", not a whole number'):
        viewer.read(str(path))


def test_no_peak_is_lost(tmp_path):
    """The trace has 100,000 records, the peak lasts for one of them, and the page draws a few thousand points."""
    random.seed(3)
    records, live = [], []
    for i in range(50_000):
        if live and random.random() < .49:
            records.append(("f", live.pop(random.randrange(len(live)))))
        else:
            live.append(i)
            records.append(("a", i, random.randrange(1, MIB), 0, i % 50, FOLDER + i * MIB, f"tag {i % 50}"))
    records[30_123:30_123] = [("a", 999_999, 1 << 40, 0, 7, FOLDER - (1 << 41), ""), ("f", 999_999)]
    path = tmp_path / "long.csv.gz"
    path.write_bytes(gzip.compress(trace_of(records).encode()))
    history, = viewer.read(str(path))
    picture = html_page.Condensed(history)
    levels = list(itertools.accumulate(history.change, initial=0))
    assert picture.peak == 30_124 and 30_124 in picture.moments and len(picture.moments) <= html_page.POINTS + 2
    for first in range(0, len(levels) - 1000, 1000):
        part = [at for at in picture.moments if first <= at < first + 1000]
        assert max(levels[first + 20:first + 980]) <= max(levels[at] for at in part)
        assert min(levels[first + 20:first + 980]) >= min(levels[at] for at in part)
    for moment, row in list(zip(picture.moments, picture.stacks["tag"]))[::500]:
        assert sum(row) == levels[moment]
    short = html_page.Condensed(history, share=25)
    weight = {i: history.size[i] * (min(history.gone[i], len(levels)) - history.born[i]) for i in range(len(history.size))}
    assert len(short.blocks) == 2400 and min(weight[i] for i in short.blocks) >= max(weight[i] for i in set(weight) - set(short.blocks))


def test_of_blocks_that_weigh_the_same_the_first_are_drawn():
    history = History("alike", 0)
    blocks = [history.allocate(4096 if i % 7 else 8192, FOLDER + i * MIB, None) for i in range(5000)]
    drawn = html_page.Condensed(history, share=30).blocks
    heavy = [block for block in blocks if not block % 7]
    assert drawn == sorted(heavy + [block for block in blocks if block % 7][:2000 - len(heavy)])


def torch_snapshot():
    """One expandable segment of 64 MiB, whose last 32 MiB were mapped during the trace; a block from before, and one that came and went."""
    frames = [{"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
              {"filename": "/usr/lib/python3/site-packages/torch/nn/linear.py", "line": 9, "name": "forward"},
              {"filename": "/some/where/train.py", "line": 12, "name": NASTY}]
    event = dict(stream=0, frames=frames)
    trace = [dict(event, action="segment_map", addr=FOLDER + 32 * MIB, size=32 * MIB, time_us=1000),
             dict(event, action="alloc", addr=FOLDER + 16 * MIB, size=20 * MIB, time_us=1001),
             dict(event, action="free_requested", addr=FOLDER + 16 * MIB, size=20 * MIB, time_us=1002),
             dict(event, action="free_completed", addr=FOLDER + 16 * MIB, size=20 * MIB, time_us=1003),
             dict(event, action="free_completed", addr=FOLDER + (1 << 40), size=MIB, time_us=1004),
             dict(event, action="segment_free", addr=FOLDER + (1 << 40), size=2 * MIB, time_us=1005),
             dict(event, action="alloc", addr=FOLDER + 40 * MIB, size=MIB, time_us=1006)]
    blocks = [dict(address=FOLDER, size=16 * MIB, requested_size=1, state="active_allocated", frames=frames),
              dict(address=FOLDER + 16 * MIB, size=24 * MIB, requested_size=0, state="inactive", frames=[]),
              dict(address=FOLDER + 40 * MIB, size=MIB, requested_size=5, state="active_allocated", frames=frames)]
    segment = dict(device=0, address=FOLDER, total_size=64 * MIB, stream=0, blocks=blocks)
    return {"segments": [segment], "device_traces": [trace, []]}


def test_a_snapshot_of_pytorch_is_read_backwards(tmp_path):
    path = tmp_path / "torch.pickle"
    path.write_bytes(pickle.dumps(torch_snapshot()))
    history, = viewer.read(str(path))
    assert history.live_first == 17 * MIB and list(history.change) == [20 * MIB, -20 * MIB, -MIB, MIB]
    assert history.reserved_first == 34 * MIB and list(history.reserved) == [66 * MIB, 66 * MIB, 66 * MIB, 64 * MIB]
    assert sorted(history.ranges) == [(FOLDER, 32 * MIB, 0, FOR_EVER), (FOLDER + 32 * MIB, 32 * MIB, 0, FOR_EVER),
                                      (FOLDER + (1 << 40), 2 * MIB, 0, 3)]
    names, numbers = history.groups["line"]
    assert [names.names[number] for number in numbers][0] == f"train.py:12 {NASTY}"


def lines_of(tmp_path, stacks):
    """The line that each of these stacks has in a page, one allocation with each."""
    trace = [dict(action="alloc", addr=FOLDER + at * MIB, size=MIB, time_us=at, stream=0, frames=stack) for at, stack in enumerate(stacks)]
    path = tmp_path / "stacks.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    history, = viewer.read(str(path))
    names, numbers = history.groups["line"]
    return [names.names[number] for number in numbers]


@pytest.mark.parametrize("most", [1, 2, 1 << 16])
def test_many_stacks_of_the_same_frames_have_their_own_lines(tmp_path, monkeypatch, most):
    frames = [{"filename": f"/some/where/train_{i}.py", "line": i, "name": "step"} for i in range(4)]
    order = [0, 1, 0, 2, 3, 0, 1, 3]
    monkeypatch.setattr("cenote.view.torch_snapshot.MOST_STACKS", most)
    assert lines_of(tmp_path, [[frames[which], frames[0]] for which in order]) == [f"train_{which}.py:{which} step" for which in order]


@pytest.mark.parametrize("most", [1, 3, 1 << 16])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9, 40])
def test_stacks_that_differ_in_one_frame_have_their_own_lines(tmp_path, monkeypatch, most, length):
    """Wherever the frame is, and if more stacks are alike than are compared."""
    library = [{"filename": f"/usr/lib/python3/site-packages/torch/nn/{i}.py", "line": i, "name": "forward"} for i in range(length)]
    mine = [{"filename": f"/some/where/train_{i}.py", "line": i, "name": "step"} for i in range(length * 5)]
    order = [i % len(mine) for i in range(3 * len(mine))]
    monkeypatch.setattr("cenote.view.torch_snapshot.MOST_ALIKE", most)
    stacks = [library[:which % length] + [mine[which]] + library[which % length + 1:] for which in order]
    assert lines_of(tmp_path, stacks) == [f"train_{which}.py:{which} step" for which in order]


@pytest.mark.simulation
def test_a_snapshot_of_a_pool_is_read(files, view, tmp_path):  # noqa: F811
    plain, zipped, trace, zipped_trace = files
    with open(plain, encoding="utf-8") as file:
        snapshot = json.load(file)
    page = tmp_path / "all.html"
    view(plain, zipped, trace, zipped_trace, "-o", page)
    first, second, told, again = data_of(page)
    for moment in (first["moment"], second["moment"]):
        del moment["ns"]  # the second file was written a little later
    assert first["moment"] == second["moment"] and first["moment"]["figures"]["reserved"] == snapshot["counters"]["reserved"]["current"]
    assert len(first["moment"]["pages"]) == len(snapshot["pages"]["rows"]) and first["blocks"]["count"] == 2
    assert "tag" not in first["names"] and told["names"]["tag"] == ["größe, 50%", "no tag"]  # the first has one tag alone
    assert told["records"] == again["records"] == 6 and told["peaks"]["requested"] == 5000 + 100 + 200_000 + (30 << 20)


# --- the file that is written

def test_the_page_is_one_file_that_asks_for_nothing(small, view, tmp_path):
    said = view(small)
    page = tmp_path / "small.html"
    text = page.read_text(encoding="utf-8")
    assert said.startswith("small.html: ") and text.count("</script>") == 1 and text.count("<script") == 1 and "alert(1)</" not in text
    code = "".join(line for line in text.splitlines() if not line.startswith("const DATA = "))
    assert not re.search(r"https?:|//\w|\b(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|import\(", code)
    assert data_of(page)[0]["names"]["tag"][2] == NASTY


def test_a_name_of_a_file_cannot_break_the_page(small, view, tmp_path):
    odd = tmp_path / "<script>alert(2)<!--.csv"
    small.rename(odd)
    view(odd, "-o", "odd.html")
    text = (tmp_path / "odd.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and "&lt;script&gt;alert(2)&lt;!--.csv" in text.split("</title>")[0]


def test_a_png_is_drawn(small, view, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "torch.pickle").write_bytes(pickle.dumps(torch_snapshot()))
    view(small, "torch.pickle", "-o", "x.png")
    data = (tmp_path / "x.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and width > 1000 and height > 1400


def test_without_matplotlib_a_line_says_so(small, view, tmp_path, clean):
    (tmp_path / "none").mkdir()
    (tmp_path / "none/matplotlib.py").write_text("raise ImportError('not here')")
    assert "pip install matplotlib" in view(small, "-o", "x.png", status=2, PYTHONPATH=f"{tmp_path / 'none'}:{clean['PYTHONPATH']}")
    assert not (tmp_path / "x.png").exists()


# --- what is refused

class Calls:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def bad_traces():
    start = "t_us,op,id,bytes\n0,a,1,100\n"
    return {
        "free of an unknown id": (start + "1,f,2,", "bad:3: id 2 is not live"), "negative": (start + "1,a,2,-5", 'bad:3: bytes is "-5"'),
        "twice": (start + "1,a,1,5", "bad:3: id 1 is allocated again while it is live"), "op": (start + "1,x,1,5", 'bad:3: op is "x"'),
        "fields": (start + "1,f,1", "bad:3: the line has fewer columns than the header, which has 4"),
        "time": (start + "1,f,1,\n0.5,a,1,5", "bad:4: time goes back"),
        "no time": (start + "nan,f,1,", "bad:3: t_us is not a number"),
        "size": (start + "1,f,1,99", "bad:3: id 1 was allocated with 100 bytes, not 99"),
        "nothing": ("t_us,op,id,bytes\n", "no allocation in it"), "no size": (start + "1,a,2,0", "bad:3: an allocation of 0 bytes"),
        "columns": ("t_us,op,id\n0,a,1", "bad:1: column bytes is missing"),
        "empty": ("", "bad:1: the file is empty"), "words": ("hello\nworld\n", "bad:1: column t_us is missing"),
        "odd bytes": (start + "1,f,\x00\ufffd\x1b[2J,", "bad:3: this is not text"),
        "long line": (start + "1,f," + "9" * 100_000, "bad:3: the line is longer than 4095"),
        "large": (start + f"1,a,2,{1 << 63}", "bad:3: bytes is"), "json": ('{"snapshot": 1, "pool": {}}', "incomplete snapshot"),
        "sum": (start + "".join(f"1,a,{i},{(1 << 62) - 1}\n" for i in (2, 3)), "bad:3: the live blocks have more than 2^62 bytes together"),
        "half json": ('{"snapshot": 1, "po', "is no snapshot"), "other json": ('{"a": []}', "is no snapshot of a pool"),
        "deep": ('{"a":' + "[" * 200_000, "no snapshot"),
    }


@pytest.mark.parametrize("name", bad_traces())
def test_a_broken_file(name, view, tmp_path):
    text, said = bad_traces()[name]
    (tmp_path / "bad").write_text(text, encoding="utf-8")
    assert said in view("bad", "-o", "x.html", status=2)
    assert not list(tmp_path.glob("x.html*"))


def test_a_half_written_gzip(small, view, tmp_path):
    data = gzip.compress(small.read_bytes())
    for name, part in (("half", data[:len(data) // 2]), ("crc", data[:-8] + bytes(8)), ("start", data[:3])):
        (tmp_path / name).write_bytes(part)
        assert f"{name}:" in (said := view(name, status=2)) and ("ends too early" in said or "cannot be read" in said), said


@pytest.mark.parametrize("content", [
    {"segments": 5, "device_traces": []}, [1, 2], {"segments": [], "device_traces": []}, {"segments": [{"device": 0}], "device_traces": [[]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": -5, "size": -1, "time_us": "x"}]]}, {"segments": [], "device_traces": {0: 3}},
])
def test_a_pickle_that_is_something_else(content, view, tmp_path):
    (tmp_path / "bad.pickle").write_bytes(pickle.dumps(content))
    assert "bad.pickle" in view("bad.pickle", status=2)


def test_a_pickle_calls_nothing(view, tmp_path):
    ran = tmp_path / "ran"
    for protocol in range(2, 6):
        (tmp_path / "evil.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [], "x": Calls(ran)}, protocol))
        assert "open" in view("evil.pickle", status=2)
    (tmp_path / "half.pickle").write_bytes(pickle.dumps(torch_snapshot())[:200])
    view("half.pickle", status=2)
    assert not ran.exists()


def test_arguments_that_cannot_be(small, view, tmp_path):
    assert "no-such-file" in view("no-such-file", status=2)
    assert "must end in .html or .png" in view(small, "-o", "x.pdf", status=2)
    assert "No such file" in view(small, "-o", "nowhere/x.html", status=2)
    assert "directory" in view(tmp_path, status=2)
    assert "required" in view(status=2) and "33" in view(*[small] * 33, status=2)
    assert "examples:" in view("--help")


def test_too_many_records(small, monkeypatch):
    monkeypatch.setattr("cenote.view.trace.MOST", 4)
    with pytest.raises(Broken, match="more than 4 records"):
        viewer.read(str(small))


# --- in the browser

@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as opened:
        yield opened


@pytest.fixture
def opened(chromium, tmp_path):
    """opened(FILE...): the page of these files. After the test the browser's console must be empty."""
    def call(*names):
        page = tmp_path / "page.html"
        assert viewer.main([*map(str, names), "-o", str(page)]) == 0
        chromium.events.clear()
        chromium.open(page)
        return chromium
    yield call
    assert chromium.complaints() == []
    chromium.screenshot(tmp_path / "at-the-end.png")


def pixel(page, canvas, x, y):
    """The colour at a place of a canvas, in the canvas's own units."""
    return page.value(f"(c => Array.from(c.getContext('2d').getImageData({x}, {y}, 1, 1).data).slice(0, 3))(document.querySelector('{canvas}'))")


def colour(page, name):
    """The colour of a name in the legend."""
    found = page.value(f"[...document.querySelectorAll('#legend li')].filter(e => e.querySelector('span').innerText === {json.dumps(name)})"
                       ".map(e => getComputedStyle(e.querySelector('i')).backgroundColor)[0]")
    return [int(part) for part in re.findall(r"\d+", found)]


@pytest.mark.browser
def test_the_page_shows_the_trace(opened, small):
    page = opened(small)
    assert "104 MiB" in page.text("#figures") and "unknown" in page.text("#figures")
    assert page.text("#moment").startswith("104 MiB requested in 3 blocks · record 5 · after step 1")
    assert NASTY.replace("\u2028", "") in page.text("#legend").replace("\u2028", "").replace("\n", " ") and page.value("document.scripts.length") == 1
    listed = "[...document.querySelectorAll('#holders tr')].map(row => [...row.cells].map(cell => cell.innerText))"
    assert [row[:2] for row in page.value(listed)] == [["64.0 MiB", "1"], ["32.0 MiB", "1"], ["8.00 MiB", "1"]]
    page.click(*page.place('[data-rows="blocks"]'))
    rows = page.value(listed)
    assert [row[0] for row in rows] == ["64.0 MiB", "32.0 MiB", "8.00 MiB"] and rows[1][1:4] == ["act", "stream 1", "4"]
    assert rows[1][4] == hex(FOLDER + 8 * MIB)
    # the block of 64 MiB is drawn where it lies, in its colour: after the first 40 MiB of the addresses that were ever used
    x, y = page.value("(() => { let at; eachRow($('space').clientWidth, %d, 1, (x, y) => { at = [Math.round(x) + 4, y + 6]; }); return at; })()"
                      % (FOLDER + (1 << 40) + 10 * MIB))
    assert pixel(page, "#space", x, y) == colour(page, "no tag")


@pytest.mark.browser
def test_the_moment_moves(opened, small):
    page = opened(small)
    page.value("$('slider').focus()")
    page.key("ArrowRight")
    assert page.text("#moment").startswith("40.0 MiB requested in 2 blocks · record 6")
    page.key("[")
    assert page.text("#moment").startswith("8.00 MiB requested in 1 block · record 3 · after step 1")
    page.key("]")
    assert "record 7 · after step 2" in page.text("#moment")
    page.click(*page.place("#before"))
    assert "record 3" in page.text("#moment")
    page.click(*page.place("#slider", right=.999))
    assert "record 9 · after step 3" in page.text("#moment")
    x, y = page.place("#timeline", right=.5)
    page.click(x, y)
    at = page.value("state.moment")
    assert 3 < at < 7
    page.key("p")
    assert "record 5" in page.text("#moment")


@pytest.mark.browser
def test_hovering_tells(opened, small):
    page = opened(small)
    left = page.value("(b => b.left)($('timeline').getBoundingClientRect())")
    _, y = page.place("#timeline")
    page.move(left + page.value("frameOf($('timeline').clientWidth).x(5.5)"), y)
    assert "record 5" in page.text("#tip") and "104 MiB" in page.text("#tip") and "act" in page.text("#tip")
    page.move(*page.place("#space", right=.5, down=.1))
    assert "address" in page.text("#tip") and "0x7f00" in page.text("#tip")
    page.move(2, 2)
    assert page.value("getComputedStyle($('tip')).display") == "none"


@pytest.mark.browser
def test_zoom_and_pan(opened, small):
    page = opened(small)
    assert page.value("[state.from, state.to]") == [0, 9]
    x, y = page.place("#timeline")
    page.wheel(x, y, -400)
    first, last = page.value("[state.from, state.to]")
    assert 0 < first < last < 9
    page.drag(x, y, x + 100, y)
    assert page.value("state.from") < first and page.value("state.to - state.from") == pytest.approx(last - first)
    page.value("$('timeline').focus()")
    page.key("0")
    assert page.value("[state.from, state.to]") == [0, 9]
    page.key("+")
    page.key("ArrowRight")
    assert page.value("state.to - state.from") == pytest.approx(4.5)
    page.click(*page.place("#all"))
    page.click(*page.place('[data-axis="time"]'))
    assert page.value("state.axis") == "time" and page.value("state.to") == pytest.approx(100)


@pytest.mark.browser
def test_the_table_sorts_and_picks(opened, small):
    page = opened(small)
    page.click(*page.place('[data-rows="blocks"]'))
    page.click(*page.place('[data-sort="size"]'))
    first = page.value("document.querySelector('#holders td').innerText")
    assert first == "8.00 MiB" and page.value("document.querySelector('th[aria-sort]').ariaSort") == "ascending"
    page.click(*page.place('[data-sort="tag"]'))
    assert page.value("document.querySelector('th[aria-sort]').innerText") == "tag"
    page.click(*page.place("#holders tr"))
    assert page.value("state.block") >= 0 and page.value("document.querySelectorAll('[aria-selected=true]').length") == 1
    page.key("Escape")
    assert page.value("state.block") == -1
    page.value("document.querySelector('#holders tr').focus()")
    page.key("Enter")
    assert page.value("state.block") >= 0
    page.click(*page.place('[data-division="stream"]'))
    assert "stream 1" in page.text("#legend")
    page.click(*page.place("#legend li:last-child button"))
    assert page.value("state.group") >= 0
    page.click(*page.place("#theme"))
    assert page.value("document.documentElement.dataset.theme") == "dark"


@pytest.mark.browser
@pytest.mark.simulation
def test_pages_of_a_snapshot(opened, files):  # noqa: F811
    page = opened(files[0], files[2])
    assert page.text("#page-count").startswith(str(page.value("state.view.moment.pages.length")))
    assert "owned: " in page.text("#page-keys") and not page.value("$('physical').hidden")
    page.move(*page.value("(b => [b.left + 4, b.top + 4])($('pages').getBoundingClientRect())"))
    assert page.text("#tip").startswith("page 1") and "mapped at" in page.text("#tip")
    page.value("$('pages').scrollIntoView()")
    page.click(*page.value("(b => [b.left + 4, b.top + 4])($('pages').getBoundingClientRect())"))
    assert page.value("state.page") == 0
    page.value("$('views').value = 1, $('views').onchange({target: $('views')})")
    page.settle()
    assert page.value("$('physical').hidden") and "record" in page.text("#moment")


@pytest.mark.browser
def test_a_snapshot_of_pytorch_in_the_page(opened, tmp_path):
    (tmp_path / "torch.pickle").write_bytes(pickle.dumps(torch_snapshot()))
    page = opened(tmp_path / "torch.pickle")
    assert "66.0 MiB\npeak reserved" in page.text("#figures") and "37.0 MiB\npeak allocated" in page.text("#figures")
    assert "train.py:12" in page.text("#legend") and "reserved" in page.text("#legend")


@pytest.mark.simulation
def test_a_page_of_many_large_snapshots_is_small_enough(files, tmp_path):  # noqa: F811
    """20 pools with 40,000 pages and 40,000 blocks each, with long names."""
    with open(files[0], encoding="utf-8") as file:
        snapshot = json.load(file)
    region, segment, page = snapshot["regions"][0], snapshot["segments"][0], snapshot["pages"]["rows"][0]
    snapshot["pages"]["rows"] = [[i + 1, 2 * MIB, "owned", [region["region"], i], [region["region"], i], 1, *page[6:]] for i in range(40_000)]
    snapshot["regions"] = [{**region, "slots": [[i, i + 1, "hsb", 0, 0, 0] for i in range(40_000)]}]
    at = {name: i for i, name in enumerate(snapshot["piece_columns"])}
    rest = segment["pieces"][0][at["kind"]:at["site"]]
    pieces = [[region["base"] + i * 2 * MIB, 2 * MIB, 2 * MIB, "live", i % 2000, *rest, i % 2000] for i in range(40_000)]
    snapshot["segments"] = [{**segment, "address": region["base"], "pieces": pieces}]
    snapshot["rows"]["tag"] = [{"key": i, "name": f"{i} " + "x" * 400} for i in range(2000)]
    snapshot["sites"] = {str(i): f"f{i}" * 100 for i in range(2000)}
    snapshot["pool"]["page_bytes"] = 2 * MIB
    path = tmp_path / "large.json"
    path.write_text(json.dumps(snapshot))
    history, = viewer.read(str(path))
    page = html_page.page([history] * 20)
    assert len(page) < 10_000_000 and "37,000 of 40,000 physical pages are left out" in page


@pytest.mark.browser
@pytest.mark.slow
def test_a_million_records_stay_smooth(opened, tmp_path):
    path = tmp_path / "million.csv.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(COLUMNS + "\n")
        for i in range(500_000):  # 500 blocks live at a time
            if i >= 500:
                file.write(f"{i},f,{i - 500},,,,,,\n")
            file.write(f"{i},a,{i},{(i % 977 + 1) * 4096},{i % 3},0,{i % 40},{FOLDER + i % 500 * 4 * MIB},\n")
            if i % 5000 == 4999:
                file.write(f"{i},s,,,,,,,\n")
    page = opened(path)
    assert (tmp_path / "page.html").stat().st_size < 10_000_000
    assert "999,500" in page.text("#figures") and "of 999,500 records" in page.text("#sampled")
    frames = page.value("Array.from({length: 20}, (_, i) => { const t = performance.now(); state.moment = i * 40000; draw();"
                        " return performance.now() - t; })")
    # 20 ms on a quiet machine; the quickest of several counts, because other programs may slow one down. To draw every record would take seconds.
    assert min(frames) < 100, f"{frames} ms"


@pytest.mark.parametrize("line", ["0,\033]0;title\007,1,512", "\033[2J\x9b,a,1,512"])
def test_the_bytes_of_a_file_move_no_cursor(tmp_path, capsys, line):
    """The file, and its name, may be another user's. A terminal obeys control characters that a message repeats."""
    path = tmp_path / "x\033]0;title\007.csv"
    path.write_text(f"t_us,op,id,bytes\n{line}\n", encoding="latin-1")
    for given in (path, tmp_path / "none\033[2J"):
        with pytest.raises(SystemExit):
            viewer.main([str(given), "-o", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    assert "cenote view: " in said.err
    assert [one for one in (said.out + said.err).replace("\n", "") if not one.isprintable()] == []


def growing(steps, leaves):
    """A history of steps: each takes 8 MiB of work.py:1, which it gives back, and leaves `leaves` bytes of work.py:2."""
    history = History("grows.py", 0)
    names, numbers = history.division("line")
    for step in range(steps):
        work = history.allocate(8 * MIB, FOLDER, step)
        numbers.append(names.number("work.py:1"))
        if leaves:
            history.allocate(leaves, FOLDER + (step + 1) * 16 * MIB, step)
            numbers.append(names.number("work.py:2"))
        history.free(work, step)
        history.step()
    history.sources["work.py:2"] = "kept.append(x.clone())"
    history.divide_by_size()
    return history


@pytest.mark.parametrize("steps, leaves, found", [(12, MIB, ("line", "work.py:2", MIB, 9)), (12, 0, None), (12, 1 << 10, None), (6, MIB, None)])
def test_a_leak_is_found_in_a_history(steps, leaves, found):
    assert leak.of(growing(steps, leaves)) == found


@pytest.mark.browser
def test_the_page_says_what_grows_and_where_memory_ran_out(chromium, tmp_path):
    """At 800 to 2,000 pixels, in both themes, nothing is wider than the page and no cell is cut."""
    history = growing(12, MIB)
    history.limits = {"card": 24 * MIB, "limit": 1 << 40}
    history.marks.append((len(history.time) - 1, "memory ran out"))
    history.words.append("Memory ran out. Take less.")
    path = tmp_path / "grows.html"
    path.write_text(html_page.page([history]), encoding="utf-8")
    chromium.open(path)
    assert chromium.text("#words").split("\n\n") == [
        "Memory ran out. Take less.", "Memory grows: each of 9 steps left 1.0 MiB more, of work.py:2: kept.append(x.clone()). Something keeps it "
        "from step to step; cenote.growth() says what."]
    assert "24.0 MiB" in chromium.text("#figures") and chromium.value("state.division") == "line"
    assert chromium.value("frameOf(900).top") == pytest.approx(24 * MIB * 1.04)  # the card is in sight, and the limit far above it is not
    first = chromium.value("[...document.querySelector('#holders tr').cells].map(cell => cell.innerText)")
    assert first == ["12.0 MiB", "12", "work.py:2\nkept.append(x.clone())"] or first[0] == "11.0 MiB"
    chromium.click(*chromium.place("#holders tr"))
    assert chromium.value("document.querySelectorAll('#holders [data-block]').length") == int(first[1])
    for width, height in ((800, 900), (1400, 1000), (2000, 1200)):
        chromium.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        assert chromium.value("document.documentElement.scrollWidth <= innerWidth")
        assert chromium.value("[...document.querySelectorAll('#holders td')].every(cell => cell.scrollWidth <= cell.clientWidth + 1)")
    chromium.call("Emulation.clearDeviceMetricsOverride")
