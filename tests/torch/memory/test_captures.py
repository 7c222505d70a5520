"""What is refused during a capture, how a capture that fails ends, and captures while other threads work."""

import threading

import pytest
import torch

from contents import MIB, block, copied, fails_before, filled, holds, release


def refused(sim, act, words: str) -> None:
    """Checks that `act` fails in a capture, and that eager work and captures work afterwards."""
    sim.set_quiet(True)
    graph, a = torch.cuda.CUDAGraph(), filled(MIB, 1)
    with pytest.raises(RuntimeError, match=words):
        with torch.cuda.graph(graph):
            a.zero_()
            act(a)
    sim.set_quiet(False)
    assert not torch.cuda.is_current_stream_capturing()
    del graph
    assert holds(filled(MIB, 2), 2)
    again, target = copied(filled(MIB, 3))
    again.replay()
    torch.cuda.synchronize()


@fails_before("2.15", "takes the capture for open after it was invalidated")
@pytest.mark.violates
@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda a: torch.cuda.synchronize(), id="synchronize"),
        pytest.param(lambda a: torch.cuda.current_stream().synchronize(), id="stream"),
        pytest.param(lambda a: a.cpu(), id="read"),
        pytest.param(lambda a: a[0].item(), id="item"),
        pytest.param(lambda a: torch.cuda.current_stream().query(), id="query"),
        pytest.param(lambda a: a.nonzero(), id="nonzero"),
    ],
)
def test_a_capture_refuses_to_wait(sim, act):
    refused(sim, act, "captur")


def test_a_capture_left_by_an_exception():
    class Mistake(Exception):
        pass

    graph, source = torch.cuda.CUDAGraph(), filled(3 * MIB, 6)
    before = torch.cuda.memory_allocated()
    with pytest.raises(Mistake):
        with torch.cuda.graph(graph):
            source.clone()
            raise Mistake
    assert torch.cuda.memory_allocated() < before + MIB  # the capture may have made the state of the random generator
    graph.reset()
    again, target = copied(source)
    again.replay()
    assert holds(target, 6)


@fails_before("2.15", "aborts when a graph is destroyed in the middle of its capture")
@pytest.mark.violates
def test_a_capture_inside_a_capture(sim):
    sim.set_quiet(True)
    outer, inner = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    a = block(MIB)
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(outer):
            a.zero_()
            inner.capture_begin()
    sim.set_quiet(False)
    del inner, outer
    assert not torch.cuda.is_current_stream_capturing()
    assert holds(filled(MIB, 4), 4)


def test_a_capture_of_the_default_stream():
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    assert holds(filled(MIB, 4), 4)


def test_a_replay_without_a_capture():
    with pytest.raises(RuntimeError, match="capture"):
        torch.cuda.CUDAGraph().replay()


def test_a_second_capture_into_the_same_graph():
    graph, _ = copied(filled(MIB, 1))
    with pytest.raises(RuntimeError):
        copied(filled(MIB, 2), graph)
    assert holds(filled(MIB, 4), 4)


def test_out_of_memory_in_a_capture():
    release()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.OutOfMemoryError):
        with torch.cuda.graph(graph):
            keep = [block(12 * MIB).zero_()]
            keep.append(block(8 << 30))
    keep.clear()
    del graph
    release()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_reserved() == reserved
    again, target = copied(filled(MIB, 6))
    again.replay()


def test_allocating_on_another_thread_while_a_capture_is_open():
    """The other thread needs memory from the device, and none of the capture's memory."""
    graph, failures = torch.cuda.CUDAGraph(), []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for size in range(1, 8):
                    block(size * 30 * MIB)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    release()
    a, zeroes = block(MIB), filled(MIB, 0)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        a.copy_(zeroes)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        b = a.clone()
    assert failures == []
    graph.replay()
    assert holds(b, 0)


def test_captures_on_two_threads():
    results = []

    def work(value):
        source = filled(4 * MIB, value)
        graph, target = copied(source, stream=torch.cuda.Stream(), capture_error_mode="thread_local")
        results.append((graph, target, value, source))

    lock_step = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in lock_step:
        thread.start()
        thread.join()
    for graph, target, value, _ in results:
        graph.replay()
        assert holds(target, value)
