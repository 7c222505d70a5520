"""`cenote dry-run` gives a verdict on unchanged scripts: fits; does not fit, and where; or no verdict, and why."""
import importlib.util
import json
import os
import re
import sys
import tempfile
import textwrap

import pytest
from conftest import ROOT
from spoken import said

MIB = 1 << 20

TRAIN = """
    import argparse, os, torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    batch = int(os.environ.get("BATCH", 0)) or parser.parse_args().batch_size

    def main():
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(20):
            x = torch.empty(batch * MIB // 1024, 256, device="cuda")     # 1 MiB for each of the batch
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        main()
        print("the end")
""".replace("MIB", str(MIB))


@pytest.fixture
def dry(run, nursed_run, tmp_path):
    """dry(code, OPTION...): the finished command, and its JSON. `code` becomes train.py; with `fresh` a new Python runs it."""
    def call(code, *options, arguments=(), fresh=False, **variables):
        (tmp_path / "train.py").write_text(textwrap.dedent(code))
        done = (run if fresh else nursed_run)("dry-run", "--json", tmp_path / "out.json", *options, "train.py", *arguments, **variables)
        text = (tmp_path / "out.json").read_text() if (tmp_path / "out.json").exists() else ""
        assert "Traceback" not in said(done.stderr) or 'File "' in done.stderr and "train.py" in done.stderr, done.stderr
        return done, json.loads(text) if text else {}
    return call


def line_of(code, text):
    return next(number for number, line in enumerate(textwrap.dedent(code).splitlines(), 1) if text in line)


pytestmark = [pytest.mark.torch, pytest.mark.simulation]


def test_it_fits(dry):
    done, found = dry(TRAIN, "--gpu", "2GiB", fresh=True)
    assert done.returncode == 0, done.stderr
    assert "\nfits: peak " in done.stdout and "\n  it would get through with " in done.stdout and "tight" not in done.stdout
    assert "5 steps of the optimizer, then ended" in done.stdout and "the end" not in done.stdout.splitlines()
    device = found["processes"][0]["devices"]["0"]
    assert found["verdict"] == "fits" and found["steps"] == 5 and device["peak_step"] == 2
    assert sum(device["kinds"].values()) == device["live_peak"] == sum(device["phases"].values())
    # two layers of 256 x 1024 and biases, and twice that for AdamW's averages; each is a block of its own
    parameters = 4 * (2 * 256 * 1024 + 1024 + 256)
    assert parameters <= device["kinds"]["parameters"] < parameters + 4096
    assert 2 * parameters <= device["kinds"]["optimizer state"] < 2 * parameters + 16384
    assert device["live_peak"] > 16 * MIB * 9  # x, and two activations of four times its width
    assert found["needed"] == device["reserved_peak"] + device["others"]


