"""Parts of real programs, and what they do to memory."""

import threading

import pytest
import torch
from torch import nn

from contents import MIB, block, filled, holds, release


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1000,), index, dtype=torch.uint8)


def layers(count: int = 6, width: int = 512) -> nn.Module:
    """Layers without matrix products."""
    return nn.Sequential(*[nn.Sequential(nn.LayerNorm(width), nn.GELU()) for _ in range(count)]).cuda()


def step(model, optimizer, rows: int = 512, width: int = 512) -> None:
    optimizer.zero_grad()
    model(torch.empty(rows, width, device="cuda")).sum().backward()
    optimizer.step()


def peak_of(act) -> int:
    """The peak of allocated bytes while `act` runs, less what is allocated before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    act()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_pinned_memory(workers):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=workers, pin_memory=True)
    seen = []
    for batch in loader:
        assert batch.is_pinned()
        seen.append(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    rows = torch.cat([batch.cpu() for batch in seen])
    assert torch.equal(rows[:, 0], torch.arange(64, dtype=torch.uint8)) and torch.equal(rows[:, 0], rows[:, -1])


def test_a_prefetching_loader_on_a_side_stream(sim):
    """The pattern of NVIDIA's examples: copy on a side stream, wait, record_stream."""
    sim.set_lag(5_000_000)
    side, results = torch.cuda.Stream(), []
    for value in range(1, 20):
        host = torch.full((MIB,), value, dtype=torch.uint8).pin_memory()
        sim.work(side, 2_000_000)
        with torch.cuda.stream(side):
            batch = host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        batch.record_stream(torch.cuda.current_stream())
        results.append(block(MIB).copy_(batch))
        del batch, host
    torch.cuda.synchronize()
    assert all(holds(a, value) for value, a in enumerate(results, 1))


def test_a_module_takes_the_memory_of_its_parameters():
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    model = nn.Linear(1024, 1024).cuda()
    taken = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
    assert taken == sum(p.numel() * p.element_size() for p in model.parameters())
    model.cpu()
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == before


def test_weights_survive_going_to_the_host_and_back():
    model = nn.Linear(512, 512)
    weights = model.weight.detach().clone()
    for _ in range(3):
        model.cuda()
        model.cpu()
    assert torch.equal(model.weight, weights)


def test_a_checkpoint_file(tmp_path):
    state = {"a": filled(3 * MIB, 5), "b": filled(MIB, 6)}
    torch.save(state, tmp_path / "state.pt")
    del state
    state = torch.load(tmp_path / "state.pt", map_location="cuda")
    assert holds(state["a"], 5) and holds(state["b"], 6)


def test_steps_of_one_shape_need_no_new_memory():
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        step(model, optimizer)
    before = torch.cuda.memory_stats()
    for _ in range(5):
        step(model, optimizer)
    after = torch.cuda.memory_stats()
    assert after["num_device_alloc"] == before["num_device_alloc"]
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]


def test_steps_of_many_shapes_come_back_to_the_same():
    release()
    start = torch.cuda.memory_reserved()
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    live = torch.cuda.memory_allocated()
    for rows in (100, 3000, 17, 2047, 900):
        step(model, optimizer, rows=rows)
    assert torch.cuda.memory_allocated() == live
    del model, optimizer
    release()
    assert torch.cuda.memory_reserved() == start


def test_an_optimizer_takes_its_state():
    model = nn.LayerNorm(1 << 20).cuda()
    weights = sum(p.numel() * 4 for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.empty(1, 1 << 20, device="cuda")).sum().backward()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    taken = torch.cuda.memory_allocated() - before
    assert 2 * weights <= taken < 2.1 * weights
    before = torch.cuda.memory_allocated()
    optimizer.zero_grad(set_to_none=True)
    assert before - torch.cuda.memory_allocated() == weights


def test_checkpointing_saves_memory():
    from torch.utils.checkpoint import checkpoint

    model, x = layers(8), torch.empty(4096, 512, device="cuda", requires_grad=True)

    def plain():
        model(x).sum().backward()

    def frugal():
        y = x
        for layer in model:
            y = checkpoint(layer, y, use_reentrant=False)
        y.sum().backward()

    plain()
    assert peak_of(frugal) < 0.8 * peak_of(plain)


def test_activations_on_the_host():
    x = torch.empty(4096, 1024, device="cuda", requires_grad=True)

    def plain():
        x.exp().exp().exp().exp().sum().backward()

    def offloaded():
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            x.exp().exp().exp().exp().sum().backward()

    plain()
    assert peak_of(offloaded) < peak_of(plain)


def test_half_precision_takes_half():
    x = torch.empty(1024, 1024, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        y = x @ x
        assert y.dtype == torch.float16
        taken = torch.cuda.memory_stats()["requested_bytes.all.current"]
    assert y.numel() * y.element_size() == 2 * MIB and taken - before >= 2 * MIB


def test_steps_with_a_scaler():
    model = layers(3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    live = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(torch.empty(64, 512, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        del loss
        live.append(torch.cuda.memory_allocated())
    assert live[1] == live[2] == live[3]


def test_backward_frees_what_forward_saved():
    x = torch.empty(MIB, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    y = x.exp().exp().exp()
    assert torch.cuda.memory_allocated() - before >= 12 * MIB
    y.sum().backward()
    del y
    assert torch.cuda.memory_allocated() - before == 4 * MIB  # the gradient


def test_backward_on_the_stream_of_forward(sim):
    """Autograd's thread frees and allocates while the GPU is behind; gradients that are copies stay right."""
    sim.set_lag(1_000_000)
    side = torch.cuda.Stream()
    source = torch.arange(1 << 20, dtype=torch.float32)
    with torch.cuda.stream(side):
        x = torch.zeros(1 << 20, device="cuda", requires_grad=True)
        y = x.view(1024, 1024)
        y.backward(source.to("cuda").view(1024, 1024))
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(x.grad.cpu(), source)


def test_models_on_threads():
    failures = []

    def work():
        try:
            model = layers(2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with torch.cuda.stream(torch.cuda.Stream()):
                for rows in (10, 700, 50, 300):
                    step(model, optimizer, rows=rows)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_cache_of_keys_that_grows():
    """Each step makes a longer copy and drops the old one: reserved memory stays within a few times of what is live."""
    release()
    start = torch.cuda.memory_reserved()
    cache = filled(MIB, 1).view(1, -1)
    for value in range(2, 40):
        cache = torch.cat([cache, filled(MIB, value).view(1, -1)])
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - start < 40 * 39 * MIB / 2
    assert cache.shape == (39, MIB)


def test_a_compiled_function_on_graphs():
    @torch.compile(backend="cudagraphs")
    def twice(x):
        return (x + x).relu()

    for _ in range(4):
        y = twice(torch.empty(1000, device="cuda"))
    assert y.shape == (1000,)
    del y, twice
    torch._dynamo.reset()


def test_convolutions_try_their_algorithms():
    """cudnn.benchmark asks the allocator for its largest block."""
    torch.backends.cudnn.benchmark = True
    try:
        x = torch.empty(4, 8, 32, 32, device="cuda", requires_grad=True)
        y = nn.Conv2d(8, 8, 3).cuda()(x)
        y.sum().backward()
        assert y.shape == (4, 8, 30, 30) and x.grad.shape == x.shape
    finally:
        torch.backends.cudnn.benchmark = False
