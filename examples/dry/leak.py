"""Keeps the output of each step: docs/dry-run.md shows what `cenote dry-run` says of it."""
import torch


def train(model, optimizer):
    outputs = []
    for _ in range(1000):
        x = torch.randn(16384, 1024, device="cuda")
        output = model(x)
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach())


layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers).cuda()
train(model, torch.optim.AdamW(model.parameters()))
