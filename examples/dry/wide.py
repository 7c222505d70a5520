"""Eight layers and a batch of 256 MiB, for the first verdict in docs/dry-run.md."""
import torch


def train(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers).cuda()
train(model, torch.randn(65536, 1024, device="cuda"))
