"""Checks that the simulated libraries have every entry point that the installed torch needs.

torch's libraries list the entry points that they need from NVIDIA's libraries. If the simulated ones lack some, `warn` says so before the program
starts. Without the warning, the dynamic linker would end the program in the middle of a run. Reading the libraries takes a second, so the result is
kept in the user's cache folder until one of the files changes.
"""
import os
import re
import sys
from typing import Iterable, NamedTuple, Optional, Sequence

from cenote.base import outputs, trusted
from cenote.simulated import elf

# NVIDIA's libraries, by the start of their file names, and how the names of their entry points begin. If torch does not say from which library it
# needs an entry point, the beginning of the name tells.
LIBRARIES = {
    "libcuda.so": "cu[A-Z]",
    "libcudart.so": "cuda[A-Z]|__cuda",
    "libcublas.so": "cublas(?!Lt)",
    "libcublasLt.so": "cublasLt",
    "libcudnn.so": "cudnn",
    "libcufft.so": "cufft",
    "libcufile.so": "cuFile",
    "libcupti.so": "cupti",
    "libcurand.so": "curand",
    "libcusolver.so": "cusolver",
    "libcusparse.so": "cusparse(?!Lt)",
    "libcusparseLt.so": "cusparseLt",
    "libnccl.so": "p?nccl",
    "libnvJitLink.so": "nvJitLink",
    "libnvidia-ml.so": "nvml",
    "libnvrtc.so": "nvrtc",
    "libnvshmem_host.so": "nvshmem",
}
NAME_ALONE = "cenote_sim_name"  # what a library exports that is another name (sim/runtime/name.c)
SHOWN = 8  # most names of entry points in a message


class Demand(NamedTuple):
    library: str  # file name
    symbol: str  # "": the library itself
    version: str


class Torch(NamedTuple):
    folder: str
    version: str


def stem(soname: str) -> Optional[str]:
    """The row of LIBRARIES for a file name, or None."""
    name = soname.partition(".so")[0] + ".so"
    return name if name in LIBRARIES else None


def find_torch(paths: Iterable[str]) -> Optional[Torch]:
    """The torch that Python would import, without importing it. The cache has it once, whatever links lead there."""
    for path in paths:
        folder = os.path.realpath(os.path.join(path, "torch"))
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
                match = re.search(r"__version__ = ['\"]([^'\"]+)", file.read())
        except OSError:
            continue
        return Torch(folder, match[1] if match else "of an unknown version")
    return None


def torch_libraries(torch: Torch) -> list[str]:
    folder = os.path.join(torch.folder, "lib")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(os.path.join(folder, name) for name in names if name.startswith("lib") and ".so" in name)


def wanted_by(paths: Iterable[str]) -> set[Demand]:
    """All entry points that these files need from NVIDIA's libraries."""
    demands: set[Demand] = set()
    for path in paths:
        library = elf.read(path)
        needs = {soname: LIBRARIES[name] for soname in library.needs if (name := stem(soname))}
        demands.update(Demand(soname, "", "") for soname in needs)
        patterns = [(soname, re.compile(f"(?:{pattern})")) for soname, pattern in needs.items()]
        for symbol in library.wanted:
            if symbol.library in needs:
                demands.add(Demand(symbol.library, symbol.name, symbol.version))
            elif not symbol.library:
                owner = next((soname for soname, pattern in patterns if pattern.match(symbol.name)), None)
                if owner:
                    demands.add(Demand(owner, symbol.name, ""))
    return demands


def simulated_libraries(folder: str) -> list[str]:
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if stem(name))


