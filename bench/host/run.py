"""Waste and time of pinned memory: PyTorch's own, plain cudaHostAlloc, and cenote, side by side in one process on the simulated GPU.

    GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384 build/bin/cenote run --sim 80GiB bench/host/run.py [--json] [--check]

The benchmark compares what allocators hold, and what a call costs if the allocator has the memory. The simulated driver registers memory at next to
no cost, while a real one takes milliseconds. --check ends with status 1 if cenote holds more or is slower than the limits below allow.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "python"))
import torch  # noqa: E402

from cenote import places  # noqa: E402
from cenote.native import adapter  # noqa: E402

PEERS = ("cudaHostAlloc", "torch", "cenote")
PROGRAMS = {"loader": 2000, "offload": 3, "staging": 3}
PAIRS = {"4 KiB": 4 << 10, "10 KiB": 10 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20, "20 MiB": 20 << 20}
COUNT = 20000
ROUNDS = 15
MOST, MOST_OF_ALL = 1.30, 1.15  # held divided by requested: for one program, and for the three together
LEAST = 3  # a pair has to be so many times as fast as PyTorch's


def compile_programs(folder: str) -> str:
    facts = adapter.describe(torch)
    library = os.path.join(folder, "bench_host.so")
    include = [places.include_folder(), adapter.cuda_include(facts), f"{facts.folder}/include"]
    command = ["g++", "-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-Wno-interference-size",
               f"-D_GLIBCXX_USE_CXX11_ABI={int(facts.has_new_abi)}", *(f"-I{path}" for path in include),
               str(HERE / "programs.cpp"), "-o", library, f"-L{facts.folder}/lib", "-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True)
    return library


class Bench:
    """Calls bench_host of programs.cpp."""

    def __init__(self, library: str):
        self.function = ctypes.CDLL(library).bench_host
        self.host = os.path.join(places.build_folder(), "libcenote_host.so.0")

    def __call__(self, peer: str, program: str, size: int, count: int) -> list[float]:
        result, why = (ctypes.c_double * 3)(), ctypes.create_string_buffer(2000)
        names = (text.encode() for text in (peer, self.host, program))
        if self.function(*names, ctypes.c_size_t(size), count, result, why, ctypes.c_size_t(len(why))):
            sys.exit(f"{peer}, {program}: {why.value.decode()}")
        return list(result)


def together(rows: list[dict], peer: str) -> float:
    programs = [row for row in rows if row["peer"] == peer and "program" in row]
    return sum(row["held"] for row in programs) / sum(row["requested"] for row in programs)


def failures(rows: list[dict]) -> list[str]:
    pairs = {(row["pair"], row["peer"]): row["ns"] for row in rows if "pair" in row}
    found = [f"{row['program']} holds {row['ratio']:.2f} of what it asks for, at most {MOST:.2f}"
             for row in rows if row["peer"] == "cenote" and row.get("ratio", 0) > MOST]
    found += [f"all three hold {together(rows, 'cenote'):.2f}, at most {MOST_OF_ALL:.2f}"] if together(rows, "cenote") > MOST_OF_ALL else []
    times = {size: pairs[size, "torch"] / pairs[size, "cenote"] for size in PAIRS}
    return found + [f"a pair of {size} is {ratio:.2f} times as fast as PyTorch's, at least {LEAST}" for size, ratio in times.items() if ratio < LEAST]


def show(rows: list[dict]) -> None:
    for row in rows:
        if "pair" in row:
            print(f"{'pair of ' + row['pair']:16} {row['peer']:14} {row['ns']:10.1f} ns")
        else:
            print(f"{row['program']:16} {row['peer']:14} requested {row['requested'] / 2**20:8.1f} MiB  held {row['held'] / 2**20:8.1f} MiB"
                  f"  ratio {row['ratio']:.3f}  {row['ns']:8.0f} ns per pair")
    for peer in PEERS:
        print(f"{'all three':16} {peer:14} ratio {together(rows, peer):.3f}")


def main() -> None:
    torch.cuda.init()
    torch.empty(1, device="cuda")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(compile_programs(folder))
        for program, count in PROGRAMS.items():
            for peer in PEERS:
                requested, held, ns = bench(peer, program, 0, count)
                rows.append({"program": program, "peer": peer, "requested": requested, "held": held, "ratio": held / requested, "ns": ns})
        for name, size in PAIRS.items():
            best = {peer: float("inf") for peer in PEERS}
            for _ in range(ROUNDS):  # peers take turns, so that a slow phase of the machine slows all of them
                for peer in PEERS:
                    best[peer] = min(best[peer], bench(peer, "pair", size, COUNT // (20 if peer == "cudaHostAlloc" else 1))[0])
            rows += [{"pair": name, "peer": peer, "ns": ns} for peer, ns in best.items()]
    if "--json" in sys.argv:
        print(json.dumps({"torch": torch.__version__, "rows": rows}))
    else:
        show(rows)
    if "--check" in sys.argv and failures(rows):
        sys.exit("\n".join(failures(rows)))


if __name__ == "__main__":
    main()
