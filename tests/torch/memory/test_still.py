"""Programs that repeat themselves leave the driver alone: after some steps of warm-up memory comes and goes without a driver call."""

import pytest
import torch
from torch import nn

from contents import MIB, release

STEPS_OF_WARM_UP = 4
LAG = 20_000_000


def driver_work(sim) -> tuple:
    """What the simulated driver has been asked for memory so far, in figures that only grow or say what is there now."""
    books, stats = sim.books(), torch.cuda.memory_stats()
    return books.cost_ns, books.handles, books.mappings, books.allocations, books.reserved, stats["num_device_alloc"], stats["num_device_free"]


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


@pytest.mark.parametrize("lag", [0, LAG])
def test_a_training_of_one_shape_makes_no_driver_call(sim, lag):
    release()
    sim.set_lag(lag)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(8, 1000, dtype=torch.long, device="cuda")
    before = driver_work(sim)
    for _ in range(STEPS_OF_WARM_UP):
        train(model, optimizer, tokens)
    warm = driver_work(sim)
    assert warm != before
    for _ in range(10):
        train(model, optimizer, tokens)
    assert driver_work(sim) == warm
    train(model, optimizer, tokens.repeat(2, 1))  # another shape: this is how it would show
    assert driver_work(sim) != warm


def test_evaluation_between_steps_makes_no_driver_call(sim):
    release()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    few, many = (torch.zeros(rows, 1000, dtype=torch.long, device="cuda") for rows in (6, 9))

    def epoch():
        for _ in range(3):
            train(model, optimizer, few)
        with torch.no_grad():
            model(many).argmax(-1).sum().item()

    for _ in range(STEPS_OF_WARM_UP):
        epoch()
    warm = driver_work(sim)
    for _ in range(5):
        epoch()
    assert driver_work(sim) == warm

