"""Checkpoints of a pool, which trees of CUDA graphs (torch.compile, mode="reduce-overhead") take and restore.

A tree captures graphs in one pool, one after the other. Before it captures another child of an earlier node, it restores the pool to the
state after that node: the tensors that live now own their old places, and everything else is free for the child.
"""

import random
import threading

import pytest
import torch

import simulated
from contents import MIB, block, fill, filled, holds, places, release
from elsewhere import elsewhere

KIB = 1 << 10
SIZES = (512, 3 * KIB, 100 * KIB, MIB, 2 * MIB + 512, 5 * MIB, 12 * MIB)


class Tree:
    """A pool, the graphs captured in it, and a stream on which all of them are captured."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.graphs = []

    def capture(self, act):
        """Captures `act` as a node. Returns what `act` returns."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                made = act()
                block(512).zero_()  # or PyTorch says that nothing was captured
            finally:
                graph.capture_end()
        self.graphs.append(graph)
        return made

    def state(self):
        return torch._C._cuda_getCheckpointState(0, self.pool)

    def restore(self, state, live=(), stale=()) -> None:
        """Restores the pool to that state; the `live` tensors own their blocks again."""
        pointers = [[t.untyped_storage()._cdata for t in tensors] for tensors in (stale, live)]
        torch._C._cuda_setCheckpointPoolState(0, state, *pointers)

    def has(self, *live) -> bool:
        """Says whether these blocks live in the pool, and no others."""
        return torch._C._cuda_checkPoolLiveAllocations(0, self.pool, places(live))


def metadata(t: torch.Tensor) -> dict:
    storage = t.untyped_storage()
    return {"nbytes": storage.nbytes(), "data_ptr": storage.data_ptr(), "size": t.shape, "stride": t.stride(), "dtype": t.dtype,
            "device": t.device, "storage_offset": 0}  # fmt: skip


def rebuilt(about: dict) -> torch.Tensor:
    """A tensor over memory of an earlier tensor, which it does not own."""
    storage = torch._C._construct_storage_from_data_pointer(about["data_ptr"], about["device"], about["nbytes"])
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(about, storage)


def blocks(*sizes):
    return [block(size) for size in sizes]


@pytest.fixture
def tree():
    release()
    made = Tree()
    yield made
    made.graphs.clear()


def test_a_pool_says_what_lives_in_it(tree):
    a, b = tree.capture(lambda: blocks(MIB, 5 * MIB))
    assert tree.has(a, b)
    assert not tree.has(a) and not tree.has()
    assert not tree.has(a, b, block(MIB))
    del a
    assert tree.has(b)


def test_a_pool_in_which_nothing_lives(tree):
    tree.capture(lambda: None)
    assert tree.has()
    tree.restore(tree.state())
    assert tree.has()


def test_what_lived_is_put_back_where_it_was(tree):
    """As a tree does: the outputs die, replays make tensors over them, and before the next capture these tensors own their memory again."""
    a, b = tree.capture(lambda: blocks(3 * MIB, 100 * KIB))
    state, about = tree.state(), [metadata(t) for t in (a, b)]
    allocated = torch.cuda.memory_allocated()
    del a, b
    assert tree.has()
    a, b = (rebuilt(each) for each in about)
    assert not torch._C._has_Standard_Deleter(a.untyped_storage()._cdata)
    tree.restore(state, (a, b))
    assert tree.has(a, b) and torch.cuda.memory_allocated() == allocated
    assert torch._C._has_Standard_Deleter(a.untyped_storage()._cdata)
    del a
    assert tree.has(b)
    del b
    assert tree.has()


def test_what_came_after_the_checkpoint_is_gone_with_it(tree):
    (a,) = tree.capture(lambda: blocks(3 * MIB))
    state, about = tree.state(), metadata(a)
    b, c = tree.capture(lambda: blocks(5 * MIB, 12 * MIB))
    del a, b, c
    a = rebuilt(about)
    tree.restore(state, (a,))
    assert tree.has(a)


