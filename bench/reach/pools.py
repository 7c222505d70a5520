"""What the pools of CuPy, RMM and Numba hold over what a program asks for, and what a pair of calls costs, beside cenote: the program of
clients/pool_program.py and clients/rmm_pools.cpp, on the simulated GPU (docs/preload.md). Prints a line of JSON for each pool and route.

    python bench/reach/pools.py --cupy FOLDER --rmm FOLDER        where bench/reach/build_cupy and bench/reach/build_rmm have built
    python bench/reach/pools.py --numba FOLDER                    where numba-cuda is installed
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEAKS = re.compile(r"peak requested ([\d.]+) (\wiB), peak reserved ([\d.]+) (\wiB)")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
LEFT = re.compile(r"left to the driver: (.*)")
POOLS = [("CuPy", pool, route) for pool in ("own", "async", "none") for route in ("driver", "preload")] + [("CuPy", "cenote", "adapter")]
POOLS += [("RMM", pool, route) for pool in ("pool", "arena", "async", "cuda") for route in ("driver", "preload")]
POOLS += [("Numba", "own", "driver"), ("Numba", "own", "preload"), ("Numba", "cenote", "adapter")]


def command(library: str, pool: str, options: argparse.Namespace) -> list[str]:
    if library == "RMM":
        return [os.path.join(options.rmm, "rmm_pools"), pool]
    built = options.cupy if library == "CuPy" else options.numba
    folders = [os.path.abspath(built), os.path.join(sys.prefix, "libraries"), str(HERE / "clients")]
    code = (f"import runpy, site, sys\nfor folder in {folders!r}: site.addsitedir(folder)\nsys.argv = ['', {pool!r}]\nsys.path[:0] = {folders!r}\n"
            f"runpy.run_path({str(HERE / 'clients' / (library.lower() + '_pools.py'))!r}, run_name='__main__')")
    return [sys.executable, "-W", "ignore", "-c", code]


def measure(library: str, pool: str, route: str, options: argparse.Namespace) -> dict[str, object]:
    sys.path.insert(0, str(ROOT / "python"))
    from cenote import places
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "LD_LIBRARY_PATH": places.simulation_folder()}
    way = ["--preload"] if route == "preload" else []
    run = [sys.executable, "-m", "cenote", "run", "--sim", "16GiB", *way, "--", *command(library, pool, options)]
    done = subprocess.run(run, env=variables, capture_output=True, text=True, timeout=500)
    if done.returncode:
        sys.exit(f"{library} {pool} {route}: {done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    peaks, left = PEAKS.search(done.stderr), LEFT.search(done.stderr)
    if peaks and route == "preload":  # what the program sees as used leaves out what cenote holds free
        found["reserved"] = max(found["reserved"], round(float(peaks[3]) * UNITS[peaks[4]]))
    if left:
        found["left"] = left[1]
    return {"library": library, "pool": pool, "route": route, "over": round(found["reserved"] / found["requested"] - 1, 4), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cupy", metavar="FOLDER")
    parser.add_argument("--rmm", metavar="FOLDER")
    parser.add_argument("--numba", metavar="FOLDER")
    options = parser.parse_args()
    for library, pool, route in POOLS:
        if {"CuPy": options.cupy, "RMM": options.rmm, "Numba": options.numba}[library]:
            print(json.dumps(measure(library, pool, route, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
