"""The package as a user gets it: source distribution, the wheel that is built from it, its installation into an empty environment."""
import email
import fcntl
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from cenote import completion, places

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 500


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> pathlib.Path:
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    call(sys.executable, "-c", "import sys, scikit_build_core.build as build; build.build_sdist(sys.argv[1])", folder, cwd=ROOT)
    return next(folder.glob("cenote-*.tar.gz"))


@pytest.fixture(scope="module", params=["OFF", pytest.param("ON", marks=pytest.mark.deep)])
def wheel(request, sdist, tmp_path_factory) -> pathlib.Path:
    """Built from the source distribution, which must have all that the build needs. In `make deep` it is built as it is released, optimised across
    files. If there is ccache, it keeps the compiler's results for the next time."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    source = next(folder.glob("cenote-*"))
    code = "import sys, scikit_build_core.build as build; build.build_wheel(sys.argv[1])"
    launcher = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX") if shutil.which("ccache")]
    options = [f"-DCENOTE_CUDA_INCLUDE={cuda_include()}", f"-DCENOTE_LTO={request.param}", *launcher]
    # In whatever folder: seen from where the compiler runs, the sources lie where they lay the last time.
    kept = {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1", "SKBUILD_BUILD_DIR": "build"}
    call(sys.executable, "-c", code, folder, cwd=source, env={**os.environ, **kept, "CMAKE_ARGS": shlex.join(options)})
    return next(folder.glob("cenote-*.whl"))


def cuda_include() -> str:
    """The headers that the build of the tree found: the environment of the wheel has no packages of NVIDIA."""
    build = pathlib.Path(os.environ.get("CENOTE_BUILD") or ROOT / "build")
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("CENOTE_CUDA_INCLUDE:"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    """The Python of an environment that has cenote and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    call(sys.executable, "-m", "venv", folder)
    call(folder / "bin/python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Folder and environment for an installed package, without access to the tree."""
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    return {"cwd": tmp_path_factory.mktemp("outside"), "env": {name: os.environ[name] for name in names if name in os.environ}}


def members(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.getinfo(name) for name in archive.namelist()}


def test_the_source_distribution_has_what_a_build_needs_and_no_more(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "include/cenote/cenote.h", "python/cenote/py.typed", "plugins/torch/adapter.cpp",
            "python/cenote.pth", "python/cenote.start", "python/cenote_start.py", "sim/libraries/stubs.def", "PKG-INFO"} <= names
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"base", "cmake", "docs", "driver", "host", "include", "plugins", "pool", "python", "share", "sim", "stats", "tools",
                       "traces"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so", ".o"))]


def test_the_wheel_holds_the_package_the_library_and_the_simulated_gpu(wheel):
    names = set(members(wheel))
    assert {"cenote/__init__.py", "cenote/py.typed", "cenote/view/page.html", "cenote/view/page.css", "cenote/view/state.js",
            "cenote/built.py", "cenote/include/cenote/cenote.h",
            "cenote/lib/libcenote.so.0", "cenote/lib/libcenote.so", "cenote/lib/libcenote_pluggable.so", "cenote/lib/libcenote_records.so",
            "cenote/lib/libcenote_preload.so", "cenote/lib/libcenote_nvtx.so",
            "cenote/plugins/torch/adapter.cpp", "cenote/torch/seams.def", "cenote.pth", "cenote.start", "cenote_start.py",
            "cenote/bin/cenote-qualify", "cenote/traces/lstm.csv.gz",
            "cenote/sim/libcenote_sim.so", "cenote/sim/libcuda.so.1", "cenote/sim/libcudart.so.13", "cenote/sim/libcudnn.so.9"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"cenote", "cenote.pth", "cenote.start", "cenote_start.py"}
    folders = {path.parent.name for path in (ROOT / "python/cenote").glob("*/__init__.py")}
    folders |= {"bin", "lib", "include", "plugins", "shells", "sim", "traces"}
    assert {name.split("/")[1] for name in names if name.startswith("cenote/") and name.count("/") > 1} == folders
    tree = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/cenote").rglob("*.py")}
    assert {name for name in names if name.startswith("cenote/") and name.endswith(".py")} == tree | {"cenote/built.py"}


def test_manual_pages_and_completion_lie_where_man_and_shells_look(wheel):
    names = {name.partition(".data/data/")[2] for name in members(wheel)}
    verbs = ("", "-doctor", "-qualify", "-run", "-dry-run", "-compare", "-replay", "-top", "-view", "-diff", "-export", "-completion")
    pages = {f"share/man/man1/cenote{end}.1" for end in verbs}
    assert names - {""} == pages | {"share/bash-completion/completions/cenote", "share/zsh/site-functions/_cenote",
                                    "share/fish/vendor_completions.d/cenote.fish"}


def test_every_simulated_library_that_is_built_is_in_the_wheel(wheel, simulation_library):
    built = {path.name for path in simulation_library.parent.glob("*.so*")}
    assert {name.rpartition("/")[2] for name in members(wheel) if name.startswith("cenote/sim/")} == built


def test_the_wheel_is_for_any_python_on_this_platform(wheel):
    assert "-py3-none-linux_" in wheel.name
    assert sum(info.file_size for info in members(wheel).values()) < 5_500_000


def test_nothing_in_the_wheel_names_the_folder_it_was_built_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert str(ROOT).encode() not in content and str(wheel.parent).encode() not in content, name


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == "cenote" and metadata["Requires-Python"] == ">=3.10" and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == (ROOT / "CMakeLists.txt").read_text().partition("project(cenote VERSION ")[2].split()[0]
    assert [line for line in metadata.get_all("Requires-Dist") if "extra" not in line] == []
    assert metadata.get_all("Provides-Extra") == ["torch", "picture", "table"]


def test_pytest_finds_the_plug_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt"))).decode()
    assert "[pytest11]\ncenote=cenote.integrations.pytest_plugin" in points.replace(" ", "")


def test_the_command_is_installed(installed, outside):
    version = call(installed, "-c", "import cenote; print(cenote.__version__)", **outside)
    for command in ([installed.parent / "cenote"], [installed, "-m", "cenote"]):
        assert call(*command, "--version", **outside) == f"cenote {version}"
        assert call(*command, "completion", "bash", **outside) == completion.text("bash")


def test_what_is_installed_is_found(installed, outside):
    code = ("import cenote, ctypes, os, sys; ctypes.CDLL(cenote.library()).cenote_version;"
            "print(cenote.library(), os.path.realpath(cenote.simulation_folder()), 'torch' in sys.modules, sep='\\n')")
    library, simulation, torch = call(installed, "-c", code, **outside).splitlines()
    assert str(installed.parents[1]) in library and str(installed.parents[1].resolve()) in simulation and torch == "False"


def test_an_installed_simulated_gpu_runs(installed, outside):
    code = ("import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_size_t(); c = ctypes.c_void_p(); f = ctypes.c_size_t();"
            "assert d.cuInit(0) == 0; assert d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == 0 and d.cuCtxSetCurrent(c) == 0;"
            "assert d.cuMemGetInfo_v2(ctypes.byref(f), ctypes.byref(n)) == 0; print(n.value >> 30)")
    assert call(installed.parent / "cenote", "run", "--sim", "24GiB", "--", installed, "-c", code, **outside) == "24\n"


def test_every_installed_library_loads(installed, outside):
    code = ("import cenote, ctypes, os; f = cenote.simulation_folder();"
            "[ctypes.CDLL(os.path.join(f, name), os.RTLD_NOW) for name in os.listdir(f)]; print('all')")
    assert call(installed, "-c", code, **outside) == "all\n"


def test_the_switch_is_installed(installed, outside):
    """A Python that has the package acts on CENOTE, and does nothing without it."""
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith(('cenote', 'torch'))), len(sys.meta_path))"
    without = call(installed, "-c", code, **outside).split("] ")
    outside_on = {**outside, "env": {**outside["env"], "CENOTE": "on"}}
    with_it = call(installed, "-c", code, **outside_on).split("] ")
    assert without[0] == "[" and "'cenote.hook'" in with_it[0] and "torch" not in with_it[0]
    assert int(with_it[1]) == int(without[1]) + 1


def test_a_c_program_is_built_with_what_is_installed(installed, outside):
    code = "import cenote, os; print(cenote.include_folder(), os.path.dirname(cenote.library()), sep='\\n')"
    where = call(installed, "-c", code, **outside).splitlines()
    source = outside["cwd"] / "program.c"
    source.write_text('#include <cenote/cenote.h>\n#include <stdio.h>\nint main(void) { return printf("%s\\n", cenote_message()) < 0; }\n')
    program = outside["cwd"] / "program"
    call("gcc", source, "-o", program, "-I", where[0], "-isystem", cuda_include(), "-L", where[1], "-lcenote", f"-Wl,-rpath,{where[1]}", **outside)
    call(program, **outside)


def test_types_hold():
    """The checker keeps what it found about files that have not changed since, in whatever clone: Python's own above all. One checker at a time."""
    pytest.importorskip("mypy")
    kept = pathlib.Path(f"{places.cache_folder()}-tests", "mypy")
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        call(sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--config-file", ROOT / "pyproject.toml", "--cache-dir", kept,
             ROOT / "python/cenote")
