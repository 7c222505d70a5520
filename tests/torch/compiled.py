"""Compiles C++ sources of the tests against PyTorch, as cenote's adapter is compiled: once for each version of PyTorch."""

import pathlib
import sys

import torch

import simulated

sys.path.insert(0, str(simulated.ROOT / "python"))


def library(source: pathlib.Path) -> str:
    """Compiles `source` unless that was done before. Returns the path of the library."""
    from cenote.native import adapter

    here, tool = adapter.describe(torch), adapter.compiler()
    folder = adapter.own_folder("tests", print)
    name = f"{source.stem}-{adapter.digest(source.read_bytes(), repr(here).encode(), tool.says.encode())}.so"
    target = pathlib.Path(folder.path, name)
    if not target.exists():
        part = target.with_name(f"part-{name}")
        includes = [f"-isystem{path}" for path in (f"{here.folder}/include", adapter.cuda_include(here))]
        flags = [*adapter.FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(here.has_new_abi)}"]
        libraries = [f"-L{here.folder}/lib", "-Wl,--as-needed", "-lc10_cuda", "-lc10", "-ldl"]
        adapter.run([*tool.command, *flags, *includes, "-shared", str(source), *libraries, "-o", str(part)], folder)
        part.replace(target)
    return str(target)
