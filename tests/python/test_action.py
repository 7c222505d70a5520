"""action.yml, the action for CI: its steps are run by bash as a runner runs them, in a project of its own."""
import html
import json
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT

from cenote.integrations import job_summary

SECONDS = 240
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INPUT = re.compile(r"\$\{\{ *inputs\.([a-z-]+) *\}\}")
ALLOCATES = "import sys, torch\nkept = torch.empty(int(sys.argv[2]) << 20, dtype=torch.uint8, device='cuda')\nprint(sys.argv[1:])\n"


class Job:
    """What a runner gives to the steps of the action, and what they left there."""

    def __init__(self, folder, variables):
        self.folder, self.python = folder, folder / "bin"
        self.output, self.summary = folder / "output", folder / "summary.md"
        self.python.mkdir()
        (folder / "runner").mkdir()
        self.variables = {**variables, "GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_ACTION_PATH": str(ROOT),
                          "RUNNER_TEMP": str(folder / "runner"), "PATH": f"{self.python}:{variables['PATH']}"}

    def use(self, script):
        """python3 of this job."""
        (self.python / "python3").write_text(f"#!/bin/bash\n{script}\n")
        (self.python / "python3").chmod(0o755)

    def step(self, number, **inputs):
        step = ACTION["runs"]["steps"][number]
        known = {name: inputs.get(name, given.get("default")) for name, given in ACTION["inputs"].items()}
        own = {name: INPUT.sub(lambda found: known[found[1]], text) for name, text in step.get("env", {}).items()}
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        assert step["shell"] == "bash" and "${{" not in step["run"]
        return subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", script], env={**self.variables, **own}, cwd=self.folder,
                              capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def job(tmp_path, clean):
    made = Job(tmp_path, clean)
    made.use(f'exec "{sys.executable}" "$@"')
    (tmp_path / "train.py").write_text(ALLOCATES)
    return made


def test_what_a_runner_reads():
    assert ACTION["runs"]["using"] == "composite" and set(ACTION["inputs"]) == {"command", "gpu", "limit", "baseline"}
    for given in ACTION["inputs"].values():
        assert given["description"] and given.get("required") is not ("default" in given)
    named = {name for step in ACTION["runs"]["steps"] for text in step.get("env", {}).values() for name in INPUT.findall(text)}
    assert named == set(ACTION["inputs"])
    ids = {step.get("id") for step in ACTION["runs"]["steps"]}
    assert all(re.fullmatch(r"\$\{\{ steps\.([a-z-]+)\.outputs\.json \}\}", output["value"])[1] in ids for output in ACTION["outputs"].values())


def test_cenote_is_installed_if_it_is_not_there(job):
    """From the files of the action itself: it is checked out with them."""
    assert job.step(0).returncode == 0
    job.use('[ "$1" = -c ] && exit 1; echo "$@" >asked')
    done = job.step(0)
    assert done.returncode == 0 and (job.folder / "asked").read_text() == f"-m pip install --quiet {ROOT}\n", done.stderr
    assert (ROOT / "pyproject.toml").exists()


@pytest.mark.torch
@pytest.mark.simulation
def test_a_limit_and_a_baseline(job):
    first = job.step(1, command="train.py 'two words' 1000", gpu="4GiB", limit="2GiB")
    assert first.returncode == 0 and "['two words', '1000']" in first.stdout, first.stdout + first.stderr
    written = pathlib.Path(job.output.read_text().strip().removeprefix("json="))
    assert written.exists()
    lines = job.summary.read_text().splitlines()
    assert lines[2:4] == ["| GPU | verdict | needs | limit |", "| --- | --- | --- | --- |"] and re.fullmatch(
        r"\| 4\.00 GiB \| fits \| 1\.\d\d GiB \| 2\.00 GiB: \d+\.\d MiB below \|", lines[4]), lines
    assert "<pre>--- cenote dry-run train.py" in job.summary.read_text() and "two words" not in job.summary.read_text()
    job.summary.unlink()
    more = job.step(1, command="train.py x 1100", gpu="4GiB", baseline=str(written))
    assert more.returncode == 8 and "| since the baseline |" in job.summary.read_text() and "| +100.0 MiB |" in job.summary.read_text()


@pytest.mark.simulation
def test_a_mistake_ends_the_job_and_is_in_its_log(job):
    done = job.step(1, command="train.py $(touch made) 'x", gpu="4GiB")
    assert done.returncode and "unmatched single quote" in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = job.step(1, command="gone.py $(touch made)", gpu="4GiB")
    assert done.returncode == 2 and "there is no file 'gone.py'" in done.stderr, done.stderr
    assert "ended without a verdict" in job.summary.read_text() and not (job.folder / "made").exists()


@pytest.mark.parametrize("content, rows", [
    ({"capacity": 1 << 30, "verdict": "fits not", "needed": 1, "largest": {"needed": 3 << 30, "verdict": "fits"}, "above_limit": 1 << 30},
     ["| GPU | verdict | needs | limit |", "| --- | --- | --- | --- |", "| 1.00 GiB | does not fit | 3.00 GiB | 2.00 GiB: 1.00 GiB above |"]),
    ({"capacity": 1 << 30, "verdict": "unknown", "needed": 1, "largest": None}, ["| GPU | verdict | needs |", "| --- | --- | --- |",
                                                                                "| 1.00 GiB | no verdict | not known |"]),
    ({"verdict": "fits not", "cards": [{"card": "rtx4090", "capacity": 24 << 30, "verdict": "fits not"}, {"card": "b", "capacity": 80 << 30,
                                                                                                         "verdict": "grows"}]},
     ["| GPU | memory | verdict |", "| --- | --- | --- |", "| rtx4090 | 24.00 GiB | does not fit |", "| b | 80.00 GiB | fits for now |"]),
])
def test_the_table(tmp_path, content, rows):
    (tmp_path / "memory.json").write_text(json.dumps(content))
    (tmp_path / "output").write_text("<b>\n--- cenote dry-run x\nloss = a < b")
    lines = "\n".join(job_summary.markdown(str(tmp_path))).splitlines()
    assert lines[2:2 + len(rows)] == rows
    assert lines[-2:] == ["<pre>--- cenote dry-run x", html.escape("loss = a < b") + "</pre>"]
