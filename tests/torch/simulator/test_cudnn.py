"""Convolutions, recurrent networks, attention and the rest of cuDNN through the real PyTorch. The tests look at no values: kernels do nothing.

They look at sizes: PyTorch asks cuDNN how much scratch memory a call needs and allocates it, so that the peak shows how much it was.
"""

import ctypes
import functools
import itertools

import pytest

import simulated

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

MIB = 1 << 20
GPU = "cuda:0"
KINDS = [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def plain(capfd):
    """cuDNN with the settings that PyTorch starts with. Checks that nothing was asked for that is not simulated."""
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = False, False, True
    yield
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = False, False, True
    torch.cuda.synchronize()
    err = capfd.readouterr().err
    assert "is not simulated" not in err, err


def gpu(*shape, dtype=torch.float32, grad=False):
    return torch.zeros(*shape, dtype=dtype, device=GPU, requires_grad=grad)


def scratch(call):
    """Peak of what `call` allocates beyond what it returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    peak = torch.cuda.max_memory_allocated()
    kept = torch.cuda.memory_allocated() - before
    del result
    return peak - before - kept


def kernels(sim, call):
    before = sim.books().kernels
    call()
    return sim.books().kernels - before


def test_the_library_is_one_that_pytorch_takes():
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 92600
    assert torch.backends.cudnn.is_acceptable(gpu(1))


# --- convolutions


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_convolutions_forward_and_backward(kind, dtype):
    dims = int(kind.__name__[-2])
    for groups, stride, dilation, bias in itertools.product((1, 4), (1, 2), (1, 2), (False, True)):
        conv = kind(8, 16, 3, groups=groups, stride=stride, dilation=dilation, padding=1, bias=bias).to(GPU, dtype)
        x = gpu(2, 8, *[9] * dims, dtype=dtype, grad=True)
        y = conv(x)
        assert y.shape == kind(8, 16, 3, stride=stride, dilation=dilation, padding=1, device="meta")(x.float().to("meta")).shape
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert all(p.grad.shape == p.shape for p in conv.parameters())


def test_convolutions_run_in_cudnn(sim):
    conv, x = nn.Conv2d(8, 16, 3, bias=False).to(GPU), gpu(2, 8, 9, 9)
    conv(x)
    assert kernels(sim, lambda: conv(x)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_channels_last_needs_no_copies(dtype):
    x, conv = gpu(8, 64, 56, 56, dtype=dtype), nn.Conv2d(64, 128, 3, padding=1, bias=False).to(GPU, dtype)
    planar = scratch(lambda: conv(x))
    size = x.element_size()
    assert planar == pytest.approx(size * (x.numel() + 8 * 128 * 56 * 56 + conv.weight.numel()), rel=0.01)
    conv, x = conv.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    assert conv(x).is_contiguous(memory_format=torch.channels_last)
    assert scratch(lambda: conv(x)) == 0


def test_scratch_memory_is_taken_and_given_back():
    conv = nn.Conv2d(64, 128, 3, padding=1, bias=False).to(GPU)
    few, many = scratch(lambda: conv(gpu(4, 64, 56, 56))), scratch(lambda: conv(gpu(8, 64, 56, 56)))
    assert 2 * MIB < few < many
    x = gpu(4, 64, 56, 56)
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        conv(x)
    assert torch.cuda.memory_allocated() == before


def test_without_tf32_another_engine_is_taken():
    conv, x = nn.Conv2d(64, 128, 3, padding=1, bias=False).to(GPU), gpu(8, 64, 56, 56)
    with_tf32 = scratch(lambda: conv(x))
    torch.backends.cudnn.allow_tf32 = False
    assert scratch(lambda: conv(x)) > with_tf32  # Winograd's tiles


def test_weight_gradients_are_deterministic_on_demand():
    x, conv = gpu(2, 8, 9, 9, dtype=torch.float64, grad=True), nn.Conv2d(8, 16, 3).to(GPU, torch.float64)
    torch.backends.cudnn.deterministic = True
    conv(x).sum().backward()
    assert conv.weight.grad.shape == conv.weight.shape


def test_twice_backward():
    x, conv = gpu(2, 8, 9, 9, grad=True), nn.Conv2d(8, 16, 3, padding=1).to(GPU)
    (gradient,) = torch.autograd.grad(conv(x).pow(2).sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    assert x.grad.shape == x.shape
    assert conv.weight.grad.shape == conv.weight.shape


def test_fused_convolutions():
    x, w, b = gpu(2, 3, 8, 8), gpu(4, 3, 3, 3), gpu(4)
    ones = (1, 1)
    assert torch.cudnn_convolution_relu(x, w, b, ones, ones, ones, 1).shape == (2, 4, 8, 8)
    assert torch.cudnn_convolution_add_relu(x, w, gpu(2, 4, 8, 8), 1.0, b, ones, ones, ones, 1).shape == (2, 4, 8, 8)


# Each runs in a process of its own, because PyTorch remembers what it chose for a shape.
CHOICE = """
    import torch
    torch.backends.cudnn.benchmark = {benchmark}
    x = torch.zeros(8, 64, 56, 56, device="cuda")
    conv = torch.nn.Conv2d(64, 128, 3, padding=1, bias=False).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = conv(x)
    first = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    conv(x)
    print(first, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())
"""


@functools.cache
def choose(benchmark, shape=simulated.SHAPE, **environ):
    return [int(word) for word in simulated.forked(CHOICE.format(benchmark=benchmark), shape, **environ).stdout.split()]


def test_benchmarking_tries_every_plan_that_fits():
    first, later = choose(False)
    tried, settled = choose(True)
    assert first == later
    assert tried > first  # PyTorch tried the plan that needs most
    assert settled == later  # and found the one that is preferred the fastest


def test_benchmarking_leaves_out_plans_that_do_not_fit():
    """The search asks the allocator for its largest free block, and tries the plans that fit in it."""
    tried, _ = choose(True)
    cramped, settled = choose(True, "capacity:72MiB,context_bytes:0")
    assert 0 < settled <= cramped < tried


def test_the_older_interface():
    """TORCH_CUDNN_V8_API_DISABLED: cudnnGetConvolutionForwardAlgorithm_v7 and its sisters."""
    first, later = choose(False, TORCH_CUDNN_V8_API_DISABLED="1")
    tried, settled = choose(True, TORCH_CUDNN_V8_API_DISABLED="1")
    output = 8 * 128 * 56 * 56 * 4
    assert first == later > output
    assert tried > first
    assert output <= settled <= tried


# --- streams and graphs


def nodes(graph):
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    assert driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)) == 0
    return count.value


def test_captured_convolutions_are_in_the_graph(sim):
    conv, x = nn.Conv2d(8, 16, 3, bias=False).to(GPU), gpu(2, 8, 9, 9)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        conv(x)
    torch.cuda.synchronize()
    empty, one, three = (torch.cuda.CUDAGraph(keep_graph=True) for _ in range(3))
    for graph, count in ((empty, 0), (one, 1), (three, 3)):
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                y = conv(x)
    assert nodes(one.raw_cuda_graph()) - nodes(empty.raw_cuda_graph()) == 1
    assert nodes(three.raw_cuda_graph()) - nodes(empty.raw_cuda_graph()) == 3
    three.instantiate()
    assert kernels(sim, three.replay) == 3
    assert y.shape == (2, 16, 7, 7)


def test_an_lstm_can_be_captured(sim):
    lstm, x = nn.LSTM(12, 20, 2).to(GPU).eval(), gpu(7, 4, 12)
    with torch.no_grad():
        eager = kernels(sim, lambda: lstm(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            lstm(x)
    assert 0 < kernels(sim, graph.replay) <= eager


def test_work_goes_to_the_current_stream(sim):
    """A busy stream delays its own convolution, and no other."""
    conv, x = nn.Conv2d(8, 16, 3, bias=False).to(GPU), gpu(2, 8, 9, 9)
    conv(x)
    busy, idle = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    done = {}
    for stream in (busy, idle):
        with torch.cuda.stream(stream):
            if stream == busy:
                sim.work(stream, 10**12)
            conv(x)
            done[stream] = torch.cuda.Event()
            done[stream].record()
    assert done[idle].query()
    assert not done[busy].query()
    torch.cuda.synchronize()
    assert done[busy].query()


# --- recurrent networks

SHAPES = [
    {},
    {"bidirectional": True},
    {"num_layers": 3, "dropout": 0.5},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
]
CELLS = [nn.RNN, nn.LSTM, nn.GRU]


def flat_elements(rnn):
    """The number of elements in the one storage under all parameters."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() // p.element_size() for p in rnn.parameters()}
    assert len(storages) == 1
    return storages.popitem()[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_weights_lie_in_one_piece_without_gaps(cell, shape):
    rnn = cell(12, 20, **shape).to(GPU)
    rnn.flatten_parameters()
    count = sum(p.numel() for p in rnn.parameters())
    if not rnn.bias:  # PyTorch asks cuDNN for biases all the same
        gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[cell.__name__]
        count += rnn.num_layers * 2 * gates * rnn.hidden_size
    assert flat_elements(rnn) == count
    starts = sorted((p.data_ptr(), p.numel() * p.element_size()) for p in rnn.parameters())
    assert all(a + size <= b for (a, size), (b, _) in zip(starts, starts[1:]))


def test_projections_lie_there_too():
    rnn = nn.LSTM(12, 20, 2, proj_size=5, bidirectional=True).to(GPU)
    rnn.flatten_parameters()
    assert flat_elements(rnn) == sum(p.numel() for p in rnn.parameters())
    out, (h, c) = rnn(gpu(7, 4, 12, grad=True))
    assert (out.shape, h.shape, c.shape) == ((7, 4, 10), (4, 4, 5), (4, 4, 20))
    out.sum().backward()
    assert all(p.grad.shape == p.shape for p in rnn.parameters())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_recurrent_networks_forward_and_backward(cell, shape, dtype):
    rnn = cell(12, 20, **shape).to(GPU, dtype)
    x = gpu(7, 4, 12, dtype=dtype, grad=True)
    out, _ = rnn(x)
    assert out.shape == (7, 4, 20 * (1 + rnn.bidirectional))
    assert "CudnnRnn" in (out.grad_fn.name() + str(out.grad_fn.next_functions))
    out.sum().backward()
    assert x.grad.shape == x.shape
    assert all(p.grad.shape == p.shape for p in rnn.parameters())
    with torch.no_grad():
        assert rnn.eval()(x)[0].shape == out.shape


def test_training_keeps_what_the_model_says():
    """workspace.c: steps * batch * hidden * bytes * (layers * kept + layers - 1), 5 kept for an LSTM and 6 for a GRU."""
    steps, batch, hidden, layers = 50, 8, 64, 3
    x, state = gpu(steps, batch, 32), gpu(layers, batch, hidden)
    for cell, kept, state in ((nn.LSTM, 5, (state, state)), (nn.GRU, 6, state)):
        rnn = cell(32, hidden, layers).to(GPU)
        rnn(x, state)
        before = torch.cuda.memory_allocated()
        out = rnn(x, state)
        training = torch.cuda.memory_allocated() - before
        del out
        with torch.no_grad():
            before = torch.cuda.memory_allocated()
            out = rnn.eval()(x, state)
            inference = torch.cuda.memory_allocated() - before
        del out
        reserve = steps * batch * hidden * 4 * (layers * kept + layers - 1)
        assert training - inference == pytest.approx(reserve, abs=512)


def test_packed_sequences():
    lengths = (7, 5, 2)
    for cell in CELLS:
        rnn = cell(12, 20, 2, bidirectional=True).to(GPU)
        packed = nn.utils.rnn.pack_sequence([gpu(n, 12, grad=True) for n in lengths])
        out, _ = rnn(packed)
        assert out.data.shape == (sum(lengths), 40)
        assert list(nn.utils.rnn.pad_packed_sequence(out)[1]) == list(lengths)
        out.data.sum().backward()
        assert all(p.grad.shape == p.shape for p in rnn.parameters())
    mixed = nn.utils.rnn.pack_sequence([gpu(n, 12) for n in (2, 7, 5)], enforce_sorted=False)
    assert rnn(mixed)[0].data.shape == (14, 40)


def test_dropout_takes_its_generators_once():
    """48 bytes for each thread that the GPU holds at a time, kept by PyTorch for the device."""
    code = """
        import torch
        x = torch.zeros(7, 4, 12, device="cuda")
        plain, dropping = (torch.nn.LSTM(12, 20, 2, dropout=p).cuda() for p in (0, 0.5))
        for rnn in (plain, dropping, dropping):
            rnn(x)
            print(torch.cuda.memory_allocated())
    """
    before, once, twice = (int(line) for line in simulated.forked(code).stdout.split())
    properties = torch.cuda.get_device_properties(0)
    assert once - before == pytest.approx(48 * properties.multi_processor_count * properties.max_threads_per_multi_processor, abs=4096)
    assert twice == once


# --- attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.125])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention(dtype, drop, causal):
    q, k, v = (gpu(2, 8, n, 64, dtype=dtype, grad=True) for n in (128, 256, 256))
    if causal:
        k, v = (gpu(2, 8, 128, 64, dtype=dtype, grad=True) for _ in range(2))
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=drop)
        assert "Cudnn" in out.grad_fn.name()
        out.sum().backward()
    assert [t.grad.shape for t in (q, k, v)] == [t.shape for t in (q, k, v)]


def test_attention_with_fewer_key_heads_and_a_bias():
    q, k, v = (gpu(2, heads, 128, 64, dtype=torch.bfloat16, grad=True) for heads in (8, 2, 2))
    bias = gpu(2, 8, 128, 128, dtype=torch.bfloat16)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.CUDNN_ATTENTION):
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward()
        assert k.grad.shape == k.shape
        k = gpu(2, 8, 128, 64, dtype=torch.bfloat16)
        assert F.scaled_dot_product_attention(q, k, k, attn_mask=bias).shape == q.shape


