"""`cenote dry-run --advise`: what each remedy gives, by running small programs with it, beside what arithmetic says it must give."""
import json
import textwrap

import pytest
from conftest import caller, nursery_with
from spoken import said

MIB = 1 << 20
BLOCKS, WIDTH, ROWS = 12, 256, 4096
ACTIVATION = ROWS * WIDTH * 4  # bytes of what a block gets, 4 MiB
PARAMETERS = BLOCKS * 4 * (8 * WIDTH * WIDTH + 5 * WIDTH)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

MODEL = f"""
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear({WIDTH}, {4 * WIDTH}), torch.nn.Linear({4 * WIDTH}, {WIDTH})

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Block() for _ in range({BLOCKS})])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Net().cuda()
"""
LOOP = f"""
    for step in range(3):
        loss = model(torch.zeros({ROWS}, {WIDTH}, device="cuda")).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
KEEPING = LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")
SGD = "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
ADAM = "    optimizer = torch.optim.AdamW(model.parameters())\n"


@pytest.fixture(scope="module")
def python():
    """PyTorch imports torch._dynamo when a program builds its first optimizer, which takes longer than all else that these programs do."""
    nursery = nursery_with("torch._dynamo", "torch.distributed.fsdp")
    yield nursery.python
    nursery.close()


@pytest.fixture
def nursed_run(python, clean, tmp_path):
    return caller(python, clean, tmp_path)


@pytest.fixture
def advised(nursed_run, tmp_path):
    """advised(code, OPTION...): the finished command, and rows of its table by the names of their remedies."""
    def call(code, *options, only="", gpu="4GiB"):
        (tmp_path / "train.py").write_text(textwrap.dedent(code))
        done = nursed_run("dry-run", "--gpu", gpu, f"--advise={only}" if only else "--advise", "--json", "out.json", *options, "train.py")
        assert (tmp_path / "out.json").exists(), done.stderr
        found = json.loads((tmp_path / "out.json").read_text())
        rows = {" + ".join(row["remedies"]) + (f" {row['value']}" if row["value"] else ""): row for row in found["advice"]["rows"]}
        return done, rows, found
    return call


def test_activations_and_types(advised):
    """With checkpointing, forward keeps the input of each block, and backward what one block makes. With autocast, what products make is half as
    large. With bfloat16 all is."""
    done, rows, found = advised(MODEL + ADAM + KEEPING, only="checkpointing,autocast,bfloat16,8bit,freed-gradients")
    assert done.returncode == 0, done.stderr
    advice, device = found["advice"], found["processes"][0]["devices"]["0"]
    kinds, needs = device["kinds"], found["advice"]["as_it_is"]
    assert needs == device["live_peak"] + device["others"] and needs == found["least_needed"]
    # as it is, a block keeps its input, and four times that from relu, which down needs, too; up's result is freed
    assert kinds["activations"] >= (BLOCKS - 1) * 5 * ACTIVATION
    checkpointing, autocast, half, eight = (rows[name] for name in ("checkpointing", "autocast", "bfloat16", "8bit"))
    assert needs - checkpointing["needs"] == checkpointing["saved"] > (BLOCKS - 2) * 4 * ACTIVATION
    assert BLOCKS * ACTIVATION <= sum(size for kind, size in checkpointing["kinds"].items() if kind.startswith("activations")) < 24 * ACTIVATION
    assert (checkpointing["title"], checkpointing["numerics"]) == ("checkpointing, 12 blocks Block", "same")
    assert autocast["saved"] > (BLOCKS - 2) * ACTIVATION and autocast["kinds"]["parameters"] == kinds["parameters"]
    assert half["kinds"]["parameters"] == PARAMETERS // 2 and kinds["parameters"] == PARAMETERS
    assert half["kinds"]["optimizer state"] == pytest.approx(PARAMETERS, rel=0.01) and half["saved"] > 0.4 * sum(kinds.values())
    # two bytes for each number of a weight, two scales of 4 bytes for each 256, eight bytes for each number of a bias, and the two maps
    weights = BLOCKS * 8 * WIDTH * WIDTH
    expected = weights * (2 + 8 / 256) + BLOCKS * 5 * WIDTH * 8 + 2048
    assert expected <= eight["kinds"]["optimizer state"] < expected + 24 * 4 * 512 and eight["numerics"] == "rounded"
    assert 2 * PARAMETERS <= kinds["optimizer state"] < 2 * PARAMETERS + 24 * 4 * 512
    # gradients of the step before are there as backward begins; without them, the last block has new ones before much else is freed
    assert 0.85 * PARAMETERS <= rows["freed-gradients"]["saved"] <= PARAMETERS
    assert all(row["verdict"] == "fits" for row in rows.values()) and "torch.utils.checkpoint.checkpoint(block" in done.stdout
    assert advice["left_out"] == {}


NUMBERS = 1 << 18
WEIGHTS = 24 * 4 * NUMBERS
WEIGHTS_ALONE = f"""
    import torch

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros({NUMBERS}, device="cuda") for _ in range(24))

        def forward(self):
            return sum(weight.sum() for weight in self.weights)

    model = Sums()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        loss = model()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_steps(advised):
    """A program of weights alone, 24 alike, whose peak is in the step: parameters, gradients, two states, and the square roots of foreach."""
    done, rows, found = advised(WEIGHTS_ALONE, only="fused,8bit,in-backward,freed-gradients")
    assert done.returncode == 0, done.stderr
    whole = found["processes"][0]["devices"]["0"]["live_peak"]
    assert 5 * WEIGHTS <= whole < 5 * WEIGHTS + MIB
    left = {name: whole - row["saved"] for name, row in rows.items()}
    assert 4 * WEIGHTS <= left["fused"] < 4 * WEIGHTS + MIB and rows["fused"]["line"] == "AdamW(..., fused=True)"
    one = 4 * NUMBERS
    assert 3 * WEIGHTS + one <= left["in-backward"] < 3 * WEIGHTS + 4 * one and rows["in-backward"]["numerics"] == "same"
    states = 24 * (2 * NUMBERS + 2 * 4 * NUMBERS // 256)
    assert 2 * WEIGHTS + states <= left["8bit"] < 2 * WEIGHTS + states + MIB and rows["8bit"]["numerics"] == "rounded"
    assert -MIB < rows["freed-gradients"]["saved"] < MIB  # in the step there are gradients


REFUSED = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.utils.checkpoint.checkpoint(model, torch.zeros(8, 512, device="cuda"), use_reentrant=False).sum()
        for half in range(2):
            loss.backward(retain_graph=not half)
        optimizer.step()
"""


def test_what_the_program_does_already(advised):
    done, rows, found = advised(REFUSED, only="checkpointing,autocast,bfloat16,fused,8bit,in-backward,freed-gradients")
    assert done.returncode == 0 and list(rows) == ["bfloat16"], done.stderr
    assert found["advice"]["left_out"] == {
        "checkpointing": "the program checkpoints already", "autocast to bfloat16": "the program uses autocast already",
        "fused step of the optimizer": "the optimizer steps without foreach already",
        "Adam with states of 8 bits, modelled on bitsandbytes": "the optimizer is SGD, and no Adam or AdamW of torch.optim",
        "step in backward": "gradients are summed over 2 calls of backward",
        "gradients freed after the step": "no gradient lives from one step into the next forward"}


def test_what_has_nothing_to_change_is_left_out(advised):
    done, rows, found = advised("""
        import torch
        model = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16).eval()
        with torch.no_grad():
            model(torch.zeros(64, 1024, device="cuda", dtype=torch.bfloat16))
    """)
    assert done.returncode == 0 and rows == {}, done.stderr
    left_out = found["advice"]["left_out"]
    assert left_out["checkpointing"] == "no model was called in training" and left_out["autocast to bfloat16"] == "the model has no float32 weights"
    assert left_out["step in backward"] == "no optimizer stepped" and len(left_out) == 10
    assert "none of the remedies" in done.stdout and "not tried: checkpointing: no model was called in training" in done.stdout


def test_a_remedy_that_breaks_the_program_has_a_row(advised):
    """This program refuses half precision; the other rows stay."""
    refuses = LOOP.replace("loss.backward()", "assert loss.dtype is torch.float32, 'too coarse'; loss.backward()")
    code = (MODEL + SGD + refuses).replace("return x + self.down", "return self.down")
    done, rows, found = advised(code, only="checkpointing,autocast")
    assert done.returncode == 0 and rows["checkpointing"]["verdict"] == "fits"
    assert rows["autocast"]["verdict"] == "unknown" and rows["autocast"]["needs"] is None
    assert "AssertionError" in rows["autocast"]["failed"] and "too coarse" in rows["autocast"]["failed"]
    assert "too coarse" in said(done.stdout)


def test_it_does_not_fit(advised, nursed_run, tmp_path):
    """Without --advise the verdict names the command; with it, rows say which remedy makes it fit on this card."""
    gpu = f"{(564 * MIB + PARAMETERS * 2 + BLOCKS * 2 * ACTIVATION) // MIB + 64}MiB"
    done, rows, found = advised(MODEL + SGD + LOOP, only="checkpointing,autocast", gpu=gpu)
    assert done.returncode == 1 and found["verdict"] == "fits not"
    assert rows["checkpointing"]["verdict"] == "fits" and rows["autocast"]["verdict"] == "fits not", rows
    plain = nursed_run("dry-run", "--gpu", gpu, "train.py")
    assert plain.returncode == 1 and f"what would help, in numbers: cenote dry-run --advise --gpu {gpu} train.py" in plain.stdout
    assert "in numbers" not in done.stdout


DATA = f"for x in torch.utils.data.DataLoader(torch.zeros(256, 64, {WIDTH}), batch_size=64):"
ZEROS = f'torch.zeros({ROWS}, {WIDTH}, device="cuda")'


def test_a_batch_of_a_loader(advised):
    done, rows, found = advised(MODEL + ADAM + LOOP.replace("for step in range(3):", DATA).replace(ZEROS, "x.cuda()"), only="batch")
    assert done.returncode == 0 and found["steps"] == 4, done.stderr
    half = rows["batch 32"]
    assert half["title"] == "half the batch, 32 instead of 64" and half["line"] == "DataLoader(..., batch_size=32)" and half["numerics"] == "changed"
    assert half["kinds"]["inputs"] * 2 == found["processes"][0]["devices"]["0"]["kinds"]["inputs"] == ACTIVATION
    largest = next(row for name, row in rows.items() if row is not half)
    assert 64 < largest["value"] <= 256 and largest["title"].startswith("largest batch, ") and largest["verdict"] == "fits"


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--eval-batch-size", type=int, default=8)
    options = parser.parse_args()
"""


