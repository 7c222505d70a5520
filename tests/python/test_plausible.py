"""What a program reads back under `cenote dry-run` if it cannot be known: plausible, and named. What can be known: test_values.py."""
import importlib.util
import os
import textwrap

import pytest
from test_dry_run import dry, line_of  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

UNKNOWN = """
    import math, torch
    w = torch.randn(2048, 2048, device="cuda")
    logits = w @ w                                         # larger than what is computed
    assert not torch.isnan(logits).any() and logits.isfinite().all()
    tokens = logits.argmax(-1)
    assert all(0 < token < 2047 for token in tokens[:8].tolist())
    assert abs(logits[0, :64].softmax(-1).sum().item() - 1) < 1e-5
    torch.distributions.Categorical(logits=logits[:2, :10]).sample()
    kept = logits[:8, :8]
    kept = kept[kept > 0]
    assert 0 < len(kept) <= 64

    def until(done, most=2000):
        any(done() for _ in range(most)) or exit("it never ends")
    losses, smallest = [1e9], 1e9
    def lost():
        losses.append(torch.nn.functional.cross_entropy(w @ w, tokens).item())
        return losses[-1] < 0.01
    until(lost)
    assert abs(losses[1] - math.log(2048)) < 4 and losses == sorted(losses, reverse=True)
    import torch.nn.functional as F
    for loss_of in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits, F.l1_loss,
                    lambda x, y: F.kl_div(x, y, reduction="batchmean"), lambda x, y: F.mse_loss(x, y).div_(4)):
        until(lambda: 0 < loss_of(w @ w, w).item() < 0.01, 100)     # it has the memory of all that it is the mean of
    worse = 0
    for step in range(100):     # early stopping
        loss = ((w @ w) ** 2).mean()
        worse = 0 if loss < smallest else worse + 1
        smallest = min(loss, smallest) if step else loss
        if worse > 3:
            break
    assert step == 99
    while torch.rand((), device="cuda").item() > 0.2:      # known: as random as the program asked for
        pass

    dirty = torch.full((3000, 1024), torch.nan).cuda()      # what a block holds that is taken again
    del dirty
    large = torch.empty(3000, 1024, device="cuda")
    torch.mm(torch.randn(3000, 64, device="cuda"), torch.randn(64, 1024, device="cuda"), out=large)
    copies = [large.cpu(), large.t().contiguous().cpu(), large.to("cpu", torch.float64), large.sigmoid().cpu(), (large > 0).expand(3, -1, -1).cpu(),
              torch.empty(3000, 1024).pin_memory().copy_(large, non_blocking=True), torch.zeros(1024, 6000)[:, ::2].copy_(large.t()),
              large.repeat(1, 2)[:, ::2].cpu()]
    assert all(copy.isfinite().all() and copy.any() and copy.numel() >= large.numel() for copy in copies)
    probabilities = large.softmax(-1).cpu()
    assert (probabilities.sum(-1) - 1).abs().max() < 1e-4
    large.zero_()
    assert not large.cpu().any()
    large[0] = copies[1].cuda()[0, :1024]
    assert large.cpu().isfinite().all()

    for _ in range(2):                                      # what has fallen as far as it can rises, and falls again
        until(lambda: (w @ w)[:100].tanh().mean().item() > 100)
        until(lambda: (w @ w)[:100].tanh().mean().item() < 1e-6)
    until(lambda: (logits.argmax(-1) == tokens).float().sum().item() / 2048 > 0.98 < 100 * (logits.argmax(-1) == tokens).float().mean().item(), 80)
    for _ in range(100):                                    # something may be chosen by right answers
        mask = logits.argmin(-1) == tokens
        chosen = tokens[mask]
        assert mask.sum().item() < 1024

    for n in (128, 256, 512, 1024, 2048, 4096):             # V10: at every size
        x = torch.randn(n, 2048, device="cuda") @ torch.randn(2048, n, device="cuda")
        mask = x > 0
        counts = {mask.nonzero().shape[0], x[mask].shape[0], mask.sum().item(), x.masked_select(mask).shape[0]}
        assert len(counts) == 1 and 0.3 < counts.pop() / n ** 2 <= 1, (n, counts)
        assert x.isfinite().all() and (x == x).all() and not x.isnan().any() and not (x != x).any(), n
    torch.distributions.Normal(x[:, :64], torch.nn.functional.softplus(x[:, :64])).sample()
    torch.distributions.Categorical(logits=x[:1024, :1024]).sample()
    torch.distributions.Bernoulli(probs=x[:1024, :1024].sigmoid()).sample()
    order, best = x[0].argsort(), x[0].topk(3000)
    assert len(order.unique()) == len(set(order.tolist())) == 4096 and len(set(best.indices.tolist())) == 3000
    assert (best.values[:-1] >= best.values[1:]).all()
    half = (w.half() @ w.half()).norm
    assert all(math.log(half().item()) < 1 for _ in range(200))
    means = []
    for step in range(20):                                  # what else is logged makes no loss fall
        [(w @ w).norm().item() for _ in range(10)]
        means.append((w @ w)[:, :1000].abs().mean().item())
    assert means[-1] > means[0] / 10, means
    print("ended")
"""


