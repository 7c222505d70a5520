#!/usr/bin/env python3
"""Tries the packages of a folder as users get them: tools/wheel/try.py FOLDER [--root FOLDER...] [--matrix] [PYTHON...].

Each Python that is on this machine (or is named) installs the wheel into an environment of its own, without network, asks the command for its
version, and allocates memory on the simulated GPU. As root, one of them does so in a root folder with nothing but Python and its libraries: no
compiler, no other package. So do the Pythons of each root folder that --root names, for versions that the distribution of this machine does not have:

    debootstrap --variant=minbase --include=python3.14-venv sid /tmp/sid && make wheel TRY="--root /tmp/sid"

Then the source package is built and installed. The newest Python of this machine gets each version of PyTorch for which the wheel has an adapter,
without NVIDIA's packages, and trains a model on the simulated GPU under cenote, with a graph, a MemPool, an error of memory and a verdict of the dry
run, and no compiler in PATH. With --matrix nothing else is tried, each Python gets each version, and what became of them is a table; the exit status
is 1 if one does not train.
"""
from __future__ import annotations

import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHROOT = shutil.which("chroot", path="/usr/sbin:/sbin:/usr/bin:/bin")
PROGRAM = """
import ctypes, cenote, sys
from cenote import places
for library in ("libcuda.so.1", "libcudart.so.13", "libcudnn.so.9"):
    ctypes.CDLL(cenote.simulation_folder() + "/" + library, ctypes.RTLD_GLOBAL)
assert ctypes.CDLL(cenote.simulation_folder() + "/libcuda.so").cuInit(0) == 0, "it has names, and the functions are those of libcuda.so.1"
library, pool, block = ctypes.CDLL(cenote.library()), ctypes.c_void_p(), ctypes.c_void_p()
assert library.cenote_pool_default(0, ctypes.byref(pool)) == 0
assert library.cenote_alloc(pool, ctypes.c_size_t(1 << 30), None, ctypes.byref(block)) == 0
assert library.cenote_free(block) == 0 and library.cenote_free(block) != 0
ctypes.CDLL(places.records_library())
print("Python", sys.version.split()[0] + ": a GiB allocated and freed on the simulated GPU, by cenote", cenote.__version__)
"""


