"""empty_cache() slows training: what it costs to call it at every step, and what cenote does instead."""
import time

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train(steps: int, every: int) -> tuple[float, float]:
    """Milliseconds a step, and the reserved GiB after the last one. `every`: empty_cache() so often; 0: never."""
    start = time.perf_counter()
    for step in range(1, steps + 1):
        model(torch.randn(4096, 4096, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if every and step % every == 0:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1000, torch.cuda.memory_reserved() / (1 << 30)


train(3, 0)
for every in (0, 1, 20):
    ms, reserved = train(60, every)
    print(f"empty_cache() {'never' if not every else f'every {every} steps':<15} reserved {reserved:5.2f} GiB")