def test_what_nobody_can_know_is_plausible_and_named(dry):  # noqa: F811
    done, found = dry(UNKNOWN, "--gpu", "2GiB")
    assert done.returncode == 0 and "ended" in done.stdout, done.stdout + done.stderr
    lines = {row["line"] for row in found["unknown_reads"]}
    assert {line_of(UNKNOWN, text) for text in ("tokens[:8]", "kept[kept > 0]", "losses.append", "worse = 0 if", "isnan")} <= lines
    assert line_of(UNKNOWN, "torch.rand(") not in lines
    assert (line_of(UNKNOWN, "kept[kept"), "count") in {(row["line"], row["kind"]) for row in found["unknown_reads"]}
    assert f"train.py:{line_of(UNKNOWN, '.item() > 100')}: a loss, " in done.stdout
    assert found["other_values"]["unknown"] == "largest" and found["other_values"]["verdict"] == "fits"


def test_sizes_by_option(dry):  # noqa: F811
    code = """
        import torch
        scores = torch.randn(4096, 4096, device="cuda").mm(torch.randn(4096, 4096, device="cuda"))
        print("size", scores[:64, :64].gt(0).nonzero().shape[0])
        print("number", scores[0, 0].item())
    """
    _, found = dry(code, "--gpu", "2GiB", "--unknown", "zero")
    assert found["unknown"] == "zero" and found["other_values"] is None
    for policy, size in (("zero", "size 0\nnumber 0.0"), ("largest", "size 4096\n"), ("typical", "size ")):
        done, _ = dry(code, "--gpu", "2GiB", "--unknown", policy)
        assert done.stdout.startswith(size), (policy, done.stdout)


def test_a_loss_falls_whatever_the_length_of_the_batch(dry):  # noqa: F811
    """A program that stops early ends at once otherwise."""
    done, _ = dry("""
        import torch
        from torch.nn.functional import cross_entropy
        head = torch.nn.Linear(1024, 1000).cuda()
        def of_rows(rows):
            return cross_entropy(head(torch.randn(rows, 1024, device="cuda")), torch.zeros(rows, dtype=torch.long, device="cuda"))
        def of_sentences(rows):
            scores, words = head(torch.randn(4, rows, 1024, device="cuda")), torch.zeros(4, rows, dtype=torch.long, device="cuda")
            each = cross_entropy(scores.transpose(1, 2), words, reduction="none")
            return (each * torch.ones(rows, device="cuda")).sum() / each.numel()
        def of_uploads(rows):           # known up to 8 MiB, and copied up to 1 MiB
            return cross_entropy(torch.randn(rows, 1024).cuda().relu_() @ head.weight.t(), torch.zeros(rows, dtype=torch.long, device="cuda"))
        def of_pinned(rows):
            return (torch.randn(rows, 1024).pin_memory().cuda(non_blocking=True) @ head.weight.t()).square().mean()
        def sum_of(rows):
            return cross_entropy(head(torch.randn(rows, 1024, device="cuda")).tanh_(), torch.zeros(rows, dtype=torch.long, device="cuda"),
                                 reduction="sum") / rows
        for loss_of in (of_rows, of_sentences, of_uploads, of_pinned, sum_of):
            stopped, best = 0, float("inf")
            for step in range(20):
                loss = loss_of((100 + 17 * step) * (step % 3 * 3 + 1)).item()   # up to 10 MiB for the rows, and 40 for the sentences
                stopped += loss >= best
                best = min(best, loss)
            print("stopped", stopped)
    """, "--gpu", "2GiB")
    assert done.stdout.startswith("stopped 0\n" * 5), done.stdout + done.stderr


