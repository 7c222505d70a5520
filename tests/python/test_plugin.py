"""cenote as PyTorch's allocator: the adapter is compiled once and kept, CENOTE=on acts if torch is imported and costs nothing otherwise, and errors
have a message."""
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time

import pytest
from conftest import CENOTE, ROOT
from patience import patience
from spoken import said

from cenote import hook, places
from cenote.base import trusted
from cenote.native import adapter

SECONDS = 400


@pytest.fixture
def python(clean, tmp_path, simulation_library):
    """python(CODE, NAME=VALUE...): a finished process of a Python in which cenote is installed, as by tools/setup."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "cenote-tree.pth").write_text(f"{ROOT}/python\n" + (ROOT / "python/cenote.pth").read_text())
    # The site folder of a virtual environment, without the environment: site.py would add it in the same way.
    start = f"import site; site.addsitedir({str(site)!r}); exec(open({str(tmp_path / 'program.py')!r}).read(), {{'__name__': '__main__'}})"
    del clean["PYTHONPATH"]
    clean.update(XDG_CACHE_HOME=str(tmp_path / "cache"), OMP_NUM_THREADS="1", CENOTE_BUILD=str(simulation_library.parents[1]))

    def call(code, *, interpreter=(sys.executable,), status=0, **variables):
        (tmp_path / "program.py").write_text(code)
        done = subprocess.run([*interpreter, "-c", start], env={**clean, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == status, done.stdout + done.stderr
        return done
    return call


@pytest.fixture(scope="session")
def kept():
    """The cache of this user: the first test that needs the adapter compiles it, unless another program did, from the same sources."""
    return os.path.dirname(places.cache_folder())


@pytest.fixture
def gpu(python, kept, simulation_library):
    """The same on a simulated GPU, with the adapter that an earlier test compiled."""
    def call(code, **variables):
        preload = {"LD_PRELOAD": f"{places.plain(str(simulation_library.parent))}/libcenote_sim.so", "CENOTE_SIM": "capacity:4GiB"}
        return python(code, **{**preload, "XDG_CACHE_HOME": kept, **variables})
    return call


# --- the switch

@pytest.mark.torch
@pytest.mark.simulation
def test_without_pythons_lock_nothing_reads_other_threads(gpu, tmp_path):
    """The build for free threading. Labels and growth refuse in one line, a report adds none; the program runs, and its memory is cenote's."""
    done = gpu("""
import sys
sys._is_gil_enabled = lambda: False
import torch, cenote
for call in (cenote.label, cenote.growth):
    try:
        call()
    except RuntimeError as why:
        print(why)
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(4, 8, device="cuda")).sum().backward()
print(cenote.status().allocator, [row.name for row in cenote.rows("phase") if row.live])
""", CENOTE="on", CENOTE_LABELS="on", CENOTE_SUMMARY="on", CENOTE_REPORT=str(tmp_path / "page.html"))
    lines = done.stdout.splitlines()
    words = "needs Python's lock, which this Python runs without: start it with PYTHON_GIL=1"
    assert lines[:2] == [f"cenote.label {words}", f"cenote.growth {words}"] and lines[2].startswith("cenote ")
    assert "forward" not in lines[2] and said(done.stderr).count(words) == 1


LOADED = "import sys; print(*sorted(name for name in sys.modules if name.partition('.')[0] in ('cenote', 'torch')))"


def test_without_the_switch_nothing_of_ours_is_loaded(python):
    assert python(LOADED).stdout == "\n"
    assert python(LOADED, CENOTE="").stdout == "\n"


def test_with_it_torch_is_not_imported(python):
    assert "torch" not in python(LOADED, CENOTE="on").stdout.split()


def test_switched_off_nothing_waits(python):
    code = "import sys; print(any('cenote' in getattr(finder, '__module__', '') for finder in sys.meta_path))"
    assert [python(code, CENOTE=value).stdout for value in ("off", "on")] == ["False\n", "True\n"]


