"""`cenote top`: what it shows of a program is what the program has, while the program runs and without a call of it; its keys, in a terminal."""
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import time
import urllib.request

import pyte
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from cenote.live import boards, metrics, moment, screen
from conftest import CENOTE, ROOT, SECONDS

MIB = 1 << 20

# Reads words from its standard input, and does what they say: "alloc MIB", "free", "step", "tag NAME", "pause", "others MIB". Answers each.
PROGRAM = r"""
import ctypes, sys
from cenote.native import bindings
pool, blocks = bindings.pool(), []
print("ready", flush=True)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "alloc":
        block = ctypes.c_void_p()
        bindings.call("cenote_alloc", pool, int(float(rest) * (1 << 20)), None, ctypes.byref(block))
        blocks.append(block)
    elif word == "free":
        bindings.call("cenote_free", blocks.pop())
    elif word == "step":
        bindings.call("cenote_pool_step", pool)
    elif word == "tag":
        bindings.call("cenote_tag_push", rest.encode())
    print("done", flush=True)
"""
# Holds memory of a card without cenote, until its input ends.
BARE = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not cuda.cuCtxPushCurrent_v2(context)
assert not cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]) << 20))
print("ready", flush=True)
sys.stdin.read()
"""


class Program:
    """A program on the simulated GPU that does what a test says."""

    def __init__(self, clean, folder, code=PROGRAM, *arguments, **variables):
        script = pathlib.Path(folder, f"program{os.urandom(4).hex()}ü.py")
        script.write_text(code)
        command = [*CENOTE, "run", "--sim", "4GiB", "--quiet", script, *arguments]
        self.child = subprocess.Popen(command, env={**clean, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hears("ready")

    def hears(self, word):
        line = self.child.stdout.readline()
        assert line.strip() == word, line

    def does(self, *words):
        for word in words:
            self.child.stdin.write(word + "\n")
            self.child.stdin.flush()
            self.hears("done")

    def close(self):
        self.child.stdin.close()
        assert self.child.wait(SECONDS) == 0
        self.child.stdout.close()


@pytest.fixture
def program(clean, tmp_path):
    started = []

    def start(*arguments, **variables):
        started.append(Program(clean, tmp_path, *(arguments or (PROGRAM,)), **variables))
        return started[-1]
    yield start
    for one in started:
        if one.child.poll() is None:
            one.close()


def processes_of(folder, found):
    """Of this test's folder: other tests have processes with cenote, too."""
    return [(card, process) for card in found["cards"] for process in card["processes"] if str(folder) in process["command"]]


@pytest.fixture
def now(run, tmp_path):
    """The processes of this test, with their cards."""
    def read(**variables):
        done = run("top", "--json", **variables)
        assert done.returncode == 0, done.stderr
        return processes_of(tmp_path, json.loads(done.stdout))
    return read


@pytest.mark.simulation
def test_it_shows_what_a_program_has_now(program, now):
    one = program()
    one.does("alloc 100", "alloc 50", "free", "step")
    (card, process), = now()
    pool, = process["pools"]
    assert card["total_bytes"] == 4 << 30 and card["used_bytes"] is None and "Simulated" in card["name"]
    assert pool["allocated"] == {"current": 100 * MIB, "peak": 150 * MIB, "total_in": 150 * MIB, "total_out": 50 * MIB}
    assert process["cached_bytes"] == pool["reserved"]["current"] - 100 * MIB > 0
    assert pool["steps"] == 1 and pool["steps_kept"][0]["live"] == 100 * MIB and pool["steps_kept"][0]["peak"] == 150 * MIB
    one.does("free")
    (_, process), = now()
    assert process["pools"][0]["allocated"]["current"] == 0
    one.close()
    assert now() == []


@pytest.mark.simulation
def test_each_step_that_leaves_more_is_growth(program, now, run, tmp_path):
    one = program()
    one.does("alloc 4", *["step"] * 10)
    assert now()[0][1]["growth_bytes_per_step"] is None
    one.does(*["alloc 3", "step"] * 9)
    assert now()[0][1]["growth_bytes_per_step"] == 3 * MIB
    assert re.search(r" 10 +3\.0 MiB program\w+\.py| 19 +3\.0 MiB program\w+\.py", run("top", "--once").stdout)


