"""What is written when memory runs out for the first time, or at a signal: CENOTE_ON_OOM, CENOTE_ON_SIGNAL."""

import json
import os
import textwrap

import pytest

import simulated
from labelled import only_cenote
from spoken import said

pytestmark = only_cenote
TOLD = "What is held, and the last allocations before: "
RUNS_OUT = """
    import torch
    kept = []
    def fill():
        for _ in range(100):
            kept.append(torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"))
    def fail():
        try:
            fill()
        except torch.OutOfMemoryError as error:
            return str(error)
    """


def run(code, state, shape="capacity:1GiB,devices:2,context_bytes:300MiB", **variables):
    """The program's files go to the folder `cenote` in `state`."""
    code = textwrap.dedent(RUNS_OUT) + textwrap.dedent(code)
    return simulated.forked(code, shape=shape, CENOTE="on", whole=True, **{"CENOTE_ON_OOM": "", "XDG_STATE_HOME": str(state), **variables})


def files(folder):
    return {path.name: path for path in folder.rglob("*") if path.is_file()}


def test_the_first_time_is_written_down_and_the_message_says_where(tmp_path):
    done = run("print(fail()); print('second', fail())", tmp_path)
    found = files(tmp_path)
    assert set(found) == {"oom.txt", "oom.html", "oom.gpu0.snapshot.json", "oom.gpu0.csv.gz"}
    first, second = done.stdout.split("second")
    line, = [line for line in first.splitlines() if line.startswith(TOLD)]
    assert line == f"{TOLD}{found['oom.html']} (CENOTE_ON_OOM=off writes nothing)" and TOLD not in second
    snapshot = json.loads(found["oom.gpu0.snapshot.json"].read_text())
    assert snapshot["counters"]["blocks"]["current"] >= 10 and snapshot["counters"]["ooms"] == 1
    text = found["oom.txt"].read_text()
    assert text.startswith("CUDA out of memory. Tried to allocate 32.00 MiB.") and "in fill" in text and "ran_out.py" not in text
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in (tmp_path / "cenote").iterdir())  # names of lines are for this user alone


def test_the_page_has_lines_with_labels(tmp_path):
    from cenote.view import viewer
    run("fail()", tmp_path, CENOTE_LABELS="on")
    moment = viewer.moments_of(str(files(tmp_path)["oom.html"]), "end")[0]
    assert moment.holdings and all("line" in one.names and one.names["line"].rpartition(":")[2].isdigit() for one in moment.holdings)


def test_with_labels_the_message_names_the_line_that_leaks(tmp_path):
    code = """
        weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        try:
            for step in range(100):
                (weight * 2).sum().backward()
                optimizer.step()
                kept.append(torch.zeros(64 << 20, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            print(error)
        """
    done = run(code, tmp_path, CENOTE_LABELS="on")
    line, = [line for line in done.stdout.splitlines() if line.startswith("Memory grows: ")]
    assert "steps left 64.0 MiB more, of " in line and ":19" in line, line
    assert "Memory grows: " not in run(code, tmp_path).stdout


def test_off_writes_nothing_and_records_nothing(tmp_path):
    done = run(f"print(fail()); import cenote\n"
               f"try: cenote.save_trace({str(tmp_path / 'x.csv')!r})\nexcept cenote.Error as error: print('none:', error)", tmp_path,
               CENOTE_ON_OOM="off")
    assert not files(tmp_path) and TOLD not in done.stdout and "none:" in done.stdout


def test_a_folder_may_be_named(tmp_path):
    run(f"import os; os.environ['CENOTE_ON_OOM'] = {str(tmp_path / 'here')!r}; fail()", tmp_path)
    assert "oom.html" in files(tmp_path / "here") and not (tmp_path / "cenote").exists()


def test_five_runs_are_kept_and_what_others_put_there_stays(tmp_path):
    folder = tmp_path / "cenote"
    folder.mkdir()
    for i in range(7):
        old = folder / f"old.py-2026010{i}-000000-{i + 1}"
        old.mkdir()
        (old / "oom.txt").write_text("old")
        if i == 1:
            (old / "note").write_text("of the user")
        os.utime(old, (1_000_000 + i, 1_000_000 + i))
    (folder / "mine").mkdir()
    run("fail()", tmp_path)
    kept = sorted(path.name for path in folder.iterdir() if path.name.startswith("old"))
    assert kept == ["old.py-20260101-000000-2", *[f"old.py-2026010{i}-000000-{i + 1}" for i in (3, 4, 5, 6)]]
    assert (folder / "mine").exists() and (folder / "old.py-20260101-000000-2" / "note").exists()


