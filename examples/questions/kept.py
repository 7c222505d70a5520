"""Tensors kept in a list: the line that keeps them, the line that allocated them, and by tag."""
import torch
from torch import nn

import cenote


def main() -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    watch = cenote.growth()
    for step in range(8):
        with cenote.tag("mlp"):
            output = model(torch.randn(2048, 1024, device="cuda"))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs.append(output)
    print(watch.report())


main()
