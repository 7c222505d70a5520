"""docs/accuracy.md: dry runs beside published measurements. Do the rows still give the figures of the page, and is the page made of them?"""
import importlib.util
import json
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPARE = ROOT / "bench/accuracy/compare.py"
RESULTS = sorted((ROOT / "bench/results").glob("*-accuracy.jsonl"))[-1]
MOVED = 0.01  # a figure that moves by more means that PyTorch, its libraries or the models of workspaces have changed: make the page anew
FIGURES = ("allocated", "reserved", "whole card", "beyond the context")
SAMPLE = ROOT / "bench/accuracy/sample.py"
SAMPLED = sorted((ROOT / "bench/results").glob("*-timm.jsonl"))[-1]
RANGED = sorted((ROOT / "bench/results").glob("*-ranges.jsonl"))[-1]
FOUND = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()[1:]]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compare():
    return load(COMPARE)


@pytest.fixture
def sample(monkeypatch):
    monkeypatch.syspath_prepend(str(SAMPLE.parent))
    return load(SAMPLE)


@pytest.fixture
def ranges(sample):
    return load(SAMPLE.parent / "ranges.py")


def check(compare, row, old):
    new = compare.dry_run(row)
    assert new["runs_out"] == old["runs_out"], (new, old)
    assert abs(new["estimate"] / old["estimate"] - 1) <= MOVED, (new, old)


def test_each_row_says_where_it_comes_from_and_what_runs(compare):
    sources, rows = compare.read_rows()
    assert len(rows) >= 15 and len({row["source"] for row in rows}) >= 5
    for row in rows:
        source = sources[row["source"]]
        assert source["address"].startswith("https://") and source["read"] and source["said"] and source["unknown"], row
        assert (compare.HERE / row["program"]).is_file() and row["figure"] in FIGURES and row["measured"] > 0, row


def test_the_page_is_made_of_the_results(compare):
    _, rows = compare.read_rows()
    assert [{key: row[key] for key in was} for was, row in zip(rows, FOUND)] == rows, "compare.py --save, then --page, with all rows"
    text = compare.PAGE.read_text(encoding="utf-8")
    assert compare.page(text, RESULTS) == text, f"python bench/accuracy/compare.py --page {RESULTS.relative_to(ROOT)}"


def test_the_table_of_the_sample_is_made_of_its_results(sample, compare):
    text = compare.PAGE.read_text(encoding="utf-8")
    assert sample.page(text, SAMPLED) == text, f"python bench/accuracy/sample.py --page {SAMPLED.relative_to(ROOT)}"


def test_the_table_of_ranges_is_made_of_its_results(ranges, compare):
    text = compare.PAGE.read_text(encoding="utf-8")
    assert ranges.page(text, [RANGED, SAMPLED]) == text, f"python bench/accuracy/ranges.py --page {RANGED.relative_to(ROOT)} ..."


def test_how_far_outside_of_a_range(ranges):
    found = [ranges.outside({"measured": measured, "low": 100, "high": 200}) for measured in (90, 100, 150, 200, 220)]
    assert found == [pytest.approx(-0.1), 0, 0, 0, pytest.approx(0.1)]


def test_each_program_on_a_card_counts_once(ranges):
    rows = [row for card in ranges.CARDS for row in ranges.measured_on(card)]
    assert len(rows) == len({(row["program"], row["allocator"], row["card"]) for row in rows}) == 35


def test_a_run_has_run_out_of_memory_by_the_file_alone(sample):
    """Each rule alone, and what they do not say of a run that grows as FakeTensor says."""
    grows = {("a", 8): (3000, 500.0), ("a", 16): (4000, 1000.0), ("a", 32): (6000, 2000.0)}
    assert not any(sample.ran_out(grows, run) for run in grows)
    for batch, measured in ((16, (39500, 1000.0)), (16, (4000, 4100.0)), (16, (3000, 1000.0)), (16, (30000, 38700.0))):
        changed = {**grows, ("a", batch): measured}
        assert sample.ran_out(changed, ("a", 16)) and sample.ran_out(changed, ("a", 32)) and not sample.ran_out(changed, ("a", 8)), measured


def test_a_percentile_is_one_of_the_errors(compare):
    assert [compare.percentile([0.3, 0.1, 0.2], share) for share in (0.1, 0.34, 0.5, 0.9)] == [0.1, 0.2, 0.2, 0.3]


def test_the_metrics_are_those_of_xmem(compare):
    def row(measured, estimate, ran_out=False, runs_out=False):
        made = {"measured": measured, "estimate": estimate, "ran_out": ran_out, "runs_out": runs_out}
        return {**made, "error": compare.error(made, estimate)}
    rows = [row(100, 110), row(100, 98), row(100, 95), row(100, 500, ran_out=True), row(100, 103, runs_out=True)]
    said = compare.metrics(rows)
    assert (said["rows"], said["fitting"], said["wrong"], said["below"]) == (5, 4, 2, 2)
    assert said["median"] == pytest.approx(0.04) and said["most"] == pytest.approx(0.1)
    fitting, out = {"ran_out": False}, {"ran_out": True}
    for measured, ran_out, capped, fails in ((fitting, False, False, False), (fitting, False, True, True), (fitting, True, None, True),
                                             (out, True, None, False), (out, False, True, True)):
        assert compare.fails_as_limit(measured, {"ran_out": ran_out, "capped_ran_out": capped}) == fails


@pytest.mark.torch
@pytest.mark.simulation
def test_a_row_gives_the_figure_of_the_page(compare):
    row = next(row for row in FOUND if row["program"] == "linear.py" and row["figure"] == "allocated")
    check(compare, row, row)
    assert abs(row["error"]) <= 0.01


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.deep
@pytest.mark.parametrize("row", FOUND, ids=lambda row: " ".join([row["program"], *row["options"]]))
def test_all_rows_give_the_figures_of_the_page(compare, row):
    """Packages are looked for and not imported: what imports PyTorch here, outside of the simulation, needs NVIDIA's libraries."""
    absent = [name for name in compare.PACKAGES if (name != "bitsandbytes" or "--quantized" in row["options"]) and not importlib.util.find_spec(name)]
    if absent == ["bitsandbytes"] or absent and not os.environ.get("CENOTE_TEST_ALL"):  # tools/setup installs the others
        pytest.skip(f"{', '.join(absent)}: not installed")
    check(compare, row, row)