def test_a_batch_that_is_an_argument(advised):
    """The largest batch that fits is found by runs: with it the program fits on this card, with one more it does not."""
    code = "    import torch\n" + ARGUMENTS + MODEL + SGD + LOOP.replace(f"torch.zeros({ROWS},", f"torch.zeros({ROWS // 16} * options.batch_size,")
    gpu = f"{(564 * MIB + PARAMETERS * 2 + BLOCKS * 4 * ACTIVATION) // MIB}MiB"
    done, rows, found = advised(code, only="batch-argument", gpu=gpu)
    assert done.returncode == 1, done.stderr
    half, largest = rows.pop("batch-argument 8"), next(iter(rows.values()))
    assert half["verdict"] == "fits" and half["line"] == "--batch-size 8"
    assert 8 < largest["value"] < 15 and largest["verdict"] == "fits" and largest["line"] == f"--batch-size {largest['value']}"
    assert f"batch of {largest['value'] + 1}: does not fit" in done.stderr


def test_shards(advised):
    """Rank 0 of 4 has a quarter of parameters, gradients and state, and one block at a time whole."""
    done, rows, found = advised(MODEL + ADAM + LOOP.replace(str(ROWS), "16"), only="fsdp=4")
    assert done.returncode == 0 and list(rows) == ["fsdp 4"], done.stderr
    sharded, whole = rows["fsdp 4"], found["processes"][0]["devices"]["0"]["kinds"]
    assert sharded["verdict"] == "fits" and sharded["title"] == "FSDP, over 4 GPUs", sharded
    assert sharded["kinds"]["optimizer state"] == pytest.approx(whole["optimizer state"] / 4, rel=0.02)
    assert sharded["kinds"]["parameters"] == pytest.approx(whole["parameters"] / 4, rel=0.02)


@pytest.mark.parametrize("text, why", [("zero", "is no remedy; there are checkpointing, autocast"), ("8bit=2", "takes no number"),
                                       ("fsdp=1", "is not fsdp=K for K GPUs"), ("fsdp=", "is not fsdp=K"), ("", "is no remedy")])
def test_a_mistake_is_a_line(run, text, why):
    done = run("dry-run", "--gpu", "1GiB", f"--advise={text}", "train.py")
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
