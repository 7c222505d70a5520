"""Where a program is that does not go on (fit/stall.py): the main thread of another process writes its stack when it is asked. And what is left
when a program has ended."""
import signal
import subprocess
import sys

import pytest
from test_dry_run import dry  # noqa: F401  (a fixture)

from cenote.fit import dry_run, stall
from cenote.launch import processes
from cenote.native import adapter

LISTENS = """
import faulthandler, sys, threading
stacks = open(sys.argv[1], "w")
faulthandler.register({signal}, file=stacks, all_threads=False)
def compute():
    while True:
        sum(range(1000))
def wait():
    print("ready", flush=True)
    threading.Event().wait()
threading.Thread(target=compute, daemon=True).start()
wait()
"""
DEAF = "print('ready', flush=True); import threading; threading.Event().wait()"


@pytest.fixture
def started(tmp_path):
    """started(code): the process, once it is ready, and the file for its stacks, NUMBER.stacks."""
    children = []

    def call(code):
        path = tmp_path / "stacks"
        path.touch()
        child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        named = path.rename(tmp_path / f"{child.pid}{stall.ENDING}")
        return child, named
    yield call
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_process_tells_where_its_main_thread_is_while_another_computes(started, tmp_path):
    child, path = started(LISTENS.format(signal=int(stall.ASK)))
    for _ in range(3):
        assert "wait" in [frame.function for frame in stall.asked(child.pid, path)]
    place, = stall.where(tmp_path)
    assert place.startswith(f"process {child.pid} is at <string>:10 in wait") and child.poll() is None


def test_a_process_that_compiles_for_cenote_says_so():
    own = stall.Frame("train.py", 1, "<module>")
    compiles = [stall.Frame("/usr/lib/python3/selectors.py", 415, "select"), stall.Frame(adapter.__file__, 230, "run"), own]
    assert "cenote compiles a library for this PyTorch" in stall.place(compiles) and "train.py:1" in stall.place([own])


def test_a_process_that_does_not_listen_is_left_alone(started, tmp_path):
    child, path = started(DEAF)
    assert not stall.listens(child.pid) and stall.asked(child.pid, path) == [] and stall.where(tmp_path) == []
    assert child.poll() is None


def test_a_process_that_is_stopped_or_gone_does_not_answer(started, monkeypatch):
    child, path = started(LISTENS.format(signal=int(stall.ASK)))
    monkeypatch.setattr(stall, "ANSWER", 0.3)
    child.send_signal(signal.SIGSTOP)
    assert stall.asked(child.pid, path) == []
    child.kill()
    child.wait()
    assert not stall.listens(child.pid) and stall.asked(child.pid, path) == []


def test_a_stall_is_said_within_half_a_minute(tmp_path, monkeypatch, capsys):
    """And again after twice as long. A clock of the test's own: the program takes 130 seconds."""
    now = [1000.0]

    def wait(program, seconds):
        now[0] += seconds
        return None if now[0] < 1130 else 0
    monkeypatch.setattr(processes, "wait", wait)
    monkeypatch.setattr(dry_run.time, "time", lambda: now[0])
    monkeypatch.setattr(stall, "where", lambda folder: [f"process 7 is at train.py:{now[0]:.0f}; it waits"])
    assert dry_run.attend(None, str(tmp_path), None) == ""
    assert [line.partition("cenote dry-run: ")[2] for line in capsys.readouterr().err.splitlines()] == [
        f"no step for {silent} s (--timeout SECONDS ends it): process 7 is at train.py:{1000 + silent}; it waits" for silent in (30, 90)]


@pytest.mark.torch
@pytest.mark.simulation
def test_what_a_program_leaves_behind_ends(dry):  # noqa: F811
    """As the workers of torch.compile, which wrote to the folder of the run while it was taken away: there was no verdict, but exit status 2."""
    code = """
        import subprocess, sys, torch
        write = "import os, sys, time\\nwhile True: open(os.path.join(os.environ['CENOTE_DRY_RUN'], f'{time.monotonic_ns()}'), 'w').close()"
        left = subprocess.Popen([sys.executable, "-S", "-c", write])
        torch.ones(1 << 20, device="cuda")
        print("left", left.pid)
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 0 and found["verdict"] == "fits", done.stderr
    assert int(done.stdout.split()[1]) not in [pid for pid, one in processes.seen().items() if not one.has_ended]
