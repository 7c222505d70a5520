"""What a program reads back under `cenote dry-run`: computed where it can be known, and never wrong. What cannot be known: test_plausible.py.

The programs check themselves: they do the same on the CPU and on the simulated GPU, and end with an error where the two differ.
"""
import pytest
from patience import patience
from test_dry_run import dry, line_of  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

SAME = """
    import torch

    def same(do):
        one, other = do("cpu"), do("cuda")
        other = other.cpu() if isinstance(other, torch.Tensor) else other
        ok = torch.allclose(one, other, rtol=1e-4, atol=1e-6) if isinstance(one, torch.Tensor) else one == other
        assert ok, (do.__name__, one, other)
        return do
"""

KNOWN = SAME + """
    def numbers(device, *shape):
        count = torch.Size(shape).numel()
        return torch.arange(count, dtype=torch.float32).reshape(shape).to(device)

    @same
    def views(device):
        x = numbers(device, 4, 6)
        x[1:3, ::2].mul_(10)
        x.t()[2].add_(1)
        x.view(-1)[5:7] = 0
        return x
    @same
    def strided(device):
        x = numbers(device, 12)
        x.as_strided((3, 2), (4, 1), 1).zero_()
        x[1:].add_(x[:-1].clone())
        return x.as_strided((4,), (3,), 2)
    @same
    def overlapping(device):
        x = numbers(device, 8)
        y = x.expand(3, 8).contiguous()
        y[:, 1:] += y[:, :1]
        return y.sum(0) + x
    @same
    def swapped(device):
        x = numbers(device, 4).requires_grad_()
        old = x.data
        x.data = numbers(device, 4) * 7
        old.fill_(3)
        return torch.stack([x.detach(), old])
    @same
    def into(device):
        x, y = numbers(device, 4), torch.zeros(4, device=device)
        torch.mul(x, 3, out=y)
        torch.add(y[:2], 1, out=y[2:])
        return y
    @same
    def resized(device):
        x = numbers(device, 4)
        y = torch.empty(0, device=device)
        torch.mul(x, 2, out=y)
        return y
    @same
    def own_function(device):
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]
        x = numbers(device, 5).requires_grad_()
        Double.apply(x).sum().backward()
        return x.grad
    @same
    def trained(device):
        torch.manual_seed(1)
        w = torch.ones(3, 2).to(device).requires_grad_()
        optimizer = torch.optim.Adam([w], 0.1)
        for _ in range(70):     # longer than the longest chain
            optimizer.zero_grad()
            ((numbers(device, 4, 3) @ w - 1) ** 2).mean().backward()
            optimizer.step()
        return w.detach()
    @same
    def counted(device):
        x = torch.tensor([3, 0, 2, 0, 1], device=device)
        values, counts = torch.tensor([1, 5, 5, 2], device=device).unique(return_counts=True)
        x[x == 0] = 9
        return [x.nonzero().tolist(), x[x > 2].tolist(), values.tolist(), counts.tolist(), torch.bincount(x).tolist(), (x > 2).sum().item(),
                torch.masked_select(x, x < 3).tolist(), torch.equal(x, x.clone()), bool((x > 0).all()),
                torch.arange(3, device=device).repeat_interleave(torch.tensor([2, 0, 1], device=device)).tolist(),
                x.unique_consecutive().tolist(), torch.where(x > 2)[0].tolist()]
    @same
    def without_gradients(device):
        with torch.inference_mode():
            x = numbers(device, 3, 3)
            return [x.softmax(-1).sum().item() // 1, x.argmax(-1).tolist(), (x.half().float() == x).all().item(), x.max().item()]
    @same
    def shared_by_name(device):
        x = numbers(device, 4)
        y = torch.from_dlpack(x)
        y.add_(1)
        return y.shape
    @same
    def in_threads(device):
        import threading
        x = numbers(device, 4)
        thread = threading.Thread(target=lambda: x.mul_(3))
        thread.start(), thread.join()
        return x
    @same
    def of_a_list(device):
        losses = [torch.full((), float(v)).to(device) for v in (1, 2, 3)]
        return [torch.tensor(losses).tolist(), torch.as_tensor(losses)[1].item(), torch.tensor([losses, losses]).tolist()]
    @same
    def inside_an_operator(device):
        x, copies = numbers(device, 4), [torch.zeros(4)]
        torch._foreach_copy_(copies, [x * 2])
        return [torch.allclose(x, x.clone()), torch.allclose(x, x + 1), copies[0].tolist(),
                numbers(device, 3, 3).to_sparse_csr()._nnz(), torch.nn.functional.one_hot(x.long()).shape]
    @same
    def in_a_raw_thread(device):
        import _thread, time
        x, done = numbers(device, 3) * 2, []
        _thread.start_new_thread(lambda: done.append(x.tolist() + [x[1].item()]), ())
        while not done:
            time.sleep(0.01)
        return done
    @same
    def by_other_names(device):
        import io
        x, file = numbers(device, 3) * 2, io.BytesIO()
        torch.save(x, file, _use_new_zipfile_serialization=False)
        file.seek(0)
        return [torch.from_dlpack(x).tolist(), torch.from_dlpack(x[1:]).tolist(), torch.load(file, map_location="cpu").tolist()]
    @same
    def conjugates(device):
        x, y = torch.tensor([1 + 2j]).to(device), numbers(device, 3)
        c = x.conj()
        return [c.tolist(), c.item(), c.imag.tolist(), (x * c).tolist(), torch._neg_view(y).tolist(), torch._neg_view(y)[1].item()]
    @same
    def small_matrices(device):
        e = torch.eye(3).to(device) * 4
        torch.distributions.MultivariateNormal(torch.zeros(3, device=device), e)
        return [torch.linalg.inv(e).tolist(), torch.linalg.cholesky_ex(e).info.item(), torch.linalg.matrix_rank(e).item(), torch.linalg.det(e).item()]
    @same
    def in_memory(device):
        host = torch.rand(700, 700, generator=torch.Generator().manual_seed(1))
        x = host.to(device)                 # 1.9 MiB of floats: no copy of them is kept
        smallest = x.amin()
        count = (x > 0.25).sum()
        back = torch.equal(x.cpu(), host)
        x.copy_(host * 2)
        largest = x.amax()
        x[0, 0] = 7
        columns = torch.arange(490_000.0).reshape(700, 700).to(device)[:, ::2].cpu()[:, 7].tolist()
        return [columns, back, smallest.item(), count.item(), largest.item(), x.amax().item(), (x.cpu() == 7).sum().item()]
    @same
    def in_large_memory(device):
        host = torch.rand(3000, 1000, generator=torch.Generator().manual_seed(1))
        x = host.to(device)                 # 11 MiB
        y = torch.empty_like(x).copy_(host * 2)
        return [torch.equal(x.cpu(), host), torch.equal(x.t().cpu(), host.t()), torch.equal(x[:, ::2].cpu(), host[:, ::2]),
                torch.equal(x.to("cpu", torch.float64), host.double()), x[2, 3].item(), x[5:9, ::70].tolist(), y[2999, 990:].tolist(),
                torch.zeros(3000, 1000, device=device).cpu().any().item(), y.zero_()[5, :3].tolist(),
                torch.ones(9, device=device).expand(300_000, 9).cpu().amin().item()]
    @same
    def row_by_row(device):
        rows = torch.zeros(50_000, 20).to(device)
        for i in range(200):
            rows[i] = torch.full((20,), 2.0).to(device)
        return rows.sum().item()
    @same
    def in_parts(device):
        halves, columns, long = torch.empty(8, device=device), torch.empty(3, 6, device=device), torch.empty(500_000, device=device)
        halves[:4] = 1
        halves[1:3].add_(1)
        halves[4:] = numbers(device, 4)
        columns[:, 2:] = numbers(device, 3, 4)
        columns[:, :2] = 5
        long[:100_000].fill_(1)
        first = long[:50_000].sum().item()
        for i in range(100_000, 500_000, 100_000):
            torch.mul(long[:100_000], 2, out=long[i:i + 100_000])
        joined = torch.empty(6, device=device)
        torch.cat([numbers(device, 2), numbers(device, 3)], out=joined[1:])
        return [halves.tolist(), columns.tolist(), first, long.sum().item(), joined[1:].tolist()]
    @same
    def by_an_index(device):
        lengths = torch.tensor([3, 9, 1, 7]).to(device)
        order = lengths.argsort(descending=True)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(4, device=device))
        rows, chosen, mask = torch.empty(4, 6, device=device), torch.empty(5, device=device), numbers(device, 5) > 2
        rows[order] = numbers(device, 4, 6)[order]
        chosen[mask] = numbers(device, 2)
        chosen[~mask] = 0
        copied = torch.empty(3, 2, device=device).index_copy_(0, torch.tensor([2, 0, 1], device=device), numbers(device, 3, 2))
        filled = torch.empty(4, device=device).index_fill_(0, order, 5.0)
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(5), torch.ones(3)], enforce_sorted=False).to(device)
        return [back.tolist(), rows.tolist(), chosen.tolist(), copied.tolist(), filled.tolist(),
                torch.nn.utils.rnn.pad_packed_sequence(packed)[1].tolist()]
    @same
    def counted_into(device):
        x = torch.tensor([3, 0, 2, 0, 1], device=device)
        places, chosen = torch.empty(0, dtype=torch.long, device=device), torch.empty(0, device=device)
        torch.nonzero(x, out=places)
        torch.masked_select(x.float(), x > 1, out=chosen)
        return [places.tolist(), chosen.tolist()]
    print("all are the same")
"""


