"""How many allocations of programs that know nothing of cenote are served, by each route: the figures of docs/preload.md. Each client is a program of
bench/reach/clients/, and runs on the simulated GPU in a process of its own. Prints a line of JSON for each client and route.

    python bench/reach/served.py [--packages FOLDER]... [CLIENT...]

The packages of the clients are those of this Python, of .venv/libraries, and of the folders that are named (pip install --target FOLDER). What is
counted are the blocks in cenote's trace; what it left to the driver is in its line of figures. A client whose package is not
there is told of. PyCUDA comes as source, and was built with CUDA_ENABLE_CURAND = False; bench/reach/build_cupy builds CuPy, and build_rmm RMM.
"""
import argparse
import csv
import glob
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Iterator, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROUTES = {"preload": ["--preload"], "adapter": []}
LEFT = re.compile(r"left to the driver: (.*?)(?: \(cenote|$)")
JAX = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2"}
WHOLE = ("preload",)


class Client(NamedTuple):
    package: str  # as pip calls it
    program: str
    variables: dict[str, str] = {}
    routes: tuple[str, ...] = WHOLE
    words: tuple[str, ...] = ()  # of a compiled program, which lies in one of the folders, beside a file VERSION


CLIENTS = {
    "numba-cuda": Client("numba-cuda", "numba_arrays.py"),
    "numba-cuda with cenote.numba": Client("numba-cuda", "numba_arrays.py", {"NUMBA_CUDA_MEMORY_MANAGER": "cenote.numba"}, ("adapter",)),
    "cuda.core": Client("cuda-core", "cuda_core_buffers.py"),
    "cuda.core with cenote.cuda_core": Client("cuda-core", "cuda_core_adapter.py", {}, ("adapter",)),
    "CuPy": Client("cupy-cuda13x", "cupy_arrays.py"),
    "CuPy, built": Client("cupy", "cupy_arrays.py"),
    "CuPy, built, no pool": Client("cupy", "cupy_arrays.py", {"REACH_POOL": "none"}),
    "CuPy, built, MemoryAsyncPool": Client("cupy", "cupy_arrays.py", {"REACH_POOL": "async"}),
    "CuPy, built, with cenote.cupy": Client("cupy", "cupy_arrays.py", {"REACH_POOL": "cenote"}, ("adapter",)),
    "PyTorch": Client("torch", "torch_step.py"),
    "PyTorch, cudaMallocAsync": Client("torch", "torch_step.py", {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "PyTorch, expandable segments": Client("torch", "torch_step.py", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    "PyTorch with cenote": Client("torch", "torch_step.py", {"CENOTE": "on"}, ("adapter",)),
    "JAX": Client("jax", "jax_step.py", JAX),
    "JAX, platform": Client("jax", "jax_step.py", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "JAX, cuda_async": Client("jax", "jax_step.py", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    "JAX, vmm": Client("jax", "jax_step.py", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"}),
    "ONNX Runtime": Client("onnxruntime-gpu", "onnx_session.py"),
    "RMM": Client("rmm-cu13", "rmm_buffers.py"),
    "RMM, built, cuda": Client("rmm_pools", "rmm_pools", words=("cuda", "count")),
    "RMM, built, pool": Client("rmm_pools", "rmm_pools", words=("pool", "count")),
    "RMM, built, arena": Client("rmm_pools", "rmm_pools", words=("arena", "count")),
    "RMM, built, cuda_async": Client("rmm_pools", "rmm_pools", words=("async", "count")),
    "TensorFlow": Client("tensorflow", "tensorflow_step.py", TENSORFLOW),
    "TensorFlow, cuda_malloc_async": Client("tensorflow", "tensorflow_step.py", TENSORFLOW | {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}),
    "PyCUDA": Client("pycuda", "pycuda_arrays.py"),
    "vLLM": Client("vllm", "vllm_steps.py"),
    "vLLM with cenote": Client("vllm", "vllm_steps.py", {"CENOTE": "on"}, ("adapter",)),
}


def start(client: Client, folders: list[str]) -> list[str]:
    """A command of Python that adds the folders and runs the program; a compiled one lies in the first folder."""
    if client.words:
        return [os.path.join(folders[0], client.program), *client.words]
    code = (f"import runpy, site\nfor folder in {folders!r}: site.addsitedir(folder)\n"
            f"runpy.run_path({str(HERE / 'clients' / client.program)!r}, run_name='__main__')")
    return [sys.executable, "-c", code]


def version(client: Client, folders: list[str]) -> tuple[str, list[str]]:
    """Of the package that the client would import, and the folders, the one with this package first; empty if there is none."""
    from importlib.metadata import distributions
    if client.words:
        built = [folder for folder in folders if os.path.exists(os.path.join(folder, client.program))]
        return (pathlib.Path(built[0], "VERSION").read_text().strip(), built) if built else ("", folders)
    for found in distributions(name=client.package, path=[*folders, *sys.path]):
        where = str(found.locate_file(""))
        return found.version, sorted(folders, key=lambda folder: not os.path.samefile(folder, where) if os.path.isdir(folder) else True)
    return "", folders


def blocks(pattern: str) -> int:
    count = 0
    for path in glob.glob(pattern):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            count += sum(row["op"] == "a" for row in csv.DictReader(file))
    return count


def measure(client: Client, route: str, folders: list[str]) -> dict[str, object]:
    sys.path.insert(0, str(ROOT / "python"))
    from cenote import places
    with tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, **client.variables, "CENOTE_BUILD": places.build_folder()}
        variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), *folders])
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [places.simulation_folder() if client.words else "",
                                                                     variables.get("LD_LIBRARY_PATH")]))
        variables["CENOTE_TRACE"] = f"{scratch}/%p.csv.gz"
        command = [sys.executable, "-m", "cenote", "run", "--sim", "16GiB", *ROUTES[route], "--", *start(client, folders)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=500)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("cenote: peak")] or ["no word"]
            return {"failed": re.sub(r"/\S*/", "", said[-1])}  # without the folders of this machine
        left = LEFT.search(done.stderr)
        return {"served": blocks(f"{scratch}/*.csv.gz"), "left": left[1] if left else ""}


def rows(name: str, packages: list[str]) -> Iterator[dict[str, object]]:
    client = CLIENTS[name]
    folders = [*([] if client.package in ("torch", "vllm") else [os.path.join(sys.prefix, "libraries")]), *packages]
    is_there, folders = version(client, folders)
    for route in client.routes:
        found = measure(client, route, folders) if is_there else {"missing": client.package}
        yield {"client": name, "version": is_there, "route": route, **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", action="append", default=[], metavar="FOLDER")
    parser.add_argument("clients", nargs="*", metavar="CLIENT")
    options = parser.parse_args()
    unknown = set(options.clients) - set(CLIENTS)
    if unknown:
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    folders = [os.path.abspath(folder) for folder in options.packages]
    for name in options.clients or CLIENTS:
        for row in rows(name, folders):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