@pytest.mark.simulation
def test_ranks_of_a_job_follow_each_other(program, now):
    for rank in ("1", "0"):
        program(RANK=rank, TORCHELASTIC_RUN_ID="a", MASTER_PORT="29500").does("alloc 1")
    assert {(process["rank"], process["job"]) for _, process in now()} == {("0", "TORCHELASTIC_RUN_ID=a 29500"), ("1", "TORCHELASTIC_RUN_ID=a 29500")}
    ranks = [moment.Member(moment.Person(pid, "", "", job, ""), (pool_with(rank=rank),), None)
             for pid, job, rank in ((7, "a", "10"), (8, "a", "9"), (9, "", ""), (3, "b", "0"))]
    assert [member.person.pid for member in sorted(ranks, key=moment.order)] == [9, 8, 7, 3]


def pool_with(rank="", **numbers):
    place = boards.Place(1, 2, 3)
    return boards.Pool(place, 0, numbers, {}, {}, {"rank": rank}, (), (), (), (), ())


@pytest.mark.simulation
def test_of_a_shared_card_it_shows_what_others_hold(program, now, run, simulation_library):
    """NVML of the simulated machine knows all processes on it, as on a real one."""
    machine = {"CENOTE_SIM": f"capacity:4GiB,machine:top-{os.urandom(4).hex()}"}
    one = program(**machine)
    program(BARE, "300", **machine)
    one.does("alloc 100")
    folder = str(simulation_library.parent)
    (card, process), = now(LD_LIBRARY_PATH=folder, LD_PRELOAD=str(simulation_library), **machine)
    assert card["gpu"] == 0 and card["uuid"].startswith("GPU-")
    assert process["held_bytes"] >= process["pools"][0]["reserved"]["current"] == 100 * MIB
    other, = card["others"]
    assert other["held_bytes"] >= 300 * MIB and card["used_bytes"] >= 400 * MIB
    shown = run("top", "--once", LD_LIBRARY_PATH=folder, LD_PRELOAD=str(simulation_library), **machine).stdout
    assert re.search(rf" {other['pid']} .*, without cenote: program", shown)


# ------------------------------------------------------------------------------------------------------------------ metrics


def values(families):
    return {(sample.name, sample.labels.get("pid")): sample.value for family in families for sample in family.samples}


