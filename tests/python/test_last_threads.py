"""Threads of autograd at Python's end (python/cenote/inside/last_threads.py), with threads of Python that bear their name."""
import ctypes
import threading
import time

import pytest

from cenote.inside import last_threads

PR_SET_NAME = 15


@pytest.fixture
def autograd():
    """autograd(work): a thread with the name of one of autograd's does the work, and then sleeps until the test is over."""
    over, threads = threading.Event(), []

    def start(work):
        def main():
            ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_autograd_0", 0, 0, 0)
            begun.set()
            work()
            over.wait()
        begun = threading.Event()
        threads.append(threading.Thread(target=main))
        threads[-1].start()
        begun.wait()
    yield start
    over.set()
    for thread in threads:
        thread.join()


def test_a_thread_that_works_is_waited_for(autograd):
    """With and without Python's lock, and with naps shorter than the pause between two looks."""
    done = []

    def work():
        for i in range(300):
            sum(range(20000))
            time.sleep(last_threads.PAUSE / 10)
        done.append(True)
    autograd(work)
    last_threads.wait()
    assert done


def test_a_thread_at_rest_is_not(autograd):
    autograd(lambda: None)
    looks = []
    inside = last_threads.look
    last_threads.look = lambda: looks.append(1) or inside()
    try:
        last_threads.wait()
    finally:
        last_threads.look = inside
    assert len(looks) < last_threads.LOOKS


def test_a_thread_that_never_rests_ends_the_wait(autograd, monkeypatch):
    monkeypatch.setattr(last_threads, "LOOKS", 20)
    over = threading.Event()

    def work():
        while not over.is_set():
            sum(range(1000))
    autograd(work)
    last_threads.wait()
    over.set()


def test_there_is_none():
    last_threads.wait()


def test_a_program_that_ends_after_a_backward_pass(nursed_run, tmp_path):
    """Without the wait it was ended by SIGABRT in one of three runs. PyTorch's thread is named as expected here, and known to `look`."""
    (tmp_path / "train.py").write_text("""
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
model(torch.randn(64, 64, device="cuda")).sum().backward()
from cenote.inside import last_threads
print(len(last_threads.look()), last_threads._is_registered)
""")
    done = nursed_run("run", "--sim", "1GiB", "train.py")
    assert done.returncode == 0 and done.stdout.split() == ["1", "True"], done.stderr
