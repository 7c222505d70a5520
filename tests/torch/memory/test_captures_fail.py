"""Captures that fail half way: memory is as it was before, and the next capture works."""

import threading

import pytest
import torch

from contents import LONG, MIB, block, copied, fails_before, fill, filled, holds, places, release


class Mistake(Exception):
    pass


@pytest.fixture
def books():
    """Reserved memory, and what the device has left, before the test allocates anything."""
    copied(filled(MIB, 1))  # a first capture makes the state of the random generator, which stays
    release()
    return torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]


def is_as_before(books) -> bool:
    release()
    return torch.cuda.memory_reserved() <= books[0] and torch.cuda.mem_get_info()[0] >= books[1]


def works(value: int = 6) -> bool:
    """Checks that a capture and a replay work, and that their memory goes back."""
    source = filled(12 * MIB, value)
    graph, target = copied(source)
    graph.replay()
    return holds(target, value)


def left_at(stage: str) -> list:
    """Begins a capture that an exception ends at that stage. Returns the tensors that were not freed."""
    kept, side = [], torch.cuda.Stream()
    with pytest.raises(Mistake):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            main = torch.cuda.current_stream()
            if stage == "empty":
                raise Mistake
            kept.append(block(12 * MIB).zero_())
            if stage == "allocated":
                raise Mistake
            temporary = block(30 * MIB).zero_()
            del temporary
            if stage == "freed":
                raise Mistake
            side.wait_stream(main)
            with torch.cuda.stream(side):
                kept.append(block(5 * MIB).zero_())
            main.wait_stream(side)
            raise Mistake
    return kept


STAGES = {"empty": 0, "allocated": 1, "freed": 1, "joined": 2}  # how many tensors are left at that stage


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_leaves_nothing(books, stage):
    kept = left_at(stage)
    assert len(kept) == STAGES[stage]
    assert works()
    kept.clear()
    assert is_as_before(books)


@pytest.mark.parametrize("stage", list(STAGES)[1:])
def test_what_a_failed_capture_allocated_is_ordinary_memory(books, stage):
    """The tensors of the capture stay valid, can be written eagerly, and share their memory with no other tensor."""
    kept = left_at(stage)
    for i in range(len(kept)):
        fill(kept[i], i + 1)
    others = [filled(12 * MIB, 9) for _ in range(3)]
    assert all(holds(a, value) for value, a in enumerate(kept, 1)) and not places(kept) & places(others)
    kept.clear()
    others.clear()
    assert is_as_before(books)


def test_memory_is_given_back_after_an_exception(books):
    """If cenote took the capture for open, empty_cache would keep everything."""
    left_at("freed")
    block(60 * MIB)
    assert torch.cuda.memory_reserved() > books[0]
    assert is_as_before(books)


def test_recorded_memory_comes_back_after_an_exception(books, sim):
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    sim.work(side, LONG)
    a.record_stream(side)
    with pytest.raises(Mistake):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            block(MIB).zero_()
            raise Mistake
    del a
    torch.cuda.synchronize()
    assert is_as_before(books)


@fails_before("2.15", "takes the capture for open after it was invalidated")
@pytest.mark.violates
@pytest.mark.parametrize("retries", [1, 5])
def test_invalidated_captures_lose_nothing(books, sim, retries):
    sim.set_quiet(True)
    for _ in range(retries):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError):
            with torch.cuda.graph(graph):
                a = block(12 * MIB).zero_()
                del a
                torch.cuda.synchronize()
        del graph
    sim.set_quiet(False)
    assert works()
    assert is_as_before(books)


@fails_before("2.15", "takes the capture for open after it was invalidated")
@pytest.mark.violates
def test_an_invalidated_capture_leaves_its_siblings(sim):
    source = block(5 * MIB)
    first, a = copied(source)
    sim.set_quiet(True)
    second = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(second, pool=first.pool()):
            block(5 * MIB).zero_()
            torch.cuda.current_stream().synchronize()
    sim.set_quiet(False)
    del second
    third, b = copied(source, pool=first.pool())
    for value in (2, 3):
        fill(source, value)
        first.replay()
        third.replay()
        assert holds(a, value) and holds(b, value)


def test_the_same_graph_after_a_failure():
    graph, source = torch.cuda.CUDAGraph(), filled(5 * MIB, 3)
    with pytest.raises(Mistake):
        with torch.cuda.graph(graph):
            source.clone()
            raise Mistake
    graph.reset()
    for value in (3, 4):
        fill(source, value)
        _, target = copied(source, graph)
        graph.replay()
        assert holds(target, value)
        graph.reset()


# --- out of memory


