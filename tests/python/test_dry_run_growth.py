"""`cenote dry-run` of programs whose memory grows from step to step: fits for now, at which step memory runs out, and what holds it; and of those
whose memory seems to grow and stops."""
import re
import textwrap

import pytest
from test_dry_run import MIB, dry, line_of  # noqa: F401  (a fixture)

from cenote.holders import causes
from cenote.inside import rise

STEP = 8 << 20

LOOP = """
    import collections, ctypes, random, torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    BEFORE
    def train():
        global memory
        for step in range(80):
            output = model(torch.empty(ROWS, 1024, device="cuda"))
            optimizer.zero_grad()
            output.mean().backward()
            optimizer.step()
            AFTER
    train()
    print("the end")
"""


def loop(after, before="", rows="2048"):  # 2048 rows are STEP
    return LOOP.replace("BEFORE", before).replace("ROWS", rows).replace("AFTER", after)


# --- the rule

def test_what_seems_to_rise():
    assert rise.seems_to_rise([0, 100 * MIB, 101 * MIB, 102 * MIB, 103 * MIB], True)
    assert not rise.seems_to_rise([0, 100 * MIB, 102 * MIB, 101 * MIB, 103 * MIB], True)
    assert rise.seems_to_rise([0, 100 * MIB, 102 * MIB, 101 * MIB, 103 * MIB], False)
    assert not rise.seems_to_rise([0, 100 * MIB, 100 * MIB, 100 * MIB], False)  # the first step makes the optimizer's state
    assert not rise.seems_to_rise([0, 512, 1024, 1536, 2048, 2560], False)  # scalars that are logged


