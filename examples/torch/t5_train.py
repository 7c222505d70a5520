"""T5-large, an encoder and a decoder, trained in bf16 on pairs of source and target whose lengths vary independently."""
import random

import torch
from transformers import T5Config, T5ForConditionalGeneration

import figures

BATCH = 16

random.seed(0)
config = T5Config(
    d_model=1024, d_kv=64, d_ff=2816, num_layers=24, num_decoder_layers=24, num_heads=16,
    feed_forward_proj="gated-gelu", decoder_start_token_id=0, use_cache=False,
)
with torch.device("cuda"):
    model = T5ForConditionalGeneration(config).to(torch.bfloat16)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

for _ in figures.steps(40):
    source = torch.randint(config.vocab_size, (BATCH, random.randint(64, 512)), device="cuda")
    target = torch.randint(config.vocab_size, (BATCH, random.randint(16, 256)), device="cuda")
    loss = model(input_ids=source, labels=target).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

figures.report(loss)
