"""What gradient accumulation, half precision, in-place operations and checkpointing save: one step, with one change at a time."""
from typing import Callable

import torch
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
BATCH, WIDTH, DEPTH = 8192, 2048, 12


class Block(torch.nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.relu = torch.nn.ReLU(inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.norm(self.linear(x)))


def peak(pieces: int = 1, half: bool = False, inplace: bool = False, recompute: bool = False) -> float:
    model = torch.nn.Sequential(*(Block(inplace) for _ in range(DEPTH))).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x

    for _ in range(2):  # the first step makes the state of the optimizer
        torch.cuda.reset_peak_memory_stats()
        for _ in range(pieces):
            with torch.autocast("cuda", torch.float16, enabled=half):
                loss = forward(torch.randn(BATCH // pieces, WIDTH, device="cuda")).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated() / MIB


def line(what: str, measure: Callable[[], float], whole: float) -> float:
    mib = measure()
    print(f"{what:<44} {mib:6.0f} MiB" + (f"  {100 * (mib - whole) / whole:+4.0f} %" if whole else ""))
    return mib


whole = line("as it is", peak, 0)
line("gradient accumulation, 4 pieces", lambda: peak(pieces=4), whole)
line("autocast to float16", lambda: peak(half=True), whole)
line("in-place ReLU", lambda: peak(inplace=True), whole)
line("checkpointing of each block", lambda: peak(recompute=True), whole)
line("checkpointing, and 4 pieces", lambda: peak(pieces=4, recompute=True), whole)
