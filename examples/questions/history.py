"""History accumulated across the loop: a sum of losses that keeps what each step computed."""
import torch

import cenote

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
growth = cenote.growth()
total = torch.zeros((), device="cuda")
for step in range(6):
    x, y = torch.randn(2048, 1024, device="cuda"), torch.randint(10, (2048,), device="cuda")
    out = model(x)
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.enable_grad():
        penalty = model(torch.randn(256, 1024, device="cuda")).pow(2).mean()
    total += penalty  # should be penalty.item(), or penalty.detach()
print(growth.report())
