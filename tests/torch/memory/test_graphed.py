"""Graphs that PyTorch makes for its users: make_graphed_callables, captured training steps, torch.compile."""

import pytest
import torch
from torch import nn

import simulated
from contents import MIB, block, copied, filled, release

WIDTH = 64


@pytest.fixture
def books():
    warm = nn.Linear(WIDTH, WIDTH).cuda()
    warm(torch.zeros(4, WIDTH, device="cuda")).sum().backward()  # libraries allocate what they keep
    copied(filled(MIB, 1))
    del warm
    release()
    return torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]


def is_as_before(books) -> bool:
    torch._C._cuda_clearCublasWorkspaces()
    release()
    return torch.cuda.memory_reserved() <= books[0] + 2 * MIB and torch.cuda.mem_get_info()[0] >= books[1] - 2 * MIB


def layer(**options) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), **options).cuda()


def sample(rows: int = 8, grad: bool = True) -> torch.Tensor:
    return torch.zeros(rows, WIDTH, device="cuda", requires_grad=grad)


def steady(step, warm: int = 2, turns: int = 5) -> None:
    """Checks that after a few turns a step frees all that it allocates, and reserves nothing more."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(turns):
        step()
        block(3 * MIB)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated and torch.cuda.memory_reserved() <= reserved + 20 * MIB


# --- make_graphed_callables


def test_several_callables_in_one_call():
    """The callables share a pool, and are replayed in the order in which they were given."""
    parts = tuple(layer() for _ in range(3))
    graphed = torch.cuda.make_graphed_callables(parts, tuple((sample(),) for _ in parts))
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)

    def step():
        optimizer.zero_grad()
        y = sample()
        for part in graphed:
            y = part(y)
        y.sum().backward()
        optimizer.step()
        assert all(p.grad is not None for part in parts for p in part.parameters())

    steady(step)


def test_a_function_among_modules():
    part = layer()

    def double(x):
        return x * 2

    graphed = torch.cuda.make_graphed_callables((part, double), ((sample(),), (sample(),)))
    steady(lambda: graphed[1](graphed[0](sample())).sum().backward())


def test_graphed_callables_share_a_pool_with_graphs():
    graph, target = copied(filled(MIB, 3))
    graphed = torch.cuda.make_graphed_callables(layer(), (sample(),), pool=graph.pool())
    steady(lambda: graphed(sample()).sum().backward())
    graph.replay()
    torch.cuda.synchronize()
    del target


def test_graphed_callables_of_the_pool_of_a_user():
    pool = torch.cuda.MemPool()
    graphed = torch.cuda.make_graphed_callables(layer(), (sample(),), pool=pool.id)
    assert sum(s["allocated_size"] for s in pool.snapshot()) > 0
    steady(lambda: graphed(sample()).sum().backward())


def test_a_graphed_module_without_gradients():
    part = layer().requires_grad_(False).eval()
    graphed = torch.cuda.make_graphed_callables(part, (sample(grad=False),))
    with torch.no_grad():
        steady(lambda: graphed(sample(grad=False)))


def test_a_graphed_module_changes_between_training_and_evaluation():
    """In the mode in which it was not captured, the module runs eagerly."""
    part = layer()
    graphed = torch.cuda.make_graphed_callables(part, (sample(),))

    def step():
        graphed.train()
        graphed(sample()).sum().backward()
        graphed.eval()
        with torch.no_grad():
            graphed(sample(3, False))

    steady(step)


def test_inputs_that_are_not_used():
    def first(x, y):
        return x * 2

    graphed = torch.cuda.make_graphed_callables(first, (sample(), sample()), allow_unused_input=True)
    steady(lambda: graphed(sample(), sample()).sum().backward())


def test_graphed_callables_give_their_memory_back(books):
    part = layer()
    graphed = torch.cuda.make_graphed_callables(part, (sample(512),))
    graphed(sample(512)).sum().backward()
    assert torch.cuda.memory_reserved() > books[0]
    del part, graphed
    assert is_as_before(books)


def test_graphed_callables_beside_eager_ones_of_other_shapes():
    part, head = layer(), layer()
    graphed = torch.cuda.make_graphed_callables(part, (sample(),))

    def step(rows=iter([8, 300, 20, 77, 5, 64, 31] * 3)):
        eager = head(sample(next(rows) * 10)).sum()
        (graphed(sample()).sum() + eager).backward()

    steady(step)


# --- whole steps


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_a_captured_training_step(optimizer):
    part = layer()
    options = {} if optimizer == "SGD" else {"capturable": True}
    opt = getattr(torch.optim, optimizer)(part.parameters(), lr=0.1, **options)
    x, side = sample(), torch.cuda.Stream()

    def step():
        opt.zero_grad(set_to_none=True)
        part(x).sum().backward()
        opt.step()

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    opt.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    steady(graph.replay)
    grads = [p.grad.data_ptr() for p in part.parameters()]
    graph.replay()
    assert grads == [p.grad.data_ptr() for p in part.parameters()]
    torch.cuda.synchronize()


def test_a_captured_step_with_dropout():
    part = nn.Sequential(layer(), nn.Dropout(0.5))
    x = sample(128)
    with torch.cuda.stream(torch.cuda.Stream()):
        part(x).sum().backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        part(x).sum().backward()
    steady(graph.replay)


def test_steps_of_several_shapes_share_a_pool():
    part, graphs, pool = layer(), [], torch.cuda.graph_pool_handle()
    with torch.cuda.stream(torch.cuda.Stream()):
        part(sample()).sum().backward()
    torch.cuda.synchronize()
    for rows in (2048, 512, 128, 32):
        x, graph = sample(rows), torch.cuda.CUDAGraph()
        part.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, pool=pool):
            part(x).sum().backward()
        graphs.append((graph, x, [p.grad for p in part.parameters()]))
    steady(lambda: [graph.replay() for graph, *_ in graphs])
    part.zero_grad(set_to_none=True)


# --- torch.compile


def deep() -> nn.Module:
    return nn.Sequential(*(layer() for _ in range(3)))


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    release()


def test_compiled_with_cudagraphs(fresh_compiler):
    part = deep()
    compiled = torch.compile(part, backend="cudagraphs")

    def step():
        part.zero_grad(set_to_none=True)
        compiled(sample()).sum().backward()

    steady(step, warm=4)
    assert all(p.grad is not None for p in part.parameters())


def test_compiled_with_cudagraphs_without_gradients(fresh_compiler):
    compiled = torch.compile(deep().eval(), backend="cudagraphs")
    with torch.no_grad():
        steady(lambda: compiled(sample(grad=False)), warm=4)


def test_compiled_with_cudagraphs_for_several_shapes(fresh_compiler):
    compiled = torch.compile(deep().eval(), backend="cudagraphs", dynamic=False)
    with torch.no_grad():
        steady(lambda: [compiled(sample(rows, False)) for rows in (4, 64, 16)], warm=4)


def test_compiled_graphs_go_with_what_was_compiled(books, fresh_compiler):
    compiled = torch.compile(deep().eval(), backend="cudagraphs")
    with torch.no_grad():
        for _ in range(3):
            compiled(sample(4096, False))
    assert torch.cuda.memory_reserved() > books[0] + 2 * MIB
    del compiled
    torch._dynamo.reset()
    assert is_as_before(books)


# --- trees of graphs: mode="reduce-overhead"


@pytest.fixture
def trees(monkeypatch, fresh_compiler):
    """torch.compile with trees, and with PyTorch's own checks of them. Triton compiles the kernels; on the simulated GPU they do nothing."""
    pytest.importorskip("triton", reason="the kernels of torch.compile need triton")
    import torch._inductor.config as config
    from torch._inductor import cudagraph_trees

    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(simulated.folder()))
    with config.patch(compile_threads=1, **{"triton.slow_path_cudagraph_asserts": True, "triton.fast_path_cudagraph_asserts": True}):
        yield lambda: cudagraph_trees.get_manager(0, create_if_none_exists=False)
        torch._dynamo.reset()
        cudagraph_trees.reset_cudagraph_trees()


def test_a_tree_of_forward_and_backward(trees):
    part = deep()
    compiled = torch.compile(part, mode="reduce-overhead")

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        part.zero_grad(set_to_none=True)
        compiled(sample()).sum().backward()

    steady(step, warm=4)
    assert trees() is not None and trees().new_graph_id().id >= 2
    part.zero_grad(set_to_none=True)


def test_branches_of_a_tree(trees, monkeypatch):
    """Before each branch is captured, the pool is restored to its state at the fork; the tensors that live stay alive."""
    restore, restored = torch._C._cuda_setCheckpointPoolState, []
    monkeypatch.setattr(torch._C, "_cuda_setCheckpointPoolState", lambda *state: restored.append(restore(*state)))
    trunk, left, right = (torch.compile(layer().eval(), mode="reduce-overhead") for _ in range(3))
    turns = iter([left, left, left, right, right, right] + [left, right] * 20)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        y = trunk(sample(grad=False))
        z = next(turns)(y)
        assert y.untyped_storage().nbytes() and z.shape == y.shape

    with torch.no_grad():
        steady(step, warm=12, turns=8)
    assert trees().new_graph_id().id >= 3 and restored
