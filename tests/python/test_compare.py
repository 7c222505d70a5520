"""`cenote compare`, which `make run` uses: its table, its picture, and its message about a script that fails."""
import subprocess
import sys

import pytest
from spoken import said

from cenote.replay import compare

GIB = 1 << 30


def figures(requested, reserved, ends=(5.0, 6.0, 6.5, 6.6, 6.8)):
    steps = [{"step": i + 1, "seconds": end, "requested": requested - i, "reserved": reserved} for i, end in enumerate(ends)]
    return {"requested_peak": requested, "reserved_peak": reserved, "driver_calls": 1234, "modelled_driver_ns": 5_600_000, "steps": steps,
            "steps_seen": len(steps), "torch": "2.15.0+cu132", "device": "A card"}


def runs_of():
    return [compare.Run("native", 0, figures(2 * GIB, 3 * GIB), ""), compare.Run("expandable", 1, None, "it broke"),
            compare.Run("cenote", 0, figures(2 * GIB, 2 * GIB), "")]


def test_the_table():
    lines = compare.table(runs_of(), True).splitlines()
    assert len({len(line) for line in lines if line[0] in "╭├╰│"}) == 1, "its edges are straight"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")][1:]
    assert rows[0] == ["native", "2.00 GiB", "3.00 GiB", "+50.0 %", "1,234", "6 ms"]
    assert rows[1][:2] == ["expandable segments", "failed"]
    assert rows[2][3] == "+0.0 %"


def test_on_a_gpu_it_has_the_time_of_a_step():
    assert compare.step_ms(figures(1, 1)) == pytest.approx(150)  # of the later half: 100 and 200 ms
    assert "│ 150.0 ms │" in compare.table(runs_of(), False)


def test_the_picture():
    pytest.importorskip("matplotlib")
    assert compare.picture(runs_of(), "a heading")[:4] == b"\x89PNG"


def run(clean, *arguments):
    command = [sys.executable, "-m", "cenote", "compare", "--sim", "1GiB"]
    return subprocess.run([*command, *map(str, arguments)], env=clean, capture_output=True, text=True, timeout=120)


def test_no_script(clean, tmp_path):
    done = run(clean, tmp_path / "missing.py")
    assert done.returncode == 2 and "there is no file" in done.stderr and "Traceback" not in said(done.stderr)


@pytest.mark.simulation
def test_a_script_that_fails(clean, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('no data here')")
    done = run(clean, script)
    assert done.returncode == 1 and done.stderr.count("it ended with status 1") == 3 and done.stderr.count("no data here") == 3, done.stderr


@pytest.mark.simulation
def test_a_script_without_a_gpu(clean, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('all on the processor')")
    done = run(clean, "--picture", tmp_path / "run.png", script)
    assert done.returncode == 1 and done.stderr.count("it used no GPU") == 3 and not (tmp_path / "run.png").exists()
