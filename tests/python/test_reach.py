"""Programs that know nothing of cenote, each in a process of its own: as many of their allocations are served as docs/preload.md says
(bench/reach/served.py, whose figures are in bench/results/). A client whose package is not installed, or is another version, is skipped by name.

CENOTE_REACH_PACKAGES names folders with further packages, between colons (pip install --no-deps --target FOLDER jax ...)."""
import collections
import json
import os
import re
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench/reach"))
import served  # noqa: E402  (needs the path above)

FIGURES = [json.loads(line) for line in (ROOT / "bench/results/2026-11-24-reach.jsonl").read_text().splitlines()]
PACKAGES = [folder for folder in os.environ.get("CENOTE_REACH_PACKAGES", "").split(":") if folder]


@pytest.mark.deep
@pytest.mark.simulation
@pytest.mark.parametrize("client", served.CLIENTS)
def test_as_many_are_served(client):
    known = [row for row in FIGURES if row["client"] == client]
    found = list(served.rows(client, PACKAGES))
    if "missing" in found[0]:
        pytest.skip(f"{found[0]['missing']} is not installed: pip install --no-deps --target FOLDER, and name FOLDER in CENOTE_REACH_PACKAGES")
    if found[0]["version"] != known[0]["version"]:
        pytest.skip(f"{client} {found[0]['version']} is installed, and the figures are of {known[0]['version']}")
    assert found == known


def test_the_page_has_all_figures():
    """Each row of the table in docs/preload.md says what the figures say, and none is missing."""
    page = (ROOT / "docs/preload.md").read_text()
    table = page[page.index("| program | version |"):]
    table = table[:table.index("\n\n")]
    cells = {row[0]: row for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:])}
    assert cells.keys() == {row["client"] for row in FIGURES} == set(served.CLIENTS)
    for row in FIGURES:
        _, version, *by_route = cells[row["client"]]
        said = by_route[("preload", "adapter").index(row["route"])]
        assert version == row["version"]
        if "served" in row:
            assert re.fullmatch(r"[\d,]+", said) and int(said.replace(",", "")) == row["served"], (row, said)
        else:
            assert said == "fails", (row, said)


POOLS = {("CuPy", "own"): "CuPy, its own pool", ("CuPy", "async"): "CuPy, `MemoryAsyncPool`", ("CuPy", "none"): "CuPy, no pool",
         ("CuPy", "cenote"): "CuPy with `cenote.cupy`", ("RMM", "pool"): "RMM, `pool_memory_resource`",
         ("RMM", "arena"): "RMM, `arena_memory_resource`", ("RMM", "async"): "RMM, `cuda_async_memory_resource`",
         ("RMM", "cuda"): "RMM, `cuda_memory_resource`", ("Numba", "own"): "Numba, no pool", ("Numba", "cenote"): "Numba with `cenote.numba`"}


def test_the_page_has_the_figures_of_the_pools():
    """What docs/preload.md says of the pools of CuPy, RMM and Numba is what bench/reach/pools.py has measured."""
    page = (ROOT / "docs/preload.md").read_text()
    table = page[page.index("| pool | route | reserved over requested |"):]
    said = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[:table.index("\n\n")].splitlines()[2:]]
    runs = collections.defaultdict(list)
    for line in (ROOT / "bench/results/2026-11-26-pools.jsonl").read_text().splitlines():
        row = json.loads(line)
        runs[row["library"], row["pool"], row["route"]].append(row)
    assert len(said) == len(runs)
    for name, route, over, pair in said:
        rows = runs[next(key for key in runs if key[0] == name.split()[0].strip(",") and key[2] == route and POOLS[key[:2]] == name)]
        overs, ns = [100 * (row["reserved"] / row["requested"] - 1) for row in rows], [each for row in rows for each in row["ns"].values()]
        assert over == " to ".join(dict.fromkeys((f"{min(overs):.1f}", f"{max(overs):.1f}"))) + " %", name
        assert pair == f"{min(ns):,} to {max(ns):,}", name
