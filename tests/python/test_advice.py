"""`cenote dry-run --advise`: what each remedy gives, beside the same program with the line written into it by hand, and beside what arithmetic says.

A row is right if the program, changed by hand as the row says, needs what the row says, to the byte: EDITS has the edit for each remedy.
test_advice_trainers.py does that with programs of the Trainers of Transformers and Lightning.
"""
import importlib.util
import json
import re
import textwrap

import pytest
from conftest import ROOT
from spoken import said

MIB = 1 << 20
STEPS = 3  # the peak is in the second one, and a program that steps in backward ends within its last
EXAMPLE = ROOT / "examples/dry/repeated.py"
PAGE = (ROOT / "docs/dry-run.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.torch, pytest.mark.simulation]


@pytest.fixture
def advised(nursed_run, tmp_path):
    """advised(CODE, ARGUMENT...): the finished command, rows of its table by the names of their remedies, and its JSON."""
    def call(code, *arguments, only="", gpu="4GiB"):
        (tmp_path / "train.py").write_text(textwrap.dedent(code))
        asked = f"--advise={only}" if only else "--advise"
        done = nursed_run("dry-run", "--gpu", gpu, "--allocator", "cenote", "--steps", STEPS, asked, "--json", "out.json", "train.py", *arguments)
        assert (tmp_path / "out.json").exists(), done.stderr
        found = json.loads((tmp_path / "out.json").read_text())
        rows = {" + ".join(row["remedies"]) + (f" {row['value']}" if row["value"] else ""): row for row in found["advice"]["rows"]}
        return done, rows, found
    return call


@pytest.fixture
def by_hand(nursed_run, tmp_path):
    """by_hand(CODE, EDITS, ARGUMENT...): what the edited program needs."""
    def call(code, edits, *arguments, options=(), gpu="80GiB"):
        for old, new in edits:
            assert code.count(old) == 1, old
            code = code.replace(old, new)
        (tmp_path / "by_hand.py").write_text(textwrap.dedent(code))
        done = nursed_run("dry-run", "--gpu", gpu, "--allocator", "cenote", "--steps", STEPS, *options, "--json", "by_hand.json", "by_hand.py",
                          *arguments)
        found = json.loads((tmp_path / "by_hand.json").read_text())
        assert found["verdict"] == "fits", done.stdout
        return found["least_needed"]
    return call


# --- by hand

MODEL, OPTIMIZER, CALL = "model = Net().cuda()", "optimizer = torch.optim.AdamW(model.parameters())", "output = model(x.cuda())"
STEP = "optimizer.step()\n        optimizer.zero_grad(set_to_none=False)"
IN_BACKWARD = """optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in model.parameters()}

    def step_and_free(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_and_free)"""
ON_HOST = """copies = {parameter: parameter.detach().cpu().pin_memory() for parameter in model.parameters()}
    optimizer = torch.optim.AdamW(copies.values())"""
STEP_ON_HOST = """with torch.no_grad():
            for parameter, copy in copies.items():
                copy.grad = parameter.grad.cpu()
            optimizer.step()
            for parameter, copy in copies.items():
                parameter.copy_(copy)
        model.zero_grad(set_to_none=False)"""
SHARDED = """import os
    from torch.distributed.fsdp import fully_shard
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    model = Net()
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)"""
EDITS = {  # of EXAMPLE: what is replaced, and by what
    "checkpointing": [("x = layer(x)", "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)")],
    "offload": [(CALL, 'with torch.autograd.graph.save_on_cpu(pin_memory=True):\n            output = model(x.cuda())')],
    "autocast": [(CALL, 'with torch.autocast("cuda", torch.bfloat16):\n            output = model(x.cuda())')],
    "bfloat16": [(MODEL, "model = Net().to(torch.bfloat16).cuda()"), (CALL, "output = model(x.cuda().to(torch.bfloat16))")],
    "fused": [(OPTIMIZER, "optimizer = torch.optim.AdamW(model.parameters(), fused=True)")],
    "8bit": [(OPTIMIZER, "import bitsandbytes\n    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())")],
    "optimizer-offload": [(OPTIMIZER, ON_HOST), (STEP, STEP_ON_HOST)],
    "in-backward": [(OPTIMIZER, IN_BACKWARD), (STEP, "pass")],
    "freed-gradients": [(STEP, "optimizer.step()\n        optimizer.zero_grad()")],
    "fsdp": [(MODEL, SHARDED)],
}
FEW = "--batch-size", "16"
ROW = "| {} | {:,} | {:,} | {:,} |"
BITSANDBYTES = 966183936  # by hand with 0.50.2, which is not installed for the tests: measured once


def compare(rows, by_hand, options=()):
    """Whether these rows are those by hand, and the table in docs/dry-run.md is made of them."""
    code, lines = EXAMPLE.read_text(), []
    for name, row in rows.items():
        name, _, world = name.partition(" ")
        is_known = name == "8bit" and importlib.util.find_spec("bitsandbytes") is None
        hand = BITSANDBYTES if is_known else by_hand(code, EDITS[name], *FEW, options=options)
        assert row["needs"] == hand, (name, row["needs"], hand)
        lines.append(ROW.format(f"`{name}`" + (f" over {world} GPUs" if world else ""), row["needs"], hand, row["needs"] - hand))
    assert "\n".join(lines) in PAGE, "\n".join(lines)


def test_rows_are_true(advised, by_hand):
    only = "checkpointing,offload,autocast,bfloat16,fused,8bit,optimizer-offload,in-backward,freed-gradients"
    done, rows, found = advised(EXAMPLE.read_text(), *FEW, only=only, gpu="80GiB")
    assert done.returncode == 0 and len(rows) == 9, done.stderr
    assert re.match(r"cenote dry-run: advice: 9 changes to try, which take up to \d+ (s|min) or so\n", done.stderr)
    assert re.findall(r"\((\d) of 9, about \d+ (?:s|min) left\)\n", done.stderr) == list("12345678")
    check_kinds(rows, found["processes"][0]["devices"]["0"], found["advice"]["as_it_is"])
    compare(rows, by_hand)


@pytest.mark.deep
def test_shards_are_true(advised, by_hand):
    """Rank 0 of 4 has a quarter of parameters and state. The peak is in backward of a block, which is there whole, as is the one that FSDP gathers
    ahead of its backward: parameters, too."""
    done, rows, found = advised(EXAMPLE.read_text(), *FEW, only="fsdp=4", gpu="80GiB")
    kinds, sharded = found["processes"][0]["devices"]["0"]["kinds"], rows["fsdp 4"]
    assert sharded["title"] == "FSDP, over 4 GPUs" and sharded["verdict"] == "fits"
    assert sharded["kinds"]["optimizer state"] == pytest.approx(kinds["optimizer state"] / 4, rel=0.02)
    assert sharded["kinds"]["parameters"] == pytest.approx(PARAMETERS / 4 + 2 * PARAMETERS / BLOCKS, rel=0.02)
    compare(rows, by_hand, ["--world", "4"])


@pytest.mark.deep
def test_the_screen_in_the_documents(nursed_run):
    done = nursed_run("dry-run", "--gpu", "1300MiB", "--allocator", "cenote", "--advise", "--quiet", EXAMPLE)
    assert done.returncode == 1
    assert "```\n" + done.stdout[done.stdout.index("what would help"):] + "```" in PAGE, done.stdout


BLOCKS, WIDTH, SAMPLES = 12, 256, 16 * 256  # of EXAMPLE
ACTIVATION = SAMPLES * WIDTH * 4  # bytes of what a block gets, 4 MiB
WEIGHTS = BLOCKS * 8 * WIDTH * WIDTH
PARAMETERS = 4 * (WEIGHTS + BLOCKS * 5 * WIDTH)


def check_kinds(rows, device, needs):
    """What arithmetic says of these rows. With checkpointing, forward keeps the input of each block, and backward what one block makes. With
    autocast, what products make is half as large. With bfloat16 all is."""
    kinds = device["kinds"]
    assert needs == device["live_peak"] + device["others"]
    # as it is, a block keeps its input, and four times that from relu, which down needs, too; up's result is freed
    assert kinds["activations"] >= (BLOCKS - 1) * 5 * ACTIVATION
    checkpointing, half, eight = (rows[name] for name in ("checkpointing", "bfloat16", "8bit"))
    assert needs - checkpointing["needs"] == checkpointing["saved"] > (BLOCKS - 2) * 4 * ACTIVATION
    assert BLOCKS * ACTIVATION <= sum(size for kind, size in checkpointing["kinds"].items() if kind.startswith("activations")) < 24 * ACTIVATION
    assert (checkpointing["title"], checkpointing["numerics"]) == ("checkpointing, 12 blocks Block", "same")
    assert rows["autocast"]["saved"] > (BLOCKS - 2) * ACTIVATION and rows["autocast"]["kinds"]["parameters"] == kinds["parameters"]
    assert half["kinds"]["parameters"] == PARAMETERS // 2 and kinds["parameters"] == PARAMETERS
    assert half["kinds"]["optimizer state"] == pytest.approx(PARAMETERS, rel=0.01) and half["saved"] > 0.4 * sum(kinds.values())
    # two bytes for each number of a weight, two scales of 4 bytes for each 256, eight bytes for each number of a bias, and the two maps
    expected = WEIGHTS * (2 + 8 / 256) + BLOCKS * 5 * WIDTH * 8 + 2048
    assert expected <= eight["kinds"]["optimizer state"] < expected + 24 * 4 * 512 and eight["numerics"] == "rounded"
    assert 2 * PARAMETERS <= kinds["optimizer state"] < 2 * PARAMETERS + 24 * 4 * 512
    # gradients of the step before are there as backward begins; without them, the last block has new ones before much else is freed
    assert 0.85 * PARAMETERS <= rows["freed-gradients"]["saved"] <= PARAMETERS
    assert all(row["verdict"] == "fits" for row in rows.values())


NUMBERS = 1 << 18
ALONE = 24 * 4 * NUMBERS
WEIGHTS_ALONE = f"""
    import torch

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros(size, device="cuda") for size in [{NUMBERS}] * 24 + [4095, 4096, 4097])

        def forward(self):
            return sum(weight.sum() for weight in self.weights)

    model = Sums()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        loss = model()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_steps(advised):
    """A program of weights alone, 24 alike, whose peak is in the step: parameters, gradients, two states, and the square roots of foreach. Of three
    small ones, the one with fewer than 4096 numbers has float32 states."""
    done, rows, found = advised(WEIGHTS_ALONE, only="fused,8bit,in-backward,freed-gradients")
    assert done.returncode == 0, done.stderr
    whole = found["processes"][0]["devices"]["0"]["live_peak"]
    assert 5 * ALONE <= whole < 5 * ALONE + MIB
    left = {name: whole - row["saved"] for name, row in rows.items()}
    assert 4 * ALONE <= left["fused"] < 4 * ALONE + MIB and rows["fused"]["line"] == "AdamW(..., fused=True)"
    one = 4 * NUMBERS
    assert 3 * ALONE + one <= left["in-backward"] < 3 * ALONE + 4 * one and rows["in-backward"]["numerics"] == "same"
    maps, scale = 2 * 1024, 2 * 4
    states = 24 * (2 * NUMBERS + scale * NUMBERS // 256) + 2 * 4 * 4095 + (2 * 4096 + scale * 16) + (2 * 4097 + scale * 17) + maps
    assert states <= rows["8bit"]["kinds"]["optimizer state"] < states + 512 * 11  # the blocks of the three, rounded up
    assert rows["8bit"]["numerics"] == "rounded"
    assert -MIB < rows["freed-gradients"]["saved"] < MIB  # in the step there are gradients
    useless = next(line for line in done.stdout.splitlines() if "of little or no help" in line)
    assert "gradients freed after the step (changes nothing)" in useless and done.stdout.count("gradients freed") == 1 and "-" not in useless


# --- what is tried, and what is not

SMALL = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Block() for _ in range(6)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = torch.nn.MSELoss()
    for step in range(4):
        x = torch.zeros(4096, 256, device="cuda")
        output = model(x)
        loss = criterion(output, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""

REFUSED = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    for step in range(4):
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


def test_gradients_that_are_looked_at_before_the_step(advised):
    """By a clip of values; and GradScaler's step, with autocast, which bfloat16 does without."""
    code = SMALL.replace("optimizer.step()", "torch.nn.utils.clip_grad_value_(model.parameters(), 1); optimizer.step()")
    done, rows, found = advised(code, only="in-backward")
    assert rows == {} and found["advice"]["left_out"] == {"step in backward": "the program clips gradients between backward and the step"}
    code = SMALL.replace("loss.backward()", "scaler.scale(loss).backward()").replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    code = code.replace("output = model(x)", """with torch.autocast("cuda", torch.float16):
            output = model(x)""").replace("criterion =", """scaler = torch.amp.GradScaler("cuda")
    criterion =""")
    done, rows, found = advised(code, only="in-backward,autocast,bfloat16")
    assert list(rows) == ["bfloat16"] and rows["bfloat16"]["verdict"] == "fits", rows
    assert rows["bfloat16"]["line"].endswith("; without autocast and GradScaler")
    assert rows["bfloat16"]["kinds"]["parameters"] == 2 * 6 * (2 * 256 * 1024 + 1280)
    assert found["advice"]["left_out"] == {"step in backward": "GradScaler looks at all gradients before the step",
                                           "autocast to bfloat16": "the program uses autocast already"}


def test_what_has_nothing_to_change_is_left_out(advised):
    done, rows, found = advised("""
        import os, torch
        model = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16).eval()
        with torch.no_grad():
            model(torch.zeros(64, 1024, device="cuda", dtype=torch.bfloat16))
    """)
    assert done.returncode == 0 and rows == {}, done.stderr
    left_out = found["advice"]["left_out"]
    assert left_out["checkpointing"] == "no model was called in training" and left_out["autocast to bfloat16"] == "the model has no float32 weights"
    assert left_out["step in backward"] == "no optimizer stepped" and len(left_out) == 12
    assert left_out["half the batch"].startswith("argparse read no such argument, and no DataLoader of PyTorch")
    assert "none of the remedies" in done.stdout and "not tried: checkpointing: no model was called in training" in done.stdout


def test_a_remedy_that_breaks_the_program_has_a_row(advised):
    """This program refuses half precision, which a loss outside of autocast gets; the other rows stay."""
    refuses = SMALL.replace("loss.backward()", "assert output.dtype is torch.float32, 'too coarse'; loss.backward()")
    done, rows, found = advised(refuses.replace("return x + self.down", "return self.down"), only="checkpointing,autocast")
    assert done.returncode == 0 and rows["checkpointing"]["verdict"] == "fits"
    assert rows["autocast"]["verdict"] == "unknown" and rows["autocast"]["needs"] is None
    assert "AssertionError" in rows["autocast"]["failed"] and "too coarse" in rows["autocast"]["failed"]
    assert "too coarse" in said(done.stdout)


# --- on a card that is too small

TOGETHER = [("x = layer(x)", "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"),
            ("model = Net().cuda()", "model = Net().to(torch.bfloat16).cuda()"), ("model(x)", "model(x.to(torch.bfloat16))")]


def test_several_together(advised, by_hand):
    """Each of two remedies helps, and none is enough: the program is run with both. By hand both come to the same."""
    both = by_hand(SMALL, TOGETHER)
    done, rows, found = advised(SMALL, only="checkpointing,bfloat16", gpu=f"{both // (2 * MIB) * 2 + 16}MiB")
    assert done.returncode == 1 and list(rows) == ["checkpointing", "bfloat16", "bfloat16 + checkpointing"], done.stdout
    assert [row["verdict"] for row in rows.values()] == ["fits not", "fits not", "fits"]
    assert rows["bfloat16 + checkpointing"]["needs"] == both
    assert "weights and all in bfloat16 + checkpointing" in done.stdout and "in numbers: cenote" not in done.stdout
    assert "  the lines of these 2 rows\n" in done.stdout
    table = done.stdout[done.stdout.index("  as it is"):].splitlines()
    assert [line.split("  ")[1] for line in table[1:3]] == ["weights and all in bfloat16 + checkpointing", "checkpointing, 6 blocks Block"], table
    assert table[-1].startswith("smallest change that fits: weights and all in bfloat16 + checkpointing (needs ")
    assert table[-1].endswith(": the lines of 2 rows above") and "token ids" in rows["bfloat16"]["line"]
    assert rows["bfloat16 + checkpointing"]["line"].splitlines() == [rows["bfloat16"]["line"], rows["checkpointing"]["line"]]


WIDE = SMALL.replace("1024", "4096").replace("256", "1024")
SHARDED_TOO = [(TOGETHER[0]), ("model = Net().cuda()", SHARDED)]


@pytest.mark.deep
def test_several_on_several_gpus(advised, by_hand):
    """Checkpointing is not enough, nor are four GPUs; with both it fits, as by hand."""
    both = by_hand(WIDE, SHARDED_TOO, options=["--world", "4"])
    done, rows, found = advised(WIDE, only="checkpointing,fsdp=4", gpu=f"{both // (2 * MIB) * 2 + 64}MiB")
    assert list(rows) == ["checkpointing", "fsdp 4", "checkpointing + fsdp"], done.stdout
    assert [row["verdict"] for row in rows.values()] == ["fits not", "fits not", "fits"]
    assert rows["checkpointing + fsdp"]["needs"] == both


# --- batches

DATA = "for x in torch.utils.data.DataLoader(torch.zeros(1, 512, 256).expand(512, -1, -1), batch_size=8):"
ZEROS = 'x = torch.zeros(4096, 256, device="cuda")'


def test_a_batch_of_a_loader(advised, by_hand):
    code = SMALL.replace("for step in range(4):", DATA).replace(ZEROS, "x = x.cuda()")
    done, rows, found = advised(code, only="batch")
    assert done.returncode == 0 and found["steps"] == STEPS, done.stderr
    half = rows["batch 4"]
    assert half["needs"] == by_hand(code, [("batch_size=8", "batch_size=4")])
    assert half["title"] == "half the batch, 4 instead of 8" and half["line"] == "DataLoader(..., batch_size=4)" and half["numerics"] == "changed"
    assert half["kinds"]["inputs"] * 2 == found["processes"][0]["devices"]["0"]["kinds"]["inputs"] == 4 * MIB
    largest = next(row for name, row in rows.items() if row is not half)
    assert largest["value"] == 128 and largest["title"] == "largest batch, 128 instead of 8 (no larger one was tried)"
    assert "half the batch, 4" in done.stdout and "not tried: half" not in done.stdout


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--eval-batch-size", type=int, default=8)
    options = parser.parse_args()
"""


@pytest.mark.parametrize("gpu, fits, least, most", [("700MiB", "fits not", 1, 7), pytest.param("780MiB", "fits", 9, 14, marks=pytest.mark.deep)])
def test_a_batch_that_is_an_argument(advised, by_hand, gpu, fits, least, most):
    """The largest batch that fits is found by runs: with it the program fits on this card, with one more it does not."""
    code = SMALL.replace("model = Net", ARGUMENTS.strip() + "\n    model = Net").replace("zeros(4096,", "zeros(256 * options.batch_size,")
    done, rows, found = advised(code, only="batch-argument", gpu=gpu)
    assert done.returncode == 1, done.stderr
    half, largest = rows.pop("batch-argument 8"), next(iter(rows.values()))
    assert half["verdict"] == fits and half["line"] == "--batch-size 8" and half["needs"] == by_hand(code, [], "--batch-size", "8")
    assert least <= largest["value"] <= most and largest["verdict"] == "fits" and largest["line"] == f"--batch-size {largest['value']}"
    assert f"batch of {largest['value'] + 1}: does not fit" in done.stderr and done.stderr.count("batch of") <= 4
    assert re.search(rf"\nsmallest change that fits: {largest['title']} \(needs [0-9.]+ MiB of {gpu[:3]}.0 MiB\): --batch-size {largest['value']}$",
                     done.stdout.rstrip()), done.stdout


@pytest.mark.parametrize("text, why", [("zero", "is no remedy; there are checkpointing, offload"), ("8bit=2", "takes no number"),
                                       ("fsdp=1", "is not fsdp=K for K GPUs"), ("fsdp=", "is not fsdp=K"), ("", "is no remedy")])
def test_a_mistake_is_a_line(run, text, why):
    done = run("dry-run", "--gpu", "1GiB", f"--advise={text}", "train.py")
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
