"""What counts as evidence for a verdict: a run that made no step counts for nothing where another run made some, nor one that another error ended."""
import pytest
from test_dry_run import dry  # noqa: F401

pytestmark = [pytest.mark.torch, pytest.mark.simulation]


def test_a_second_run_without_a_step_shows_nothing(dry):  # noqa: F811
    """The second one, with the largest values, leaves before its first step."""
    done, found = dry("""
        import os, torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        count = torch.nonzero(torch.randn(1 << 24, device="cuda") > 0).shape[0]
        if os.environ["CENOTE_DRY_UNKNOWN"] == "largest":
            raise SystemExit
        for step in range(5):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
    """, "--gpu", "2GiB")
    assert done.returncode == 0 and found["verdict"] == "fits", done.stdout + done.stderr
    assert found["other_values"]["verdict"] == "unknown"
    assert "  with the largest ones: no verdict, it made no step, and another run did\n" in done.stdout


def test_a_first_run_without_a_step_shows_nothing(dry):  # noqa: F811
    done, found = dry("""
        import os, torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if os.environ["CENOTE"] == "off":
            for step in range(5):
                model(torch.ones(8, 64, device="cuda")).sum().backward()
                optimizer.step()
    """, "--gpu", "2GiB", "--allocators", "--allocator", "cenote")
    assert done.returncode == 3 and "no verdict: it made no step, and another run did" in done.stdout, done.stdout


def test_runs_that_died_do_not_say_that_nothing_fits(dry):  # noqa: F811
    """Under cenote memory runs out; under the others the script ends with an error of its own."""
    done, _ = dry("""
        import os, torch
        if os.environ["CENOTE"] == "off":
            raise FileExistsError("out")
        a = [torch.empty(1 << 20, device="cuda") for _ in range(10)]
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    """, "--gpu", "2GiB", "--allocators", "--allocator", "cenote")
    assert done.returncode == 1 and "under which allocator it fits: not known" in done.stdout, done.stdout


def test_an_error_whose_report_never_ends(dry):  # noqa: F811
    """--timeout ends what runs in cenote's own code, too."""
    done, found = dry("""
        import torch
        torch.empty(1, device="cuda")
        class Endless(Exception):
            def __str__(self):
                while True:
                    pass
        raise Endless
    """, "--gpu", "2GiB", "--timeout", "3")
    assert done.returncode == 3 and "no verdict: it still ran" in done.stdout, done.stdout
    assert not found["processes"] or found["verdict"] == "unknown"


def test_an_error_that_is_its_own_cause(dry):  # noqa: F811
    done, found = dry("""
        import torch
        torch.empty(1, device="cuda")
        try:
            raise ValueError("bad")
        except ValueError as error:
            raise error from error
    """, "--gpu", "2GiB")
    report, = found["processes"]
    assert done.returncode == 3 and report["error"]["type"] == "ValueError" and not report["error"]["is_out_of_memory"], done.stdout
    assert "no verdict: the script ended with ValueError at train.py:" in done.stdout