def test_a_loss_falls_from_what_is_known_and_by_no_chance(dry):  # noqa: F811
    """The first loss of a small model is known, later ones are not: they go on below it. And they are no chance, though they are computed from few
    numbers: by at least 0.01 each, so that a program goes on that stops early by such a difference. They fall once for each step of the optimizer,
    and never rise: a program may end if they do."""
    done, _ = dry("""
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        train, valid = [], []
        for step in range(30):
            x, y = torch.randn(8, 64, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            train.append(loss.item())
            with torch.no_grad():
                valid.append((net(x) - 1).square().mean().item())
        for losses in (train, valid):
            print("falls" if all(after < before - 0.01 for before, after in zip(losses, losses[1:])) else losses)
        with torch.no_grad():               # an evaluation of many batches is of one model
            many = {round((net(torch.randn(8, 64, device="cuda")) - 1).square().mean().item(), 6) for _ in range(20)}
        print("one" if len(many) == 1 else many)
        def diverged():
            optimizer.step()
            loss = torch.nn.functional.cross_entropy(net(torch.randn(8, 64, device="cuda")), y)
            return loss.item() > train[0] or loss.norm().item() > 100
        print("rises" if any(diverged() for _ in range(600)) else "stays small")
    """, "--gpu", "2GiB", "--steps", "0")
    assert done.stdout.startswith("falls\nfalls\none\nstays small\n"), done.stdout + done.stderr


OBJECTIVES = """
    import torch, torch.nn.functional as F
    net, words = torch.nn.Linear(2048, 2048).cuda(), torch.nn.Linear(256, 8000).cuda()
    chosen = torch.randint(0, 8000, (8, 64, 1), device="cuda")
    def answers(n):                 # log-probabilities of the words of sentences, and which of them count
        logits = words(torch.randn(8, n, 256, device="cuda"))
        return logits.log_softmax(-1).gather(2, chosen[:, :n]).squeeze(2), (torch.arange(n, device="cuda") < 30).float()
    def fine_tuning(x):
        said, mask = answers(len(x))
        return -(said * mask).sum() / (8 * mask.sum())
    def preferences(x):
        (one, mask), (other, _) = answers(len(x)), answers(len(x))
        said = ((one - other) * mask).sum(-1)
        return -F.logsigmoid(0.1 * (said[:4] - said[4:])).mean()
    assert (answers(40)[0] < 0).all()
    losses = {
        "likelihood": lambda x: -torch.distributions.Normal(0., 1.).log_prob(x).sum(-1).mean(),
        "cross entropy": lambda x: -x.log_softmax(-1)[:, 0].mean(),
        "similarity": lambda x: 1 - F.cosine_similarity(x, x.flip(0)).mean(),
        "overlap": lambda x: 1 - (2 * (x.sigmoid() * x.flip(0).sigmoid()).sum() + 1) / (2 * x.sigmoid().sum() + 1),
        "reward": lambda x: -1 * x.exp().mean(),
        "fine tuning": fine_tuning,
        "preferences": preferences,
    }
    for name, loss in losses.items():
        got = [loss(net(torch.randn(40 + 7 * (step % 3), 2048, device="cuda"))).item() for step in range(30)]
        print(name, "falls" if 0 < max(got[-3:]) < min(got[:3]) / 2 else got)
"""


