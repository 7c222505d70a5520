"""What `cenote run` prints and writes when a program ends: a line, figures (--json), a page (--report). Most tests use a fake PyTorch, which keeps no
memory and returns given figures; the last tests use the real one."""
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import CENOTE, ROOT
from spoken import said as spoken

import browser
from cenote.base.mistake import Mistake
from cenote.inside import run_summary
from cenote.launch import environment
from cenote.launch.environment import Wish

GIB = 1 << 30
LINE = "cenote: peak requested 2.00 GiB, peak reserved 3.00 GiB, waste 50.0 %, 8 driver calls (native)\n"

# As much of torch as cenote reads. `torch.use()` is a program's first use of a GPU.
TORCH = """
import sys, types
now = {"requested_bytes.all.peak": 2 << 30, "reserved_bytes.all.peak": 3 << 30, "reserved_bytes.all.current": 1 << 30,
       "num_device_alloc": 5, "num_device_free": 3}
used = []
use = lambda: used.append(1)
__version__ = "9.9"
version = types.SimpleNamespace(cuda="13")
cuda = types.SimpleNamespace(is_initialized=lambda: bool(used), device_count=lambda: 1, memory_stats=lambda device: now,
                             get_allocator_backend=lambda: "native", get_device_name=lambda: "A card")
compiler = types.SimpleNamespace(is_compiling=lambda: False)
amp = types.SimpleNamespace(GradScaler=types.SimpleNamespace(step=print))
hooks = types.SimpleNamespace(register_optimizer_step_post_hook=lambda hook: types.SimpleNamespace(remove=None))
sys.modules.update({"torch.optim": types.ModuleType("torch.optim"), "torch.optim.optimizer": hooks})
_C = types.SimpleNamespace(_cuda_resetPeakMemoryStats=lambda device: now.update({name: 0 for name in now}))
"""


@pytest.fixture
def played(run, tmp_path):
    """played(CODE, OPTION..., NAME=VALUE...): a finished program with the fake torch, in a Python that reads CENOTE_SUMMARY."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/cenote.pth").write_text((ROOT / "python/cenote.pth").read_text())

    def call(code, *options, status=0, **variables):
        (tmp_path / "program.py").write_text(code)
        start = f"import site, sys; sys.argv = ['program.py']; site.addsitedir({str(tmp_path / 'site')!r}); sys.path.insert(0, ''); import program"
        done = run("run", *options, "--", sys.executable, "-c", start, **variables)
        assert done.returncode == status, done.stderr
        return done
    return call


def test_a_line_at_the_end(played):
    assert played("import torch; torch.use()").stderr == LINE


def test_a_program_that_uses_no_gpu(played, tmp_path):
    """If there is a GPU, only a file that was asked for is missed; ranks that the program started may have written it."""
    assert played("import torch").stderr == ""
    path = tmp_path / "f.json"
    path.write_text("of a run before")
    os.utime(path, (1, 1))
    assert played("import torch", "--json", path).stderr == f"cenote: the program used no GPU; {path} is not written\n"
    assert played("import torch", "--json", path, "--quiet").stderr == f"cenote: the program used no GPU; {path} is not written\n"
    rank = "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', sys.orig_argv[2].replace('program', 'rank')])"
    (tmp_path / "rank.py").write_text("import torch; torch.use()")
    assert played(rank, "--json", path).stderr == LINE
    assert json.loads(path.read_text())["reserved_peak"] == 3 * GIB


def test_a_machine_without_a_gpu(played, tmp_path):
    says = "cenote: the program used no GPU, and PyTorch sees none here: `cenote run --sim 80GiB` gives it a simulated one"
    assert played("import torch; torch.cuda.device_count = lambda: 0").stderr == says + "\n"
    assert played("import torch; torch.cuda.device_count = lambda: 0", "--quiet").stderr == ""
    path = tmp_path / "f"
    assert played("import torch; torch.cuda.device_count = lambda: 0", "--json", path).stderr == f"{says}; {path} is not written\n"
    (tmp_path / "torch.py").write_text(TORCH.replace('cuda="13"', "cuda=None"))
    assert played("import torch").stderr == "cenote: the program used no GPU: torch 9.9 is built without CUDA\n"
    worker = "import os, torch; torch.cuda.device_count = lambda: 0\nif os.fork(): os.wait()"
    assert played(worker).stderr.count("\n") == 1


def test_quiet(played):
    assert played("import torch; torch.use()", "--quiet").stderr == ""
    assert played("import torch; torch.use()", CENOTE_SUMMARY="off").stderr == ""


def test_the_exit_status_is_the_programs(played):
    assert played("import sys, torch; torch.use(); sys.exit(7)", status=7).stderr == LINE
    died = played("import torch; torch.use(); raise SystemError('mine')", status=1)
    assert "mine" in died.stderr and died.stderr.endswith(LINE)
    assert played("import os, torch; torch.use(); os.kill(os.getpid(), 9)", status=-9).stderr == ""


def test_peaks_that_the_program_resets_count(played):
    code = """
