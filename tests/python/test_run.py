"""`cenote run` becomes the program: its arguments, streams, status, signals and process are the program's own."""
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import CENOTE

from cenote import places
from cenote.launch import run as launch

SIM = ("--sim", "8GiB")


def test_arguments_arrive_as_they_are(show):
    arguments = ["--sim", "1", "-m", "--", "", "two words", "*", "$HOME", "\udcff", "--help", "a\nb"]
    seen = show(arguments=arguments)
    assert seen["argv"][1:] == arguments


def test_the_python_is_ours(show):
    assert show()["python"] == sys.executable


def test_without_a_simulation_nothing_is_set(show):
    seen = show()
    assert [seen[name] for name in ("CENOTE_SIM", "LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")] == [None] * 4


def test_what_is_set_is_left_alone(show):
    assert show(PYTORCH_ALLOC_CONF="max_split_size_mb:64")["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_module(run, tmp_path):
    (tmp_path / "walk.py").write_text("import sys; print(__name__, sys.argv[1:]); sys.exit(9)")
    done = run("run", "-m", "walk", "-m", "x")
    assert (done.returncode, done.stdout) == (9, "__main__ ['-m', 'x']\n")


def test_code(run):
    done = run("run", "-c", "import sys; print(__name__, sys.argv); sys.exit(9)", "-c", "x")
    assert (done.returncode, done.stdout) == (9, "__main__ ['-c', '-c', 'x']\n")


def test_a_program_from_path(run):
    assert run("run", "--", "printf", "%s|", "a b", "--").stdout == "a b|--|"


def test_a_script_from_stdin(run):
    assert run("run", "-", "x", input="import sys; print(sys.argv)").stdout == "['-', 'x']\n"


def test_stdin_is_the_programs(run):
    assert run("run", "--", "cat", input="line\n" * 1000).stdout == "line\n" * 1000


@pytest.mark.parametrize("status", [0, 1, 2, 77, 126, 255])
def test_the_exit_status_is_the_programs(run, status):
    assert run("run", "--", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT, signal.SIGINT, signal.SIGPIPE])
def test_a_signal_that_ends_the_program_is_seen(run, number):
    assert run("run", "--", "sh", "-c", f"kill -{int(number)} $$").returncode == -number


