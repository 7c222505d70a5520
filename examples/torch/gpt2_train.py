"""GPT-2 with 355 million parameters, trained on sequences of 128 to 1024 tokens."""
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import figures

BATCH = 8
SHORTEST, LONGEST = 128, 1024

random.seed(0)
config = GPT2Config(n_embd=1024, n_layer=24, n_head=16)
with torch.device("cuda"):
    model = GPT2LMHeadModel(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for _ in figures.steps(60):
    tokens = torch.randint(config.vocab_size, (BATCH, random.randint(SHORTEST, LONGEST)), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

figures.report(loss)
