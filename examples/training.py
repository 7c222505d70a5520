"""A language model with 405 million parameters, trained on sequences of 64 to 1024 tokens and evaluated on larger batches between.

    cenote run --sim 80GiB examples/training.py
    make run        # under three allocators

The program does not know cenote, needs only PyTorch, and runs the same way on a real GPU. On a simulated GPU the model learns nothing, so that the
program looks at no loss.
"""
import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, WORDS = 1024, 24, 50304
BATCH, SHORTEST, LONGEST = 4, 64, 1024
STEPS, EVALUATE_EVERY = 40, 10

random.seed(0)
with torch.device("cuda"):
    layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), nn.Linear(WIDTH, WORDS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def loss_of(batch: int, length: int) -> torch.Tensor:
    words = torch.randint(WORDS, (batch, length + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
for step in range(1, steps + 1):
    model.train()
    loss_of(BATCH, random.randint(SHORTEST, LONGEST)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % EVALUATE_EVERY == 0:
        model.eval()
        with torch.no_grad():
            loss_of(4 * BATCH, LONGEST)
    print(f"step {step}/{steps}", flush=True)
