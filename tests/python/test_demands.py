"""If torch needs an entry point that the simulated GPU lacks, `cenote run` says so. It reads the libraries again only after a change."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from cenote.simulated import demands

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/check"))
import stubs  # noqa: E402  (needs the path above)
from tree import Tree  # noqa: E402


def library(path: pathlib.Path, soname: str, node: str, names, needs=(), uses=()):
    """A shared library that exports `names` in the version `node` and calls `uses` of `needs`."""
    source = "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)
    calls = "".join(f" + {name}()" for name in uses)
    source += "".join(f"int {name}(void);\n" for name in uses) + f"int u_{soname.partition('.')[0]}(void) {{ return 0{calls}; }}\n"
    (path.parent / "map").write_text(f"{node} {{ global: {' '.join(name + ';' for name in [*names, 'u_*'])} local: *; }};")
    (path.parent / "source.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "source.c", "-o", path.name, f"-Wl,-soname,{soname}", "-Wl,--version-script=map", "-Wl,--no-as-needed",
                    *map(str, needs)], cwd=path.parent, check=True)


@pytest.fixture
def world(tmp_path):
    """A torch that wants three entry points of two libraries, and a simulated GPU that has them all."""
    real, sim, torch = tmp_path / "real", tmp_path / "sim", tmp_path / "site/torch"
    for folder in (real, sim, torch / "lib"):
        folder.mkdir(parents=True)
    library(real / "libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld", "cublasNew"])
    library(real / "libcudnn.so.9", "libcudnn.so.9", "", ["cudnnThing"])
    library(torch / "lib/libtorch_cuda.so", "libtorch_cuda.so", "T", [], [real / "libcublas.so.13", real / "libcudnn.so.9"],
            ["cublasOld", "cublasNew", "cudnnThing"])
    library(sim / "libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld", "cublasNew"])
    library(sim / "libcudnn.so.9", "libcudnn.so.9", "libcudnn.so.9", ["cudnnThing"])
    (torch / "version.py").write_text("__version__ = '9.9.0+cu999'\n")
    return tmp_path


@pytest.fixture
def examine(world, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    return lambda: demands.examine(demands.find_torch([str(world / "site")]), str(world / "sim"))


def test_nothing_missing_nothing_said(examine):
    assert examine() == ""


def test_an_entry_point_that_is_missing_is_named(examine, world):
    library(world / "sim/libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld"])
    text = examine()
    assert "torch 9.9.0+cu999" in text and "libcublas.so.13" in text and "cublasNew" in text and "fails" in text
    assert "cublasOld" not in text and len(text.splitlines()) == 1


def test_one_without_a_version_is_found_by_its_name(examine, world):
    library(world / "sim/libcudnn.so.9", "libcudnn.so.9", "libcudnn.so.9", ["cudnnOther"])
    assert "the simulated libcudnn.so.9 does not have" in examine() and "cudnnThing" in examine()


def test_the_same_name_in_another_version_is_missing(examine, world):
    library(world / "sim/libcublas.so.13", "libcublas.so.13", "libcublas.so.14", ["cublasOld", "cublasNew"])
    assert "cublasOld" in examine()


def test_a_library_that_is_missing_is_named(examine, world):
    (world / "sim/libcudnn.so.9").unlink()
    assert "loads libcudnn.so.9, which the simulated GPU does not have" in examine()


def test_another_name_of_a_library_is_no_library(examine, world, simulation_library):
    """A torch of CUDA 12 is linked to it and wants symbols of its version."""
    other = next(simulation_library.parent.glob("libcublas.so.1[!3]"), None)
    if not other:
        pytest.skip("built with a cuda.h of before CUDA 13")
    shutil.copy(other, world / "sim/libcudnn.so.9")
    assert "loads libcudnn.so.9, which the simulated GPU does not have" in examine()


def test_a_torch_without_cuda_is_said(examine, world):
    (world / "site/torch/lib/libtorch_cuda.so").unlink()
    assert "built without CUDA" in examine()


def test_many_names_are_cut_short():
    torch = demands.Torch("/somewhere", "1.0")
    lacking = [demands.Demand("libcublas.so.13", f"cublas{i:03}", "") for i in range(50)]
    assert demands.describe(torch, lacking).endswith("cublas007 and 42 more")


def test_the_second_time_nothing_is_read(examine, monkeypatch):
    first = examine()
    monkeypatch.setattr(demands.elf, "read", lambda path: pytest.fail("was read again"))
    assert examine() == first


def test_a_torch_behind_a_link_is_the_same(examine, world, monkeypatch):
    first = examine()
    (world / "link").symlink_to("site")
    monkeypatch.setattr(demands.elf, "read", lambda path: pytest.fail("was read again"))
    assert demands.examine(demands.find_torch([str(world / "link")]), str(world / "sim")) == first


def test_a_change_is_seen(examine, world):
    assert examine() == ""
    library(world / "sim/libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld"])
    assert "cublasNew" in examine()


@pytest.mark.parametrize("content", [b"", b"\0", b"nonsense", b"\xff\xfe" * 1000])
def test_a_cache_that_is_nonsense_is_made_anew(examine, world, content):
    library(world / "sim/libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld"])
    first = examine()
    cache, = (world / "cache/cenote").iterdir()
    whole = cache.read_bytes()
    for damaged in (content, whole[:-1], whole[:40]):
        cache.write_bytes(damaged)
        assert examine() == first and "cublasNew" in first


def test_a_cache_that_cannot_be_is_no_harm(examine, world):
    (world / "cache").write_text("a file where the folder would be")
    assert examine() == ""


def test_a_damaged_torch_is_said_and_the_program_runs(world, run, simulation_library):
    if not simulation_library.exists():
        pytest.skip("the simulated GPU is not built")
    (world / "site/torch/lib/libtorch_cuda.so").write_bytes(b"not a library")
    site = os.pathsep.join([str(world / "site"), str(ROOT / "python")])
    done = run("run", "--sim", "8GiB", "--", "echo", "ran", PYTHONPATH=site, XDG_CACHE_HOME=str(world / "cache"))
    assert done.stdout == "ran\n" and "could not check that the simulated GPU has" in done.stderr


def test_rows_of_the_table_go_where_they_belong():
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader
    loader = SourceFileLoader("tools_stubs", str(ROOT / "tools/stubs"))
    tool = module_from_spec(spec_from_loader("tools_stubs", loader))
    loader.exec_module(tool)
    lines = ["#ifdef LIBRARY_a", "STUB(aB, DONE)", "STUB(aD, LAUNCH)", "#endif", "#ifdef LIBRARY_b", "#endif"]
    assert tool.insert(lines, "a", ["aA", "aC", "aE"]) == [
        "#ifdef LIBRARY_a", "STUB(aA, REFUSE)", "STUB(aB, DONE)", "STUB(aC, REFUSE)", "STUB(aD, LAUNCH)", "STUB(aE, REFUSE)", "#endif",
        "#ifdef LIBRARY_b", "#endif"]
    assert tool.insert(lines, "b", ["bA"])[-3:] == ["#ifdef LIBRARY_b", "STUB(bA, REFUSE)", "#endif"]
    assert tool.insert(lines, "c", ["cA"])[-3:] == ["#ifdef LIBRARY_c", "STUB(cA, REFUSE)", "#endif"]


def test_the_check_sees_what_is_wrong_with_the_table(tmp_path):
    (tmp_path / "sim/libraries").mkdir(parents=True)
    (tmp_path / "sim/libraries/CMakeLists.txt").write_text('simulated_library(cublas libcublas.so.13 libcublas.so.13 "cublas*")\n')
    table = tmp_path / "sim/libraries/stubs.def"
    table.write_text("#ifdef LIBRARY_cublas\nSTUB(cublasOld, DONE)\n#endif\n")
    assert stubs.check(Tree(tmp_path)).problems == []
    table.write_text("#ifdef LIBRARY_cublas\nSTUB(cublasOld, DONE)\nSTUB(cublasOld, DONE)\n#endif\nSTUB(lost, DONE)\n")
    assert len(stubs.check(Tree(tmp_path)).problems) == 2


def test_the_check_compares_with_torch(world):
    site = world / ".venv/lib/python3.11/site-packages"
    site.parent.mkdir(parents=True)
    (world / "site").rename(site)
    (world / "sim/libraries").mkdir()
    (world / "sim/libraries/CMakeLists.txt").write_text(
        'simulated_library(cublas libcublas.so.13 libcublas.so.13 "cublas*")\nsimulated_library(cudnn libcudnn.so.9 "" "cudnn*")\n')
    (world / "sim/libraries/stubs.def").write_text("#ifdef LIBRARY_cublas\nSTUB(cublasOld, DONE)\n#endif\n"
                                         "#ifdef LIBRARY_cudnn\nSTUB(cudnnThing, DONE)\n#endif\n")
    (world / "build").mkdir()
    (world / "build/sim").symlink_to(world / "sim")
    library(world / "sim/libcublas.so.13", "libcublas.so.13", "libcublas.so.13", ["cublasOld"])
    library(world / "sim/libcuda.so.1", "libcuda.so.1", "libcuda.so.1", ["cuInit"])  # this file marks a build
    problems = stubs.check(Tree(world)).problems
    assert any("no row for cublasNew" in problem for problem in problems)
    assert any("build/sim/libcublas.so.13 lacks cublasNew" in problem for problem in problems)
