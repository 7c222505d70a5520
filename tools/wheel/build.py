#!/usr/bin/env python3
"""Builds the source package, and from it the wheel as it is released: `make wheel`, or
tools/wheel/build.py FOLDER [--machine MACHINE] [TORCH...].

The wheel runs on every system that PyTorch's own wheels run on (manylinux_2_28): zig compiles its C code against the glibc of that standard, and
auditwheel says whether anything newer is asked for. The adapter is in the wheel, compiled ahead for the named versions of PyTorch, those of
python/requirements/adapters.txt by default; users of others need g++. hwloc and zlib are those of the user's system: the wheel has no library of
others. All times in the packages are that of the last commit. The bill of materials (CycloneDX) lies beside the metadata.

--machine aarch64 has the wheel for that processor made on this one: zig compiles C for either, and Debian's g++-aarch64-linux-gnu compiles C++.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
WORK = ROOT / "build/wheel"
GLIBC = "2.28"
# The adapter asks for PyTorch's libraries, and for cenote's, which are in the process already; hwloc is the system's.
TORCHS = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so")
OUTSIDE = ("libcenote.so.0", *TORCHS, "libhwloc.so.15")
FOLDERS = (f"/usr/include/{platform.machine()}-linux-gnu", "/usr/include")
HEADERS = ("hwloc.h", "hwloc/**/*.h")  # what they say of the processor is the same for x86-64 and aarch64

sys.path.insert(0, str(ROOT / "python"))


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: object, **more: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{shlex.join(str(part) for part in command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


class Target(NamedTuple):
    """The processor that the wheel is for, as `uname -m` names it."""

    machine: str

    @property
    def is_this(self) -> bool:
        return self.machine == platform.machine()

    @property
    def platform(self) -> str:
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"

    @property
    def gcc(self) -> str:
        """What the names of its compilers begin with."""
        return "" if self.is_this else f"{self.machine}-linux-gnu-"


def commit_time() -> str:
    return run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


# --- what compiles

def make_compiler(target: Target) -> pathlib.Path:
    """cc, as CMake and the adapter want it: one program without arguments. Two words for the linker are unknown to `zig cc`: -Bsymbolic says what the
    one says, and more; what the other hides has no names outside its object. Only `zig ld.lld` makes a filter, which asks for no other library."""
    import ziglang
    zig = pathlib.Path(str(ziglang.__file__)).parent / "zig"
    path = WORK / "cc"
    path.write_text(f"""#!/bin/sh
zig={shlex.quote(str(zig))}
filter() {{
    set -f
    for word; do
        shift
        case $word in
        -Wl,*) IFS=,; set -- "$@" ${{word#-Wl,}}; unset IFS ;;
        -fPIC | -flto | -O? | -D*) ;;
        *) set -- "$@" "$word" ;;
        esac
    done
    exec "$zig" ld.lld "$@"
}}
for word; do
    case $word in -Wl,--filter=*) filter "$@" ;; esac
done
for word; do
    shift
    case $word in
    -Wl,-Bsymbolic-functions) set -- "$@" -Wl,-Bsymbolic ;;
    -Wl,--exclude-libs,ALL) ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec "$zig" cc -target {target.machine}-linux-gnu.{GLIBC} "$@"
""")
    for name in ("ar", "ranlib"):  # the system's know another LLVM, and the objects are LLVM's, optimised when they are linked
        (WORK / name).write_text(f'#!/bin/sh\nexec {shlex.quote(str(zig))} {name} "$@"\n')
    for name in ("cc", "ar", "ranlib"):
        (WORK / name).chmod(0o755)
    return path


def stage_headers() -> pathlib.Path:
    """Headers of the system's libraries without those of its libc, which is newer than the one that the wheel is for."""
    stage = WORK / "include"
    for folder in map(pathlib.Path, FOLDERS):  # Debian has what depends on the processor in the second
        for path in (path for pattern in HEADERS for path in folder.glob(pattern) if path.is_file()):
            place = stage / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    return stage


def stand_in(target: Target, path: pathlib.Path, soname: str, names: list[str]) -> None:
    """A library to link with that stays outside: of that name in the files that ask for it, and with nothing but these names."""
    source = WORK / "names.s"
    source.write_text("".join(f".globl {name}\n{name}:\n" for name in names))
    run(f"{target.gcc}gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", source, "-o", path)


