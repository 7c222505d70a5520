"""view/apart.py: work in two processes at once, with the answers in their order, and none of them lost."""
import os
import threading
from functools import partial

import pytest

from cenote.view import apart


def number(i):
    return i, os.getpid()


def outcome(count=5, records=apart.MANY):
    found = apart.done([partial(number, i) for i in range(count)], records)
    assert [i for i, _ in found] == list(range(count))
    return {process for _, process in found}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(apart, "has_one_thread", lambda: True)


def test_a_child_makes_every_second_call():
    processes = outcome()
    assert os.getpid() in processes and len(processes) == 2
    assert outcome(records=apart.MANY - 1) == {os.getpid()}
    assert len(outcome(1)) == 1


def test_a_child_that_ends_early_loses_nothing(monkeypatch, capfd):
    here = os.getpid()

    def fragile(i):
        if i == 3 and os.getpid() != here:
            raise MemoryError
        return i
    assert apart.done([partial(fragile, i) for i in range(4)], apart.MANY) == list(range(4))
    assert capfd.readouterr() == ("", "")

    def no_fork():
        raise BlockingIOError("no process more")
    monkeypatch.setattr(os, "fork", no_fork)
    assert outcome() == {here}


def test_what_fails_here_fails_as_ever():
    def wrong():
        raise ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        apart.done([wrong, lambda: 1], apart.MANY)
    with pytest.raises(ValueError, match="broken"):
        apart.done([lambda: 1, wrong], apart.MANY)


def test_a_process_with_threads_is_not_forked(monkeypatch):
    monkeypatch.undo()
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert not apart.has_one_thread() and outcome() == {os.getpid()}
    finally:
        go.set()
        thread.join()