def test_a_loss_that_is_made_by_a_minus_falls(dry):  # noqa: F811
    """It was below zero, and rose: early stopping ended at once, and a loop until `loss < x` at its first look. What sentences say was 0 for ever."""
    done, _ = dry(OBJECTIVES, "--gpu", "2GiB")
    said = done.stdout.splitlines()
    assert [line for line in said if line.endswith(" falls")] == said[:7], done.stdout + done.stderr


@pytest.mark.parametrize("policy", ["zero", "typical", "largest"])
def test_no_loss_is_infinite(dry, policy):  # noqa: F811
    """What is computed from plausible values may divide by zero, and training programs end at the first loss that is not finite."""
    done, _ = dry("""
        import math, torch
        w = torch.randn(2048, 2048, device="cuda")
        few = (w @ w)[:8, :8].contiguous()
        losses = [(few - few).div(few - few).mean(), (few - few).log().sum(), (few.abs() / 0).amax(), few.clone().sub_(few).div_(few - few).mean(),
                  torch.nn.functional.mse_loss((few - few).log(), few)]
        assert all(math.isfinite(loss.item()) for loss in losses), losses
        assert not few.clone().sub_(few).div_(few - few).isnan().any() and not (few - few).div(few - few).isnan().any()
        print("finite")
    """, "--gpu", "2GiB", "--unknown", policy)
    assert "finite" in done.stdout, done.stdout + done.stderr


DEPENDS = {
    "a count": """
    import torch
    scores = torch.randn(4096, 4096, device="cuda").mm(torch.randn(4096, 4096, device="cuda"))
    kept = scores[:512, :512].gt(0).nonzero()
    rows = torch.empty(len(kept), 1024, device="cuda")     # half of 1 GiB, or all of it
""",
    "a copy": """
    import torch
    scores = torch.randn(2048, 2048, device="cuda").mm(torch.randn(2048, 2048, device="cuda"))
    kept = [row for row, score in enumerate(scores[0].tolist()) if score > 0]
    rows = torch.empty(len(kept), 131072, device="cuda")    # half of 1 GiB, or all of it
""",
}


@pytest.mark.parametrize("name", DEPENDS)
def test_it_depends_on_values(dry, name):  # noqa: F811
    done, found = dry(DEPENDS[name], "--gpu", "1500MiB")
    assert done.returncode == 5 and found["verdict"] == "depends" and found["other_values"]["verdict"] == "fits not", done.stdout
    assert "\ndepends on values: " in done.stdout and "\n  with the largest ones: does not fit" in done.stdout


@pytest.mark.skipif(not (importlib.util.find_spec("transformers") or os.environ.get("CENOTE_TEST_ALL")), reason="transformers is not installed")
def test_generation_ends_by_its_length(dry):  # noqa: F811
    """Words are of the middle third: none ends a sentence, even where the rows of several beams are joined, or too large to compute."""
    done, _ = dry("""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        for words in (1000, 30_000):
            last = words - 1
            model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=words, bos_token_id=last, eos_token_id=last)).cuda().eval()
            ids = torch.randint(0, 900, (3, 16), device="cuda")
            for options in (dict(max_new_tokens=48), dict(do_sample=True), dict(do_sample=True, top_k=4), dict(num_beams=4), dict(num_beams=10),
                            dict(num_beams=4, do_sample=True, max_new_tokens=32), dict(num_beams=4, do_sample=True, top_p=0.8, temperature=0.5)):
                options = dict(attention_mask=torch.ones_like(ids), pad_token_id=last, max_new_tokens=16) | options
                out = model.generate(ids, **options)[:, 16:].cpu()
                assert tuple(out.shape) == (3, options["max_new_tokens"]), (options, out.shape)
                assert ((out >= words // 3) & (out < words // 3 * 2)).all(), (options, out)
                assert len(out.unique()) > 8, (options, out)
        scores = model(ids).logits[:, -1, :1000].contiguous()   # chosen by their values, so what is masked is not
        best = scores.topk(4)
        assert (scores.gather(1, best.indices) == best.values).all() and (best.indices[:, 0] == scores.max(1).indices).all()
        kept = scores.masked_fill(scores < best.values[:, -1:], -torch.inf)
        assert kept.gather(1, kept.softmax(1).multinomial(3)).isfinite().all()
        print("generated")
    """, "--gpu", "2GiB", "--steps", "0")
    assert "generated" in done.stdout, done.stdout + done.stderr