def test_a_folder_that_cannot_be_written_is_no_second_failure(tmp_path):
    (tmp_path / "cenote").write_text("")
    done = run("print(fail()); print(torch.zeros(1).item())", tmp_path)
    assert f"What is held could not be written to {tmp_path / 'cenote'}/" in done.stdout and "File exists" in done.stdout
    assert "CENOTE_ON_OOM names another folder" in done.stdout and done.stdout.endswith("0.0\n") and not said(done.stderr)


def test_a_full_disk_leaves_what_fitted_and_is_said(tmp_path):
    """The page cannot be written: what came before it stays."""
    done = run("""
        import errno
        from cenote.base import outputs
        plain = outputs.write
        def write(path, data):
            if path.endswith(".html"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            plain(path, data)
        import os
        outputs.write = write
        print(fail())
        """, tmp_path)
    assert set(files(tmp_path)) == {"oom.txt", "oom.gpu0.snapshot.json", "oom.gpu0.csv.gz"}
    assert "The rest could not be written: No space left on device" in done.stdout


def test_ranks_of_a_run_share_a_folder(tmp_path):
    for rank in ("0", "3"):
        run("fail()", tmp_path, RANK=rank, TORCHELASTIC_RUN_ID="a job")
    folder, = (tmp_path / "cenote").iterdir()
    assert folder.name.endswith("-job-a_job")
    assert {"rank0.oom.html", "rank3.oom.html", "rank3.oom.txt"} <= set(files(tmp_path))


def test_the_device_that_ran_out_is_the_one_that_is_written(tmp_path):
    run("torch.cuda.set_device(1); fail()", tmp_path)
    assert "oom.gpu1.snapshot.json" in files(tmp_path) and "oom.gpu0.snapshot.json" not in files(tmp_path)


def test_a_thread_of_autograd_may_run_out(tmp_path):
    done = run("""
        class Grows(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x * 1
            @staticmethod
            def backward(context, gradient):
                fill()
        x = torch.zeros(1, device="cuda", requires_grad=True)
        try:
            Grows.apply(x).sum().backward()
        except torch.OutOfMemoryError as error:
            print(error)
        """, tmp_path)
    assert TOLD in done.stdout and "oom.html" in files(tmp_path)


def test_a_thread_of_autograd_without_a_frame_of_python_may_run_out(tmp_path):
    """The gradient of an expanded tensor is larger than all tensors of forward together."""
    done = run("""
        x = torch.ones(1, 1 << 26, device="cuda", requires_grad=True)
        y = x.expand(4, -1)
        try:
            torch.autograd.backward(y.sum(dim=1).sum() + (y * 1)[0, 0])
        except torch.OutOfMemoryError as error:
            print(error)
        """, tmp_path)
    assert TOLD in done.stdout and "oom.html" in files(tmp_path)


def test_a_signal_writes_and_the_program_goes_on(tmp_path):
    done = run("""
        import os, signal
        os.kill(os.getpid(), signal.SIGUSR2)
        x = torch.zeros(1000, device="cuda")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR2)
        print("goes on")
        """, tmp_path, CENOTE_ON_SIGNAL="SIGUSR2")
    assert {"signal1.html", "signal2.html", "signal1.gpu0.csv.gz"} <= set(files(tmp_path))
    assert done.stdout == "goes on\n" and done.stderr.count(TOLD) == 2
    assert done.stderr.count("the program has not used a GPU yet") == 1


def test_a_wrong_signal_is_said_and_nothing_else(tmp_path):
    done = simulated.fresh("import torch; print('runs')", CENOTE="on", CENOTE_ON_SIGNAL="SIGNONE")
    assert done.stdout == "runs\n" and "CENOTE_ON_SIGNAL=SIGNONE: there is no such signal; SIGUSR2 is one" in done.stderr


def test_a_recording_of_the_programs_own_goes_on(tmp_path):
    code = "import torch, cenote; [torch.empty(1000, device='cuda') for _ in range(30)]; cenote.save_trace('/dev/stdout')"
    done = simulated.fresh(code, CENOTE="on", CENOTE_ON_OOM=str(tmp_path), CENOTE_CONF="record:10")
    later = [line for line in done.stdout.splitlines() if line[:1].isdigit() and not line.startswith("0.000,")]
    assert len(later) in (9, 10)  # the oldest record itself may be at time 0
