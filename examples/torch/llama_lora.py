"""A model of LLaMA-7B's shape, tuned by LoRA (peft) with gradient checkpointing and gradient accumulation.

The weights are made on the GPU: the host needs no memory for them.
"""
import random

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import figures

BATCH, ACCUMULATE = 4, 4
SHORTEST, LONGEST = 128, 2048

random.seed(0)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(use_cache=False)  # the defaults are LLaMA-7B's
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
model.print_trainable_parameters()
model.train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4, fused=True)

for _ in figures.steps(12):
    for _ in range(ACCUMULATE):
        tokens = torch.randint(config.vocab_size, (BATCH, random.randint(SHORTEST, LONGEST)), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        (loss / ACCUMULATE).backward()
    optimizer.step()
    optimizer.zero_grad()

figures.report(loss)