def hwloc(target: Target) -> str:
    """The path of the system's; empty if it is missing. For another processor one of the same names, because its packages are not here."""
    found = run("gcc", "-print-file-name=libhwloc.so").strip()
    if target.is_this or not os.path.isabs(found):
        return os.path.realpath(found) if os.path.isabs(found) else ""
    listed = [line.split() for line in run("nm", "--dynamic", "--defined-only", found).splitlines()]
    stand_in(target, WORK / "linked/libhwloc.so", "libhwloc.so.15", [words[2] for words in listed if words[1] == "T"])
    return str(WORK / "linked/libhwloc.so")


def options(target: Target, compiler: pathlib.Path, include: pathlib.Path) -> list[str]:
    cache = (ROOT / "build/CMakeCache.txt").read_text()
    cuda = re.search(r"^CENOTE_CUDA_INCLUDE:\w+=(.*)$", cache, re.M)
    launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX") if shutil.which("ccache")]
    tools = [f"-DCMAKE_{name.upper()}={compiler.parent / name}" for name in ("ar", "ranlib")]
    if not target.is_this:
        tools += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={target.machine}"]
    return [*tools, f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_CXX_COMPILER={HERE / 'old-g++'}", "-DCMAKE_C_FLAGS_RELEASE=-O3 -flto -DNDEBUG",
            "-DCMAKE_SHARED_LINKER_FLAGS=-s", "-DCMAKE_MODULE_LINKER_FLAGS=-s", "-DCMAKE_EXE_LINKER_FLAGS=-s",
            f"-DCENOTE_CUDA_INCLUDE={cuda.group(1) if cuda else ''}", f"-DCENOTE_HWLOC={hwloc(target)}", f"-DCENOTE_HWLOC_INCLUDE={include}",
            *launchers]


# --- the adapter, ahead

def named_torches() -> list[str]:
    text = (ROOT / "python/requirements/adapters.txt").read_text()
    return sorted(set(re.findall(r"^torch==([\d.]+)", text, re.M)))


PYTHON = "3.12"  # each of those versions of PyTorch has a wheel for it; their headers are the same for all


def torch_folder(target: Target, version: str) -> pathlib.Path:
    """PyTorch of that version: the one of .venv, or the headers of a wheel that comes from the index. Nothing of it runs, so in place of its
    libraries, which take a gigabyte, there are empty ones of the same names."""
    for folder in (pathlib.Path(path) / "torch" for path in sys.path if target.is_this):
        if (folder / "version.py").exists() and runpy.run_path(str(folder / "version.py"))["__version__"].partition("+")[0] == version:
            return folder
    kept = ROOT / "build" / (f"torch-{version}" if target.is_this else f"torch-{version}-{target.machine}")
    if not (kept / "torch/version.py").exists():
        say(f"getting the headers of PyTorch {version}")
        shutil.rmtree(kept, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="cenote-wheel-") as passing:
            run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--python-version", PYTHON,
                "--platform", target.platform, "--dest", passing, f"torch=={version}")
            with zipfile.ZipFile(next(pathlib.Path(passing).glob("torch-*.whl"))) as archive:
                wanted = [name for name in archive.namelist() if name.startswith("torch/include/")]
                archive.extractall(kept, [*wanted, "torch/version.py"])
        (kept / "torch/lib").mkdir()
        for name in TORCHS:
            stand_in(target, kept / "torch/lib" / name, name, [])
    return kept / "torch"


def compile_adapters(target: Target, version: str, ready: pathlib.Path) -> None:
    from cenote.native import adapter
    folder = torch_folder(target, version)
    facts = runpy.run_path(str(folder / "version.py"))
    torch = adapter.Torch(facts["__version__"], facts["git_version"], facts["cuda"], True, str(folder))
    os.environ.update(CXX=shlex.quote(str(HERE / "old-g++")), XDG_CACHE_HOME=str(WORK / "cache"), CENOTE_BUILD=str(WORK / "linked"))
    adapter.SECONDS = 3600  # zig compiles its own libraries first
    adapter.MACHINE = target.machine
    for room in (adapter.ADAPTER, adapter.VALUES, adapter.NAMES):
        say(f"compiling {room.name} for PyTorch {torch.version}")
        made = adapter.opened(torch, say, room)
        place = ready / room.name / "ready" / adapter.entry_name(torch, room)
        place.mkdir(parents=True)
        shutil.copyfile(made.path, place / "adapter.so")
        run(f"{target.gcc}strip", "--strip-unneeded", place / "adapter.so")  # what installs the wheel strips what is of this machine alone


# --- the packages

