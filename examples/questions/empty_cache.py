"""empty_cache() slows training: the next step has to ask the driver again for the memory that went back."""
import torch

STEPS = 6

model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train(steps: int, every: int) -> None:
    """Trains; calls empty_cache() after so many steps each time, or never for 0."""
    for step in range(1, steps + 1):
        model(torch.randn(4096, 4096, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if every and step % every == 0:
            torch.cuda.empty_cache()


train(3, 0)
for every in (0, 3, 1):
    before = torch.cuda.memory_stats()["num_device_alloc"]
    train(STEPS, every)
    created = torch.cuda.memory_stats()["num_device_alloc"] - before
    print(f"empty_cache() {'never' if not every else f'every {every} steps':<14} memory asked of the driver {created:5} times in {STEPS} steps, "
          f"reserved between steps {torch.cuda.memory_reserved() / (1 << 30):.2f} GiB")
