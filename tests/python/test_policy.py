"""bench/policy/run.py: its page, and what it judges, from figures that were measured."""
import gzip
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "bench/policy/run.py"
FIGURES = sorted((ROOT / "bench/results").glob("*-policy.json"))[-1]


@pytest.fixture
def policy():
    spec = importlib.util.spec_from_file_location("policy", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runs():
    return json.loads(FIGURES.read_text())["runs"]


def test_the_page_has_what_was_measured(tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, str(RUN), "--from", str(FIGURES), "--out", str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "policy.md").read_text()
    # waste by lag; time, where it goes, by size of page; the long run, other sizes, the smallest card; time by the prices of a card
    tables = 2 * (3 + 1 + 1 + 1) + 3 + 1
    assert page.count("\n| lstm |") == tables and "## Goals" in page and "Not measured" not in page
    for name in ("waste", "driver"):
        assert (tmp_path / f"pictures/policy-{name}.png").stat().st_size > 10000
    assert json.loads((tmp_path / "policy.json").read_text()) == json.loads(FIGURES.read_text())


def test_a_page_of_figures_without_those_that_came_later(tmp_path):
    """--from reads a file of an earlier day."""
    pytest.importorskip("matplotlib")
    old = json.loads(FIGURES.read_text())
    for name in ("pages", "fill", "long", "smallest", "scaled"):
        del old[name]
    for run in old["runs"]:
        del run["driver_first_split"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    done = subprocess.run([sys.executable, str(RUN), "--from", str(tmp_path / "old.json"), "--out", str(tmp_path)], capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "policy.md").read_text().count("\n| lstm |") == 2 * (3 + 1) + 1


def test_the_same_program_with_other_sizes(policy, tmp_path):
    lines = "t_us,op,id,bytes,stream,device,tag\n0.0,a,7,1000,0,0,1\n1.0,u,7,1000,2,0,1\n2.0,t,1,0,0,0,\"a,b\"\n3.0,f,7,1000,0,0,1\n"
    with gzip.open(tmp_path / "old.csv.gz", "wt") as file:
        file.write(lines)
    with gzip.open(policy.scaled(tmp_path / "old.csv.gz", 1.4, tmp_path / "new.csv.gz"), "rt") as file:
        assert file.read() == lines.replace(",1000,", ",1400,")


def test_the_time_that_filling_the_card_takes_is_judged(policy):
    fills = json.loads(FIGURES.read_text())["fill"]
    for run in fills:
        run["driver_first_ns"] = {"a100": 500_000_000, "h100": 500_000_001, "h200": 0}[run["prices"]]
    assert policy.goals_table([], fills)[-1].split(" | ")[1:] == ["reached: 0.50 s", "missed: 0.50 s |"]


def test_what_wastes_more_is_named(policy, runs):
    changed = [dict(run) for run in runs]
    one = next(run for run in changed if (run["trace"], run["under"], run["prices"], run["lag"]) == ("lstm", "cenote", "h100", "0"))
    one["reserved_peak_bytes"] += one["live_peak_bytes"] // 500  # 0.2 points
    assert [line.partition(":")[0] for line in policy.worse(changed, runs)] == ["lstm, h100, lag 0"]
    assert policy.worse(runs, changed) == []


def test_a_goal_that_is_missed(policy, runs):
    def all_missed():
        return [(goal.name, prices, found) for goal in policy.GOALS for prices in policy.PRICES
                if (found := policy.missed(goal, prices, policy.cases(runs)))]
    for run in runs:
        run.update(waits=0, reserved_peak_bytes=run["live_peak_bytes"], driver_first_ns=0, driver_last_ns=0)
    assert all_missed() == []
    next(run for run in runs if run["under"] == "cenote" and run["lag"] == "step" and run["prices"] == "a100")["waits"] = 1
    assert all_missed() == [("no wait for the device", "a100", [runs[0]["trace"]])]
