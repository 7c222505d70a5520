"""Which steps of optimizers are steps of the program. No torch, no GPU: any object can be an optimizer here."""
import gc

import pytest

from cenote.labels import step_counter


class Optimizer:
    pass


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """The number of steps that have ended."""
    count = []
    monkeypatch.setattr(step_counter, "end_step", lambda: count.append(1))
    monkeypatch.setattr(step_counter, "_leader", None)
    monkeypatch.setattr(step_counter, "_others", type(step_counter._others)())
    return count


def play(optimizers, order, ended):
    """The count of steps of the program after each step of an optimizer."""
    counts = []
    for name in order:
        step_counter.has_stepped(optimizers[name])
        counts.append(len(ended))
    return counts


@pytest.fixture
def optimizers():
    return {name: Optimizer() for name in "abc"}


def test_one_optimizer(optimizers, ended):
    assert play(optimizers, "aaaa", ended) == [1, 2, 3, 4]


def test_several_in_one_iteration(optimizers, ended):
    assert play(optimizers, "abcabcabc", ended) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_one_that_steps_seldom(optimizers, ended):
    assert play(optimizers, "aaabaaab", ended) == [1, 2, 3, 3, 4, 5, 6, 6]


def test_another_takes_over(optimizers, ended):
    """The first optimizer is for a pretraining, and the program does not tell cenote that it has ended. One step is not counted."""
    assert play(optimizers, "aabbbbcbc", ended) == [1, 2, 2, 3, 4, 5, 5, 6, 6]


def test_one_that_died_leads_no_more(optimizers, ended):
    play(optimizers, "aab", ended)
    del optimizers["a"]
    gc.collect()
    assert play(optimizers, "bb", ended) == [3, 4]


def test_nothing_is_kept_alive(optimizers, ended):
    import weakref
    play(optimizers, "ab", ended)
    refs = [weakref.ref(optimizer) for optimizer in optimizers.values()]
    optimizers.clear()
    gc.collect()
    assert all(ref() is None for ref in refs)


def test_errors_of_the_library_are_not_the_optimizers(optimizers, monkeypatch):
    def refuse():
        raise step_counter.Error("no")
    monkeypatch.setattr(step_counter, "end_step", refuse)
    step_counter.has_stepped(optimizers["a"])


def test_listeners(monkeypatch):
    monkeypatch.undo()
    calls = []
    stop = step_counter.on_step(lambda: calls.append("one"))
    also = step_counter.on_step(lambda: (calls.append("two"), also()))
    step_counter.end_step()
    step_counter.end_step()
    stop()
    stop()
    step_counter.end_step()
    assert calls == ["one", "two", "one"]