import torch
torch.use()
torch._C._cuda_resetPeakMemoryStats(0)
assert torch.now["reserved_bytes.all.peak"] == 0, "it sees its own"
"""
    assert "peak requested 2.00 GiB, peak reserved 3.00 GiB, waste 50.0 %" in played(code).stderr


def test_a_forked_child_says_nothing_of_its_parents(played):
    code = """
import os, sys, torch
torch.use()
if os.fork() == 0:
    torch.used.clear()  # as PyTorch has it after a fork
    sys.exit()
os.wait()
"""
    assert played(code).stderr == LINE


def test_a_context_that_is_lost_is_no_traceback(played):
    assert played("import torch; torch.use(); torch.cuda.memory_stats = lambda device: 1 / 0").stderr == ""


def test_an_allocator_that_counts_no_requests(played):
    said = played("import torch; torch.use(); torch.now['requested_bytes.all.peak'] = 0").stderr
    assert said == "cenote: requests are not counted, peak reserved 3.00 GiB, 8 driver calls (native)\n"


def test_figures(played, tmp_path):
    file = tmp_path / "figures.json"
    assert played("import torch; torch.use()", "--quiet", "--json", file, RANK="0").stderr == ""
    figures = json.loads(file.read_text())
    assert (figures["program"], figures["allocator"], figures["torch"], figures["device"]) == ("program.py", "native", "9.9", "A card")
    assert (figures["requested_peak"], figures["reserved_peak"], figures["driver_calls"]) == (2 * GIB, 3 * GIB, 8)
    assert figures["trims"] is None and not figures["is_simulated"] and figures["modelled_driver_ns"] is None
    said = played("import torch; torch.use()", "--json", file, RANK="3").stderr
    assert "(native, rank 3)" in said and json.loads((tmp_path / "figures.rank3.json").read_text())["rank"] == "3"


def test_a_file_that_cannot_be_written_is_a_line(played, tmp_path):
    folder = tmp_path / "taken.json"
    folder.mkdir()
    said = played("import sys, torch; torch.use(); sys.exit(5)", "--quiet", "--json", folder, status=5).stderr
    assert said.startswith("cenote: ") and len(said.splitlines()) == 1 and "taken.json" in said


def test_long_programs_keep_few_steps(monkeypatch):
    monkeypatch.setattr(run_summary, "STEPS_MAX", 8)
    summary = run_summary.Summary(object())
    monkeypatch.setattr(summary, "note", lambda: {0: {"requested_peak": 1, "reserved": 2}})
    monkeypatch.setattr(summary, "is_ours", lambda: False)
    for _ in range(1000):
        summary.stepped()
    kept = [step["step"] for step in summary.steps]
    assert 4 <= len(kept) < 8 and {b - a for a, b in zip(kept, kept[1:])} == {summary.every} and kept[-1] > 1000 - 2 * summary.every


def test_the_place_in_the_books_is_that_of_the_header():
    body = re.search(r"struct sim_books \{(.*?)\}", (ROOT / "sim/sim.h").read_text(), re.DOTALL)
    names = re.findall(r"uint64_t (\w+);", body[1])
    assert names[run_summary.COST_NS] == "cost_ns" and len(names) <= run_summary.BOOKS


# --- the options

def test_without_options_nothing_is_set():
    assert environment.prepare(Wish(), {}, None) == {}
    assert environment.prepare(Wish(line=False), {}, None) == {environment.SUMMARY: "off"}
    assert environment.prepare(Wish(line=True), {}, None) == {environment.SUMMARY: "on", environment.PROGRAM: str(os.getpid())}


def test_the_files_of_a_run_around_this_one_are_its_own():
    old = {environment.FIGURES: "/tmp/outer.json", environment.SUMMARY: "quiet"}
    assert environment.prepare(Wish(line=True), old, None) == {environment.SUMMARY: "on", environment.PROGRAM: str(os.getpid())}


def test_a_report_records_unless_the_program_says_how_much(tmp_path):
    wish = Wish(allocator="cenote", report=str(tmp_path / "x.html"), line=True)
    assert environment.prepare(wish, {}, None)["CENOTE_CONF"] == f"record:{environment.RECORDS}"
    assert environment.prepare(wish, {"CENOTE_CONF": "record:9"}, None)["CENOTE_CONF"].endswith(",record:9")  # the last value wins


@pytest.mark.parametrize("wish, why", [
    (Wish(allocator="cudaMallocAsync", report="x.html", line=True), "use --allocator cenote"),
    (Wish(allocator="cenote", report="x.png", line=True), ".html"),
    (Wish(figures="/no/such/folder/x.json", line=True), "there is no folder"),
])
def test_what_cannot_be_is_one_line(wish, why):
    with pytest.raises(Mistake, match=re.escape(why)):
        environment.prepare(wish, {}, None)


# --- the real PyTorch

PROGRAM = """
import torch
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1024, 1024)
    def forward(self, inputs):
        return self.inner(inputs).relu()
