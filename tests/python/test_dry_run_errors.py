"""What a verdict says where the error is not the program's own: that of another process, or of the first run alone."""
import pytest
from test_dry_run import dry, line_of  # noqa: F401

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

ELSEWHERE = r"""
    import sys, torch
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    if sys.argv[1] == "reads":
        large = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        sys.exit(large.sum().item() < 0)
    class ProcessRaisedException(Exception):
        pass
    words = {"memory": "torch.OutOfMemoryError: CUDA out of memory. Tried", "devices": "torch.AcceleratorError: CUDA error: invalid device ordinal"}
    lines = ["", "", "-- Process 1 terminated with the following error:", "Traceback (most recent call last):",
             f'  File "{torch.__file__}", line 89, in _wrap', "    fn(i, *args)", f'  File "{__file__}", line 3, in main', "    set_device(rank)",
             words[sys.argv[1]], "GPU device may be out of range", ""]
    raise ProcessRaisedException("\n".join(lines))
"""


def test_an_error_of_another_process(dry):  # noqa: F811
    """What mp.spawn raises has the error of the rank in its text. Memory that ran out in a rank was no verdict."""
    done, _ = dry(ELSEWHERE, "--gpu", "2GiB", arguments=["devices"])
    assert done.returncode == 3 and ("ended with ProcessRaisedException at train.py:3: torch.AcceleratorError: CUDA error: invalid device ordinal, "
                                     "in step 1 (1 device: add --devices with as many as it uses)\n") in done.stdout, done.stdout
    done, found = dry(ELSEWHERE, "--gpu", "2GiB", arguments=["memory"])
    assert done.returncode == 1 and found["processes"][0]["error"]["is_out_of_memory"], done.stdout


def test_what_was_read_where_memory_sufficed(dry):  # noqa: F811
    """A run that ran out of memory had read nothing yet: the one that says what the program needs had."""
    done, _ = dry(ELSEWHERE, "--gpu", "2GiB", "--unknown", "zero", arguments=["reads"])
    assert done.returncode == 1, done.stdout
    assert "it read back 1 value that cannot be known without a GPU, and got a zero one:\n  train.py:6: a" in done.stdout, done.stdout


def test_a_flag_of_a_scaler(dry):  # noqa: F811
    """GradScaler.step reads whether a gradient is infinite, as a sum, which is no loss of the program's."""
    code = """
        import torch
        model = torch.nn.Conv2d(3, 8, 3).cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
        for step in range(5):
            loss = model(torch.rand(2, 3, 16, 16, device="cuda")).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            loss.item()
    """
    done, found = dry(code, "--gpu", "2GiB", "--steps", "2")
    assert done.returncode == 0 and found["steps"] == 2, done.stdout
    assert f"\n  train.py:{line_of(code, 'scaler.step')}: a flag of GradScaler, 2 times\n" in done.stdout, done.stdout
    assert f"\n  train.py:{line_of(code, 'loss.item')}: a loss\n" in done.stdout, done.stdout