@pytest.mark.parametrize("value, is_on", [("1", True), ("yes", True), ("True", True), ("ON", True), ("on ", True), ("0", False), ("No", False),
                                         ("false", False), ("Off", False), ("", False), ("fallback", True)])
def test_a_value_as_people_type_it(value, is_on):
    assert hook.is_on(value) == is_on


@pytest.mark.parametrize("value", ["2", "onn", "native", "\udcff", "x" * 3000])
def test_a_value_that_says_neither(value):
    with pytest.raises(ValueError, match="neither on nor off"):
        hook.is_on(value)


def test_a_value_that_says_neither_ends_the_import(python, tmp_path):
    (tmp_path / "torch.py").write_text("")
    done = python("import sys; sys.path.insert(0, '')\nimport torch", status=1, CENOTE="maybe")
    assert done.stderr.splitlines()[-1] == "ValueError: CENOTE='maybe' is neither on nor off; set CENOTE=on for cenote, or unset it"


def test_the_start_of_python_costs_nothing(python):
    """One line of a .pth file takes some 20 us of CPU time, while Python takes ten milliseconds. The least of many counts."""
    code = """
import time
line = open(%r).read()
def once():
    start = time.process_time()
    for _ in range(100):
        exec(line)
    return (time.process_time() - start) / 100
print(min(once() for _ in range(20)))
""" % str(ROOT / "python/cenote.pth")
    assert float(python(code).stdout) < 1e-4


STARTS = """
import os, pkgutil, sys
sys.path.insert(0, {folder!r})
before = set(sys.modules)
for line in open({folder!r} + "/cenote.start"):
    if line.strip() and not line.startswith("#"):
        pkgutil.resolve_name(line.strip())()
print(sorted(name for name in set(sys.modules) - before if name.startswith("cenote")), *(finder.__module__ for finder in sys.meta_path
                                                                             if finder.__module__ == "cenote.hook"))
"""


def test_python_3_15_starts_it_by_a_function(clean):
    """As its site.py does with a .start file, in which each line names a function; a .pth file of that name is read for paths alone."""
    def started(**variables):
        code = STARTS.format(folder=str(ROOT / "python"))
        return subprocess.run([sys.executable, "-S", "-c", code], env={**clean, **variables}, capture_output=True, text=True, timeout=SECONDS).stdout
    assert started() == started(CENOTE="") == "['cenote_start']\n"
    assert started(CENOTE="on").endswith(" cenote.hook\n") and "cenote.hook" in started(CENOTE_SUMMARY="on")
    assert (ROOT / "python/cenote.pth").read_text().startswith("import ")


FINDS = """
import importlib.util, sys
sys.path.insert(0, "")
assert importlib.util.find_spec("torch") is not None and importlib.util.find_spec("torch") is not None
assert "torch" not in sys.modules
import cenote.inside.plugin
calls = []
cenote.inside.plugin.install = lambda: calls.append(sys.modules["torch"].ready)
import torch, json
assert calls == [True], calls
assert not any(finder.__class__.__module__ == "cenote.hook" or getattr(finder, "__module__", "") == "cenote.hook" for finder in sys.meta_path)
assert "exec_module" not in vars(torch.__spec__.loader)
import importlib
importlib.reload(torch)
assert calls == [True], calls
print("good")
"""


def test_it_acts_once_after_torch_is_whole(python, tmp_path):
    """Programs ask for the spec before they import torch, and reload it."""
    (tmp_path / "torch.py").write_text("ready = False\nimport json\nready = True\n")
    assert python(FINDS, CENOTE="on").stdout == "good\n"