model = torch.nn.Sequential(Layer(), Layer()).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(1, 4):
    model(torch.ones(step * 512, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.empty_cache()
"""


@pytest.fixture
def trained(clean, tmp_path):
    """trained(OPTION...): output and figures of PROGRAM on a simulated GPU, in a Python where cenote is installed, as by tools/setup."""
    def call(*options):
        (tmp_path / "program.py").write_text(PROGRAM)
        figures = tmp_path / "figures.json"
        done = subprocess.run([*CENOTE, "run", "--sim", "4GiB", "--json", figures, *options, tmp_path / "program.py"], env=clean, cwd=tmp_path,
                              capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stderr, json.loads(pathlib.Path(figures).read_text())
    return call


@pytest.mark.parametrize("requested, reserved, words", (
    (512, 8 << 20, "peak requested 0.00 MiB, peak reserved 8.00 MiB, waste 8.00 MiB, "),
    (900 << 20, 1 << 30, "peak requested 900.00 MiB, peak reserved 1.00 GiB, waste 13.8 %, "),
    (0, 1 << 30, "requests are not counted, peak reserved 1.00 GiB, "),
))
def test_figures_are_as_small_as_they_are(requested, reserved, words):
    found = {"allocator": "cenote", "is_simulated": False, "devices": 1, "rank": 0, "requested_peak": requested, "reserved_peak": reserved,
             "driver_calls": 1, "trims": None}
    assert run_summary.line(found) == words + "1 driver call (cenote)"


def assert_shown(report, figures, began):
    """A browser shows what of an unmodified script holds the memory, and how much was reserved."""
    with browser.Browser() as page:
        def legend(division):
            page.click(*page.place(f'[data-division="{division}"]'))
            return {*page.text("#legend").split("\n")}

        page.open(report)
        assert {"parameters", "gradients", "optimizer state", "activations"} <= legend("kind") and "not known" not in legend("kind")
        assert {"model.*", "model.*.inner"} & legend("module") and not {"model.0.inner", "model.1.inner"} & legend("module")  # layers are folded
        assert {f"program.py:{number}" for number in (8, 9, 12)} <= legend("line")
        assert "exp_avg of model.*.inner.weight" in legend("name")
        peak = f"{figures['reserved_peak'] / (1 << 20):#.3g}".rstrip(".")
        assert f"{peak} MiB\npeak reserved" in page.text("#figures")
        largest = page.value("[...document.querySelector('#holders tr').cells].map(cell => cell.innerText)")
        assert largest[:2] == ["32.0 MiB", "1"] and largest[2].startswith("workspaces of cuBLAS\nprogram.py:"), largest
        assert "the card has" in page.text("#figures") and "left by the context and others" in page.value("Object.keys(state.view.limits)")
        first, last = page.value("[state.view.times[0], state.view.times.at(-1)]")
        assert 0 <= first < last < (time.monotonic() - began) * 1e6, "times count from the first record, or from the start of the program"
        assert not page.complaints()


@pytest.mark.torch
@pytest.mark.simulation
def test_the_report_of_a_program_that_ran_out(nursed_run, tmp_path):
    """It has the card, the moment, the advice of the message, and the line that grew, with its text."""
    (tmp_path / "grows.py").write_text(textwrap.dedent("""
        import torch
        weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
        optimizer, kept = torch.optim.SGD([weight], lr=0.1), []
        for step in range(100):
            (weight * 2).sum().backward()
            optimizer.step()
            kept.append(torch.zeros(64 << 20, dtype=torch.uint8, device="cuda"))
        """))
    done = nursed_run("run", "--sim", "2GiB", "--report", tmp_path / "grows.html", tmp_path / "grows.py")
    assert "OutOfMemoryError" in done.stderr
    text = (tmp_path / "grows.html").read_text()
    view, = json.JSONDecoder().raw_decode(text, text.index("const DATA = ") + len("const DATA = "))[0]["views"]
    (moment, words), = view["marks"]
    assert words == "memory ran out" and 0 < moment <= view["records"] and view["limits"]["card"] == 2 << 30
    assert view["words"][0].startswith("Memory ran out. Each of the last ") and view["grows"] == "line" and view["title"] == "grows.py"
    assert "left 64.0 MiB more, of grows.py:8: kept.append(torch.zeros(64 << 20" in view["words"][-1]


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.browser
def test_under_cenote_with_a_report(trained, tmp_path):
    began = time.monotonic()
    said, figures = trained("--report", tmp_path / "memory.html")
    assert re.search(r"^cenote: peak requested \d+\.\d\d MiB, peak reserved \d+\.\d\d MiB, waste [\d.]+ %, [\d,]+ driver calls, 1 trim "
                     r"\(cenote on a simulated GPU\)$", said, re.MULTILINE), said
    assert re.search(r"^cenote: \S*memory\.html: [\d.]+ MB; open it in a browser$", said, re.MULTILINE), said
    assert_shown(tmp_path / "memory.html", figures, began)
    assert figures["allocator"] == "cenote" and figures["modelled_driver_ns"] > 0
    asked = [step["requested"] for step in figures["steps"]]
    assert len(asked) == 3 and asked[0] < asked[1] < asked[2] and max(asked) <= figures["reserved_peak"]


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.browser
@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_under_pytorchs_own(trained, tmp_path, allocator):
    began = time.monotonic()
    said, figures = trained("--allocator", allocator, "--report", tmp_path / "memory.html")
    assert all(line.startswith("cenote: ") for line in spoken(said).splitlines()), said  # a first user sees no warning of PyTorch's
    assert_shown(tmp_path / "memory.html", figures, began)
    assert f"({allocator} on a simulated GPU)" in said and "trims" not in said
    assert figures["allocator"] == allocator and figures["trims"] is None and 0 < figures["requested_peak"] <= figures["reserved_peak"]
    assert [step["step"] for step in figures["steps"]] == [1, 2, 3]


def test_memory_that_slept_is_no_negative_waste():
    """It is requested all the time, and not reserved while it sleeps."""
    assert run_summary.waste(3 << 30, 2 << 30) == "a part asleep"
    assert run_summary.waste(2 << 30, 2 << 30) == "waste 0.0 %"


def test_a_line_begins_with_cenote_once(capsys):
    run_summary.say("cenote: memory has no labels")
    run_summary.say("2 GPUs")
    assert capsys.readouterr().err == "cenote: memory has no labels\ncenote: 2 GPUs\n"