@pytest.mark.simulation
def test_metrics_are_read_by_the_client_of_prometheus(program, run, clean, tmp_path):
    rank = str(os.getpid())  # no other process has it
    one = program(RANK=rank)
    one.does("alloc 200", "free", "alloc 10", "step")
    done = run("top", "--metrics", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    families = list(plain_families(done.stdout))
    mine = next(sample.labels for family in families for sample in family.samples if sample.labels.get("rank") == rank)
    found = values(families)
    assert found["cenote_allocated_bytes", mine["pid"]] == 10 * MIB
    assert found["cenote_peak_allocated_bytes", mine["pid"]] == 200 * MIB
    assert found["cenote_steps_total", mine["pid"]] == 1
    assert ("cenote_limit_bytes", mine["pid"]) not in found, "there is no limit"
    assert ("cenote_card_used_bytes", None) not in found or os.path.exists("/dev/nvidiactl"), "nobody knows it here"
    again = values(plain_families(run("top", "--metrics", "/dev/stdout").stdout))
    assert again["cenote_peak_allocated_bytes", mine["pid"]] == 10 * MIB, "since the last time"

    served = subprocess.Popen([*CENOTE, "top", "--port", "0"], env=clean, stdout=subprocess.PIPE, text=True)
    try:
        address = served.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", address)
        request = urllib.request.Request(address, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert values(open_families(answer.read().decode()))["cenote_allocated_bytes", mine["pid"]] == 10 * MIB
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            assert values(plain_families(answer.read().decode()))["cenote_allocated_bytes", mine["pid"]] == 10 * MIB
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(address.replace("/metrics", "/other"), timeout=SECONDS)
    finally:
        served.terminate()
        served.wait(SECONDS)
        served.stdout.close()


@pytest.mark.simulation
def test_a_file_of_metrics_is_written_again_and_again_and_never_half(program, clean, tmp_path):
    one = program()
    file = tmp_path / "cenote.prom"
    writer = subprocess.Popen([*CENOTE, "top", "--metrics", str(file), "--every", "0.1"], env=clean)
    try:
        seen = set()
        last = time.monotonic() + SECONDS
        for amount in range(1, 4):
            one.does("alloc 1")
            while amount * MIB not in seen and time.monotonic() < last:
                if file.exists():
                    families = list(plain_families(file.read_text()))
                    assert families[-1].name == "cenote_build_info", "whole"
                    seen |= {value for (name, _), value in values(families).items() if name == "cenote_allocated_bytes"}
        assert {MIB, 2 * MIB, 3 * MIB} <= seen
    finally:
        writer.terminate()
        writer.wait(SECONDS)


def test_mistakes_are_said(run, tmp_path):
    for words, what in (("--port 70000", "no port"), ("--every 0 --once", "no number of seconds"), ("--once --json", "not allowed with"),
                        (f"--metrics {tmp_path}/none/x.prom", "No such file")):
        done = run("top", *words.split())
        assert done.returncode == 2 and what in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# ------------------------------------------------------------------------------------------------------------- the terminal


class Terminal:
    """`cenote top` in a terminal of 80 columns, as its user sees it."""

    def __init__(self, clean, columns=80, lines=24, letters="C.UTF-8"):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        variables = {name: value for name, value in clean.items() if name not in ("LINES", "COLUMNS")}
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.read(0, 1)  # the terminal has its size
            os.execve(sys.executable, [*CENOTE, "top", "--every", "0.2"], {**variables, "TERM": "xterm-256color", "LC_ALL": letters})
        self.resize(columns, lines)
        os.write(self.file, b"\n")
        self.ended = False

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def read(self):
        try:
            part = os.read(self.file, 65536)
        except OSError:
            part = b""
        self.ended = not part
        self.stream.feed(part)

    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def waits_for(self, pattern):
        last = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.text())):
            assert time.monotonic() < last and not self.ended, f"{pattern} is not on the screen:\n{self.text()}"
            self.read()
        return found

    def press(self, keys):
        os.write(self.file, keys)

    def choose(self, pid):
        """The line of that process is the one that is shown the other way round."""
        self.waits_for(rf"{pid} ")
        for _ in range(200):
            row = next(number for number, line in enumerate(self.screen.display) if re.match(rf" *{pid} ", line))
            if self.screen.buffer[row][0].reverse or self.screen.buffer[row][8].reverse:
                return
            self.press(b"j")
            before = self.text()
            self.read()
            assert before
        pytest.fail(self.text())

    def end(self):
        self.press(b"q")
        while not self.ended:
            self.read()
        _, status = os.waitpid(self.pid, 0)
        os.close(self.file)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.simulation
def test_keys_in_a_terminal(program, clean, now, tmp_path):
    """Another test's processes may be on the screen, too: a tall terminal has room for them."""
    one = program()
    one.does("tag attention", "alloc 100", "alloc 60", "free", "step")
    (_, process), = now()
    pid = process["pid"]
    terminal = Terminal({**clean, "XDG_STATE_HOME": str(tmp_path / "state")}, lines=90)
    terminal.waits_for(rf"{pid} +- +100\.0 MiB +60\.0 MiB")
    terminal.press(b"p")
    terminal.waits_for(rf"{pid} +- +160\.0 MiB +160\.0 MiB")
    terminal.press(b"p")
    terminal.press(b"h")
    terminal.waits_for("writes a snapshot at its next call")
    terminal.press(b"h")
    terminal.waits_for(rf"{pid} +- +100\.0 MiB")
    terminal.choose(pid)

    terminal.press(b"\r")
    terminal.waits_for(r"live 100\.0 MiB, cached 60\.0 MiB")
    one.does("step")  # the answer to what the view of one process asks
    terminal.waits_for(r"attention +100\.0 MiB +160\.0 MiB +1 ")
    terminal.press(b"\r")
    terminal.waits_for("COMMAND")
    terminal.choose(pid)

    terminal.press(b"t")
    terminal.waits_for(f"{pid}: trim: at its next call")
    one.does("step")
    terminal.waits_for(f"{pid}: trimmed, 60.0 MiB went, 100.0 MiB held now")
    terminal.press(b"s")
    terminal.waits_for(f"{pid}: snapshot: at its next call")
    one.does("step")
    terminal.waits_for("written: cenote view /")
    snapshot, = (tmp_path / "state/cenote").iterdir()
    assert json.loads(snapshot.read_text())["counters"]["allocated"]["current"] == 100 * MIB
    assert terminal.end() == 0