def missing(demands: Iterable[Demand], simulated: Iterable[str]) -> list[Demand]:
    """The demands that the simulated libraries do not meet. A missing library is one demand, without those for its entry points. So is one that is
    another name of a library beside it: what is linked to it wants symbols of its version."""
    libraries = {}
    for path in simulated:
        library = elf.read(path)
        names = {symbol.name for symbol in library.exported}
        if names == {NAME_ALONE}:
            continue
        versions = {(symbol.name, symbol.version) for symbol in library.exported}
        is_versioned = any(symbol.version for symbol in library.exported)
        libraries[os.path.basename(path)] = names, versions, is_versioned
    lacking = []
    for demand in sorted(set(demands)):
        if demand.library not in libraries:
            if not demand.symbol:
                lacking.append(demand)
            continue
        names, versions, is_versioned = libraries[demand.library]
        has_version = not (demand.version and is_versioned) or (demand.symbol, demand.version) in versions
        if demand.symbol and not (demand.symbol in names and has_version):
            lacking.append(demand)
    return lacking


def describe(torch: Torch, lacking: Sequence[Demand]) -> str:
    """The warning for stderr; empty if nothing is missing."""
    lines = []
    for name in [demand.library for demand in lacking if not demand.symbol]:
        lines.append(f"cenote: torch {torch.version} loads {name}, which the simulated GPU does not have: `import torch` fails without the real one")
    by_library: dict[str, list[str]] = {}
    for demand in lacking:
        if demand.symbol:
            by_library.setdefault(demand.library, []).append(demand.symbol)
    for library, symbols in by_library.items():
        shown = ", ".join(symbols[:SHOWN]) + (f" and {len(symbols) - SHOWN} more" if len(symbols) > SHOWN else "")
        lines.append(f"cenote: torch {torch.version} needs functions that the simulated {library} does not have, and fails at `import torch` "
                     f"or when it calls one of them: {shown}")
    return "\n".join(lines)


def stamp(paths: Iterable[str]) -> str:
    """A text that changes when one of the files changes."""
    rows = [(path, os.stat(path)) for path in paths]
    return "".join(f"{path}\t{status.st_size}\t{status.st_mtime_ns}\n" for path, status in rows)


def cache_path(key: str) -> str:
    import zlib
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "cenote", f"demands-{zlib.crc32(key.encode('utf-8', 'surrogateescape')):08x}.txt")


def cached(path: str, key: str) -> Optional[str]:
    """The answer that `keep` wrote for this key, or None."""
    try:
        folder = trusted.folder(os.path.dirname(path))
        try:
            with os.fdopen(trusted.open_file(folder, os.path.basename(path)), encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        finally:
            folder.close()
    except OSError:
        return None
    start = key + "\n"
    return text[len(start):-1] if text.startswith(start) and text.endswith("\0") else None


def keep(path: str, key: str, answer: str) -> None:
    """Writes the answer to the cache. If that fails, the next run asks again."""
    try:
        folder = trusted.own_folder(os.path.dirname(path))
        try:
            with outputs.replacing(folder.descriptor, os.path.basename(path), 0o600) as file:
                file.write(f"{key}\n{answer}\0".encode("utf-8", "surrogateescape"))
        finally:
            folder.close()
    except OSError:
        pass


def examine(torch: Torch, simulation: str) -> str:
    """The warning about `torch`, from the cache or made now; empty if nothing is missing."""
    wanting, offering = torch_libraries(torch), simulated_libraries(simulation)
    if not any(os.path.basename(path) == "libtorch_cuda.so" for path in wanting):
        return f"cenote: torch {torch.version} is built without CUDA, and sees no GPU, simulated or real: install a build with CUDA"
    key = stamp([*wanting, *offering])
    path = cache_path(torch.folder + "\n" + simulation)
    answer = cached(path, key)
    if answer is None:
        answer = describe(torch, missing(wanted_by(wanting), offering))
        keep(path, key, answer)
    return answer


def warn(simulation: str) -> None:
    """Prints the warning about the torch that Python would import. `simulation`: the folder of the simulated libraries."""
    torch = find_torch(sys.path)
    if torch is None:
        return
    try:
        text = examine(torch, simulation)
    except (OSError, elf.ElfError) as error:
        text = f"cenote: could not check that the simulated GPU has what torch {torch.version} needs: {error}"
    if text:
        print(text, file=sys.stderr)
