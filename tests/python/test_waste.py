"""cenote-replay has models of PyTorch's allocators: the models and the real allocators play the same traces, and reserve the same."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPLAY = pathlib.Path(os.environ.get("CENOTE_BUILD") or ROOT / "build").resolve() / "bin/cenote-replay"


@pytest.mark.simulation
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not REPLAY.exists(), reason="cenote-replay is not built")
def test_the_models_reserve_what_pytorch_reserves(run, tmp_path):
    traces = [ROOT / "traces/worst" / f"{name}.csv.gz" for name in ("native", "cenote", "expandable", "async")]
    figures = tmp_path / "out.json"
    done = run("replay", "--under", "native,expandable", "--json", figures, *traces)
    assert done.returncode == 0, done.stderr
    real = {(line["trace"], line["allocator"]): line["reserved_peak_bytes"] for line in json.loads(figures.read_text())["runs"]}
    for path in traces:
        said = subprocess.run([REPLAY, "--json", "--under", "native,expandable", path], capture_output=True, text=True, timeout=100)
        assert said.returncode == 0, said.stderr
        for line in map(json.loads, said.stdout.splitlines()):
            assert line["reserved_peak_bytes"] == real[path.name.removesuffix(".csv.gz"), line["under"]]


@pytest.mark.simulation
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not REPLAY.exists(), reason="cenote-replay is not built")
def test_the_models_take_the_time_that_pytorch_takes(run, tmp_path):
    path, figures = ROOT / "traces/torch/lstm.csv.gz", tmp_path / "out.json"
    done = run("replay", "--under", "native,expandable", "--prices", "h100", "--json", figures, path)
    assert done.returncode == 0, done.stderr
    real = {line["allocator"]: line["driver_ns"] for line in json.loads(figures.read_text())["runs"]}
    said = subprocess.run([REPLAY, "--json", "--under", "native,expandable", "--prices", "h100", path],
                          capture_output=True, text=True, timeout=100)
    for line in map(json.loads, said.stdout.splitlines()):
        assert abs(line["driver_ns"] - real[line["under"]]) < 0.01 * real[line["under"]], (line, real)