@pytest.mark.simulation
def test_a_terminal_of_80_columns_has_whole_lines(program, clean):
    program().does("alloc 1")
    terminal = Terminal(clean)
    terminal.waits_for(r"cenote top .* GPUs?, ")
    terminal.waits_for(r"PID RANK +LIVE +CACHED +ASLEEP +STEP +GROWTH COMMAND")
    terminal.waits_for(r"\d+ +- +1\.0 MiB .* - program\w+")
    assert terminal.end() == 0


@pytest.mark.simulation
@pytest.mark.parametrize("letters", ["C.UTF-8", "C"])
def test_a_terminal_that_changes_its_size_and_one_without_unicode(program, clean, letters):
    if subprocess.run([sys.executable, "-c", ""], env={**clean, "LC_ALL": letters}, capture_output=True, check=False).returncode:
        pytest.skip("this Python does not start in that locale: its environment lies in a folder with other letters")
    program().does("alloc 1")
    terminal = Terminal(clean, 160, 60, letters)
    terminal.waits_for(r"1\.0 MiB" + (r".*[\u2581-\u2588]" if letters != "C" else r".*#+ "))
    assert terminal.text().isascii() or letters != "C"
    for columns, lines in ((30, 5), (1, 1), (120, 40)):
        terminal.resize(columns, lines)
        terminal.read()
    terminal.waits_for("PID RANK +LIVE")
    assert terminal.end() == 0


# ------------------------------------------------------------------------------------------------ what is read, and how it looks

HEAD = """cenote-board 1
pid {pid}
slots 8192 4096
version 100
kept_rows 4
kept_steps 8
wishes refresh=1 trim=2 snapshot=4
u32 wished 0 4
u32 answers 4 4
u32 serial 8 4
text rank 16 16
level allocated 64 32
word that no reader knows 1 2 3
"""


class Board:
    """A file in memory that says it is a board."""

    def __init__(self, head, slots=(), name=boards.NAME):
        self.file = os.memfd_create(name)
        os.write(self.file, head.encode().ljust(8192, b"\0") + b"".join(slots))
        self.place = boards.Place(os.getpid(), self.file, os.fstat(self.file).st_ino)

    def read(self):
        try:
            return boards.read(self.place)
        finally:
            os.close(self.file)


def slot(serial=1, rank=b"0"):
    raw = bytearray(4096)
    raw[8:12] = serial.to_bytes(4, "little")
    raw[16:16 + len(rank)] = rank
    raw[64:72] = (77).to_bytes(8, "little")
    return bytes(raw)


def test_a_board_is_read_by_what_its_head_says():
    head = HEAD.format(pid=os.getpid())
    first, second = Board(head, [slot(), slot(0), slot(3, b"a\x1b[31mb")]).read()
    assert first.current("allocated") == 77 and first.texts["rank"] == "0"
    assert second.numbers["serial"] == 3 and second.texts["rank"] == "a?[31mb", "no letter of it reaches a terminal"