def source_package(out: pathlib.Path) -> pathlib.Path:
    from scikit_build_core.build import build_sdist
    os.chdir(ROOT)
    return out / build_sdist(str(out))


def wheel(target: Target, source: pathlib.Path, cmake: list[str], ready: pathlib.Path) -> pathlib.Path:
    """The wheel of that source package; in WORK."""
    with tarfile.open(source) as archive:
        archive.extractall(WORK, filter="data")
    tree = next(path for path in WORK.glob("cenote-*") if path.is_dir())
    shutil.copytree(ready, tree / "plugins", dirs_exist_ok=True)
    code = "import sys, scikit_build_core.build as build; build.build_wheel(sys.argv[1])"
    tag = {} if target.is_this else {"_PYTHON_HOST_PLATFORM": f"linux-{target.machine}"}
    run(sys.executable, "-c", code, WORK, cwd=tree, env={**os.environ, **tag, "CMAKE_ARGS": shlex.join(cmake)})
    return next(WORK.glob("cenote-*.whl"))


def repaired(target: Target, path: pathlib.Path) -> pathlib.Path:
    """The wheel with the platform that it keeps to; auditwheel fails if it does not keep to it. It takes no platform but of the machine it is on."""
    outside = [part for name in OUTSIDE for part in ("--exclude", name)]
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    code = "import platform, sys; machine = sys.argv.pop(1); platform.machine = lambda: machine; from auditwheel.main import main; sys.exit(main())"
    run(sys.executable, "-c", code, target.machine, "repair", "--plat", target.platform, *outside, "-w", WORK / "repaired", path, env=environment)
    return next((WORK / "repaired").glob("*.whl"))


def bill_of_materials(path: pathlib.Path) -> str:
    """What the wheel is made of, and what of others it calls: CycloneDX."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    version = path.name.split("-")[1]
    bom = Bom()
    whole = Component(name="cenote", version=version, type=ComponentType.LIBRARY, licenses=[LicenseExpression("Apache-2.0")], bom_ref="cenote")
    bom.metadata.component = whole
    parts = []
    with zipfile.ZipFile(path) as archive:
        for name in sorted(name for name in archive.namelist() if ".so" in name or name.startswith("cenote/bin/")):
            digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(archive.read(name)).hexdigest())
            parts.append(Component(name=name, type=ComponentType.FILE, bom_ref=name, hashes=[digest]))
    for name, terms in (("zlib", "Zlib"), ("hwloc", "BSD-3-Clause"), ("jemalloc", "BSD-2-Clause"), ("torch", "BSD-3-Clause")):
        parts.append(Component(name=name, type=ComponentType.LIBRARY, scope=ComponentScope.OPTIONAL, bom_ref=name,
                               licenses=[LicenseExpression(terms)], description="not in the package: used if it is on the machine"))
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(whole, parts)
    text = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    text.pop("serialNumber", None)  # a random number and the time of day: builds are to be compared
    text["metadata"].pop("timestamp", None)
    return json.dumps(text, indent=1, sort_keys=True) + "\n"


def with_bill(path: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    text = bill_of_materials(path)
    run(sys.executable, "-m", "wheel", "unpack", "--dest", WORK / "unpacked", path)
    tree = next((WORK / "unpacked").iterdir())
    place = next(tree.glob("*.dist-info")) / "sboms"
    place.mkdir(exist_ok=True)
    (place / "cenote.cdx.json").write_text(text)
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, tree)
    return next(out.glob("*.whl"))


def main(out: pathlib.Path, target: Target, torches: list[str]) -> None:
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    os.environ.setdefault("CCACHE_NOHASHDIR", "1")
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    for folder in (WORK / "ready", WORK / "linked", out):
        folder.mkdir(parents=True)
    compiler, include = make_compiler(target), stage_headers()
    stand_in(target, WORK / "linked/libcenote.so", "libcenote.so.0", [])
    os.environ.update(CENOTE_WHEEL_CC=shlex.quote(str(compiler)), CENOTE_WHEEL_CXX=f"{target.gcc}g++")
    for version in torches or named_torches():
        compile_adapters(target, version, WORK / "ready")
    say("building the source package and the wheel")
    source = source_package(out)
    built = with_bill(repaired(target, wheel(target, source, options(target, compiler, include), WORK / "ready")), out)
    for path in (source, built):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB  sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="builds the source package and the wheel")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--machine", default=platform.machine())
    parser.add_argument("torch", nargs="*")
    said = parser.parse_intermixed_args()
    main(said.folder.resolve(), Target(said.machine), said.torch)
