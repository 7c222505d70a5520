"""PyTorch: a small network in training."""
import torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    model(torch.randn(64 * (step % 4 + 1), 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