def test_it_does_not_fit(dry, tmp_path):
    done, found = dry(TRAIN, "--sim", "1GiB", "--allocator", "cenote", arguments=["--batch-size", "128"])
    assert done.returncode == 1
    number = line_of(TRAIN, "model(x)")
    assert f"does not fit: memory ran out in step 1, forward, at train.py:{number}\n    loss = model(x).sum()" in done.stdout
    assert "missing" in done.stdout and "no allocator would make it fit: the tensors that are live at one time are too large" in done.stdout
    size = "[0-9.]+ MiB"
    assert re.search(rf"  asked for {size}; in use: {size} of tensors \+ {size} of CUDA context and libraries, of 1.00 GiB\n", done.stdout)
    assert "  smallest known cards that would be enough: rtx4060 (7.75 GiB), " in done.stdout and "answer is for cenote" not in done.stdout
    assert "Advice:" not in done.stderr and "CUDA out of memory" in done.stderr
    again = f"--sim 1GiB --allocator cenote train.py --batch-size 128"
    assert f"in numbers: cenote dry-run --advise -v {again}\n" in done.stdout.replace("'", "")
    assert found["failure"]["phase"] == "forward" and found["largest"]["verdict"] == "fits"
    assert found["missing"] == found["largest"]["least_needed"] - (1 << 30) > 0
    needed = found["largest"]["needed"]  # with that much it fits
    done, found = dry(TRAIN, "--allocator", "cenote", "--gpu", str(-(-needed // (2 * MIB)) * 2 * MIB), arguments=["--batch-size", "128"])
    assert done.returncode == 0 and found["verdict"] == "fits", done.stdout
    done, _ = dry(TRAIN, "--allocator", "cenote", "--gpu", str((found["needed"] // (2 * MIB) + 8) * 2 * MIB), arguments=["--batch-size", "128"])
    assert done.returncode == 0 and "that is tight: some programs needed 5 % more on a card than in a dry run" in done.stdout, done.stdout


def test_in_backward(dry):
    code = """
        import torch
        class Greedy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g + torch.empty(3 << 30, device="cuda", dtype=torch.uint8).float()[:1].sum()
        x = torch.ones(4, device="cuda", requires_grad=True)
        Greedy.apply(x).sum().backward()
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 1 and found["failure"]["phase"] == "backward"
    assert f"train.py:{line_of(code, 'return g + ')}" in done.stdout


def test_in_backward_without_python(dry):
    code = """
        import torch
        a = torch.ones(8192, 8192, device="cuda", requires_grad=True)     # 256 MiB
        b = a.exp()
        c = b.exp()
        optimizer = torch.optim.SGD([a], 0.1)
        c.sum().backward()
        optimizer.step()
    """
    done, found = dry(code, "--gpu", "1500MiB")
    assert done.returncode == 1 and found["failure"]["phase"] == "backward"
    assert "never stepped" not in done.stdout  # where there is enough memory it has
    assert f"at train.py:{line_of(code, 'backward()')}\n    c.sum().backward()" in done.stdout


CAUGHT = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = 1 << 20
    for step in range(8):
        while True:
            try:
                model(torch.empty(batch, 1024, device="cuda")).sum().backward()
                break
            except torch.OutOfMemoryError:
                batch //= 4
        optimizer.step()
"""


@pytest.mark.parametrize("way", ["then", "from"])
def test_another_error_after_memory_ran_out(dry, way):
    """No verdict; but what is raised while an out of memory is handled is that out of memory."""
    code = """
        import torch
        try:
            torch.empty(8 << 30, device="cuda")
        except torch.OutOfMemoryError as error:
            if "from" == "WAY":
                raise RuntimeError("a smaller batch, please") from error
        open("/nonexistent/data")
    """.replace("WAY", way)
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == (3 if way == "then" else 1) and found["verdict"] == ("unknown" if way == "then" else "fits not"), done.stdout
    assert ("memory had run out before, in step 1" in done.stdout) == (way == "then")


def test_an_error_that_is_caught(dry):
    done, found = dry(CAUGHT, "--gpu", "3GiB")
    assert done.returncode == 4 and found["caught"] and found["out_of_memory"] >= 1 and found["steps"] == 5
    assert "fits after it caught an out of memory: memory ran out in step 1" in done.stdout
    assert "without that error it needs at least" in done.stdout and "make it fit" not in done.stdout
    assert "the error was caught" in done.stdout and "5 steps" in done.stdout


def test_what_a_library_takes_after_an_error_that_is_caught(dry):
    """PyTorch held the whole card, gave it back, and cuBLAS took a part of it: together that is more than the card has, at no one time."""
    done, found = dry("""
        import torch
        try:
            whole = torch.empty(min(torch.cuda.mem_get_info()[0] - (16 << 20), 1 << 30), dtype=torch.uint8, device="cuda")
            more = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            del whole
            torch.cuda.empty_cache()
        ones = torch.ones(256, 256, device="cuda")
        ones @ ones
    """, "--gpu", "1GiB", "--advise=fused")
    device = found["processes"][0]["devices"]["0"]
    assert device["reserved_peak"] + device["others"] > 1 << 30 and done.returncode == 4, done.stderr
    assert "held 1.00 GiB at most" in done.stdout and found["advice"]["rows"] == []


def test_fragmentation_is_the_allocators(dry):
    """The live bytes fit; under cenote the script fits, too, and under PyTorch's own allocator it does not."""
    code = """
        import torch
        blocks = [torch.empty(48 << 20, dtype=torch.uint8, device="cuda") for _ in range(60)]     # 2.8 GiB in segments of their own
        del blocks
        small = [torch.empty(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(116)]
        del small[::2]
        large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    """
    done, found = dry(code, "--gpu", "3500MiB", "--allocators", "--allocator", "cenote")
    assert done.returncode == 0, done.stdout
    assert [one["allocator"] for one in found["others"]] == ["native", "expandable"]
    assert found["others"][0]["verdict"] == "fits not" and "under which allocator it fits: cenote (CENOTE=on)" in done.stdout
    done, found = dry(code, "--gpu", "3500MiB")
    assert [one["allocator"] for one in found["others"]] == ["expandable", "cenote"] and "under which allocator it fits: cenote" in done.stdout
    assert done.returncode == 1 and found["missing"] == 0 and "which is less than" in done.stdout


def test_another_error_is_no_verdict(dry):
    done, _ = dry("import torch\ntorch.ones(1, device='cuda')\nraise KeyError('lost')\n", "--gpu", "2GiB")
    assert done.returncode == 3
    assert "no verdict: the script ended with KeyError at train.py:3: 'lost', in step 1" in done.stdout


@pytest.mark.parametrize("code, words", [
    ("print('hello')", "did not import a PyTorch"),
    ("import torch", "used no GPU"),
    ("import torch, sys; torch.ones(1, device='cuda'); sys.exit(9)", "exit status 9"),
    ("import torch, os; torch.ones(1, device='cuda'); os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ("def broken(", "exit status 1"),
])
def test_no_verdict(dry, code, words):
    done, _ = dry(code, "--gpu", "2GiB", fresh="torch" not in code)
    assert done.returncode == 3 and "no verdict" in done.stdout and words in done.stdout


def test_workspaces_among_weights_of_their_size(dry):
    """32 MiB, as the weights: each block of that size is asked by whom it was taken, not only the first ones."""
    code = """
        import torch
        model = torch.nn.Sequential(*[torch.nn.Linear(*sizes, bias=False) for sizes in [(2048, 4096), (4096, 2048)] * 9]).cuda()
        model(torch.randn(8, 2048, device="cuda")).sum().backward()
    """
    _, found = dry(code, "--gpu", "4GiB", "--steps", "0")
    kinds = found["processes"][0]["devices"]["0"]["kinds"]
    assert kinds["workspaces of cuBLAS"] == 32 * MIB and kinds["parameters"] == kinds["gradients"] == 18 * 32 * MIB


def test_without_an_adapter(dry, tmp_path):
    """PyTorch's interface for other allocators tells neither peaks nor what ran out of memory."""
    without = {"CXX": "/nonexistent/c++", "XDG_CACHE_HOME": str(tmp_path / "none"), "fresh": True}
    code = "import torch\ntorch.ones(1 << 28, device='cuda')\n"
    done, _ = dry(code, "--gpu", "2GiB", "--allocator", "cenote", **without)
    assert done.returncode == 3 and "no C++ compiler" in done.stderr
    assert "no verdict: a dry run under cenote needs the adapter to PyTorch" in done.stdout and "--allocator native" in done.stdout
    done, found = dry(code, "--gpu", "2GiB", "--allocator", "native", **without)
    assert done.returncode == 0 and found["verdict"] == "fits", done.stderr


def test_a_killed_program_has_told_what_it_knew(dry):
    code = """
        import os, torch
        try:
            torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            os.kill(os.getpid(), 9)
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 1 and "at train.py:4" in done.stdout and "then the program was killed by SIGKILL" in done.stdout
    assert found["failure"]["bytes"] >= 9 << 30


def test_no_more_than_the_largest_gpu(dry):
    done, _ = dry("import torch\ntorch.empty(1 << 45, dtype=torch.uint8, device='cuda')\n", "--gpu", "2GiB")
    assert done.returncode == 1 and "needs more than 1TiB" in done.stdout


def test_workers_write_nothing(dry):
    code = """
        import torch
        from torch.utils.data import DataLoader
        if __name__ == "__main__":
            for how in ("fork", "spawn"):
                for batch in DataLoader(torch.arange(8), num_workers=2, multiprocessing_context=how):
                    batch.cuda()
    """
    _, found = dry(code, "--gpu", "2GiB", fresh=True)
    assert found["verdict"] == "fits" and len(found["processes"]) == 1


def test_to_the_end_and_resetting_peaks_changes_nothing(dry):
    code = """
        import torch
        torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        optimizer = torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)], 0.1)
        for _ in range(20):
            optimizer.step()
        print("the end")
    """
    for allocator in ("cenote", "native"):
        done, found = dry(code, "--gpu", "2GiB", "--allocator", allocator, "--steps", "0")
        assert done.stdout.startswith("the end\n") and found["steps"] == 20 and not found["ended_after_steps"]
        assert found["processes"][0]["allocator"] == allocator and found["processes"][0]["devices"]["0"]["live_peak"] >= 512 * MIB


def test_search_of_an_argument(dry):
    done, found = dry(TRAIN, "--gpu", "1GiB", "--allocator", "cenote", "--search", "batch_size=8..512:8", arguments=["--batch-size=9"])
    best = found["largest"]
    assert done.returncode == 0 and 8 < best < 56, done.stdout + done.stderr
    assert f"largest that fits: batch_size={best}" in done.stdout and f"batch_size={best + 8} does not: memory ran out in step" in done.stdout
    verdicts = {int(value): one["verdict"] for value, one in found["tried"].items()}
    assert verdicts[best] == "fits" and verdicts[best + 8] == "fits not" and verdicts == dict(sorted(verdicts.items()))
    assert found["runs"] == len(verdicts) <= 5  # of 64 values
    assert "grow with batch_size, and the rest does not: 13.0 MiB for each 1, as seen between" in done.stdout


def test_a_search_that_catches_the_error_and_one_that_reaches_its_end(dry):
    code = CAUGHT.replace("import torch", "import sys, torch").replace("1 << 20", "int(sys.argv[-1]) << 16")
    done, found = dry(code, "--gpu", "3GiB", "--search", "n=1,2,4,16,17")
    verdicts = {int(value): one["verdict"] for value, one in found["tried"].items()}
    assert found["largest"] == 4 and verdicts[4] == "fits" and verdicts[16] == "caught", done.stdout  # the error is caught from 5 on
    done, found = dry(code, "--gpu", "3GiB", "--search", "n=1,2")
    assert found["largest"] == 2 and "2 is the largest that you asked for: a larger one may fit, too" in done.stdout


def test_a_search_where_memory_falls(dry):
    code = """
        import sys, torch
        kept = torch.empty([0, 700, 100, 9000, 200][int(sys.argv[-1])] << 20, dtype=torch.uint8, device="cuda")
    """
    done, found = dry(code, "--gpu", "2GiB", "--search", "n=1..4")
    assert found["largest"] == 4 and sorted(found["tried"]) == ["1", "2", "4"]
    assert "memory falls from 1.17 GiB at n=1 to 600.0 MiB at 2: values that were not tried may be otherwise" in done.stdout


def test_runs_from_where_the_first_has_read_its_arguments(dry):
    """They give the figures of runs from the start, to the byte. What the program did before is done."""
    code = """
        import os, random, torch
        random.seed(1)
        number = random.random()
        torch.nn.Linear(8, 8)
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--n", type=int)
        n = parser.parse_args().n
        model = torch.nn.Linear(512, 512).cuda()
        for _ in range(n):
            model(torch.rand(1 << 14, 512, device="cuda")).sum().backward()
        assert number == 0.13436424411240122 and random.random() == 0.8474337369372327, number
        kept = torch.empty(n << 20, device="cuda")
        print(n, os.getpid())
    """
    done, found = dry(code, "--gpu", "1GiB", "--search", "n=1,2,3", fresh=True)
    assert (done.returncode, found["largest"], found["runs_from_a_copy"]) == (0, 3, found["runs"] - 1), done.stdout + done.stderr
    assert found["runs"] > 1
    assert "from where the first had read its arguments" in done.stdout
    assert found["tried"]["1"]["processes"][0]["devices"]["0"]["kinds"]["workspaces of cuBLAS"] >= 4 * MIB
    for value, run in found["tried"].items():
        _, fresh = dry(code, "--gpu", "1GiB", arguments=["--n", value])
        assert [process["devices"] for process in fresh["processes"]] == [process["devices"] for process in run["processes"]]


BEFORE_THE_ARGUMENTS = {
    "torch.cuda.is_available()": "the program asks for the GPU",
    "file = open('train.py')": "the program has opened files",
    "import threading, time; threading.Thread(target=time.sleep, args=[3], daemon=True).start()": "the program has started threads",
    "import subprocess; child = subprocess.Popen(['sleep', '3'])": "the program has started processes",
    "torch.ones(1, device='cuda')": "the program uses the GPU",
}


@pytest.mark.parametrize("line", [line if line == "torch.cuda.is_available()" else pytest.param(line, marks=pytest.mark.deep)
                                  for line in BEFORE_THE_ARGUMENTS])
def test_runs_from_the_start_if_the_program_did_more_than_import(dry, line):
    code = f"import sys, torch\n{line}\nkept = torch.empty(int(sys.argv[-1]) << 20, device='cuda')\n"
    done, found = dry(code, "--gpu", "2GiB", "--search", "n=1,2", fresh=True)
    assert (done.returncode, found["largest"], found["runs_from_a_copy"]) == (0, 2, 0), done.stdout + done.stderr
    assert found["why_from_the_start"].startswith(BEFORE_THE_ARGUMENTS[line]), found["why_from_the_start"]


def test_a_run_from_a_copy_that_fails_is_repeated(dry):
    """Here it fails because it is no process of its own, as the program can see."""
    code = """
        import os, torch
        first = os.getpid()
        import sys
        n = int(sys.argv[-1])
        assert os.getpid() == first
        kept = torch.empty(n << 20, device="cuda")
    """
    done, found = dry(code, "--gpu", "2GiB", "--search", "n=1,2", fresh=True)
    assert (done.returncode, found["largest"], found["runs_from_a_copy"]) == (0, 2, 0), done.stdout + done.stderr
    assert found["why_from_the_start"] == "a run from there ended without a verdict"


@pytest.mark.deep
def test_search_of_a_variable(dry):
    done, found = dry(TRAIN, "--gpu", "1GiB", "--search", "BATCH=16,999")
    assert (done.returncode, found["largest"]) == (0, 16)


@pytest.mark.deep
def test_search_that_finds_nothing(dry):
    done, found = dry(TRAIN, "--gpu", "700MiB", "--search", "batch-size=400..500")
    assert (done.returncode, found["largest"]) == (1, None) and "not even batch-size=400 fits" in done.stdout


@pytest.mark.deep
def test_search_without_a_verdict(dry):
    done, _ = dry(TRAIN, "--gpu", "2GiB", "--search", "no_such=1..9")
    assert done.returncode == 3 and "no verdict at no_such=1" in done.stdout and "unrecognized arguments" in done.stdout


@pytest.mark.parametrize("arguments, words", [
    ([], "no program"),
    (["--advise", "train.py"], "are for one card"),
    (["--gpu", "MI300", "train.py"], "a card of AMD's"),
    (["--gpu", "l4x2", "--devices", "4", "train.py"], "the same number of devices"),
    (["--gpu", "80GiB"], "no program"),
    (["--gpu", "80GiB", "missing.py"], "there is no file 'missing.py'"),
    (["--gpu=-80GiB", "train.py"], "is neither a size such as 80GiB nor a card"),
    (["--gpu", "9999TiB", "train.py"], "is not between 1MiB and 1TiB"),
    (["--gpu", "80", "train.py"], "was 80GiB meant?"),
    (["--gpu", "0", "train.py"], "is not between"),
    (["--gpu", "rtx4900", "train.py"], "nor a card that is known: rtx4090"),
    (["--gpu", "a100", "train.py"], "a100-40gb, a100-80gb"),
    (["--search", "n=1..2", "train.py"], "--search is for cards"),
    (["--gpu", "h100,l40", "--advise", "train.py"], "are for one card"),
    (["--gpu", "80GiB", "--devices", "0", "train.py"], "needs 1 or more"),
    (["--gpu", "80GiB", "--devices", "17", "train.py"], "is more than 16"),
    (["--gpu", "80GiB", "--steps", "-1", "train.py"], "is no whole number"),
    (["--gpu", "80GiB", "--search", "x", "train.py"], "is not NAME=LOW..HIGH"),
    (["--gpu", "80GiB", "--search", "x=9..8", "train.py"], "write the lower number first"),
    (["--gpu", "80GiB", "--allocator", "best", "train.py"], "is no allocator"),
    (["--gpu", "80GiB", "--json", "/no/folder/x", "train.py"], "/no/folder/x: "),
    (["--gpu", "80GiB", "-"], "standard input"),
    (["--gpu", "80GiB", "--", "/no/such/program"], "/no/such/program"),
])
def test_bad_use(run, tmp_path, arguments, words):
    (tmp_path / "train.py").write_text("")
    done = run("dry-run", *arguments)
    lines = [line for line in done.stderr.splitlines() if "has no cenote" not in line]
    assert done.returncode == 2 and done.stdout == "" and len(lines) == 1
    assert lines[0].startswith("cenote dry-run: ") and words in lines[0]


def test_help_has_examples(run):
    done = run("dry-run", "--help")
    assert done.returncode == 0 and "--search batch-size=8..512" in done.stdout


def test_which_files_are_libraries():
    from cenote.base import source
    assert source.is_library(os.path.join(tempfile.gettempdir(), "torchinductor_me", "ab", "cab.py"))
    assert not source.is_library(os.path.join(os.sep, "home", "me", "torchinductor_bench", "train.py"))


def test_arguments_are_replaced():
    from cenote.fit.number import with_value
    assert with_value(["t.py", "--batch-size", "4", "--lr", "1"], "batch_size", 8) == ["t.py", "--batch-size", "8", "--lr", "1"]
    assert with_value(["t.py", "--batch_size=4"], "batch-size", 8) == ["t.py", "--batch_size=8"]
    assert with_value(["t.py", "batch_size=4"], "batch_size", 8) == ["t.py", "batch_size=8"]
    assert with_value(["-m", "batch.run"], "batch", 8) == ["-m", "batch.run", "--batch", "8"]
    assert with_value(["t.py", "--no-batch"], "batch", 8) == ["t.py", "--no-batch", "--batch", "8"]


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="ranks of torchrun")
def test_ranks(dry, run, tmp_path):
    (tmp_path / "ddp.py").write_text(textwrap.dedent("""
        import os, torch, torch.distributed as dist
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(20):
            model(torch.ones(256 << dist.get_rank(), 1024, device="cuda")).sum().backward()
            optimizer.step()
    """))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = run("dry-run", "--gpu", "4GiB", "--devices", "2", "--json", "out.json", "--", *torchrun, "ddp.py")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    ranks = [report for report in found["processes"] if report["used_gpu"]]
    assert [(report["rank"], report["steps"]) for report in ranks] == [("0", 5), ("1", 5)]
    assert "rank 0, cuda:0: " in done.stdout and "rank 1, cuda:1: " in done.stdout


SCRIPTS = [("trainer.py", "transformers"), ("torchvision_loop.py", "torchvision"), ("lightning_vit.py", "lightning")]


@pytest.mark.deep
@pytest.mark.parametrize("script, module", SCRIPTS)
def test_scripts_as_documentation_teaches_them(run, tmp_path, script, module):
    """The scripts do not mention cenote."""
    if not importlib.util.find_spec(module) and not os.environ.get("CENOTE_TEST_ALL"):
        pytest.skip(f"{module} is not installed")
    path = ROOT / "examples/dry" / script
    assert "cenote" not in path.read_text()
    done = run("dry-run", "--gpu", "16GiB", "--steps", "2", "--json", "out.json", "--quiet", path, "--batch-size", "2")
    assert done.returncode == 0 and "2 steps of the optimizer, then ended" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    kinds = found["processes"][0]["devices"]["0"]["kinds"]
    assert min(kinds["parameters"], kinds["optimizer state"]) > 32 * MIB


# --- names

NAMED = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(256, 4096), torch.nn.Linear(4096, 256)
        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Block() for _ in range(3))
            self.register_buffer("scale", torch.ones(1 << 20))
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(5):
        x = torch.randn(8192, 256, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("allocator", ["cenote", "native", "expandable"])
def test_what_holds_the_memory_by_name(dry, allocator):
    done, found = dry(NAMED, "--gpu", "4GiB", "--allocator", allocator)
    assert done.returncode == 0, done.stderr
    device = found["processes"][0]["devices"]["0"]
    rows = {(row["kind"], row["name"]): row for row in device["names"]["rows"]}
    assert device["names"]["bytes"] == device["live_peak"] == sum(device["kinds"].values()) == sum(device["phases"].values())
    assert not {"other", "none"} & {*device["kinds"], *device["phases"]}
    weight = rows["parameters", "layers.1.up.weight"]
    assert weight["bytes"] == 4 * 256 * 4096 and weight["shape"] == "4096x256 float32"
    assert rows["optimizer state", "exp_avg of layers.2.down.weight"]["bytes"] == 4 * 256 * 4096
    assert rows["buffers", "scale"]["bytes"] == 4 * MIB and rows["inputs", f"train.py:{line_of(NAMED, 'randn')}"]["bytes"] == 8 * MIB
    up = rows["activations", "layers.0.up"]
    assert up["bytes"] == 128 * MIB and up["line"] == f"train.py:{line_of(NAMED, 'self.down(torch.nn')}"
    assert up["library"].partition(":")[0].endswith("torch/nn/modules/linear.py")
    assert "largest at the peak:" in done.stdout and "activations: layers.*.up (" in done.stdout, done.stdout


def test_the_module_where_memory_ran_out(dry):
    done, found = dry(NAMED, "--gpu", "1150MiB")
    failure = found["failure"]
    assert done.returncode == 1 and failure["place"]["module"].startswith("layers."), failure["place"]
    assert f"  in module {failure['place']['module']}" in done.stdout and "largest when memory ran out:" in done.stdout
    assert not [frame for frame in failure["stack"] if "/cenote/" in frame["file"] and "site-packages" not in frame["file"]]
    assert failure["live"] == failure["names"]["bytes"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare `raise` brings the old traceback back")
def test_tracebacks_have_no_frames_of_ours(dry):
    done, _ = dry("""
        import threading, torch, traceback
        class Bad(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(4, 4)
            def forward(self, x):
                return self.inner(x @ torch.ones(3, 3, device="cuda"))
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1
            def __getitem__(self, number):
                raise KeyError("no data")
        def bad_gradient(gradient):
            raise ValueError("bad gradient")
        def batch():
            return torch.ones(2, 4, device="cuda")
        net = torch.nn.Sequential(Bad()).cuda()
        y = net[0].inner(batch())
        y.register_hook(bad_gradient)
        for fail in (lambda: y.sum().backward(), lambda: next(iter(torch.utils.data.DataLoader(Data())))):
            try:
                fail()
            except (KeyError, ValueError):
                traceback.print_exc()
        thread = threading.Thread(target=lambda: net(batch()))
        thread.start()
        thread.join()
        net(batch())
    """, "--gpu", "1GiB")
    assert done.returncode == 3 and done.stderr.count("Traceback (most recent call last)") == 4, done.stderr
    assert os.path.join(ROOT, "python", "cenote", "") not in done.stderr and "bad gradient" in done.stderr, done.stderr
