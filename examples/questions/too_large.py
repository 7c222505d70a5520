"""The batch is too large: by how much?"""
import torch

model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Tanh()) for _ in range(16))).cuda()
optimizer = torch.optim.Adam(model.parameters())
batch = 1024
while True:
    try:
        model(torch.randn(batch, 2048, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"batch {batch:6}: peak {torch.cuda.max_memory_allocated() >> 20} MiB")
        batch *= 2
    except torch.OutOfMemoryError as error:
        print(f"batch {batch:6}: {error}")
        break
