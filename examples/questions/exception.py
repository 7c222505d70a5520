"""An exception that is kept: its traceback keeps the variables of the functions that it left."""
import torch
from torch import nn

import cenote

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def step(number: int) -> None:
    output = model(torch.randn(2048, 1024, device="cuda"))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number == 3:
        raise ValueError("loss is not finite")


cenote.growth()
failure = None
for number in range(8):
    try:
        step(number)
    except ValueError as error:
        failure = error