def test_an_import_that_fails_may_be_tried_again(python, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os\nif not os.path.exists('second'):\n    open('second', 'w').close()\n    raise ImportError('first')\n")
    code = """
import sys
sys.path.insert(0, "")
import cenote.inside.plugin
calls = []
cenote.inside.plugin.install = lambda: calls.append(1)
try:
    import torch
except ImportError as error:
    print(error, calls)
import torch
print(calls)
"""
    assert python(code, CENOTE="on").stdout == "first []\n[1]\n"


def test_a_program_may_take_it_back(python, tmp_path):
    (tmp_path / "torch.py").write_text("")
    code = "import os, sys\nsys.path.insert(0, '')\ndel os.environ['CENOTE']\nimport torch, cenote\nprint(cenote.status())"
    assert python(code, CENOTE="on").stdout == "Status(allocator=None, adapter=None, torch=None, note='')\n"


def test_status_imports_nothing(python):
    code = "import cenote, sys; print(cenote.status(), 'torch' in sys.modules)"
    assert python("import sys; sys.path.insert(0, %r)\n%s" % (str(ROOT / "python"), code)).stdout == \
        "Status(allocator=None, adapter=None, torch=None, note='') False\n"


def test_cenote_run_says_where_the_switch_is_missing(run):
    """If the package is only on PYTHONPATH, a Python that it starts does not read CENOTE."""
    if places.switch_is_installed(sys.path):
        pytest.skip("this Python has it")
    done = run("run", "--allocator", "cenote", "-m", "this")
    assert done.returncode == 2 and "where cenote is not installed" in done.stderr
    done = run("run", "--allocator", "cenote", "--", "sh", "-c", "echo $CENOTE")
    assert done.stdout == "on\n" and "has no cenote" in done.stderr


# --- making the adapter, with a script in place of a compiler

TORCH = adapter.Torch("9.9.9+cu130", "abc", "13.0", True, "/nonexistent/torch")

COMPILER = """#!/bin/sh
# Says a version, and "compiles" by writing what it was called with.
case "$*" in *--version*) echo "pretended 1.0"; exit 0 ;; esac
echo "$@" >>"$LOG"
sleep ${SLOW:-0}
while [ $# -gt 0 ]; do case "$1" in -o) out=$2 ;; esac; shift; done
[ -z "$FAIL" ] || { echo "x.cpp:1: error: no such thing"; exit 1; }
echo library >"$out"
"""


@pytest.fixture
def pretended(tmp_path, monkeypatch, simulation_library):
    """A script in place of the compiler, which records its calls. Returns the folder of its records and of the cache."""
    tool = tmp_path / "g++"
    tool.write_text(COMPILER)
    tool.chmod(0o755)
    headers = tmp_path / "cuda/include/crt"
    headers.mkdir(parents=True)
    (headers / "host_defines.h").touch()
    (headers.parent / "cuda_runtime_api.h").touch()
    for name, value in {"CXX": shlex.quote(str(tool)), "LOG": str(tmp_path / "log"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
                        "CUDA_HOME": str(tmp_path / "cuda"), "CENOTE_BUILD": str(simulation_library.parents[1])}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def calls(folder):
    return (folder / "log").read_text().splitlines() if (folder / "log").exists() else []


@pytest.mark.simulation
class TestMaking:
    def test_it_is_made_once(self, pretended):
        made = adapter.make(TORCH)
        count = len(calls(pretended))
        assert count == 1
        assert adapter.make(TORCH) == made and len(calls(pretended)) == count
        assert pathlib.Path(made).read_text() == "library\n" and pathlib.Path(made).is_relative_to(pretended / "cache/cenote")

    def test_nothing_else_is_left(self, pretended):
        folder = pathlib.Path(adapter.make(TORCH)).parent
        assert sorted(path.suffix for path in folder.iterdir()) == ["", ".so"]
        assert stat.S_IMODE(folder.stat().st_mode) & 0o022 == 0

    @pytest.mark.parametrize("other", [{"version": "9.9.8"}, {"commit": "abd"}, {"cuda": "12.0"}, {"has_new_abi": False}])
    def test_another_torch_has_another_adapter(self, pretended, other):
        assert adapter.make(TORCH) != adapter.make(TORCH._replace(**other))

    def test_the_same_torch_elsewhere_has_the_same(self, pretended):
        assert adapter.make(TORCH) == adapter.make(TORCH._replace(folder="/elsewhere/torch"))

    def test_another_compiler_has_another_adapter(self, pretended):
        made = adapter.make(TORCH)
        (pretended / "g++").write_text(COMPILER.replace("1.0", "2.0"))
        assert adapter.make(TORCH) != made

    def test_without_a_compiler_what_is_there_serves(self, pretended, monkeypatch):
        made = adapter.make(TORCH)
        monkeypatch.setenv("CXX", "/nonexistent/c++")
        assert adapter.make(TORCH) == made
        with pytest.raises(adapter.NotMade, match="no C.. compiler: CXX=/nonexistent/c.. does not run"):
            adapter.make(TORCH._replace(version="9.9.8"))

    def test_what_a_wheel_brings_serves_without_compiler_and_cache(self, pretended, monkeypatch):
        sources = pretended / "sources"
        shutil.copytree(os.path.dirname(places.plugin_folder("torch")), sources)
        monkeypatch.setattr(places, "plugin_folder", lambda name: str(sources / name))
        monkeypatch.setenv("CXX", "/nonexistent/c++")
        brought = sources / "torch/ready" / adapter.entry_name(TORCH) / "adapter.so"
        brought.parent.mkdir(parents=True)
        brought.write_text("brought\n")
        library = adapter.opened(TORCH)
        os.close(library.descriptor)
        assert library.path == str(brought) and not (pretended / "cache").exists()
        for other in ({"torch": TORCH._replace(commit="abd")}, {"torch": TORCH, "room": adapter.VALUES}):
            with pytest.raises(adapter.NotMade):
                adapter.opened(**other)
        brought.chmod(0o666)
        with pytest.raises(adapter.NotMade):
            adapter.opened(TORCH)

    def test_a_compiler_of_several_words(self, pretended, monkeypatch):
        monkeypatch.setenv("CXX", f"env WORD=1 {pretended}/g++")
        adapter.make(TORCH)
        assert calls(pretended)

    def test_a_failure_says_what_the_compiler_said_and_leaves_nothing(self, pretended, monkeypatch):
        monkeypatch.setenv("FAIL", "1")
        with pytest.raises(adapter.NotMade, match="x.cpp:1: error: no such thing"):
            adapter.make(TORCH)
        assert not [path for path in (pretended / "cache").rglob("*") if path.suffix == ".so" or path.name.startswith("part-")]
        monkeypatch.delenv("FAIL")
        assert adapter.make(TORCH)

    def test_headers_that_are_missing(self, pretended, monkeypatch):
        monkeypatch.setattr(adapter, "cuda_places", lambda sites: iter([str(pretended / "no")]))
        with pytest.raises(adapter.NotMade, match=r"nvidia-cuda-runtime==13\.\*"):
            adapter.make(TORCH)

    def test_headers_come_with_the_packages(self, tmp_path):
        """Headers beside torch come before those of the toolkit; headers without crt/ cannot be compiled."""
        for name, has_crt in (("cuda_runtime", False), ("cu13", True)):
            (tmp_path / "nvidia" / name / "include/crt").mkdir(parents=True)
            (tmp_path / "nvidia" / name / "include/cuda_runtime_api.h").touch()
            if has_crt:
                (tmp_path / "nvidia" / name / "include/crt/host_defines.h").touch()
        assert adapter.cuda_include(TORCH._replace(folder=str(tmp_path / "torch"))) == str(tmp_path / "nvidia/cu13/include") \
            or os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")

    def test_a_cache_that_cannot_be_written(self, pretended, monkeypatch):
        (pretended / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(pretended / "file"))
        made = pathlib.Path(adapter.make(TORCH))
        assert made.exists()
        shutil.rmtree(made.parent)

    @pytest.mark.parametrize("mode, serves", [(0o755, True), (0o1777, False), (0o775, False)])
    def test_a_cache_that_may_only_be_read_serves(self, pretended, monkeypatch, mode, serves):
        """That of an image: root made it, its file system is mounted read-only, and its compiler is another one or none."""
        made = pathlib.Path(adapter.make(TORCH))
        made.parent.chmod(mode)

        def refused(path):
            raise trusted.Untrusted(path)
        monkeypatch.setattr(trusted, "own_folder", refused)
        for compiler in "/nonexistent/c++", f"env WORD=1 {pretended}/g++":
            monkeypatch.setenv("CXX", compiler)
            said = []
            try:
                library = adapter.opened(TORCH, said.append)
                os.close(library.descriptor)
                assert serves == (library.path == str(made)) and bool(said) != serves
            except adapter.NotMade:
                assert not serves and compiler == "/nonexistent/c++"

    def test_a_cache_that_others_can_write_is_not_trusted(self, pretended):
        folder = pathlib.Path(adapter.make(TORCH)).parent
        folder.chmod(0o777)
        made = pathlib.Path(adapter.make(TORCH))
        assert made.parent != folder
        shutil.rmtree(made.parent)

    MAKE = """
import sys
sys.path.insert(0, {root!r})
from cenote.native import adapter
try:
    print(adapter.make(adapter.Torch{facts!r}))
except adapter.NotMade as why:
    print("failed:", why)
"""

    def start(self, count):
        code = self.MAKE.format(root=str(ROOT / "python"), facts=tuple(TORCH))
        return [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(count)]

    def test_four_at_once_make_it_once(self, pretended, monkeypatch):
        monkeypatch.setenv("SLOW", "0.3")
        said = {process.communicate(timeout=60)[0] for process in self.start(4)}
        assert len(said) == 1 and pathlib.Path(said.pop().strip()).exists()
        assert len(calls(pretended)) == 1

    def test_four_at_once_fail_once(self, pretended, monkeypatch):
        monkeypatch.setenv("SLOW", "2")
        monkeypatch.setenv("FAIL", "1")
        said = {process.communicate(timeout=60)[0] for process in self.start(4)}
        assert len(said) == 1 and "no such thing" in said.pop()
        assert len(calls(pretended)) == 1

    def test_one_that_dies_leaves_no_lock(self, pretended, monkeypatch):
        monkeypatch.setenv("SLOW", str(patience(60)))
        first, = self.start(1)
        end = time.monotonic() + patience(30)
        while not calls(pretended) and time.monotonic() < end:
            time.sleep(0.02)
        first.kill()
        first.communicate()
        monkeypatch.setenv("SLOW", "0")
        assert pathlib.Path(adapter.make(TORCH)).exists()


# --- in the real PyTorch

TELL = """
import torch, cenote
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
status = cenote.status()
print(status.allocator, torch.cuda.get_allocator_backend(), status.torch == torch.__version__, torch.cuda.memory_allocated(), bool(status.adapter))
"""
CENOTE_IS_THERE = "cenote cenote True 3145728 True\n"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.simulation
class TestPyTorch:
    @pytest.mark.parametrize("cache", [None, pytest.param("empty", marks=pytest.mark.deep)])
    def test_the_switch(self, gpu, tmp_path, cache):
        """With an empty cache the adapter is compiled first."""
        done = gpu(TELL, CENOTE="on", **({"XDG_CACHE_HOME": str(tmp_path / cache)} if cache else {}))
        assert (done.stdout, done.stderr) == (CENOTE_IS_THERE, "")

    def test_without_it_all_is_native(self, gpu):
        assert gpu("import sys; sys.path.insert(0, %r)" % str(ROOT / "python") + TELL).stdout == "native native True 3145728 False\n"

    def test_the_call(self, gpu):
        """cenote.install() also sets the switch for child processes."""
        code = "import cenote; cenote.install(); cenote.install()" + TELL + "import os; print(os.environ['CENOTE'])"
        assert gpu(code).stdout == CENOTE_IS_THERE + "on\n"

    def test_a_card_that_fails_at_its_first_use(self, gpu):
        """The fallback is there before the first pool opens, which reads it."""
        code = "import torch, os; print(os.environ['CENOTE_CONF'], torch.zeros(1, device='cuda').numel())"
        done = gpu(code, CENOTE="on", CENOTE_SIM="capacity:4GiB,quirks:stale-aliases")
        assert done.stdout == "aliases:off 1\n" and done.stderr.count("so CENOTE_CONF says aliases:off") == 1, done.stdout + done.stderr

    def test_too_late(self, gpu):
        code = """
import torch, cenote
x = torch.empty(1, device="cuda")
try:
    cenote.install()
except RuntimeError as error:
    print(error)
print(torch.empty(1, device="cuda").device, cenote.status().allocator)
"""
        assert gpu(code).stdout == ("cenote.install: PyTorch has used a GPU already: install cenote before the first tensor on one\n"
                                    "cuda:0 native\n")

    def test_another_backend_is_a_contradiction(self, gpu):
        done = gpu("import torch", status=1, CENOTE="on", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")
        assert "leave `backend` out of PYTORCH_ALLOC_CONF" in done.stderr

    def test_settings_without_a_meaning_are_said_once(self, gpu):
        settings = "backend:native,expandable_segments:True,max_split_size_mb:64,pinned_use_background_threads:True"
        done = gpu(TELL, CENOTE="on", PYTORCH_CUDA_ALLOC_CONF=settings)
        assert done.stdout == CENOTE_IS_THERE
        assert done.stderr == ("cenote: expandable_segments, max_split_size_mb in PYTORCH_CUDA_ALLOC_CONF: not needed here, without effect, and can "
                               "be left out\n")

    def test_settings_that_are_not_served_say_what_that_costs(self, gpu):
        done = gpu(TELL, CENOTE="on", PYTORCH_ALLOC_CONF="graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True")
        assert done.stdout == CENOTE_IS_THERE and [line.partition(" in ")[0] for line in done.stderr.splitlines()] == [
            "cenote: graph_capture_record_stream_reuse", "cenote: throw_on_cudamalloc_oom"]
        assert "may hold more memory" in done.stderr
        assert gpu(TELL, CENOTE="on", PYTORCH_ALLOC_CONF="graph_capture_record_stream_reuse:False,throw_on_cudamalloc_oom:False").stderr == ""

    @pytest.mark.parametrize("settings", ["nonsense:1", "max_split_size_mb:much", "expandable_segments:yes", "per_process_memory_fraction:1.5"])
    def test_a_bad_setting_is_refused_as_pytorch_does(self, gpu, settings):
        done = gpu(TELL, status=1, CENOTE="on", PYTORCH_CUDA_ALLOC_CONF=settings)
        assert settings.partition(":")[0] in done.stderr and CENOTE_IS_THERE not in done.stdout

    def test_a_fraction_in_the_settings_acts(self, gpu):
        code = TELL + """
print(torch.cuda.get_per_process_memory_fraction())
try:
    torch.empty(1200 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("1.00 GiB allowed" in str(error))
"""
        assert gpu(code, CENOTE="on", PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.25").stdout == CENOTE_IS_THERE + "0.25\nTrue\n"

    def test_without_a_gpu(self, gpu):
        assert gpu("import torch; print(torch.cuda.is_available(), torch.zeros(3).sum().item())", CENOTE="on",
                   CENOTE_SIM="devices:0").stdout == "False 0.0\n"

    def test_without_a_compiler(self, gpu, tmp_path):
        """cenote serves by PyTorch's own interface, and says so in one line."""
        code = """
import torch, cenote
x = torch.ones(1 << 20, device="cuda")
side = torch.cuda.Stream()
x.record_stream(side)
print(cenote.status().allocator, cenote.status().note, x.sum().device)
del x
left = torch.cuda.mem_get_info()[0]
torch.cuda.empty_cache()
print(torch.cuda.mem_get_info()[0] > left)
torch.cuda.set_per_process_memory_fraction(0.25)
try:
    torch.empty(1200 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("CUDA out of memory" in str(error))
print(torch.empty(100 << 20, dtype=torch.uint8, device="cuda").device)
"""
        done = gpu(code, CENOTE="fallback", **(variables := {"CXX": "/nonexistent/c++", "XDG_CACHE_HOME": str(tmp_path / "none")}))
        assert done.stdout == "pluggable there is no C++ compiler: CXX=/nonexistent/c++ does not run cuda:0\nTrue\nTrue\ncuda:0\n"
        assert "no adapter for torch" in done.stderr and said(done.stderr).count("cenote:") == 2
        for code, value in ("import torch", "on"), ("import cenote; cenote.install()", "off"):
            done = gpu(code, status=1, CENOTE=value, **variables)
            assert re.fullmatch(r"RuntimeError: cenote.install: no adapter .*CXX=\S+ does not run; CENOTE=fallback .*", done.stderr.splitlines()[-1])


# --- processes that a program starts

@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.simulation
class TestChildren:
    @pytest.fixture
    def venv(self, clean, tmp_path, kept, simulation_library):
        """A real virtual environment with this Python's packages and cenote, as by tools/setup, so that child processes read the .pth file, too."""
        folder = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=SECONDS)
        origin = importlib.util.find_spec("torch").origin
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "all.pth").write_text(str(pathlib.Path(origin).parents[1]) + "\n")
        (site / "cenote-tree.pth").write_text(f"{ROOT}/python\n" + (ROOT / "python/cenote.pth").read_text())
        del clean["PYTHONPATH"]
        clean.update(XDG_CACHE_HOME=kept, OMP_NUM_THREADS="1", CENOTE_BUILD=str(simulation_library.parents[1]))

        def call(*arguments, code=""):
            (tmp_path / "program.py").write_text(code)
            command = [folder / "bin/python", "-m", "cenote", "run", "--sim", "4GiB", "--devices", "2", "--allocator", "cenote"]
            done = subprocess.run([*command, *arguments], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout
        return call

    @pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
    def test_multiprocessing(self, venv, clean, method):
        """Workers that import the program again, and PyTorch with it, do not say again what the program was told."""
        clean["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"
        code = f"""
import os
os.dup2(1, 2)
import torch, cenote
def child(number):
    x = torch.empty(4, device="cuda")
    print(number, cenote.status().allocator, flush=True)
if __name__ == "__main__":
    torch.multiprocessing.start_processes(child, (), 2, start_method={method!r})
"""
        lines = sorted(venv("program.py", code=code).splitlines())
        assert lines[:2] == ["0 cenote", "1 cenote"] and sum("not needed here" in line for line in lines) == 1, lines

    def test_data_loader_workers(self, venv):
        code = """
import torch, cenote
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((4,), i)
def main():
    x = torch.empty(4, device="cuda")
    for context in ("fork", "spawn"):
        loader = DataLoader(Data(), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context=context)
        print(context, [batch.cuda(non_blocking=True).tolist()[0][0] for batch in loader], cenote.status().allocator)
if __name__ == "__main__":
    main()
"""
        assert venv("program.py", code=code) == "fork [0, 2, 4, 6] cenote\nspawn [0, 2, 4, 6] cenote\n"

    def test_torchrun(self, venv, tmp_path):
        code = """
import os, torch, cenote
rank = int(os.environ["LOCAL_RANK"])
x = torch.empty(4, device=f"cuda:{rank}")
open(f"rank{rank}", "w").write(f"{cenote.status().allocator} {x.device}")
"""
        venv("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py", code=code)
        assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["cenote cuda:0", "cenote cuda:1"]