def test_attention_backward_sums_in_float():
    """The scratch memory is dq once more in float, and a float for each query."""
    batch, heads, length, size = 2, 8, 512, 64
    q, k, v = (gpu(batch, heads, length, size, dtype=torch.float16, grad=True) for _ in range(3))
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v)
    gradient = torch.zeros_like(out)
    took = scratch(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    assert took == pytest.approx(batch * heads * length * (size + 1) * 4, abs=8192)


# --- the rest


def test_batch_norm():
    for dtype, layout in itertools.product((torch.float32, torch.float16), (torch.contiguous_format, torch.channels_last)):
        x = gpu(4, 16, 8, 8, dtype=dtype).to(memory_format=layout).requires_grad_()
        norm = nn.BatchNorm2d(16).to(GPU)
        out = norm(x)
        out.sum().backward()
        assert norm.weight.grad.shape == (16,)
        assert norm.eval()(x).shape == x.shape
    w, b, mean, var = (gpu(16) for _ in range(4))
    y, *_, reserve = torch.cudnn_batch_norm(gpu(4, 16, 8, 8), w, b, mean, var, True, 0.1, 1e-5)
    assert (y.shape, reserve.numel()) == ((4, 16, 8, 8), 0)
    assert torch.cudnn_batch_norm(gpu(4, 16, 8, 8), w, b, mean, var, False, 0.1, 1e-5)[0].shape == y.shape


def test_ctc_loss(sim):
    p, labels = gpu(20, 3, 10, grad=True), torch.ones(9, dtype=torch.int)
    cost, gradient = torch._cudnn_ctc_loss(p, labels, (20, 20, 20), (3, 3, 3), 0, True, False)
    assert (cost.shape, gradient.shape) == ((3,), p.shape)
    device = [t.to(GPU) for t in (labels, torch.tensor([20] * 3, dtype=torch.int), torch.tensor([3] * 3, dtype=torch.int))]
    F.ctc_loss(p, *device).backward()
    assert p.grad.shape == p.shape


def test_spatial_transformer():
    theta, x = gpu(2, 2, 3, grad=True), gpu(2, 3, 8, 8, grad=True)
    grid = torch.cudnn_affine_grid_generator(theta, 2, 3, 8, 8)
    assert grid.shape == (2, 8, 8, 2)
    torch.cudnn_grid_sampler(x, grid).sum().backward()
    assert (theta.grad.shape, x.grad.shape) == (theta.shape, x.shape)


class Network(nn.Module):
    """A convolution, a norm, an LSTM, attention and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.rnn = nn.LSTM(8 * 14, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.conv(x).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("benchmark", [False, True])
def test_training(benchmark, mixed):
    torch.backends.cudnn.benchmark = benchmark
    network = Network().to(GPU)
    optimizer = torch.optim.Adam(network.parameters())
    x, label = gpu(16, 1, 28, 28), torch.zeros(16, dtype=torch.long, device=GPU)
    held = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = F.cross_entropy(network(x), label)
        loss.backward()
        optimizer.step()
        del loss
        held.append(torch.cuda.memory_allocated())
    assert held[1] == held[2] == held[3]  # memory does not grow