@pytest.mark.parametrize("added, per_step", [
    ([8 * MIB] * 15, 8 * MIB),
    ([24 * MIB if step % 3 == 0 else 0 for step in range(15)], 8 * MIB),  # each third step
    ([0] * 15, None),
    ([512] * 15, None),  # scalars
    ([8 * MIB] * 12 + [0] * 3, None),  # has stopped
    ([64 * MIB // (1 << step) for step in range(15)], None),  # a cache that fills
    ([8 * MIB if step % 6 else -40 * MIB for step in range(15)], None),  # emptied again and again
    ([8 * MIB] * 14 + [-8 * MIB], None),  # falls at last
    ([8 * MIB] * 14, None),  # too few steps
])
def test_what_rises(added, per_step):
    figures = [sum(added[:step + 1]) + (1 << 30) for step in range(len(added))]
    assert rise.rise(figures, False) == per_step


def test_lengths_that_vary_do_not_rise():
    import random
    chance = random.Random(1)
    for _ in range(2000):
        assert rise.rise([chance.randrange(1 << 30) for _ in range(15)], True) is None


# --- programs

@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("after, before, name", [
    ("kept.append(output.detach())", "", "list `kept`"),
    ("memory = torch.cat([memory, output.detach()])", "memory = torch.empty(0, 1024, device='cuda')", "`memory`"),
])
def test_it_grows(dry, after, before, name):  # noqa: F811
    """The verdict names the variable and the line, and the step at which memory runs out."""
    code = loop(after, before)
    done, found = dry(code, "--gpu", "1GiB")
    place = f"train.py:{line_of(code, after)}"
    words = re.search(r"\nfits for now: grows 8.0 MiB a step \((.*)\); out of memory at about step ([0-9]+)\n", done.stdout)
    assert done.returncode == 6 and found["verdict"] == "grows" and words and words[1] == f"{name}, {place}", done.stdout
    assert found["steps"] == 15 and f"kept at {place}" in done.stdout
    growth = found["growth"][0]
    assert growth["of"] == "live" and growth["per_step"] == STEP and growth["out_of_memory_at_step"] == int(words[2])
    done, found = dry(code, "--gpu", "1GiB", "--steps", "0")
    assert done.returncode == 1 and abs(found["failure"]["step"] - int(words[2])) <= (2 if "cat" not in after else 30), done.stdout


@pytest.mark.parametrize("last", [14, 13])
def test_one_leak_has_one_figure(last):
    """What the last step leaves may be seen after it, or not yet: 288 MiB a step were 267.4 MiB where it was not."""
    blocks = [causes.Block(address, 32 * MIB, 0, 0, cohort) for cohort in range(1, last + 1) for address in range(9)]
    judge = causes.Judge(15, blocks, None, {})
    assert judge.rate(blocks) == (288 * MIB, last)


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("after, before, rows", [
    ("kept.append(output.detach()) if step < 5 else None", "", "2048"),  # stops
    pytest.param("kept.append(output.detach()); kept[:] = kept[-6:]", "", "2048", marks=pytest.mark.deep),  # a queue
    pytest.param("kept.append(output.mean().detach())", "", "2048", marks=pytest.mark.deep),  # logged
    ("kept.append(output.detach())", "kept = collections.deque(maxlen=30)", "2048"),  # of bounded length
    pytest.param("pass", "random.seed(3)", "random.randrange(1, 9) * 512", marks=pytest.mark.deep),
])
def test_it_does_not_grow(dry, after, before, rows):  # noqa: F811
    done, found = dry(loop(after, before, rows), "--gpu", "2GiB")
    assert done.returncode == 0 and found["verdict"] == "fits" and "\nfits: " in done.stdout, done.stdout
    assert ("30 at most: 240.0 MiB in all" in done.stdout) == ("maxlen" in before)


@pytest.mark.torch
@pytest.mark.simulation
def test_what_comes_in_the_second_step_does_not_seem_to_rise(dry):  # noqa: F811
    """As the buckets of DDP, which it makes again in the second step."""
    done, found = dry(loop("kept.append(output.detach()) if step == 1 else None"), "--gpu", "2GiB")
    assert done.returncode == 0 and found["steps"] == 5, done.stdout


@pytest.mark.torch
@pytest.mark.simulation
def test_lengths_vary_and_it_grows(dry):  # noqa: F811
    code = loop("kept.append(output[:256].clone().detach())", "random.seed(3)", "random.randrange(1, 9) * 512")
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 6 and found["growth"][0]["per_step"] == MIB and "list `kept`" in done.stdout, done.stdout


@pytest.mark.torch
@pytest.mark.simulation
def test_memory_outside_pytorch(dry):  # noqa: F811
    code = loop("assert not cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 8 << 20)", "cuda = ctypes.CDLL('libcuda.so.1')")
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 6 and found["growth"][0]["of"] == "outside" and found["growth"][0]["per_step"] == STEP
    assert "fits for now: memory outside PyTorch grows 8.0 MiB a step" in done.stdout and "not PyTorch's" in done.stdout


@pytest.mark.deep
@pytest.mark.torch
@pytest.mark.simulation
def test_garbage_in_cycles(dry):  # noqa: F811
    done, found = dry(loop("cycle = [output.detach()]; cycle.append(cycle)", "import gc; gc.disable()"), "--gpu", "2GiB")
    assert done.returncode == 6 and "(garbage in reference cycles)" in done.stdout and "gc.collect()" in done.stdout, done.stdout
    assert found["growth"][0]["garbage"] >= 10 * STEP


@pytest.mark.torch
@pytest.mark.simulation
def test_without_kinds_of_holders(dry):  # noqa: F811
    """Under cudaMallocAsync the pace is known, and the holder is not."""
    done, found = dry(loop("kept.append(output.detach())"), "--gpu", "2GiB", "--allocator", "cudaMallocAsync", fresh=True)
    assert done.returncode == 6 and found["growth"][0]["per_step"] == STEP and "--allocator native" in done.stdout, done.stdout


@pytest.mark.torch
@pytest.mark.simulation
def test_fewer_steps_say_nothing(dry):  # noqa: F811
    done, found = dry(loop("kept.append(output.detach())"), "--gpu", "2GiB", "--steps", "4")
    assert done.returncode == 0 and found["steps"] == 4, done.stdout
    assert "takes 5 steps" in done.stdout


@pytest.mark.deep
@pytest.mark.torch
@pytest.mark.simulation
def test_search_counts_it_as_fit(dry):  # noqa: F811
    code = textwrap.dedent(loop("kept.append(output.detach())", rows="int(__import__('os').environ['ROWS'])"))
    done, found = dry(code, "--gpu", "1GiB", "--search", "ROWS=2048,200000")
    assert done.returncode == 6 and found["largest"] == 2048 and "grows 8.0 MiB a step" in done.stdout, done.stdout


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("clears", [True, False])
def test_what_grew_in_an_evaluation_and_is_gone(dry, clears):  # noqa: F811
    """It is no growth of a program that ran to its end. In a dry run of Lightning's Trainer the batches of a validation were called so."""
    done, _ = dry(f"""
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        kept = []
        for epoch in range(3):
            for step in range(4):
                model.train()(torch.randn(64, 1024, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                for step in range(12):
                    kept.append(model.eval()(torch.randn(512, 1024, device="cuda")))
            if {clears}:
                kept.clear()
    """, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0 and ("a step, held by list `kept`" in done.stdout) != clears, done.stdout


# --- what was seen

PHASES = """
    import copy, torch
    from torch.utils.data import DataLoader

    model, teacher = torch.nn.Linear(1024, 1024).cuda(), torch.nn.Linear(1024, 1024).cuda().eval()
    optimizer, average = torch.optim.AdamW(model.parameters()), copy.deepcopy(model).eval()
    data = torch.empty(6, 2048, 1024)
    for epoch in range(2):
        for x in DataLoader(data, batch_size=1):        # which nothing holds
            with torch.no_grad():
                wanted = teacher(x[0].cuda())
            loss = (model(x[0].cuda()) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if PHASES:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model.eval()
            with torch.no_grad():
                model(torch.empty(16384, 1024, device="cuda"))     # 64 MiB, and as much for the result
                average(torch.empty(64, 1024, device="cuda"))
            peak = torch.cuda.max_memory_allocated()
            assert peak >= before + (128 << 20)
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda")     # gathered
            torch.save(model.state_dict(), "model.pt")
            assert torch.cuda.max_memory_allocated() == peak
            model.train()
            print("the program's peak:", peak)
"""


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("allocator", ["cenote", pytest.param("native", marks=pytest.mark.deep)])
def test_what_was_seen(dry, allocator):  # noqa: F811
    """Evaluation, saving and the end of an epoch, with peaks; the program's own peaks are as without us. A teacher in eval mode is no evaluation,
    and what the averages of a model are called for is one."""
    code = PHASES.replace("PHASES", "True")
    done, found = dry(code, "--gpu", "2GiB", "--steps", "8", "--allocator", allocator)
    seen = found["processes"][0]["seen"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  not seen" not in done.stdout and "evaluation (2 calls of a model in eval mode, 1" in done.stdout
    assert f"saving (torch.save at train.py:{line_of(code, 'torch.save')}, " in done.stdout and "the end of 1 epoch" in done.stdout
    evaluation, saving = (seen[name]["peaks"]["0"] for name in ("evaluation", "saving"))
    assert seen["evaluation"]["times"] == 2 and seen["saving"]["times"] == seen["epochs"] == 1
    assert f"the program's peak: {evaluation}\n" in done.stdout and 100 * MIB < saving < evaluation


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("workers", ["", ", num_workers=1, persistent_workers=True"], ids=["alone", "workers"])
def test_an_epoch_ends_with_its_last_batch(dry, workers):  # noqa: F811
    """Lightning asks a DataLoader for as many batches as there are, and for none beyond. The last epoch ends with the program."""
    code = """
        import itertools, torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.utils.data.DataLoader(torch.empty(3, 64), batch_size=1WORKERS)
        for epoch in range(2):
            for x in itertools.islice(data, len(data)):
                model(x.cuda()).sum().backward()
                optimizer.step()
    """.replace("WORKERS", workers)
    done, found = dry(code, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0 and found["processes"][0]["seen"]["epochs"] == 2 and "the end of 2 epochs" in done.stdout, done.stdout
    done, found = dry(code, "--gpu", "2GiB", "--steps", "3")        # the last batch was given, and the program has not gone on
    assert found["processes"][0]["seen"]["epochs"] == 0


@pytest.mark.torch
@pytest.mark.simulation
def test_what_was_not_seen(dry):  # noqa: F811
    done, found = dry(PHASES.replace("PHASES", "False"), "--gpu", "2GiB")
    assert done.returncode == 0
    assert "seen: 5 steps of the optimizer\n  not seen: evaluation, saving, the end of an epoch (--steps 0" in done.stdout, done.stdout


# --- an optimizer's state that comes late

@pytest.mark.torch
@pytest.mark.simulation
def test_state_that_comes_late_is_no_growth(dry):  # noqa: F811
    """Another layer is trained in each step; how much the others will add is said, and counts if it has no room."""
    code = """
        import torch
        layers = [torch.nn.Linear(1024, 1024).cuda() for _ in range(40)]     # 4 MiB, and 12 MiB with gradient and state
        optimizer = torch.optim.AdamW(parameter for layer in layers for parameter in layer.parameters())
        for step in range(100):
            layers[step % 40](torch.empty(2048, 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 0 and found["verdict"] == "fits", done.stdout
    late = found["processes"][0]["growth"]["late"]
    assert late["of"] == 80 and late["parameters"] == 2 * (40 - found["steps"])
    assert late["bytes"]["0"] == 3 * 4 * 1025 * 1024 * (40 - found["steps"]) and "have had no gradient yet" in done.stdout
    done, found = dry(code, "--gpu", "1GiB")
    assert done.returncode == 6 and "fits for now: state of the optimizer that is still to come has no room" in done.stdout, done.stdout