def test_a_child_lies_beside_what_lives_and_in_what_is_free(tree):
    def first():
        temporary = block(12 * MIB)
        kept = block(3 * MIB)
        return kept, temporary.data_ptr()

    kept, at = tree.capture(first)
    state, about = tree.state(), metadata(kept)
    (one,) = tree.capture(lambda: blocks(12 * MIB))
    reserved = torch.cuda.memory_reserved()
    assert one.data_ptr() == at
    del one, kept
    kept = rebuilt(about)
    tree.restore(state, (kept,))
    other, more = tree.capture(lambda: blocks(12 * MIB, 3 * MIB))
    assert other.data_ptr() == at and more.data_ptr() != kept.data_ptr()
    assert torch.cuda.memory_reserved() <= reserved + 20 * MIB


def test_contents_outlive_what_happens_to_the_books(tree):
    source = filled(3 * MIB, 7)
    (a,) = tree.capture(lambda: [source.clone()])
    tree.graphs[0].replay()
    torch.cuda.synchronize()
    state, about = tree.state(), metadata(a)
    del a
    a = rebuilt(about)
    tree.restore(state, (a,))
    (b,) = tree.capture(lambda: blocks(3 * MIB))
    fill(b, 9)
    assert holds(a, 7) and holds(b, 9)
    tree.graphs[0].replay()
    assert holds(a, 7)


def test_a_tensor_that_died_after_the_checkpoint(tree):
    """The block of the tensor is restored all the same. The caller knows that the tensor is gone, and frees the block by its address."""
    a, b = tree.capture(lambda: blocks(3 * MIB, 3 * MIB))
    state, about = tree.state(), [metadata(t) for t in (a, b)]
    del a, b
    b = rebuilt(about[1])
    tree.restore(state, (b,))
    assert not tree.has(b)
    torch._C._cuda_cudaCachingAllocator_raw_delete(about[0]["data_ptr"])
    assert tree.has(b)


@elsewhere(alone=True)
def test_a_block_is_freed_while_the_pool_goes_back():
    """As if by another thread, after the first block was freed: the restore does not free a block that is free already."""
    import torch.cuda._gpu_trace as trace

    tree = Tree()
    a, b = tree.capture(lambda: blocks(3 * MIB, 3 * MIB))
    state, about = tree.state(), [metadata(t) for t in (a, b)]
    rest = [each["data_ptr"] for each in about]

    def free_the_other(at: int) -> None:
        if at in rest:
            rest.remove(at)
            other = rest.pop()
            torch._C._cuda_cudaCachingAllocator_raw_delete(other)

    trace.register_callback_for_memory_deallocation(free_the_other)
    torch._C._activate_gpu_trace()
    tree.restore(state)
    rest.clear()
    assert tree.has(a, b)


def test_a_live_tensor_may_let_its_block_go(tree):
    """The storage stays, without the memory: a tree does that to the outputs of the run before."""
    (a,) = tree.capture(lambda: blocks(3 * MIB))
    storage = a.untyped_storage()._cdata
    assert torch._C._has_Standard_Deleter(storage)
    torch._C._free_And_Remove_DeleterFn(storage)
    assert not torch._C._has_Standard_Deleter(storage) and tree.has()


def test_gaps_between_what_lives(tree):
    made = tree.capture(lambda: blocks(*(2 * MIB for _ in range(12))))
    at = [t.data_ptr() for t in made]
    kept = made[1::3]
    state, about = tree.state(), {t.data_ptr(): metadata(t) for t in made}
    del made, kept
    live = [rebuilt(about[place]) for place in at]
    tree.restore(state, live)
    assert tree.has(*live)
    for dead in (0, 2, 3, 7):
        live[dead] = None
    again = tree.state()
    rest = [metadata(t) for t in live if t is not None]
    live = []
    live = [rebuilt(each) for each in rest]
    tree.restore(again, live)
    assert tree.has(*live) and len(live) == 8
    (wide,) = tree.capture(lambda: blocks(4 * MIB))
    assert not {wide.data_ptr(), wide.data_ptr() + 2 * MIB} & places(live)


