"""A dry run changes no file of before, however the program saves and rotates; what it has made itself it writes again, and loads. How files are kept
without PyTorch is in test_guard.py."""
import subprocess
import textwrap

import pytest
from conftest import CENOTE
from patience import patience
from test_dry_run import dry  # noqa: F401
from test_guard import NO_MOUNTS

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

SAVES = """
    import os, shutil, sys, torch
    from pathlib import Path
    from safetensors.torch import load_file, save_file, save_model
    class Net(torch.nn.Linear): pass
    model = Net(64, 64)
    torch.save(model.state_dict(), "first.pt")                       # before the program uses the GPU
    save_file({"w": model.weight}, "first.safetensors")
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        state = model.state_dict()
        torch.save(state, "best.pt")
        torch.save(state, f=Path("keyword.pt"))
        torch.save(state, "part.tmp")
        os.replace("part.tmp", "replaced.pt")
        torch.save(state, "last.pt")
        shutil.copy("last.pt", "copied.pt")
        save_file(state, "weights.safetensors")
        save_model(model, "model.safetensors")
        torch.save(state, "own.pt")
        torch.load("own.pt")["weight"].sum()
        os.replace("own.pt", "own2.pt")
        torch.save({"step": step}, "own2.pt")
        if step:
            assert torch.load("own2.pt")["step"] == step
    assert not os.path.exists("part.tmp")
    with open("opened.pt", "wb") as file:
        torch.save(state, file)
"""
KEPT = ("first.pt", "first.safetensors", "best.pt", "keyword.pt", "replaced.pt", "last.pt", "copied.pt", "weights.safetensors",
        "model.safetensors", "opened.pt")


@pytest.mark.parametrize("there", [True, False])
def test_checkpoints_of_earlier_runs_stay(dry, tmp_path, there):  # noqa: F811
    for name in KEPT if there else ():
        (tmp_path / name).write_text("mine")
    done, found = dry(SAVES, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in KEPT if there and (tmp_path / name).read_bytes() == b"mine"] == (list(KEPT) if there else [])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(KEPT if there else []), "out.json", "train.py"])
    changed = [one["path"].rpartition("/")[2] for one in found["files"] if one["how"] == "changed"]
    assert sorted(changed) == (sorted(KEPT) if there else [])
    assert ("\nkept as it was: " in done.stdout and ", and 6 more\n" in done.stdout) == there
    assert "is gone (--keep-files DIR copies it)\n" in done.stdout


def test_each_run_begins_from_the_same_files(dry, tmp_path):  # noqa: F811
    """The second run, on a larger GPU, would load what the first has left, and need nothing."""
    code = """
        import os, torch
        size = 1 if os.path.exists("made.pt") else 3 << 30
        torch.save(0, "made.pt")
        torch.empty(size, dtype=torch.uint8, device="cuda")
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 1 and found["largest"]["needed"] > 3 << 30, done.stdout
    assert not (tmp_path / "made.pt").exists()


def test_a_folder_that_is_made_anew(dry, tmp_path):  # noqa: F811
    """safetensors renames by a system call of its own, to where the folder is not."""
    code = """
        import os, shutil, torch
        from safetensors.torch import load_file, save_file
        for n in range(3):
            shutil.rmtree("ck")
            os.makedirs("ck")
            save_file({"w": torch.full((4,), n)}, "ck/w.safetensors")
            torch.save(n, "ck/n.pt")
            os.rename("ck", "moved")
            os.rename("moved", "ck")
            assert load_file("ck/w.safetensors")["w"].sum() == 4 * n and torch.load("ck/n.pt", mmap=True) == n
            assert len(os.listdir("ck")) == 2
        torch.empty(1, device="cuda")
    """
    (tmp_path / "ck").mkdir()
    for name in ("w.safetensors", "n.pt", "other"):
        (tmp_path / "ck" / name).write_text("mine")
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / "ck" / name).read_text() for name in ("w.safetensors", "n.pt", "other")] == ["mine"] * 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["ck", "n.pt", "other", "w.safetensors", "out.json", "train.py"])
    assert [(one["path"], one["how"]) for one in found["files"]] == [(str(tmp_path / "ck"), "replaced")]
    assert "\nkept as it was: ck (replaced)\n" in done.stdout


TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 64
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=128))
    for steps in (4, 8):
        trainer = Trainer(model, TrainingArguments("out", per_device_train_batch_size=4, max_steps=steps, save_steps=2, save_total_limit=1,
                                                   report_to="none"), train_dataset=data)
        trainer.train(resume_from_checkpoint=steps > 4)
        assert trainer.state.global_step == steps
"""
RANKS = """
    import os, torch, torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        torch.save(optimizer.state_dict(), f"out/rank{rank}.pt")
        if rank == 0:
            torch.save(model.state_dict(), "out/part")
            os.replace("out/part", "out/model.pt")
            if step == 2:
                os.remove("out/old.pt")
        dist.barrier()
        torch.load("out/model.pt", map_location="cpu"), torch.load(f"out/rank{1 - rank}.pt", map_location="cpu")
        assert os.path.exists("out/old.pt") == (step < 2)
        dist.barrier()
"""
WAYS = pytest.mark.parametrize("start", [[], NO_MOUNTS], ids=["overlay", "landlock"])


@pytest.mark.deep
@WAYS
def test_ranks_have_one_file_system(clean, tmp_path, start):
    """Each rank of torchrun finds what the other has written."""
    (tmp_path / "train.py").write_text(textwrap.dedent(RANKS))
    (tmp_path / "out").mkdir()
    for name in ("model.pt", "old.pt"):
        (tmp_path / "out" / name).write_text("mine")
    done = subprocess.run([*start, *CENOTE, "dry-run", "--gpu", "2GiB", "--devices", "2", "--steps", "0", "--", "torchrun", "--nproc-per-node", "2",
                           "train.py"], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0 and "out/old.pt (removed)" in done.stdout and "out/model.pt (changed)" in done.stdout, done.stdout + done.stderr
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"model.pt": "mine", "old.pt": "mine"}


@pytest.mark.deep
@WAYS
def test_a_trainer_that_deletes_old_checkpoints(run, clean, tmp_path, start):
    """A Trainer of Transformers, which resumes, in the folder of its last run; also where the system does not let cenote mount, without an option."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINER))
    assert run("run", "--sim", "2GiB", "train.py").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out/checkpoint-8").rglob("*") if path.is_file()}
    (tmp_path / "out/checkpoint-8").rename(tmp_path / "out/checkpoint-1")
    done = subprocess.run([*start, *CENOTE, "dry-run", "--gpu", "2GiB", "--steps", "0", "train.py"], env=clean, cwd=tmp_path, capture_output=True,
                          text=True, timeout=patience(60))
    assert done.returncode == 0 and "out/checkpoint-1 (removed)" in done.stdout, done.stdout + done.stderr
    assert len(before) > 5 and {tmp_path / "out/checkpoint-8" / path.relative_to(tmp_path / "out/checkpoint-1"): path.read_bytes()
                                for path in (tmp_path / "out/checkpoint-1").rglob("*") if path.is_file()} == before
