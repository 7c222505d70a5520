"""A small transformer is trained on sequences of varying length, and PyTorch says what it took of the GPU. Then a batch too large is refused.

    cenote run --sim 80GiB examples/training.py

Needs PyTorch alone. On a simulated GPU the allocator and its figures are PyTorch's own; what the model learns is nothing.
"""
import torch
from torch import nn

WIDTH, LAYERS, WORDS, BATCH = 1536, 24, 32000, 16
LENGTHS = (128, 512, 300, 1024, 700, 64, 896, 512)
GIB = 1 << 30

print(f"PyTorch {torch.__version__} on {torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), nn.Linear(WIDTH, WORDS))
model = model.to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def train(length: int) -> None:
    words = torch.randint(WORDS, (BATCH, length + 1), device="cuda")
    logits = model(words[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters in bfloat16, batches of {BATCH}")
print("step  length  allocated at most  reserved   GiB")
for step, length in enumerate(LENGTHS):
    torch.cuda.reset_peak_memory_stats()
    train(length)
    print(f"{step:4}  {length:6}  {torch.cuda.max_memory_allocated() / GIB:17.2f}  {torch.cuda.memory_reserved() / GIB:8.2f}", flush=True)
try:
    train(16384)
except torch.OutOfMemoryError as error:
    print(str(error).split(" If reserved")[0])
