"""Programs that repeat themselves call no driver: after some steps of warm-up memory comes and goes without a driver call."""

import ctypes
import json

import pytest
import torch
from torch import nn

import simulated
from contents import release

STEPS = 10
WINDOWS = 12  # windows of steps that a program may take to warm up
STEP_NS = 10_000_000


def counters(*names: str) -> tuple:
    """cenote's counters of driver calls; under the native allocator, what its statistics tell."""
    if not simulated.allocator():
        stats = torch.cuda.memory_stats()
        return stats["num_device_alloc"], stats["num_device_free"]
    library, pool = ctypes.CDLL("libcenote.so.0"), ctypes.c_void_p()
    stats, text = (ctypes.c_size_t * 512)(), ctypes.create_string_buffer(1 << 16)
    size = ctypes.c_size_t(ctypes.sizeof(stats))
    assert library.cenote_pool_default(0, ctypes.byref(pool)) == 0 and library.cenote_pool_stats(pool, stats, size) == 0
    library.cenote_stats_json(stats, text, ctypes.c_size_t(len(text)), size)
    now = json.loads(text.value)
    return tuple(now[name] for name in names)


def all_calls() -> tuple:
    """Every call of the driver so far."""
    return counters("driver_calls")


def moves() -> tuple:
    """Counts what was created, mapped, unmapped and released. Calls that ask how far the GPU has got are not counted."""
    return counters("pages_created", "pages_harvested", "pages_unmapped", "pages_released")


class Net(nn.Module):
    """Blocks that outlive each other in many sizes, from a few bytes to 32 MiB."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256)) for _ in range(4))
        self.out = nn.Linear(256, 1000)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x)


def train(model, optimizer, tokens: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def settles(step, count) -> bool:
    """Says whether at last three windows of steps follow each other in which `count` stays the same."""
    for _ in range(WINDOWS):
        before = count()
        for _ in range(STEPS):
            step()
        if count() == before:
            for _ in range(2 * STEPS):
                step()
            return count() == before
    return False


def test_a_training_of_one_shape_makes_no_driver_call():
    release()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 1000, dtype=torch.long, device="cuda")
    before = all_calls()
    assert settles(lambda: train(model, optimizer, tokens), all_calls)
    warm = all_calls()
    assert warm != before
    train(model, optimizer, tokens.repeat(2, 1))  # another shape does call the driver, so that the test can fail
    assert all_calls() != warm


# In a process of its own: after many other tests, warm-up would take longer.
EVALUATING = """
    import sys

    sys.path[:0] = [{root!r} + "/tests/torch", {root!r} + "/tests/torch/memory"]
    import torch
    from test_still import Net, all_calls, settles, train

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    few, many = (torch.zeros(rows, 1000, dtype=torch.long, device="cuda") for rows in (6, 9))

    def epoch():
        for _ in range(3):
            train(model, optimizer, few)
        with torch.no_grad():
            model(many).argmax(-1).sum().item()

    print(settles(epoch, all_calls))
"""


def test_evaluation_between_steps_makes_no_driver_call():
    assert simulated.forked(EVALUATING.format(root=str(simulated.ROOT)), whole=True).stdout.split()[-1] == "True"


# On a clock that only the test moves: by a real one, each step would find another part of the memory in flight.
BEHIND = """
    import sys

    sys.path[:0] = [{root!r} + "/tests/torch", {root!r} + "/tests/torch/memory"]
    import simulated
    import torch
    from test_still import Net, STEP_NS, moves, train

    sim = simulated.Hand()
    sim.set_lag({lag})
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 1000, dtype=torch.long, device="cuda")

    def step():
        train(model, optimizer, tokens)
        sim.advance(STEP_NS)

    began = moves()
    for _ in range({warm}):
        step()
    warm = moves()
    for _ in range(60):
        step()
    print(began != warm, moves() == warm)
"""


@pytest.mark.parametrize("steps,warm", [(0.1, 100), (1.5, 100), (3.5, 200)])
def test_no_memory_moves_while_the_gpu_is_behind(steps, warm):
    code = BEHIND.format(root=str(simulated.ROOT), lag=int(steps * STEP_NS), warm=warm)
    done = simulated.forked(code, simulated.SHAPE + ",manual_clock:1", whole=True)
    assert done.stdout.split()[-2:] == ["True", "True"]
