"""Evaluation after training runs out of memory: forward passes keep what only gradients need, or the batch is larger than in training."""
import torch

model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Tanh()) for _ in range(16))).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(2048, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

model.eval()
for history, batch in ((True, 8192), (False, 8192), (False, 65536)):
    outputs = None
    print(f"\nevaluation, batch {batch}, with{'' if history else 'out'} gradients:", end=" ")
    try:
        with torch.set_grad_enabled(history):
            outputs = model(torch.randn(batch, 2048, device="cuda"))
        print("done")
    except torch.OutOfMemoryError as error:
        print(error)