def test_a_program_that_is_not_there(run, tmp_path):
    missing = run("run", "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (127, "cenote run: 'no-such-program': there is no such program in PATH\n")
    (tmp_path / "data").write_text("")
    assert run("run", "--", tmp_path / "data").returncode == 126
    assert run("run", "--", tmp_path).returncode == 126


def test_a_folder_of_path_that_may_not_be_searched(run, tmp_path):
    """The search there ends with "Permission denied", as it does at a folder of that name, which root meets as well."""
    (tmp_path / "no-such-program").mkdir()
    (tmp_path / "data").write_text("")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    missing = run("run", "--", "no-such-program", PATH=path)
    assert (missing.returncode, missing.stderr) == (127, "cenote run: 'no-such-program': there is no such program in PATH\n")
    assert run("run", "--", "data", PATH=path).returncode == 126


def test_it_is_the_same_process(clean, tmp_path):
    script = tmp_path / "pid.py"
    script.write_text("import os; print(os.getpid(), os.getppid())")
    with subprocess.Popen([*CENOTE, "run", script], env=clean, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0].split() == [str(process.pid), str(os.getpid())]


def test_signals_reach_the_program(clean, tmp_path):
    script = tmp_path / "wait.py"
    script.write_text("import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))\nprint('ready', flush=True)\ntime.sleep(60)")
    with subprocess.Popen([*CENOTE, "run", script], env=clean, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 42


def test_a_closed_pipe_ends_a_program_as_it_would_without_us(run):
    """Python ignores SIGPIPE, and the program that it becomes would inherit that."""
    done = run("run", "--", "bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert done.stdout.split() == ["y", str(128 + signal.SIGPIPE)]


def test_an_open_file_is_handed_on(clean, tmp_path):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    subprocess.run([*CENOTE, "run", "--", "sh", "-c", f"echo here >/dev/fd/{write}"], env=clean, close_fds=False, check=True, timeout=60)
    os.close(write)
    with open(read) as file:
        assert file.read() == "here\n"


def test_it_starts_at_once(clean):
    """Measures the CPU time that the command adds to the start of a program, compared with that of the Python interpreter."""
    def least(*command):
        times = []
        for _ in range(10):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=clean, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)
    assert least(*CENOTE, "run", "--", "true") - least(sys.executable, "-c", "pass") < 0.060


def test_torch_is_not_imported(run, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    assert run("run", "--", "true", cwd=tmp_path).returncode == 0


@pytest.mark.simulation
class TestSimulated:
    def test_the_library_is_preloaded_first(self, show, simulation_library):
        seen = show(*SIM, "--devices", "4", "--lag", "100")
        assert os.path.samefile(seen["LD_PRELOAD"], simulation_library)
        shape = dict(item.split(":") for item in seen["CENOTE_SIM"].split(","))
        assert shape.pop("machine").startswith("run-")
        assert shape == {"capacity": "8GiB", "devices": "4", "lag": "100"}

    def test_what_is_preloaded_already_stays(self, show, simulation_library):
        first, *others = show(*SIM, LD_PRELOAD="libc.so.6")["LD_PRELOAD"].split(":")
        assert os.path.samefile(first, simulation_library) and others == ["libc.so.6"]

    def test_the_environment_alone_asks_for_a_simulation(self, show):
        assert show(CENOTE_SIM="capacity:4GiB")["CENOTE_SIM"].startswith("capacity:4GiB,machine:run-")

    def test_a_run_within_a_run_is_on_the_same_machine(self, run, tmp_path):
        script = tmp_path / "outer.py"
        script.write_text("import os, subprocess, sys\nprint(os.environ['CENOTE_SIM'], flush=True)\n"
                          "inner = [sys.executable, '-m', 'cenote', 'run', '--allocator', 'expandable', '--', 'sh', '-c', 'echo $CENOTE_SIM']\n"
                          "subprocess.run(inner)")
        outer, inner = run("run", *SIM, script).stdout.split()
        assert outer == inner

    @pytest.mark.parametrize("allocator, setting", [
        ("native", None), ("expandable", "expandable_segments:True"), ("cudaMallocAsync", "backend:cudaMallocAsync"),
    ])
    def test_the_allocator(self, show, allocator, setting):
        assert show(*SIM, "--allocator", allocator)["PYTORCH_CUDA_ALLOC_CONF"] == setting

    def test_a_trace_is_of_cenote(self, show, tmp_path):
        """README: `cenote run --trace t.csv.gz train.py`. Without cenote as PyTorch's allocator it recorded nothing, and did not say so."""
        trace = ("--trace", tmp_path / "t.csv.gz")
        assert show(*SIM, *trace)["CENOTE"] == "on"
        assert show(*SIM, *trace, "--preload")["CENOTE"] is None

    def test_the_driver_is_the_simulated_one(self, run, simulation_library):
        code = ("import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); assert d.cuInit(0) == 0; d.cuDeviceGetCount(ctypes.byref(n));"
                "print(n.value, *{l.split(None, 5)[5] for l in open('/proc/self/maps') if 'libcuda.so.1' in l}, sep='\\n', end='')")
        done = run("run", *SIM, "--devices", "3", "--", sys.executable, "-c", code)
        assert done.stdout.splitlines() == ["3", str(simulation_library.parent / "libcuda.so.1")], done.stderr

    @pytest.mark.parametrize("name, function", [
        ("libcuda.so", "cuInit"), ("libcudart.so.12", "cudaGetDeviceCount"), ("libcublas.so.12", "cublasCreate_v2"),
        ("libcublasLt.so.12", "cublasLtCreate"), ("libcufft.so.11", "cufftCreate"), ("libcusolver.so.11", "cusolverDnCreate"),
        ("libcupti.so.12", "cuptiGetVersion")])
    def test_a_library_has_other_names(self, run, name, function):
        """For a program that opens it, as TensorFlow does with those of CUDA 12."""
        code = f"import ctypes; ctypes.CDLL({name!r}).{function}"
        done = run("run", *SIM, "--", sys.executable, "-c", code)
        assert done.returncode == 0, done.stderr

    def test_a_program_is_linked_to_the_driver(self, run, simulation_library, tmp_path):
        """By -lcuda, with every function that the simulated driver shows; it calls those of libcuda.so.1."""
        sim = simulation_library.parent
        shown = [{line.split()[-1] for line in subprocess.run(["nm", "-D", "--defined-only", sim / name], check=True, capture_output=True,
                                                              text=True).stdout.splitlines() if line.split()[-1].startswith("cu")}
                 for name in ("libcuda.so.1", "libcuda.so")]
        assert shown[0] == shown[1] and "cuInit" in shown[0]
        (tmp_path / "linked.c").write_text("int cuInit(unsigned); int cuDeviceGetCount(int *);\n"
                                           "int main(void) { int n = 0; return cuInit(0) || cuDeviceGetCount(&n) ? 99 : n; }\n")
        subprocess.run(["cc", tmp_path / "linked.c", "-o", tmp_path / "linked", f"-L{sim}", "-lcuda"], check=True)
        assert run("run", *SIM, "--devices", "3", "--", tmp_path / "linked").returncode == 3
        assert subprocess.run([tmp_path / "linked"], env=os.environ | {"LD_LIBRARY_PATH": str(sim), "CENOTE_SIM": "devices:2"}).returncode == 2

    def test_a_shape_that_the_simulated_gpu_does_not_know_is_its_business(self, run):
        done = run("run", *SIM, "--", sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", CENOTE_SIM="colour:red")
        assert done.returncode != 0 and "colour" in done.stderr

    @pytest.mark.parametrize("name", ["with space", "with:colon", "with space ('1\") error"])
    def test_a_tree_at_a_path_at_which_the_linker_splits(self, run, tmp_path, simulation_library, name):
        """The libraries are loaded by a link with a plain name, also if the cache folder has such a path, and if an old link is there."""
        folder = tmp_path / name
        folder.mkdir()
        os.symlink(simulation_library.parent, folder / "sim")
        places = {"XDG_CACHE_HOME": str(tmp_path / "cache")}, {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
        for place in (*places, places[0]):
            done = run("run", *SIM, "--", "sh", "-c", "echo $LD_PRELOAD", CENOTE_BUILD=str(folder), **place)
            said = done.stdout.strip()
            assert os.path.samefile(said, simulation_library) and " " not in said and ":" not in said, done.stderr
            old = pathlib.Path(said).parent
            old.unlink()
            old.symlink_to(tmp_path)
            done = run("run", *SIM, "--", "sh", "-c", "echo $LD_PRELOAD", CENOTE_BUILD=str(folder), **place)
            assert os.path.samefile(done.stdout.strip(), simulation_library), done.stderr


@pytest.mark.simulation
def test_the_command_in_the_build_folder(clean, simulation_library, tmp_path):
    command = simulation_library.parents[1] / "bin/cenote"
    shutil.copy(command, tmp_path / "cenote")
    del clean["PYTHONPATH"]
    clean.pop("CENOTE_BUILD", None)
    inner = ("sh", "-c", "echo $LD_PRELOAD")
    done = subprocess.run([tmp_path / "cenote", "run", *SIM, "--", *inner], env=clean, capture_output=True, text=True, timeout=60)
    assert os.path.samefile(done.stdout.strip(), simulation_library), done.stderr


ALLOCATES = """
import ctypes
driver, context, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not driver.cuCtxPushCurrent_v2(context)
for megabytes in (100, 200):
    assert not driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(megabytes << 20))
    assert not driver.cuMemFree_v2(at)
"""

FROM_A_POOL_WITH_A_LIMIT = """
import ctypes, struct
driver, context, at, pool = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not driver.cuCtxPushCurrent_v2(context)
assert not driver.cuMemPoolCreate(ctypes.byref(pool), struct.pack("iiiiQQ56x", 1, 0, 1, 0, 0, 1 << 30))
assert not driver.cuMemAllocFromPoolAsync(ctypes.byref(at), ctypes.c_size_t(1 << 20), pool, None)
"""


@pytest.mark.simulation
class TestPreload:
    """`cenote run --preload`: a program that knows nothing of cenote, here through ctypes, which asks dlsym."""

    def test_the_program_is_served(self, run):
        done = run("run", *SIM, "--preload", "--", sys.executable, "-c", ALLOCATES)
        assert done.returncode == 0, done.stderr
        words = done.stderr.strip()
        assert words.startswith("cenote: peak requested 200.00 MiB, peak reserved 200.00 MiB, waste 0.0 %, "), words
        assert words.endswith(" trims (cenote by preload on a simulated GPU)"), words

    def test_a_program_of_which_nothing_is_served(self, run):
        done = run("run", *SIM, "--preload", "--", sys.executable, "-c", FROM_A_POOL_WITH_A_LIMIT)
        assert (done.returncode, done.stderr) == (0, "cenote: nothing was served (cenote by preload on a simulated GPU); left to the driver: "
                                                     "1 from pools that cenote cannot stand for\n")

    def test_it_comes_before_the_simulated_driver(self, show, simulation_library):
        first, second = show(*SIM, "--preload")["LD_PRELOAD"].split(":")
        assert first.endswith("/libcenote_preload.so") and os.path.samefile(second, simulation_library)

    def test_without_a_line(self, run):
        assert run("run", *SIM, "--preload", "--quiet", "--", sys.executable, "-c", ALLOCATES).stderr == ""

    def test_a_program_that_takes_no_memory_says_nothing(self, run):
        assert run("run", *SIM, "--preload", "--", "true").stderr == ""

    def test_a_program_without_a_driver(self, run):
        """As each tool that a program starts: with the line at the end it ended by a segmentation fault."""
        done = run("run", "--preload", "--", "echo", "well")
        assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")

    def test_off_is_a_contradiction(self, run):
        done = run("run", *SIM, "--preload", "--", "true", CENOTE_PRELOAD="off")
        assert done.returncode == 2 and "CENOTE_PRELOAD says off" in done.stderr

    def test_off_by_hand(self, run, show):
        preload = show(*SIM, "--preload")["LD_PRELOAD"]
        done = run("run", *SIM, "--", sys.executable, "-c", ALLOCATES, LD_PRELOAD=preload, CENOTE_PRELOAD="off")
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_trace_of_what_it_takes(self, run, tmp_path):
        done = run("run", *SIM, "--preload", "--trace", tmp_path / "t.csv", "--", sys.executable, "-c", ALLOCATES)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "t.csv").read_text().count("\n") >= 4


def test_a_program_beside_this_python(monkeypatch, tmp_path):
    """torchrun of an environment that was not activated. One in PATH goes first, and what is no program is no help."""
    python, beside = tmp_path / "python", tmp_path / "torchrun"
    beside.touch()
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "/nowhere")
    assert launch.command_line(["--", "torchrun", "x.py"]) == ["torchrun", "x.py"]
    beside.chmod(0o755)
    assert launch.command_line(["--", "torchrun", "x.py"]) == [str(beside), "x.py"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.command_line(["--", "torchrun", "x.py"]) == ["torchrun", "x.py"]


@pytest.mark.simulation
def test_a_program_that_is_linked_to_the_runtime(run, tmp_path):
    """The dynamic linker looks for what the program is linked to before it comes to what libcenote_sim.so depends on. `cenote run` goes before the
    system's folders and a RUNPATH."""
    (tmp_path / "real.c").write_text("int cudaGetDeviceCount(int *n) { *n = 99; return 0; }")
    (tmp_path / "program.c").write_text('#include <stdio.h>\nint cudaGetDeviceCount(int *);\n'
                                        'int main(void) { int n = 0, r = cudaGetDeviceCount(&n); printf("%d %d\\n", r, n); }')
    for arguments in (["-shared", "-fPIC", "real.c", "-o", "libcudart.so.13", "-Wl,-soname,libcudart.so.13"],
                      ["program.c", "-o", "program", "libcudart.so.13", "-Wl,--enable-new-dtags,-rpath,$ORIGIN"]):
        subprocess.run(["gcc", *arguments], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "program"], capture_output=True, text=True).stdout == "0 99\n"
    done = run("run", *SIM, "--devices", "3", "--", str(tmp_path / "program"))
    assert done.stdout == "0 3\n", done.stdout + done.stderr


BY_SUM = "cenote: peak requested 200.00 MiB, peak reserved 200.00 MiB, waste 0.0 %, "


@pytest.mark.simulation
def test_the_driver_by_its_name_without_a_version(run):
    done = run("run", *SIM, "--preload", "--", sys.executable, "-c", ALLOCATES.replace("libcuda.so.1", "libcuda.so"))
    assert done.returncode == 0 and done.stderr.startswith(BY_SUM), done.stderr


@pytest.mark.simulation
def test_two_copies_of_the_preload_one_of_them_serves(run, simulation_library, tmp_path):
    build = simulation_library.parents[1]
    shutil.copy(build / "libcenote_preload.so", tmp_path)
    for name in ("libcenote.so", "libcenote.so.0"):
        os.symlink(build / name, tmp_path / name)
    done = run("run", *SIM, "--preload", "--", sys.executable, "-c", ALLOCATES, LD_PRELOAD=str(tmp_path / "libcenote_preload.so"))
    assert done.returncode == 0 and done.stderr.startswith(BY_SUM) and "by preload" in done.stderr, done.stderr
    assert done.stderr.count("cenote: ") == 1, done.stderr


def test_a_python_that_reads_the_sources_alone_is_told_that_cenote_is_not_installed(tmp_path):
    """By PYTHONPATH the package is found and its .pth file is not read: the program would run without cenote, and without a word."""
    (tmp_path / "empty.py").write_text("")
    sources = pathlib.Path(__file__).resolve().parents[2] / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run([base, "-m", "cenote", "run", "--allocator", "cenote", str(tmp_path / "empty.py")],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(sources)})
    assert done.returncode and "where cenote is not installed" in done.stderr
