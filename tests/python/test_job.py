"""Which job `cenote dry-run --world` means, what torchrun's arguments come to, and how ranks are started. Nothing here imports PyTorch."""
import argparse
import json
import os
import sys
import time

import pytest

from cenote.base.mistake import Mistake
from cenote.fit import job, verdict
from cenote.fit.outcome import Outcome
from cenote.launch import ranks
from cenote.launch.ranks import Job


def options(text=""):
    parser = argparse.ArgumentParser()
    job.add_options(parser)
    parser.add_argument("--devices", type=int)
    return parser.parse_args(text.split())


def read(text, *program):
    return job.read(options(text), list(program))


@pytest.mark.parametrize("text, program, expected", [
    ("--world 1024", ["train.py"], (Job(1024, 8, (0,)), [sys.executable, "train.py"])),
    ("--world 1024 --rank 1023,0,511", ["train.py"], (Job(1024, 8, (0, 511, 1023)), [sys.executable, "train.py"])),
    ("--world 2", ["-m", "my.training"], (Job(2, 2, (0,)), [sys.executable, "-m", "my.training"])),
    ("--world 12 --node 4 --rank 11", ["--", "python", "x"], (Job(12, 4, (11,)), ["python", "x"])),
    ("--world 12 --devices 4", ["train.py"], (Job(12, 4, (0,)), [sys.executable, "train.py"])),
    ("", ["train.py"], None),
    ("", ["--", "torchrun", "--nproc-per-node", "8", "train.py"], None),
    ("", ["--", "torchrun", "--nnodes", "128", "--nproc-per-node=8", "--rdzv_backend", "c10d", "train.py", "--nnodes", "3"],
     (Job(1024, 8, (0,)), [sys.executable, "train.py", "--nnodes", "3"])),
    ("--rank 7", ["--", "/usr/bin/torchrun", "--standalone", "--nproc_per_node", "8", "-m", "train", "x"],
     (Job(8, 8, (7,)), [sys.executable, "-m", "train", "x"])),
    ("--rank 0", ["--", sys.executable, "-m", "torch.distributed.run", "--nnodes=2:2", "--nproc-per-node", "gpu", "--no-python", "--", "./train"],
     (Job(16, 8, (0,)), ["./train"])),
    ("--world 8 --node 4", ["--", "torchrun", "--nnodes", "2", "--nproc-per-node", "auto", "train.py"],
     (Job(8, 4, (0,)), [sys.executable, "train.py"])),
])
def test_jobs(tmp_path, monkeypatch, text, program, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # not every machine has a `python`
    assert read(text, *program) == expected


@pytest.mark.parametrize("text, program, words", [
    ("--rank 3", ["train.py"], "need --world"),
    ("--node 3", ["train.py"], "need --world"),
    ("--world 8 --rank 8", ["train.py"], "--rank 8: a job of 8 ranks has 0 to 7"),
    ("--world 12", ["train.py"], "12 ranks are no whole number of nodes of 8"),
    ("--world 12 --node 8", ["train.py"], "no whole number of nodes of 8"),
    ("--world 4 --node 8", ["train.py"], "no whole number of nodes of 8"),
    ("--world 16 --devices 4 --node 8", ["train.py"], "contradict"),
    ("--world 16", ["--", "torchrun", "--nnodes", "3", "--nproc-per-node", "8", "train.py"], "come to 24"),
    ("--node 4", ["--", "torchrun", "--nnodes", "3", "--nproc-per-node", "8", "train.py"], "come to 8"),
    ("", ["--", "torchrun", "--nnodes", "1:4", "train.py"], "is a range"),
    ("", ["--", "torchrun", "--nnodes", "0", "train.py"], "--nnodes is 0"),
    ("", ["--", "torchrun", "--nnodes", "2", "--nproc-per-node", "xpu", "train.py"], "is no number"),
    ("", ["--", "torchrun", "--nnodes", "2", "--nproc-per-node", "17", "train.py"], "at most 16"),
    ("", ["--", "torchrun", "--nnodes", "2", "--fast", "train.py"], "'--fast' is no option of torchrun"),
    ("", ["--", "torchrun", "--nnodes", "2"], "no script"),
])
def test_mistakes(text, program, words):
    with pytest.raises(Mistake) as mistake:
        read(text, *program)
    assert words in str(mistake.value) and "\n" not in str(mistake.value)


@pytest.mark.parametrize("text", ["--world 0", "--world -1", "--world 9999999999", "--rank x", "--rank 1,,2", "--node 0", "--node 17",
                                  "--rank " + ",".join(map(str, range(65)))])
def test_numbers_that_are_none(text, capsys):
    with pytest.raises(SystemExit):
        options(text)
    assert "Traceback" not in capsys.readouterr().err


def test_a_mistake_is_one_line(run, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = run("dry-run", "--gpu", "80GiB", "--world", "12", "train.py")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("cenote dry-run: 12 ranks are no whole number") and done.stderr.count("\n") == 1


# --- starting ranks

SHOW = "import json, os, sys; json.dump(dict(os.environ), open(os.path.join(sys.argv[1], 'rank' + os.environ['RANK']), 'w'))"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def play(job, folder, code):
    return ranks.play(job, str(folder), [sys.executable, "-S", "-c", code, str(folder.parent)])


def test_what_a_rank_finds_in_its_environment(folder, monkeypatch):
    monkeypatch.setenv("CENOTE_SIM", "capacity:80GiB,machine:run-1,devices:4")
    assert play(Job(12, 4, (0, 6, 11)), folder, SHOW) == 0
    found = {rank: json.loads((folder.parent / f"rank{rank}").read_text()) for rank in (0, 6, 11)}
    assert [[found[rank][name] for name in ("LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "CENOTE_PHANTOMS")]
            for rank in (0, 6, 11)] == [[local, node, "12", "4", "3", "0,6,11"] for local, node in (("0", "0"), ("2", "1"), ("3", "2"))]
    assert [found[rank]["CENOTE_SIM"] for rank in (0, 11)] == ["capacity:80GiB,machine:run-1-0,devices:4", "capacity:80GiB,machine:run-1-2,devices:4"]
    assert {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "ROLE_RANK"} <= set(found[0])


def test_one_that_fails_ends_the_others(folder, capfd):
    code = "import os, sys, time\nif os.environ['RANK'] == '5':\n    print('I am five', flush=True); os._exit(7)\ntime.sleep(1000)"
    began = time.monotonic()
    assert play(Job(8, 8, (0, 5, 7)), folder, code) == 7
    assert time.monotonic() - began < 900
    assert "rank 5 printed last:\nI am five\n" in capfd.readouterr().err
    report, = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    assert report["rank"] == "5" and report["error"]["type"] == "exit status 7"
    outcome = Outcome(1 << 30, "cenote", -1, 7, [report], "", world=8)
    assert outcome.verdict == "unknown" and verdict.why_unknown(outcome) == "rank 5: the script ended with exit status 7, in step 1"


def test_a_rank_that_is_killed(folder):
    assert play(Job(4, 4, (2,)), folder, "import os; os.kill(os.getpid(), 9)") == 256 - 9
    report, = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    assert report["error"]["type"] == "signal 9 (SIGKILL)"


def test_ranks_that_are_needed_are_added(folder, capfd):
    """Each stage of a pipeline needs the one before it."""
    code = """
import os, sys
rank, real = int(os.environ["RANK"]), os.environ["CENOTE_PHANTOMS"].split(",")
open(os.path.join(sys.argv[1], f"ran-{rank}-of-{'-'.join(real)}"), "w")
if rank and str(rank - 4) not in real:
    open(os.path.join(sys.argv[1], "reports", f"{rank - 4}.needed"), "w")
    sys.exit(1)
"""
    assert play(Job(16, 8, (12,)), folder, code) == 0
    err = capfd.readouterr().err
    assert [err.count(f"again with rank {rank} real") for rank in (8, 4, 0)] == [1, 1, 1]
    assert {path.name for path in folder.parent.glob("ran-*-of-0-4-8-12")} == {f"ran-{rank}-of-0-4-8-12" for rank in (0, 4, 8, 12)}
    assert {*os.listdir(folder)} == {f"{rank}.ended" for rank in (0, 4, 8, 12)}


def test_not_without_end(folder, monkeypatch):
    monkeypatch.setattr(ranks, "REAL_MAX", 3)
    code = """
import os, sys
next_one = 10 + len(os.environ["CENOTE_PHANTOMS"].split(","))
open(os.path.join(sys.argv[1], "reports", f"{next_one}.needed"), "w")
sys.exit(3)
"""
    assert play(Job(64, 8, (1,)), folder, code) == 3
