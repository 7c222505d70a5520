"""History that a loop accumulates by `total += loss`: in training, where backward() frees the tensors, and in evaluation, without backward()."""
import torch
from torch import nn

import cenote

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
cenote.growth()


def train(batches: int) -> torch.Tensor:
    total = 0
    for _ in range(batches):
        loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    return total / batches


def evaluate(batches: int) -> torch.Tensor:
    model.eval()
    total = 0
    for _ in range(batches):
        total += model(torch.randn(2048, 1024, device="cuda")).square().mean()
    return total / batches


train(8)
evaluate(8)
