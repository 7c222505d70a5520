"""CUDA graphs: capture, replay, and which memory belongs to a graph."""

import ctypes

import pytest
import torch

from contents import LONG, MIB, block, copied, fails_before, fill, filled, holds, pinned, places, release
from elsewhere import elsewhere


def test_a_capture_runs_nothing_and_a_replay_runs_it():
    source, target = filled(MIB, 1), filled(MIB, 9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    assert holds(target, 9)
    graph.replay()
    assert holds(target, 1)


def test_replays_read_their_inputs_anew():
    source = block(2 * MIB)
    graph, target = copied(source)
    for value in (3, 1, 4):
        fill(source, value)
        graph.replay()
        assert holds(target, value)


def test_a_graph_fills_with_zeroes():
    a, memset = filled(MIB, 5), ctypes.CDLL("libcudart.so.13").cudaMemsetAsync
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert memset(ctypes.c_void_p(a.data_ptr()), 0, ctypes.c_size_t(MIB), stream) == 0
    assert holds(a, 5)
    graph.replay()
    assert holds(a, 0)


def test_a_chain_of_copies_inside_a_graph():
    source = block(MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = source.clone()
        b = a.clone()
        del a
        c = block(MIB)
        c.copy_(b)
    fill(source, 6)
    graph.replay()
    assert holds(c, 6) and holds(b, 6)


def test_copies_from_pinned_memory_are_made_at_each_replay():
    source, target, back = pinned(MIB, 1), block(MIB), pinned(MIB, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
        back.copy_(target, non_blocking=True)
    for value in (7, 8):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert holds(target, value) and bool((back == value).all())


def test_replays_follow_the_order_of_their_stream(sim):
    sim.set_lag(20_000_000)
    source, a, b = block(MIB), filled(MIB, 2), filled(MIB, 3)
    graph, target = copied(source)
    first, second = block(MIB), block(MIB)
    source.copy_(a)
    graph.replay()
    first.copy_(target)
    source.copy_(b)
    graph.replay()
    second.copy_(target)
    torch.cuda.synchronize()
    assert holds(first, 2) and holds(second, 3)


def test_a_replay_on_another_stream(sim):
    source = filled(MIB, 4)
    graph, target = copied(source)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        graph.replay()
    assert torch.cuda.current_stream().query() and not side.query()
    torch.cuda.current_stream().wait_stream(side)
    assert holds(target, 4)


def test_a_capture_is_seen():
    graph = torch.cuda.CUDAGraph()
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        block(MIB).zero_()
    assert not torch.cuda.is_current_stream_capturing()


# --- memory of a graph


def test_memory_of_a_graph_is_not_given_to_others():
    """Each replay still writes to blocks that were freed in the capture."""
    source = filled(12 * MIB, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        between = block(12 * MIB)
        between.copy_(source)
        at = between.data_ptr()
        target = between.clone()
        del between
    live = [filled(12 * MIB, 7) for _ in range(3)]
    assert at not in places(live)
    graph.replay()
    torch.cuda.synchronize()
    assert all(holds(a, 7) for a in live)
    assert holds(target, 1)


def test_eager_work_between_replays():
    source = block(3 * MIB)
    graph, target = copied(source)
    for value in range(1, 12):
        fill(source, value)
        live = [filled(3 * MIB, 100 + i) for i in range(3)]
        graph.replay()
        torch.cuda.empty_cache()
        assert all(holds(a, 100 + i) for i, a in enumerate(live))
        assert holds(target, value)


def test_empty_cache_leaves_a_graph_its_memory():
    release()
    before = torch.cuda.memory_reserved()
    source = filled(12 * MIB, 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        between = source.clone()
        target = between.clone()
        del between
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before >= 3 * 12 * MIB
    graph.replay()
    assert holds(target, 5)


def test_memory_of_a_graph_is_free_when_graph_and_tensors_are_gone():
    release()
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    source = filled(12 * MIB, 5)
    graph, target = copied(source)
    del graph, target, source
    release()
    assert torch.cuda.memory_reserved() == before
    assert torch.cuda.mem_get_info()[0] == left


def test_a_result_outlives_its_graph():
    source = filled(8 * MIB, 3)
    graph, target = copied(source)
    graph.replay()
    torch.cuda.synchronize()
    del graph
    release()
    others = [filled(8 * MIB, 9) for _ in range(4)]
    assert holds(target, 3)
    before = torch.cuda.memory_allocated()
    del target
    assert before - torch.cuda.memory_allocated() == 8 * MIB
    del others


def test_a_graph_that_was_reset_gives_its_memory_back():
    release()
    before = torch.cuda.memory_reserved()
    source = filled(12 * MIB, 5)
    graph, target = copied(source)
    graph.reset()
    del target, source
    release()
    assert torch.cuda.memory_reserved() <= before + 2 * MIB  # the generator's state lives as long as the graph
    with pytest.raises(RuntimeError):
        graph.replay()


def test_a_graph_is_captured_again_after_reset():
    graph = torch.cuda.CUDAGraph()
    for value in (1, 2, 3):
        source = filled(MIB, value)
        _, target = copied(source, graph)
        graph.replay()
        assert holds(target, value)
        del target
        graph.reset()


def test_a_hundred_captures_lose_no_memory(sim):
    source = filled(8 * MIB, 1)
    graph, target = copied(source)
    del graph, target
    release()
    left, events = torch.cuda.mem_get_info()[0], sim.books().events
    for _ in range(100):
        graph, target = copied(source)
        del graph, target
    release()
    assert torch.cuda.mem_get_info()[0] == left
    assert sim.books().events <= events + 2


def test_graphs_that_share_a_pool_use_it_again():
    """The temporary memory of the first capture serves the second."""
    release()
    source = filled(40 * MIB, 1)
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        temporary = source.clone()
        at = temporary.data_ptr()
        del temporary
    reserved = torch.cuda.memory_reserved()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=first.pool()):
        temporary = source.clone()
        assert temporary.data_ptr() == at
        del temporary
    assert torch.cuda.memory_reserved() == reserved


def test_graphs_that_share_a_pool_keep_what_is_live():
    pool = torch.cuda.graph_pool_handle()
    sources = [block(5 * MIB) for _ in range(4)]
    graphs, targets = zip(*(copied(source, pool=pool) for source in sources))
    for value, source in enumerate(sources, 1):
        fill(source, value)
    for graph in graphs:
        graph.replay()
    assert all(holds(target, value) for value, target in enumerate(targets, 1))
    assert all(graph.pool() == pool for graph in graphs)


def test_graphs_that_share_a_pool_overwrite_each_others_temporaries():
    """Sharing saves memory that way. Replays in the order of capture are right all the same."""
    source = block(12 * MIB)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = source.clone()
    at = a.data_ptr()
    seen = a.clone()
    del a
    with torch.cuda.graph(second, pool=first.pool()):
        b = source.clone()
    assert b.data_ptr() == at
    fill(source, 4)
    first.replay()
    fill(source, 5)
    second.replay()
    assert holds(b, 5)
    del seen


def test_graphs_that_share_nothing_do_not_disturb_each_other():
    source = block(12 * MIB)
    first, a = copied(source)
    second, b = copied(source)
    assert first.pool() != second.pool()
    fill(source, 1)
    first.replay()
    fill(source, 2)
    second.replay()
    assert holds(a, 1) and holds(b, 2)


def test_a_shared_pool_lives_as_long_as_its_last_graph():
    release()
    before = torch.cuda.memory_reserved()
    source = filled(12 * MIB, 3)
    first, a = copied(source)
    second, b = copied(source, pool=first.pool())
    del first, a
    release()
    second.replay()
    assert holds(b, 3)
    del second, b, source
    release()
    assert torch.cuda.memory_reserved() == before


@fails_before("2.15", "has no statistics by pool")
def test_memory_of_pools_is_in_the_statistics():
    source = filled(12 * MIB, 3)
    graph, target = copied(source)
    pools = torch.cuda.memory.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    assert pools[tuple(graph.pool())]["all"]["current"] >= 12 * MIB
    one, two = graph.pool()
    assert torch.cuda.memory_stats()[f"reserved_bytes_by_private_pools.{one}_{two}.all.current"] >= 12 * MIB


def test_memory_freed_inside_a_capture_is_used_again_in_it():
    release()
    source = filled(12 * MIB, 1)
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            source.clone()
    assert torch.cuda.memory_reserved() - before <= 3 * 12 * MIB


def test_the_pool_of_two_ids_is_one_tuple():
    first, second = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
    assert first != second and len(first) == 2


# --- forks and joins


def test_a_capture_forks_and_joins():
    source, side = block(3 * MIB), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            a = source.clone()
        b = source.clone()
        main.wait_stream(side)
        c = a.clone()
    fill(source, 8)
    graph.replay()
    assert holds(a, 8) and holds(b, 8) and holds(c, 8)


def test_memory_recorded_in_a_capture_is_not_used_too_early():
    """The side branch still reads a block that the main branch frees: the next tensor of the main branch must not get that memory."""
    source, other, side = block(12 * MIB), filled(12 * MIB, 9), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        a = source.clone()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = a.clone()
        a.record_stream(side)
        at = a.data_ptr()
        del a
        c = other.clone()
        assert c.data_ptr() != at
        main.wait_stream(side)
    fill(source, 2)
    graph.replay()
    assert holds(b, 2) and holds(c, 9)


@fails_before("2.15", "takes the capture for open after it was invalidated")
@pytest.mark.violates
def test_a_fork_that_is_not_joined(sim):
    sim.set_quiet(True)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="unjoined"):
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                block(MIB).zero_()
    sim.set_quiet(False)
    del graph
    again, target = copied(filled(MIB, 1))
    again.replay()
    assert holds(target, 1)


def test_side_streams_without_a_fork_are_not_captured():
    side, graph, a = torch.cuda.Stream(), torch.cuda.CUDAGraph(), block(MIB)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        a.zero_()
        with torch.cuda.stream(side):
            assert not torch.cuda.is_current_stream_capturing()


# --- around graphs


def test_a_graph_is_kept_for_inspection():
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    source = filled(MIB, 7)
    copied(source, graph)
    assert graph.raw_cuda_graph()
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()


def test_a_graph_is_printed(tmp_path):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    copied(filled(MIB, 7), graph)
    path = tmp_path / "graph.dot"
    if getattr(torch.cuda.graphs, "_cuda_runtime", True):
        graph.debug_dump(str(path))
    else:  # PyTorch itself would ask for the package cuda-bindings
        runtime = ctypes.CDLL("libcudart.so.13")
        assert runtime.cudaGraphDebugDotPrint(ctypes.c_void_p(graph.raw_cuda_graph()), str(path).encode(), 0) == 0
    assert "digraph" in path.read_text()


def test_an_empty_capture_warns():
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"):
        with torch.cuda.graph(graph):
            pass


def test_random_numbers_in_a_graph():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = torch.rand(1000, device="cuda")
    offset = torch.cuda.default_generators[0].get_offset()
    graph.replay()
    assert torch.cuda.default_generators[0].get_offset() > offset
    assert a.shape == (1000,)


def test_graphed_callables_train():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    x = torch.randn(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allocated = None
    for _ in range(4):
        optimizer.zero_grad()
        graphed(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        assert all(p.grad is not None for p in model.parameters())
        torch.cuda.synchronize()
        allocated = allocated or torch.cuda.memory_allocated()
        assert torch.cuda.memory_allocated() <= allocated


def test_graphs_of_many_sizes_share_a_pool_beside_eager_work():
    release()
    pool, graphs = torch.cuda.graph_pool_handle(), []
    source = filled(32 * MIB, 1)
    for size in range(32, 0, -4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            temporary = source[: size * MIB].clone()
            target = temporary[:MIB].clone()
            del temporary
        graphs.append((graph, target))
        block(7 * MIB)
    for value in (2, 3):
        fill(source, value)
        for graph, target in graphs:
            graph.replay()
            assert holds(target, value)
    reserved = sum(s["total_size"] for s in torch.cuda.memory_snapshot(pool))
    assert 32 * MIB <= reserved <= 96 * MIB


# --- streams that PyTorch has not seen before they are captured: an allocator may have to ask the driver about them


def foreign_stream():
    """A stream that is not of PyTorch's pools."""
    handle = ctypes.c_void_p()
    assert ctypes.CDLL("libcudart.so.13").cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    return torch.cuda.ExternalStream(handle.value)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("make", [torch.cuda.Stream, foreign_stream])
def test_a_new_stream_joins_a_capture(make, mode):
    """The id of a stream must not be asked for while it is captured: the driver of a real card ends the capture then."""
    source, first, joined = filled(MIB, 4), make(), make()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=first, capture_error_mode=mode):
        a = source.clone()
        joined.wait_stream(first)
        with torch.cuda.stream(joined):
            b = a.clone()
            a.record_stream(joined)
            c = b.clone()
            del b
            d = c.clone()
        first.wait_stream(joined)
        d.record_stream(first)
        target = d.clone()
    fill(source, 7)
    graph.replay()
    assert holds(target, 7) and holds(a, 7) and holds(c, 7)
    graph.reset()


def test_a_copy_from_pinned_memory_on_a_new_stream_of_a_capture():
    source, target, first, joined = pinned(MIB, 2), block(MIB), foreign_stream(), foreign_stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=first):
        joined.wait_stream(first)
        with torch.cuda.stream(joined):
            target.copy_(source, non_blocking=True)
        first.wait_stream(joined)
    graph.replay()
    assert holds(target, 2)
    graph.reset()


@elsewhere(alone=True)
def test_memory_of_conditional_bodies_belongs_to_the_graph():
    """A body is captured on a stream of its own. What is freed in it is used again in it, and after it nothing but the graph uses it. PyTorch keeps
    the pool of such a graph for ever, under its own allocator, too."""
    graph, is_so = torch.cuda.CUDAGraph(), torch.ones((), dtype=torch.bool, device="cuda")
    if not hasattr(graph, "begin_capture_to_if_node"):
        pytest.skip("this PyTorch has no conditional nodes")
    with torch.cuda.graph(graph):
        graph.begin_capture_to_if_node(is_so)
        inner = block(3 * MIB)
        graph.begin_capture_to_if_node(is_so)
        first = block(5 * MIB)
        at = first.data_ptr()
        del first
        second = block(5 * MIB)
        assert second.data_ptr() == at
        graph.end_capture_to_conditional_node()
        graph.end_capture_to_conditional_node()
        behind = block(7 * MIB)
    taken = places([inner, second, behind])
    assert not taken & places([block(size * MIB) for size in (3, 5, 7)])
    graph.replay()
    torch.cuda.synchronize()
    del inner, second, behind
    release()
    assert not taken & places([block(size * MIB) for size in (3, 5, 7)])
    graph.reset()
