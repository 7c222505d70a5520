"""A small language model in plain PyTorch, for docs/dry-run.md: what holds the memory, by name?

    python blocks.py [LAYERS]
"""
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(self.norm(x)).chunk(3, -1)
        x = x + self.project(F.scaled_dot_product_attention(q, k, v))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, width: int = 512, layers: int = 4, words: int = 8000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Model(layers=int(sys.argv[1]) if len(sys.argv) > 1 else 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    ids = torch.randint(0, 8000, (4, 512), device="cuda")
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