def run(*command: object, **more: object) -> str:
    words = [str(part) for part in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{words} failed, {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout.strip()


def pythons(*folders: str) -> list[str]:
    """One of each version from 3.10 on."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/python3.*")):
            version = re.fullmatch(r"python3\.(\d+)", os.path.basename(path))
            if version and int(version.group(1)) >= 10:
                found.setdefault(version.group(0), path)
    return [found[name] for name in sorted(found, key=lambda name: int(name.partition(".")[2]))]


def here() -> list[str]:
    return pythons("/usr/bin", "/usr/local/bin", os.path.expanduser("~/.pyenv/versions/3.*/bin"))


def install(python: str, folder: pathlib.Path, package: pathlib.Path, *more: str, before: Sequence[object] = ()) -> pathlib.Path:
    run(*before, python, "-m", "venv", folder)
    run(*before, folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *more, package)
    return folder / "bin/python"


def examine(python: pathlib.Path, *before: object) -> str:
    """In a folder without sources, and an environment without variables."""
    clean = {"cwd": "/", "env": {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}}
    said = run(*before, python, "-I", "-c", PROGRAM, **clean)
    run(*before, python, "-I", "-m", "cenote", "--version", **clean)
    return said


def libraries_of(paths: list[str]) -> set[str]:
    listed = subprocess.run(["ldd", *paths], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+\.so[.\d]*)", listed))


def examine_in_empty_root(python: pathlib.Path, base: pathlib.Path) -> str:
    """A root folder with Python, the libraries that Python's own modules ask for, and the environment with the wheel."""
    root = base / "root"
    prefix = pathlib.Path(run(python, "-c", "import sys; print(sys.base_prefix)"))
    standard = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"))
    binary = pathlib.Path(os.path.realpath(python))
    skip = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*")
    shutil.copytree(standard, root / standard.relative_to("/"), ignore=skip)
    shutil.copytree(python.parent.parent, root / python.parent.parent.relative_to("/"), symlinks=True)
    (root / binary.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(binary, root / binary.relative_to("/"))
    extensions = [str(path) for path in standard.glob("lib-dynload/*.so")]
    wheel = [str(path) for path in python.parent.parent.rglob("cenote/*/*.so*") if "host" not in path.name]  # that one asks for hwloc
    for library in libraries_of([str(binary), *extensions, *wheel]):
        place = root / library.lstrip("/")
        if str(prefix) == "/usr" or not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, place)
    for folder in ("tmp", "proc"):
        (root / folder).mkdir(exist_ok=True)
    return examine(python, CHROOT, root)


def examine_in_root(root: pathlib.Path, python: str, wheel: pathlib.Path) -> str:
    """A Python of another root folder."""
    with tempfile.TemporaryDirectory(prefix="cenote-try-", dir=root / "tmp") as folder:
        shutil.copy2(wheel, folder)
        inside = pathlib.Path("/", pathlib.Path(folder).relative_to(root))
        installed = install(python.removeprefix(str(root)), inside / "venv", inside / wheel.name, "--no-index", before=(CHROOT, root))
        return examine(installed, CHROOT, root)


TRAINS = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    model(torch.randn(256, 1024, device="cuda")).sum().backward()
    optimizer.step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(torch.ones(256, 1024, device="cuda"))
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    apart = torch.empty(1 << 20, device="cuda")
segments = torch.cuda.memory_snapshot()
assert {tuple(one["segment_pool_id"]) for one in segments} > {(0, 0)} and all(one["is_expandable"] for one in segments), "graphs have pages, too"
print("PyTorch", torch.__version__, "under", torch.cuda.get_allocator_backend())
"""
RUNS_OUT = """
try:
    torch.empty(1 << 40, device="cuda")
    raise SystemExit("a tensor of four TiB was made")
except torch.OutOfMemoryError:
    pass
"""


def examine_with_torch(python: str, folder: pathlib.Path, wheel: pathlib.Path, version: str) -> str:
    """A compiler in PATH would hide that the wheel has no adapter for this version."""
    inside = install(python, folder, wheel, "--no-index")
    without = ROOT / "python/requirements/without.txt"
    run(ROOT / ".venv/bin/uv", "pip", "install", "--quiet", "--python", inside, "--excludes", without, f"torch=={version}", "numpy")
    script, runs_out = folder / "train.py", folder / "runs_out.py"
    script.write_text(TRAINS)
    runs_out.write_text(TRAINS + RUNS_OUT)
    tools = folder / "tools"
    tools.mkdir()
    clean = {"cwd": folder, "env": {"PATH": str(tools), "HOME": str(folder), "LANG": "C.UTF-8"}}
    verdict = run(inside, "-I", "-m", "cenote", "dry-run", "--quiet", "--gpu", "8GiB", "--allocator", "cenote", script, **clean)
    if "\nfits: " not in verdict:
        sys.exit(f"cenote dry-run of {script}:\n{verdict}")
    return run(inside, "-I", "-m", "cenote", "run", "--sim", "8GiB", "--allocator", "cenote", runs_out, **clean)


def versions_ahead(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        found = re.findall(r"/ready/torch-([\d.]+)\+", "\n".join(archive.namelist()))
    return sorted(set(found))


def trains(python: str, wheel: pathlib.Path, version: str) -> str:
    """What a cell of the table says."""
    with tempfile.TemporaryDirectory(prefix="cenote-pair-", dir=os.environ["UV_CACHE_DIR"]) as folder:
        try:
            return "trains" if "under cenote" in examine_with_torch(python, pathlib.Path(folder, "venv"), wheel, version) else "other allocator"
        except SystemExit as failed:
            print(failed, file=sys.stderr, flush=True)
            return "no wheel of PyTorch" if "No solution found" in str(failed) else "fails"
        finally:
            run(ROOT / ".venv/bin/uv", "cache", "clean", "--quiet", "torch")


def matrix(wheel: pathlib.Path, tried: list[str]) -> bool:
    """Prints the table, row by row. True: all train for which PyTorch has a wheel. All PyTorchs together would take 40 GB of the user's cache of
    packages; so the pairs have a cache of their own, which keeps what they share, and loses each PyTorch after its pair."""
    versions = versions_ahead(wheel)
    print("| | " + " | ".join(versions) + " |\n|---" + "|---" * len(versions) + "|", flush=True)
    every = True
    for python in tried:
        name, cells = run(python, "--version"), []
        for version in versions:
            began = time.monotonic()
            cells.append(trains(python, wheel, version))
            print(f"{name}, PyTorch {version}: {cells[-1]}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        every &= not {"fails", "other allocator"} & set(cells)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return every


def main(dist: pathlib.Path, chosen: list[str], roots: list[pathlib.Path]) -> None:
    wheel, source = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    with tempfile.TemporaryDirectory(prefix="cenote-try-") as folder:
        tried = chosen or here()
        for python in tried:
            place = pathlib.Path(folder, os.path.basename(python))
            print(f"{wheel.name}: {examine(install(python, place, wheel, '--no-index'))}", flush=True)
        if os.geteuid() == 0:
            python_in = pathlib.Path(folder, os.path.basename(tried[-1]), "bin/python")
            print(f"in a root folder with nothing but Python: {examine_in_empty_root(python_in, pathlib.Path(folder))}", flush=True)
        for root in (root.resolve() for root in roots):
            for python in pythons(f"{root}/usr/bin"):
                print(f"{wheel.name}: {examine_in_root(root, python, wheel)}", flush=True)
        print(f"{source.name}: {examine(install(tried[-1], pathlib.Path(folder, 'source'), source))}", flush=True)
        for version in versions_ahead(wheel):
            print(examine_with_torch(tried[-1], pathlib.Path(folder, f"torch-{version}"), wheel, version), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="tries the wheel and the source package of a folder")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--root", action="append", default=[], type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("python", nargs="*")
    said = parser.parse_intermixed_args()
    if said.matrix:
        with tempfile.TemporaryDirectory(prefix="cenote-matrix-") as cache:
            os.environ["UV_CACHE_DIR"] = cache
            sys.exit(not matrix(next(said.folder.resolve().glob("*.whl")), said.python or here()))
    main(said.folder.resolve(), said.python, said.root)
