"""No thread looks at a graph of autograd while another runs backward, and the reverse."""
import os
import signal
import threading
import time

from cenote.labels import engine
from patience import patience


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_look_while_no_thread_is_in_backward():
    with engine.at_rest() as rests:
        assert rests
    with engine.at_rest() as again:
        assert again


def test_no_look_beside_a_backward():
    began, go_on = threading.Event(), threading.Event()
    thread = in_thread(lambda: engine.run(lambda: (began.set(), go_on.wait(10)), (), {}))
    assert began.wait(10)
    with engine.at_rest() as rests:
        assert not rests
    go_on.set()
    thread.join()
    with engine.at_rest() as rests:
        assert rests


def test_backward_waits_for_a_look_and_nested_ones_for_nothing():
    order = []
    nested = lambda: engine.run(lambda: order.append("nested"), (), {})  # noqa: E731
    with engine.at_rest() as rests:
        assert rests
        thread = in_thread(lambda: engine.run(nested, (), {}))
        time.sleep(0.1)
        order.append("look is over")
    thread.join(patience(10))
    assert order == ["look is over", "nested"]


def test_what_a_look_does_itself_is_let_in_and_errors_leave_nothing_behind():
    with engine.at_rest():
        assert engine.run(lambda x: x + 1, (1,), {}) == 2
    try:
        engine.run(lambda: 1 / 0, (), {})
    except ZeroDivisionError:
        pass
    with engine.at_rest() as rests:
        assert rests


def test_gradients_of_a_thread_that_lives_are_its_own():
    began, go_on = threading.Event(), threading.Event()
    engine.run(lambda: None, (), {})
    assert engine.learns_alone()

    def learns():
        engine.run(lambda: None, (), {})
        began.set()
        go_on.wait(10)

    thread = in_thread(learns)
    assert began.wait(10) and not engine.learns_alone()
    go_on.set()
    thread.join()
    assert engine.learns_alone()


def in_fork(work):
    """The exit status of a forked child that does the work; it is ended if that takes too long."""
    child = os.fork()
    if not child:
        signal.alarm(patience(20))
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_no_look_of_the_parent(monkeypatch):
    """The thread that looks, and those that learn, are not there in the child."""
    monkeypatch.setattr(engine, "MOST", 1e6)
    began, go_on = threading.Event(), threading.Event()

    def looks():
        with engine.at_rest():
            began.set()
            go_on.wait(patience(20))
    thread = in_thread(looks)
    try:
        assert began.wait(patience(20))
        assert in_fork(lambda: engine.run(lambda: True, (), {})) == 0
    finally:
        go_on.set()
        thread.join()


def test_a_fork_within_backward_is_still_in_it():
    """Only as far as its own thread is."""
    def rests():
        with engine.at_rest() as found:
            return found
    began, go_on = threading.Event(), threading.Event()
    thread = in_thread(lambda: engine.run(lambda: (began.set(), go_on.wait(patience(20))), (), {}))
    try:
        assert began.wait(patience(20)) and not rests()
        assert in_fork(rests) == 0
        assert engine.run(lambda: in_fork(lambda: not rests()), (), {}) == 0
    finally:
        go_on.set()
        thread.join()
