"""A dry run overwrites no checkpoint of an earlier run, however the program saves; what it has made itself it writes again, and loads."""
import pytest
from test_dry_run import dry, line_of  # noqa: F401

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
KEPT = ("first.pt", "first.safetensors", "best.pt", "keyword.pt", "replaced.pt", "last.pt", "copied.pt", "weights.safetensors", "model.safetensors")


@pytest.mark.parametrize("there", [True, False])
def test_checkpoints_of_earlier_runs_stay(dry, tmp_path, there):  # noqa: F811
    for name in (*KEPT, "opened.pt") if there else ():
        (tmp_path / name).write_text("mine")
    done, found = dry(SAVES, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in KEPT if (tmp_path / name).read_bytes() == b"mine"] == (list(KEPT) if there else [])
    assert sorted(one["path"].rpartition("/")[2] for one in found["kept"]) == (sorted(KEPT) if there else [])
    assert (f"\nkept as it was: first.pt (torch.save, train.py:{line_of(SAVES, 'first.pt')})" in done.stdout) == there
    assert ("replaced.pt (os.replace" in str(done.stdout) or ", and 5 more" in done.stdout) == there
    assert (tmp_path / "opened.pt").stat().st_size > 1000  # its open has emptied it: no wrapper can keep that
    assert (tmp_path / "own2.pt").stat().st_size > 0


def test_what_the_first_run_has_made_the_second_may_write(dry, tmp_path):  # noqa: F811
    code = """
        import sys, torch
        torch.save(0, "made.pt")
        torch.save(torch.empty(3 << 30, dtype=torch.uint8, device="cuda")[:1], "made.pt")
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 1 and found["kept"] == [] and "kept as it was" not in done.stdout
