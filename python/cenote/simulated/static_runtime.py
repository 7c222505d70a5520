"""Finds programs and packages with a CUDA runtime of their own, which the simulated GPU cannot serve.

A program that calls the CUDA runtime has it in one of two ways: it needs libcudart.so.13, which the simulated GPU replaces, or the runtime was linked
into it (nvcc does so by default). NVIDIA's runtime asks the driver for tables that only NVIDIA knows, one of which checks that the driver is genuine.
The simulated driver has none of them and does not imitate them: the first call of such a runtime returns cudaErrorNotSupported.

Nothing is executed: files are read as far as their symbols and their constants. What a program loads when it runs (dlopen) is not looked at.
"""
import importlib.metadata
import mmap
import os
import re
import struct
import subprocess
from typing import Iterable, Iterator, NamedTuple

from cenote.simulated import elf

# The id of the table without which the runtime gives up at its first call: seen with CUDA 11.8, 12.9 and 13.0. Each copy of the runtime has it among
# its constants.
TABLE = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
SMALLEST = 300 << 10  # bytes of a file: the runtime alone takes 700 KB
DRIVER = "libcuda.so"
NVIDIA = re.compile(r"nvidia[-_]|triton|torch$", re.IGNORECASE)  # the simulated libraries replace these, and torch needs libcudart.so

GENERAL = "link it to the shared runtime: nvcc --cudart shared, or -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared for CMake"
WAYS = {  # by the beginning of the package's name
    "cupy": "on the simulated GPU use a CuPy built with the shared runtime: docs/python-libraries.md#cupy",
    "cuda-bindings": "cuda.bindings.runtime alone has it: use cuda.bindings.driver or cuda.core",
}


class Package(NamedTuple):
    name: str
    version: str
    files: tuple[str, ...]  # those with a runtime of their own, relative to the folder of the package


def has_runtime(path: str) -> bool:
    """A runtime is in this file. A file that cannot be read, or is no 64-bit ELF file, has none."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            image = elf.Image(data)
            _, needs = image.dynamic()
            if any(name.startswith("libcudart.so") for name in needs) or (needs and b"\0dlsym\0" not in image.strings(image.section(elf.DYNAMIC))):
                return False
            return any(TABLE in data[start:start + size] for start, size in image.constants())
    except (OSError, struct.error, IndexError, OverflowError, ValueError):
        return False


def own_runtimes(paths: Iterable[str], simulated: str) -> list[str]:
    """Those of the files that have a runtime which no library of the folder `simulated` replaces: it replaces by file name."""
    replaced = set(os.listdir(simulated))
    return [path for path in paths if os.path.basename(path) not in replaced and not os.path.basename(path).startswith(DRIVER) and has_runtime(path)]


# --- installed packages

def libraries(package: importlib.metadata.Distribution) -> Iterator[str]:
    for file in package.files or ():
        if ".so" in file.name:
            path = str(package.locate_file(file))
            try:
                if os.stat(path).st_size >= SMALLEST:
                    yield path
            except OSError:
                pass


def packages(simulated: str) -> Iterator[Package]:
    """The installed packages with a runtime of their own."""
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"] or ""
        if name and not NVIDIA.match(name):
            root = str(package.locate_file(""))
            found = own_runtimes(libraries(package), simulated)
            if found:
                yield Package(name, package.version, tuple(sorted(os.path.relpath(path, root) for path in found)))


def way_around(package: str) -> str:
    name = package.lower().replace("_", "-")
    return next((way for start, way in WAYS.items() if name.startswith(start)), GENERAL)


# --- a program

def known_libraries() -> dict[str, str]:
    """The libraries of the dynamic linker's cache, by name."""
    try:
        said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, errors="replace").stdout
    except OSError:
        return {}
    return dict(reversed(re.findall(r"^\s+(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (.+)$", said, re.MULTILINE)))


def loaded_with(program: str) -> list[str]:
    """The program's file and those of the libraries that the dynamic linker loads with it, as far as they are found. ElfError: it is no ELF file."""
    named = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    cache = known_libraries()
    found: list[str] = []
    waiting = [os.path.realpath(program)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        try:
            needs, folders = elf.needs(path)
        except (elf.ElfError, OSError):
            if not found:
                raise
            continue
        found.append(path)
        origin = os.path.dirname(os.path.realpath(path))
        own = [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]
        for name in needs:
            places = [os.path.join(folder, name) for folder in [*own, *named]] + [cache.get(name, "")]
            place = next((place for place in places if place and os.path.exists(place)), None)
            if place:
                waiting.append(place)
    return found
