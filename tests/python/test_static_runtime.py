"""Programs and packages with a CUDA runtime of their own, which the simulated GPU cannot serve: `cenote doctor --sim` names them."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from cenote import doctor
from cenote.simulated import elf, static_runtime

ID = ", ".join(f"0x{byte:02x}" for byte in static_runtime.TABLE)
OWN = f"""
#include <dlfcn.h>
const unsigned char table[] = {{{ID}}};
char much[400 << 10] = {{1}};
void *own(void) {{ return table[much[1]] ? dlsym(0, "own") : 0; }}
"""
NONE = "#include <dlfcn.h>\nchar much[400 << 10] = {1};\nvoid *own(void) { return dlsym(0, much); }\n"
CALLER = "void *own(void);\nint main(void) { return own() == 0; }\n"
FIRST_CALL = """
#include <stdio.h>
int cudaMalloc(void **, unsigned long);
int main(void) { void *block; printf("%d\\n", cudaMalloc(&block, 1 << 20)); return 0; }
"""
NOT_SUPPORTED = 801  # cudaErrorNotSupported


def gcc(folder: pathlib.Path, source: str, *arguments: str) -> None:
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", "source.c", *arguments], cwd=folder, check=True)


def library(folder: pathlib.Path, source: str, *arguments: str, name: str = "libown.so") -> str:
    gcc(folder, source, "-shared", "-fPIC", "-o", name, f"-Wl,-soname,{name}", *arguments, "-Wl,--no-as-needed", "-ldl")
    return str(folder / name)


@pytest.fixture
def program(tmp_path):
    """A program that needs libown.so of its own folder."""
    def make(source):
        library(tmp_path, source)
        gcc(tmp_path, CALLER, "-o", "program", "-L.", "-lown", "-Wl,-rpath,$ORIGIN")
        return tmp_path / "program"
    return make


def test_a_file_with_a_runtime(tmp_path):
    assert static_runtime.has_runtime(library(tmp_path, OWN))
    assert not static_runtime.has_runtime(library(tmp_path, NONE))


def test_one_that_also_needs_the_shared_runtime(tmp_path):
    library(tmp_path, "int cudaMalloc(void) { return 0; }", name="libcudart.so.13")
    assert not static_runtime.has_runtime(library(tmp_path, OWN, "-Wl,--no-as-needed", "./libcudart.so.13"))


def test_what_is_replaced_by_its_file_name(tmp_path):
    (tmp_path / "sim").mkdir()
    paths = [library(tmp_path, OWN, name=name) for name in ("libcudart.so.13", "libcudart.0123abcd.so.13", "libcuda.so.1")]
    (tmp_path / "sim/libcudart.so.13").touch()
    assert static_runtime.own_runtimes(paths, str(tmp_path / "sim")) == paths[1:2]


def test_damaged_files(tmp_path):
    whole = pathlib.Path(library(tmp_path, OWN)).read_bytes()
    cut = tmp_path / "cut"
    for length in [0, 3, 63, 64, *range(100, len(whole), 40009)]:
        cut.write_bytes(whole[:length])
        assert static_runtime.has_runtime(str(cut)) in (False, True)
        with pytest.raises(elf.ElfError):
            static_runtime.loaded_with(str(cut))
    assert not static_runtime.has_runtime(str(tmp_path / "absent")) and not static_runtime.has_runtime(str(tmp_path))


@pytest.mark.simulation
def test_the_command(run, program):
    done = run("doctor", "--json", "--sim", "1GiB", "--", program(OWN), "an argument", "--sim")
    finding, = [finding for finding in json.loads(done.stdout) if finding["what"] == "program"]
    assert done.returncode == 1 and finding["state"] == "wrong"
    assert "libown.so" in finding["text"] and "--cudart shared" in finding["advice"]


@pytest.mark.simulation
def test_a_program_without_one(program):
    finding, = doctor.program(str(program(NONE)))
    assert finding.state == "fine" and "libraries that are loaded with it" in finding.text


@pytest.mark.simulation
def test_a_script(tmp_path):
    (tmp_path / "train.py").write_text("print()")
    finding, = doctor.program(str(tmp_path / "train.py"))
    assert (finding.what, finding.state) == ("train.py", "remark")


@pytest.mark.simulation
@pytest.mark.parametrize("options", [["--sim", "1GiB", "--", "no-such-program"], ["--sim", "1GiB", "--"], ["--", "sh"], ["--sim", "1GiB", "sh"]])
def test_bad_use(run, options):
    done = run("doctor", *options)
    assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1


@pytest.mark.simulation
@pytest.mark.parametrize("package, word", [("cupy_cuda99x", "docs/python-libraries.md#cupy"), ("else", "--cudart shared")])
def test_an_installed_package(monkeypatch, tmp_path, package, word):
    (tmp_path / package).mkdir()
    library(tmp_path / package, OWN)
    library(tmp_path / package, NONE, name="libnone.so")
    about = tmp_path / f"{package}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.2\n")
    (about / "RECORD").write_text(f"{package}/libown.so,,\n{package}/libnone.so,,\n{package}/libgone.so,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delenv("CENOTE_SIM", raising=False)
    assert not list(doctor.packages())
    monkeypatch.setenv("CENOTE_SIM", "capacity:1GiB")
    finding, = doctor.packages()
    assert (finding.what, finding.state) == (package.replace("_", "-"), "remark") and word in finding.advice
    assert f"{package}/libown.so" in finding.text and "libnone" not in finding.text


@pytest.mark.simulation
def test_nvidias_own(run, tmp_path):
    """The runtime that nvcc links into a program: what the program sees, and what the doctor says of it."""
    nvcc = shutil.which("nvcc")
    folders = [pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))] + ([pathlib.Path(nvcc).resolve().parents[1]] if nvcc else [])
    archive = next((path for folder in folders for path in folder.glob("lib*/libcudart_static.a")), None)
    if not archive:
        pytest.skip("there is no libcudart_static.a: it comes with the CUDA Toolkit")
    gcc(tmp_path, FIRST_CALL, "-o", "program", str(archive), "-ldl", "-lrt", "-lpthread")
    done = run("run", "--sim", "1GiB", "--", "./program")
    assert done.stdout == f"{NOT_SUPPORTED}\n" and done.stderr.count("private table") == 1
    finding, = doctor.program(str(tmp_path / "program"))
    assert finding.state == "wrong"