def test_out_of_memory_is_survived_inside(books):
    """The capture goes on with less."""
    source, graph = filled(12 * MIB, 5), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = source.clone()
        with pytest.raises(torch.OutOfMemoryError):
            block(8 << 30)
        b = a.clone()
    graph.replay()
    assert holds(a, 5) and holds(b, 5)
    del a, b, graph, source
    assert is_as_before(books)


def test_out_of_memory_counts_and_says_so():
    before = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            block(MIB).zero_()
            block(8 << 30)
    assert torch.cuda.memory_stats()["num_ooms"] > before


def test_out_of_memory_because_others_hold_it(books, sim):
    """Memory that is cached outside may serve the capture or not; in both cases everything works afterwards."""
    outside = [filled(12 * MIB, 40 + i) for i in range(4)]
    source, graph = filled(3 * MIB, 2), torch.cuda.CUDAGraph()
    first, kept = copied(source)
    sim.set_foreign(0, torch.cuda.mem_get_info()[0] - 50 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        with torch.cuda.graph(graph):
            made = [source.clone()]
            while True:
                made.append(block(20 * MIB).zero_())
    made.clear()
    sim.set_foreign(0, 0)
    first.replay()
    assert holds(kept, 2) and all(holds(a, 40 + i) for i, a in enumerate(outside))
    del first, kept, outside, source, graph
    assert works()
    assert is_as_before(books)


def test_out_of_memory_over_a_limit_in_a_capture(books):
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 100 * MIB) / (4 << 30))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.OutOfMemoryError):
        with torch.cuda.graph(graph):
            made = [block(30 * MIB).zero_() for _ in range(10)]
            del made
    torch.cuda.set_per_process_memory_fraction(1.0)
    del graph
    assert works()
    assert is_as_before(books)


def test_out_of_memory_in_a_shared_pool_leaves_the_other_graph():
    source = block(12 * MIB)
    first, a = copied(source)
    second = torch.cuda.CUDAGraph()
    with pytest.raises(torch.OutOfMemoryError):
        with torch.cuda.graph(second, pool=first.pool()):
            block(12 * MIB).zero_()
            block(8 << 30)
    del second
    third, b = copied(source, pool=first.pool())
    for value in (3, 4):
        fill(source, value)
        first.replay()
        third.replay()
        assert holds(a, value) and holds(b, value)


def test_eager_work_runs_out_of_memory_while_a_capture_is_open():
    graph, said = torch.cuda.CUDAGraph(), []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                block(8 << 30)
        except torch.OutOfMemoryError as error:
            said.append(error)

    source = filled(5 * MIB, 8)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        a = source.clone()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        b = a.clone()
    assert len(said) == 1
    graph.replay()
    assert holds(b, 8)


# --- the end of graphs


def test_a_graph_that_goes_while_it_is_replayed(sim):
    """The memory of the graph is not used again before the GPU has finished the replay."""
    sim.set_lag(20_000_000)
    for value in range(1, 6):
        source = filled(12 * MIB, value)
        graph, target = copied(source)
        graph.replay()
        del graph, target, source
        live = [filled(12 * MIB, 100 + i) for i in range(3)]
        torch.cuda.synchronize()
        assert all(holds(a, 100 + i) for i, a in enumerate(live))


@pytest.mark.parametrize("order", ["graph first", "tensor first"])
def test_a_replay_in_flight_when_everything_goes(sim, order):
    source, side = filled(12 * MIB, 4), torch.cuda.Stream()
    graph, target = copied(source)
    torch.cuda.synchronize()
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        graph.replay()
    if order == "graph first":
        del graph
        del target
    else:
        del target
        del graph
    torch.cuda.current_stream().wait_stream(side)
    live = [block(12 * MIB).copy_(source) for _ in range(4)]
    torch.cuda.synchronize()
    assert all(holds(a, 4) for a in live)


def test_graphs_end_on_another_thread(books):
    made = [copied(filled(5 * MIB, value)) for value in range(4)]

    def end():
        made.clear()

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert works()
    assert is_as_before(books)


def test_tensors_of_a_graph_die_while_another_is_captured(books):
    source = filled(5 * MIB, 3)
    first, a = copied(source)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=first.pool()):
        del a
        b = source.clone()
        c = b.clone()
    second.replay()
    assert holds(c, 3)
    del first, second, b, c, source
    assert is_as_before(books)


def test_many_lives_of_one_pool(books):
    """Graphs come and go in a pool that always has one of them: the pool does not grow."""
    pool = torch.cuda.graph_pool_handle()
    source = filled(5 * MIB, 2)
    graph, target = copied(source, pool=pool)
    most = None
    for _ in range(20):
        after, result = copied(source, pool=pool)
        del graph, target
        graph, target = after, result
        most = most or torch.cuda.memory_reserved()
        assert torch.cuda.memory_reserved() <= most
    graph.replay()
    assert holds(target, 2)
    del graph, target, source, after, result
    assert is_as_before(books)