def test_what_is_read_in_backward_has_the_line_of_its_forward(dry):  # noqa: F811
    """Threads of autograd have no frames of Python's."""
    code = """
        import torch
        x = torch.randn(4096, 512, device="cuda", requires_grad=True)
        weight = torch.randn(4096, 4096, device="cuda")
        mask = (weight @ weight)[0] > 0
        y = torch.zeros(4096, 512, device="cuda")
        y[mask] = x[mask] * 2       # both
        hook = {}
        exec(compile("def copy(gradient): gradient.sum().tolist()", "/lib/site-packages/library.py", "exec"), hook)
        weight.requires_grad = True
        y = y @ (weight[:512] @ weight)     # last
        weight.register_hook(hook["copy"])
        y.sum().backward()
    """
    done, found = dry(code, "--gpu", "2GiB")
    assert done.returncode == 0, done.stdout
    rows = found["unknown_reads"]
    assert "other places" not in done.stdout and "library.py" not in done.stdout, done.stdout
    counts = [row["times"] for row in rows if row["kind"] == "count" and row["line"] == line_of(code, "# both")]
    assert sum(counts) == sum(row["times"] for row in rows if row["kind"] == "count") > 2, rows
    assert {row["line"] for row in rows if row["kind"] != "count"} <= {line_of(code, "y.sum()"), line_of(code, "# last")} and len(rows) > 1, rows