def test_a_pool_goes_back_again_and_again(tree):
    (a,) = tree.capture(lambda: blocks(3 * MIB))
    state, about = tree.state(), metadata(a)
    reserved = None
    for size in (5 * MIB, 12 * MIB, MIB, 12 * MIB, 5 * MIB) * 2:
        a = None
        a = rebuilt(about)
        tree.restore(state, (a,))
        made = tree.capture(lambda: blocks(size, 100 * KIB))
        assert tree.has(a, *made)
        del made
        reserved = reserved or torch.cuda.memory_reserved() + 20 * MIB
        assert torch.cuda.memory_reserved() <= reserved


def test_children_of_one_node_replay_in_turns(tree):
    source = block(3 * MIB)
    (a,) = tree.capture(lambda: [source.clone()])
    state, about = tree.state(), metadata(a)
    (b,) = tree.capture(lambda: [a.clone()])
    first = metadata(b)
    del a, b
    a = rebuilt(about)
    tree.restore(state, (a,))

    def second():
        x = block(5 * MIB)
        x[: 3 * MIB].copy_(a)
        return [x]

    (c,) = tree.capture(second)
    root, left, right = tree.graphs
    for value in (1, 2):
        fill(source, value)
        root.replay()
        left.replay()
        assert holds(rebuilt(first), value)
        root.replay()
        right.replay()
        assert holds(c[: 3 * MIB], value) and holds(a, value)


@pytest.mark.parametrize("seed", range(8))
def test_any_state_comes_back(tree, seed):
    """The tree goes back to random nodes. After each, the blocks of that node live, and no others."""
    dice = random.Random(seed)
    states, live = [], []
    for _ in range(12):
        if states and dice.random() < 0.5:
            state, about = dice.choice(states)
            live = []
            live = [rebuilt(each) for each in about]
            tree.restore(state, live)
        else:
            live += tree.capture(lambda: blocks(*dice.choices(SIZES, k=dice.randrange(1, 6))))
            dice.shuffle(live)
            del live[dice.randrange(1, len(live) + 1) :]
            states.append((tree.state(), [metadata(t) for t in live]))
        assert tree.has(*live)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in live)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    del live


def test_memory_comes_back_when_tree_and_tensors_are_gone(tree):
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    (a,) = tree.capture(lambda: blocks(12 * MIB))
    state, about = tree.state(), metadata(a)
    del a
    a = rebuilt(about)
    tree.restore(state, (a,))
    tree.graphs.clear()
    release()
    assert torch.cuda.memory_reserved() >= before + 12 * MIB
    del a, state
    release()
    assert torch.cuda.memory_reserved() <= before and torch.cuda.mem_get_info()[0] >= left


class Lender(Tree):
    """A pool of 64 MiB that lends, on a card that is full; `kept` was allocated in it."""

    def __init__(self, sim) -> None:
        release()
        self.owner = torch.cuda.MemPool(use_on_oom=True)
        self.pool = self.owner.id
        with torch.cuda.use_mem_pool(self.owner):
            self.kept = block(12 * MIB)
            block(52 * MIB)
        sim.set_foreign(0, torch.cuda.mem_get_info()[0])


lends = pytest.mark.skipif(not simulated.allocator(), reason="the native allocator takes what a pool lent for the pool's own")


