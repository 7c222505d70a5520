"""A registered buffer that is updated from activations, without no_grad."""
import torch
from torch import nn

import cenote


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.spread = 0.99 * self.spread + 0.01 * x.var(0)
        return x


model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), Norm(1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
cenote.growth()
for step in range(8):
    loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