@pytest.mark.parametrize("head", ["", "cenote-board 2\n", HEAD.replace("{pid}", "1"), HEAD.replace("slots 8192 4096", "slots 8192 0"),
                                  HEAD.replace("slots 8192 4096", "slots -1 99999999999"), HEAD.replace("allocated 64", "allocated 4090"),
                                  HEAD.replace("allocated 64", "allocated -8"), HEAD.replace("wishes refresh=1", "wishes refresh"),
                                  HEAD.replace("level allocated 64 32", "rows tags 4000 99999\nu32 tags 8 4"), "\xff" * 50,
                                  HEAD.replace("8192", "x")])
def test_what_is_no_board_is_passed_by(head):
    assert Board(head.replace("{pid}", str(os.getpid())), [slot()]).read() == []


def test_a_board_that_is_gone_is_none():
    place = Board(HEAD.format(pid=os.getpid()), [slot()]).place
    os.close(place.number)
    assert boards.read(place) == [] and not boards.wish(pool_with(), "trim")


def test_lines_are_no_wider_than_the_terminal():
    level = boards.Level(3 << 30, 5 << 30, 9 << 30, 6 << 30)
    row = boards.Row("a very long name of a tag " * 4, 1 << 30, 2 << 30, 0, 12345678)
    levels = {name: level for name in ("allocated", "reserved", "requested")}
    numbers = {"ooms": 3, "asleep": 1 << 30, "steps": 1234567, "limit": 4 << 30}
    pool = boards.Pool(boards.Place(1, 2, 3), 0, numbers, {"driver_ns": 10**10}, levels, {"rank": "12345", "user": "PyTorch"}, (row,) * 20, (row,),
                       (row,), (row,), ())
    person = moment.Person(4194304, "python " + "train.py --with many --options " * 9, "somebody", "", "")
    member = moment.Member(person, (pool,), 4 << 30)
    name = "A card with a long name, as they are sold " * 2
    card = moment.Card("0000:01:00.0", name, "GPU-1", 0, 80 << 30, 9 << 30, (member,) * 3, (moment.Other(person, None),))
    histories = {}
    for _ in range(300):
        screen.remember(histories, moment.Moment(0, (card,), True))
    for width in (20, 60, 80, 100, 200):
        for changed in ({}, {"opened": True}, {"peaks": True}, {"helps": True}, {"said": "x" * 300}):
            state = screen.State(**changed)
            for line in screen.lines(moment.Moment(0, (card,), True), histories, state, width):
                assert sum(len(text) for text, _ in line) <= width, line
    assert metrics.text(moment.Moment(0, (card,), True), False).count("\n") > 40


def test_a_machine_without_pools_says_how_to_begin():
    shown = "\n".join("".join(text for text, _ in line) for line in screen.lines(moment.Moment(0, (), False), {}, screen.State(), 80))
    assert "CENOTE=on python train.py" in shown
    assert list(plain_families(metrics.text(moment.Moment(0, (), False), False)))[0].name == "cenote_build_info"


def test_the_structure_of_nvml_is_as_its_own_package_has_it():
    pynvml = pytest.importorskip("pynvml")
    from cenote.live import nvml
    assert ctypes.sizeof(nvml.Process) == ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t)
    assert ctypes.sizeof(nvml.Bus) == ctypes.sizeof(pynvml.nvmlPciInfo_t)
    assert nvml.bus_of("0000:1B:00.0") == (0, 0x1b, 0) and nvml.bus_of("?") is None


def test_the_board_of_grafana_shows_metrics_that_there_are():
    """By the models that Grafana makes of its own schema."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    text = (ROOT / "examples/grafana.json").read_text()
    board = dashboard.Dashboard.from_json(json.loads(text))
    assert board.title and len(board.panels) == 8
    known = {family.name for family in (*metrics.CARD, *metrics.MEMBER)}
    shown = set(re.findall(r"cenote_\w+", text)) - {"cenote"}
    assert shown <= known and {"cenote_reserved_bytes", "cenote_out_of_memory_total"} <= shown
    taken = [(place["x"], place["y"], place["w"], place["h"]) for place in (panel["gridPos"] for panel in json.loads(text)["panels"])]
    cells = [(x + i, y + j) for x, y, w, h in taken for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