def test_what_can_be_known_is_as_on_the_cpu(dry):  # noqa: F811
    done, found = dry(KNOWN, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0 and "all are the same" in done.stdout, done.stdout + done.stderr
    assert found["unknown_reads"] == [] and found["known_reads"] > 30
    assert "all of them known without a GPU" in done.stdout and "not known without a GPU" not in done.stdout


HOSTILE = """
    import _thread, ctypes, time, torch
    driver = ctypes.CDLL("libcuda.so.1")
    seven = ctypes.c_float(7)

    def fresh():
        return torch.full((4,), 1.0, device="cuda")

    def by_the_driver(x):
        driver.cuMemcpyHtoD_v2(ctypes.c_uint64(x.data_ptr()), ctypes.byref(seven), ctypes.c_size_t(4))
    def by_a_kernel(x):
        driver.sim_launch_kernel(None, None)
    def by_a_graph(x):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        graph.replay()
    def by_an_unknown_thread(x):
        done = []
        def add():
            torch._C._dispatch_tls_set_dispatch_key_included("Fake", False)     # as in a thread that Python did not start
            done.append(x.add_(1))
        _thread.start_new_thread(add, ())
        while not done:
            time.sleep(0.01)
    def by_another_name(x):
        torch.from_dlpack(x).add_(1)
    def by_a_part_of_another_name(x):
        torch.from_dlpack(x[1:]).add_(1)
    def by_large_work(x):
        x.copy_(torch.ones(4096, 4096, device="cuda").mm(torch.ones(4096, 4096, device="cuda"))[0, :4])
    def by_large_work_in_a_part(x):
        x[1:2].copy_(torch.ones(4096, 4096, device="cuda").mm(torch.ones(4096, 4096, device="cuda"))[0, :1])
    def by_an_index(x):
        y = torch.empty(4, device="cuda")
        y[torch.tensor([0, 2, 3], device="cuda")] = 1.0
        assert y[2:].tolist() == [1, 1]
        x.set_(y.untyped_storage(), 0, (4,))
    def by_half(x):
        y = torch.empty(4, device="cuda")
        y[1:] = x[1:]
        x.set_(y.untyped_storage(), 0, (4,))
    def by_new_memory(x):
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(16)
    def by_a_later_upload(x):
        host = torch.ones(1024, 1024)
        y = host.cuda()
        x.copy_(y[0, :4] * 2)                       # to be computed from memory that then is another tensor's
        del y
        keep.append(torch.full((1024, 1024), 3.0).cuda())
    def by_nothing(x):
        pass
    def held(x):                                    # as code outside of PyTorch finds it
        buffer = (ctypes.c_float * 4)()
        driver.cuMemcpyDtoH_v2(ctypes.byref(buffer), ctypes.c_uint64(x.data_ptr()), ctypes.c_size_t(16))
        return list(buffer)
    for hand_on in (lambda x: x.__dlpack__(), torch.utils.dlpack.to_dlpack, torch.to_dlpack, lambda x: x.__cuda_array_interface__,
                    lambda x: x[1:].__dlpack__()):
        x = fresh() * 5
        hand_on(x)
        assert held(x) == [5, 5, 5, 5]
    x = torch.full((4,), torch.nan).cuda()
    by_large_work(x)
    torch.from_dlpack(x)
    assert all(-9 < value < 9 for value in held(x))

    keep = []
    for write in (by_the_driver, by_a_kernel, by_a_graph, by_an_unknown_thread, by_another_name, by_a_part_of_another_name, by_large_work,
                  by_large_work_in_a_part, by_an_index, by_half, by_new_memory, by_a_later_upload):
        x = fresh()
        write(x)
        x.tolist()
    x = fresh()
    by_nothing(x)
    assert x.tolist() == [1, 1, 1, 1]
    by_large_work_in_a_part(x)
    assert x[::2].tolist() == [1, 1] and x[3].item() == 1
    x.tolist()
"""


def test_what_was_written_unseen_is_not_known(dry):  # noqa: F811
    done, found = dry(HOSTILE, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    reads = [(row["line"], row["times"]) for row in found["unknown_reads"]]
    assert reads == [(line_of(HOSTILE, "x.tolist()"), 12), (line_of(HOSTILE, "x[3].item()") + 1, 1)] and found["known_reads"] == 4


FORGOTTEN = """
    import ctypes, torch
    kernel = lambda: ctypes.CDLL("libcuda.so.1").sim_launch_kernel(None, None)      # as one of Triton's: it may write anywhere
    weight, losses, numbers = torch.randn(2048, 2048, device="cuda"), [], []
    static = torch.zeros((), device="cuda")
    for step in range(30):
        logits = (weight @ weight)[:64, :1000]
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device="cuda"))
        token, part = logits.argmax(-1), loss / 4
        kernel()
        losses.append(loss.item())
        assert 333 <= token.min().item() and token.max().item() < 666
        kernel()
        assert 0 < part.item() <= losses[-1]
        numbers.append(static.item())           # what a graph or a compiled function may have made
        assert numbers[-1] == static.item()
    for falls in (losses, numbers):
        assert all(one > other > 0 for one, other in zip(falls, falls[1:])), falls
    assert 6 < losses[0] < 8

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            kernel()
            return x * 2
        @staticmethod
        def backward(ctx, gradient):
            kernel()
            return gradient * 2
    labels = torch.arange(64).reshape(4, 16).cuda() % 7         # a loss of the answers alone: the mask chooses in forward and in backward
    longer = labels * 2
    hidden = torch.ones(4, 16, 256, device="cuda", requires_grad=True)
    chosen = Kernel.apply(hidden[labels != 0])
    kernel()
    assert len(chosen) == len(hidden[labels != 0]) == 54 and (labels != 0).sum().item() == 54
    assert (longer + labels == 0).nonzero().shape[0] == 10 and labels.unique().numel() == 7 and labels.max().item() == 6
    chosen.sum().backward()
    buffer = torch.zeros(64, device="cuda")
    kernel()                                                    # into the buffer, for all that is known
    assert buffer.sum().item() > 0
    print("forgotten, and plausible")
"""


def test_what_is_forgotten_keeps_what_it_is_like(dry):  # noqa: F811
    """Rule V16: a program with kernels of its own reads its loss after them, and the token that it has chosen."""
    done, found = dry(FORGOTTEN, "--gpu", "2GiB", "--steps", "0")
    assert "forgotten, and plausible" in done.stdout, done.stdout + done.stderr
    assert found["other_values"]["verdict"] == "fits", done.stdout      # the same counts, although all that a mask can choose were more
    kinds = {row["line"]: row["kind"] for row in found["unknown_reads"]}
    assert kinds[line_of(FORGOTTEN, "losses.append(loss.item())")] == "loss" and kinds[line_of(FORGOTTEN, "numbers.append(")] == "number"


LEFT = """
    import ctypes, math, resource, torch
    cuda = ctypes.CDLL("libcuda.so.1")
    kernel = lambda: cuda.sim_launch_kernel(None, None)
    x = torch.arange(4).cuda()
    other = torch.from_dlpack(x)
    kernel()
    other.fill_(7)                              # the newest values that this memory has, whatever is left of the other name
    assert x.tolist() == [7] * 4 and other.tolist() == [7] * 4
    x = torch.arange(8).cuda()
    kernel()
    assert cuda.cuMemsetD8_v2(ctypes.c_ulonglong(x.data_ptr()), ctypes.c_ubyte(0), ctypes.c_size_t(64)) == 0
    assert x.tolist() != list(range(8))
    weight = torch.randn(2048, 2048, device="cuda")
    x = torch.full((64,), 1.0, device="cuda")
    x[1:] = (weight @ weight)[0, :63]
    kernel()
    assert math.isfinite((x - 9).log().sum().item())        # what was not known in it is not likely
    x = torch.rand(500_000).cuda()
    total = x.log().sum()
    del x                                       # and with it what its values are
    kernel()
    assert not math.isnan(total.item())
    labels = (torch.arange(100_000) % 7).cuda()
    kernel()
    for step in range(80):                      # a chain that is computed as it grows, as one of known values (V9)
        labels = labels + 1
    assert (labels == 80).sum().item() == 14286
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in range(60):
        ids = torch.full((1 << 20,), step).cuda()           # 8 MiB, which the next step replaces
        kernel()
        torch.ones(1, device="cuda").add_(1)                # an operator finds that the kernel has run
        del ids
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 << 10, f"{grown >> 10} MiB"    # 480 MiB if they were kept
    print("nothing is left")
"""


def test_what_is_left_ends_with_its_storage_or_with_a_write(dry):  # noqa: F811
    done, _ = dry(LEFT, "--gpu", "2GiB", "--steps", "0")
    assert "nothing is left" in done.stdout, done.stdout + done.stderr


BEYOND = """
    import torch
    loss = torch.nn.functional.mse_loss(torch.ones(1000).cuda(), torch.zeros(1000).cuda())
    assert loss.untyped_storage().nbytes() > 4 and loss.item() == 1
    whole = loss.as_strided((1000,), (1,))
    whole[5].item()
    whole.fill_(3)
    assert loss.item() == 3 and whole.sum().item() == 3000
"""


def test_what_a_view_shows_beyond_a_loss_is_not_known(dry):  # noqa: F811
    done, found = dry(BEYOND, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["line"] for row in found["unknown_reads"]] == [line_of(BEYOND, "[5].item()")] and found["known_reads"] == 3


def test_what_is_captured_is_not_done(dry):  # noqa: F811
    """A captured call has not run: the number that the program reads before the first replay is nobody's to know."""
    done, found = dry("""
        import torch
        x = torch.full((4,), 1.0, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        x.tolist()
        try:
            torch.cuda.CUDAGraph().capture_begin()      # on the default stream: refused
        except RuntimeError:
            pass
        assert torch.full((4,), 1.0, device="cuda").sum().item() == 4
    """, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0 and len(found["unknown_reads"]) == 1, done.stdout + done.stderr


SURVIVES = """
    import os, signal, threading, torch
    w = torch.randn(2048, 2048, device="cuda")
    unknown = (w @ w)[0, :8].contiguous()

    average = torch.zeros(8, device="cuda")         # as Adam's of a bias: a chain of calls, half of them unknown
    for _ in range(20_000):
        average.mul_(0.999).addcmul_(unknown, unknown, value=0.001)
    assert average.isfinite().all()
    for _ in range(20_000):
        average.mul_(0.999).addcmul_(unknown, unknown, value=0.001)
    del average

    def interrupted(*args):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupted)
    for _ in range(30):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0)
            while True:
                unknown[0].item()
        except KeyboardInterrupt:
            pass

    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        for type in (torch.float32, torch.int64, torch.bool, torch.complex64):
            host = torch.eye(4).to(type)
            there = host.to_sparse(layout=layout).to("cuda")
            assert there.layout == layout and there.cpu().shape == (4, 4)
    assert torch.nested.nested_tensor([torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]).to_padded_tensor(0.0).shape == (2, 3)
    torch.quantize_per_tensor(torch.arange(4.0, device="cuda"), 1.0, 0, torch.quint8).cpu()
    torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]], device="cuda"), torch.ones(3, device="cuda"), (3,)).coalesce()

    stop = []
    def work():
        while not stop:
            torch.rand(300, 300, device="cuda").erfinv().sort()[0].sum().item()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for _ in range(20):
        pid = os.fork()
        if not pid:
            signal.alarm(120)
            torch.digamma(torch.ones(2)), torch.special.i0(torch.ones(2)), torch.lgamma(torch.ones(2)), torch.special.erfcx(torch.ones(2))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, "a child hangs"
    stop.append(True)
    thread.join()
    print("survived")
"""


def test_what_ends_no_program(dry):  # noqa: F811
    """Rules V7, V8, V9, V12: forks beside a thread that computes, interrupts while a value is told, long chains, every layout."""
    done, _ = dry(SURVIVES, "--gpu", "2GiB", "--timeout", str(patience(100)))
    assert "survived" in done.stdout, done.stdout + done.stderr


PASSES = """
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.attention.flex_attention import flex_attention
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    weight = distribute_tensor(torch.zeros(8, 8, device="cuda"), init_device_mesh("cuda", (1,)), [Shard(0)])
    torch.nn.init.normal_(weight)
    assert 0 < weight.to_local().square().sum().item() < 1000
    heads = torch.ones(1, 2, 16, 16, device="cuda")
    assert flex_attention(heads, heads, heads).sum().item() == 2 * 16 * 16
    x = torch.ones(3, device="cuda")
    large = torch.full((2048, 2048), torch.nan).cuda()
    dist.all_reduce(large)
    assert large.cpu().isfinite().all()
    assert torch.cond(x.sum() > 2, lambda x: x + 1, lambda x: x - 1, (x,)).tolist() == [2, 2, 2]
    print("all passed")
"""


def test_operators_of_python_pass(dry):  # noqa: F811
    """Higher-order operators know no key but Python's: weights of a DTensor, which FSDP2 initialises, ended each dry run with an error."""
    done, _ = dry(PASSES, "--gpu", "2GiB", "--steps", "0")
    assert "all passed" in done.stdout, done.stdout + done.stderr


TRAINING = {
    "plain": """
        model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.LayerNorm(2048), torch.nn.Dropout(),
                                    torch.nn.Linear(2048, 512))
        batch, make = torch.randn(256, 512), lambda parameters: torch.optim.AdamW(parameters, foreach=True)
    """,
    "fused": """
        model = torch.nn.Sequential(torch.nn.Embedding(1000, 256), torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True))
        batch, make = torch.randint(0, 1000, (8, 64)), lambda parameters: torch.optim.AdamW(parameters, fused=True)
    """,
    "convolutions": """
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
                                    torch.nn.Flatten())
        batch, make = torch.randn(8, 3, 64, 64), lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False)
    """,
}


@pytest.mark.parametrize("name", TRAINING)
def test_without_reads_nothing_is_allocated_otherwise(dry, name):  # noqa: F811
    code = "    import torch\n" + TRAINING[name].replace("\n        ", "\n    ") + """
    model, batch = model.cuda(), batch.cuda()
    optimizer = make(model.parameters())
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).float().pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
    print([stats[key] for key in ("allocation.all.allocated", "allocated_bytes.all.allocated", "allocated_bytes.all.peak", "reserved_bytes.all.peak",
                                  "segment.all.allocated")])
"""
    for allocator in ("cenote", "native"):
        outputs = []
        for policy in ("off", "typical"):
            done, found = dry(code, "--gpu", "2GiB", "--steps", "0", "--unknown", policy, "--allocator", allocator)
            assert done.returncode == 0, done.stdout + done.stderr
            outputs.append((done.stdout.splitlines()[0], found["processes"][0]["devices"]))
        assert outputs[0] == outputs[1] and found["unknown_reads"] == []


def test_a_stall_is_ended_and_located(dry):  # noqa: F811
    code = """
        import threading, torch
        kept = torch.ones(16 << 20, device="cuda")
        threading.Event().wait()
    """
    done, found = dry(code, "--gpu", "2GiB", "--timeout", str(patience(1)))
    assert done.returncode == 3 and found["stopped"], done.stdout
    assert "peak in step 1: 64.0 MiB live" in done.stdout       # though it makes no step
    assert "no verdict: it still ran, in step 1, when its time was over: process " in done.stdout
    assert f"train.py:{line_of(code, 'wait()')}" in done.stdout and "it waits" in done.stdout


def test_an_optimizer_that_never_stepped_is_said(dry):  # noqa: F811
    done, _ = dry("""
        import torch
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 8, device="cuda")).sum().backward()
    """, "--gpu", "2GiB")
    assert done.returncode == 0 and "1 optimizer built and never stepped" in done.stdout