STRANGE = """
    import ctypes, itertools, torch
    def flat(value):
        return itertools.chain.from_iterable(map(flat, value)) if isinstance(value, list) else [value]
    def show(got, want):
        assert all(abs(number) < 1000 for number in flat(got)), got      # what a block's last owner left, or what lies beyond it, is no such number
        print("as on a CPU" if got == want else "other")
    old = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(1, 2) * 2], device="cuda")
    show(torch.nested.to_padded_tensor(old, -1.0).tolist(), [[[1.,1.],[1.,1.],[1.,1.]],[[2.,2.],[-1.,-1.],[-1.,-1.]]])
    show([t.sum().item() for t in old.unbind()], [6., 4.])
    show((old * 2).unbind()[0].tolist(), [[2.,2.]]*3)
    i, v = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3., 4., 5.])
    s = torch.sparse_coo_tensor(i, v, (2, 3)).cuda()
    show(s._values().tolist(), [3., 4., 5.])
    show(s._indices().tolist(), i.tolist())
    s2 = torch.sparse_coo_tensor(i.cuda(), v.cuda(), (2, 3))
    show(s2._values().tolist(), [3., 4., 5.])
    show(s2.coalesce().values().tolist(), [3., 4., 5.])
    show(s2.coalesce().indices().tolist(), i.tolist())
    show(s2.to_dense().tolist(), [[0., 0., 3.], [4., 0., 5.]])
    show(torch.sparse.mm(s2, torch.eye(3, device="cuda")).tolist(), [[0., 0., 3.], [4., 0., 5.]])
    show(torch.sparse.sum(s2).item(), 12.)
    show(s2.cpu().to_dense().tolist(), [[0., 0., 3.], [4., 0., 5.]])
    d = torch.tensor([[0, 1., 0], [2, 0, 3]], device="cuda").to_sparse_csr()
    show(d.crow_indices().tolist(), [0, 1, 3])
    show(d.col_indices().tolist(), [1, 0, 2])
    show(d.values().tolist(), [1., 2., 3.])
    show((d @ torch.ones(3, 1, device="cuda")).tolist(), [[1.], [5.]])
    c = torch.sparse_csr_tensor(*(torch.tensor(part, device="cuda") for part in ([0, 1, 3], [1, 0, 2], [1., 2., 3.])), (2, 3))
    show(c.crow_indices().tolist(), [0, 1, 3])
    show(c.to_dense().tolist(), [[0., 1., 0.], [2., 0., 3.]])
    e = torch.nn.Embedding(10, 4, sparse=True).cuda()
    e(torch.tensor([1, 2, 2, 5], device="cuda")).sum().backward()
    show(e.weight.grad._indices().tolist(), [[1, 2, 2, 5]])
    show(e.weight.grad._values().sum().item(), 16.)
    show(e.weight.grad.coalesce()._nnz(), 3)
    show(e.weight.grad.coalesce().values().sum().item(), 16.)
    show(torch.sparse_coo_tensor(i.cuda(), v.cuda(), (2, 3)).mul(2).coalesce().values().tolist(), [6., 8., 10.])
    m = torch.zeros(2, 3, device="cuda"); m.add_(s2)
    show(m.tolist(), [[0., 0., 3.], [4., 0., 5.]])
    show(torch.ones(2, 3, device="cuda").sparse_mask(s2.coalesce()).to_dense().tolist(), [[0., 0., 1.], [1., 0., 1.]])
    w = torch.zeros(10, 4, device="cuda"); w.index_add_(0, e.weight.grad._indices()[0], e.weight.grad._values())
    show(w.sum().item(), 16.)
    show(torch.arange(6., device="cuda").view(2, 3).to_sparse().to_dense().tolist(), [[0., 1., 2.], [3., 4., 5.]])
    for made in (torch.ones(2, device="cuda").resize_(16), torch.empty(0, device="cuda").resize_(16)):
        show((made + 0).tolist(), None)
        show((made + 0).sum().item(), None)
    one, other = sorted((torch.full((4,), 1.0, device="cuda") for _ in range(2)), key=torch.Tensor.data_ptr)
    there, zeros = ctypes.c_uint64(other.data_ptr()), (ctypes.c_float * 4)()
    ctypes.CDLL("libcuda.so.1").cuMemcpyHtoD_v2(there, ctypes.byref(zeros), ctypes.c_size_t(16))
    numbers = (other + 0).tolist()      # made up, and nothing that lies behind its neighbour
    assert one.tolist() == [1.0] * 4 and numbers == other.tolist() and all(1e-6 < abs(number) < 9 for number in numbers), numbers
"""


def test_sparse_and_nested_tensors(dry):  # noqa: F811
    """Operators on them are unknown, and what is read of them is told. So it is with memory that nothing seen has written to."""
    done, found = dry(STRANGE, "--gpu", "2GiB", "--unknown", "typical")
    said = done.stdout.splitlines()
    reads = [number for number, line in enumerate(textwrap.dedent(STRANGE).splitlines(), 1) if line.strip().startswith("show(")]
    assert done.returncode == 0 and "as on a CPU" in said and len(reads) == 29 and len(said) >= 31, done.stdout + done.stderr
    told = {row["line"] for row in found["unknown_reads"]}
    of_line = dict(zip(reads[:-2], said))
    wrong = [line for line, word in of_line.items() if word == "other"]
    assert wrong and set(wrong) | set(reads[-2:]) <= told, (sorted(set(wrong) - told), found["unknown_reads"])


SERIAL = """
    import os, torch
    threads = lambda: len(os.listdir("/proc/self/task"))
    torch.set_num_threads(4)
    numbers = torch.arange(1 << 20, device="cuda").mul(2)
    before = threads()
    assert numbers.sum().item() == (1 << 20) * ((1 << 20) - 1)
    assert threads() == before, (before, threads())         # those of OpenMP spin while they wait for each other
    assert torch.get_num_threads() == 4
    torch.ones(1 << 20).mul(2)
    assert threads() == before + 3, (before, threads())     # the program's own work has as many as before
"""


def test_what_is_read_is_computed_in_the_reading_thread(dry):  # noqa: F811
    done, found = dry(SERIAL, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["known_reads"] == 1