@lends
def test_what_a_pool_lent_stays_as_it_is(sim):
    """An ordinary tensor lies in memory of the pool, but is no block of the pool: the pool is restored around it."""
    lender = Lender(sim)
    state, about = lender.state(), metadata(lender.kept)
    lent = filled(24 * MIB, 5)
    allocated = torch.cuda.memory_allocated()
    del lender.kept
    kept = rebuilt(about)
    lender.restore(state, (kept,))
    assert torch.cuda.memory_allocated() == allocated and lender.has(kept)
    with torch.cuda.use_mem_pool(lender.owner):
        more = filled(24 * MIB, 6)
    assert holds(lent, 5) and holds(more, 6)
    del lent
    assert torch.cuda.memory_allocated() == allocated and lender.has(kept, more)


@lends
def test_what_a_pool_had_lent_does_not_come_back(sim):
    """The borrowed block lived at the checkpoint and has been freed since: no tensor would own it."""
    lender = Lender(sim)
    lent = block(24 * MIB)
    assert abs(lent.data_ptr() - lender.kept.data_ptr()) < 64 * MIB
    state, about = lender.state(), metadata(lender.kept)
    del lent
    allocated = torch.cuda.memory_allocated()
    del lender.kept
    kept = rebuilt(about)
    lender.restore(state, (kept,))
    assert lender.has(kept) and torch.cuda.memory_allocated() == allocated


@lends
def test_a_pool_cannot_go_back_to_what_it_has_lent(sim):
    """A block of the checkpoint is gone, and an ordinary tensor lies in its place. The restore fails before it frees anything."""
    lender = Lender(sim)
    state = lender.state()
    at = lender.kept.data_ptr()
    del lender.kept
    lent = filled(60 * MIB, 5)
    assert lent.data_ptr() == at
    with torch.cuda.use_mem_pool(lender.owner):
        other = block(MIB)
    with pytest.raises(RuntimeError, match="lent"):
        lender.restore(state, stale=(other,))
    assert lender.has(other) and holds(lent, 5)


@lends
@elsewhere(alone=True)
def test_a_pool_lends_nothing_while_it_goes_back(sim):
    """As if another thread allocated outside of the pool while the restore is between two blocks: the first is free, but must be restored."""
    import torch.cuda._gpu_trace as trace

    lender = Lender(sim)
    with torch.cuda.use_mem_pool(lender.owner):
        other = block(12 * MIB)
    state, rest, asked = lender.state(), [lender.kept.data_ptr(), other.data_ptr()], []

    def ask(at: int) -> None:
        if at in rest:
            rest.remove(at)
        if not rest and not asked:
            asked.append(1)
            try:
                asked.append(block(12 * MIB))
            except torch.OutOfMemoryError:
                pass

    trace.register_callback_for_memory_deallocation(ask)
    torch._C._activate_gpu_trace()
    lender.restore(state)
    assert asked == [1] and lender.has(lender.kept, other)
    assert block(38 * MIB).data_ptr() > other.data_ptr()  # the pool lends again


def test_a_thread_allocates_to_the_pool(tree):
    """A tree warms up in its pool without a capture: blocks of this thread lie in the pool, and blocks of other threads do not."""
    tree.capture(lambda: None)
    elsewhere, made = [], []

    def others():
        elsewhere.append(block(MIB))

    with torch.cuda.stream(tree.stream):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, tree.pool)
        made.append(block(3 * MIB))
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        torch._C._cuda_endAllocateToPool(0, tree.pool)
        torch._C._cuda_releasePool(0, tree.pool)
    elsewhere.append(block(3 * MIB))
    assert tree.has(*made)


def test_a_stream_allocates_to_the_pool(tree):
    tree.capture(lambda: None)
    with torch.cuda.stream(tree.stream):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, tree.pool)
        inside = block(3 * MIB)
    outside = block(3 * MIB)
    torch._C._cuda_endAllocateToPool(0, tree.pool)
    torch._C._cuda_releasePool(0, tree.pool)
    assert tree.has(inside)
    del outside


def test_no_checkpoint_of_a_pool_that_is_not_there():
    with pytest.raises(RuntimeError):
        torch._C._cuda_getCheckpointState(0, torch.cuda.graph_pool_handle())
