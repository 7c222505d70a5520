"""A recurrent network over long sequences: memory grows with the length of the history, not with the size of the network."""
import torch

MIB = 1 << 20
model = torch.nn.LSTM(512, 512, num_layers=2, device="cuda")
optimizer = torch.optim.Adam(model.parameters())


def train(steps: int, cut: int) -> float:
    """Goes through a sequence `cut` steps at a time, as truncated backpropagation does. Returns the peak in MiB."""
    torch.cuda.reset_peak_memory_stats()
    state = None
    for start in range(0, steps, cut):
        out, state = model(torch.randn(cut, 32, 512, device="cuda"), state)
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(part.detach() for part in state)
    return torch.cuda.max_memory_allocated() / MIB


train(50, 50)
for steps in (250, 500, 1000, 2000):
    print(f"{steps:5} steps at once {train(steps, steps):7.0f} MiB    in pieces of 50 {train(steps, 50):5.0f} MiB")
