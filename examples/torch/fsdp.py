"""All of LLaMA-7B, trained with weights, gradients and optimizer state sharded over the ranks (FSDP).

Start it with `torchrun --nproc-per-node 4 fsdp.py`. No rank ever holds the whole model, neither on its GPU nor on the host.
"""
import os
import random

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import figures

BATCH = 2  # of each rank
SHORTEST, LONGEST = 256, 2048

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
random.seed(dist.get_rank())  # the lengths differ between ranks

config = LlamaConfig(use_cache=False)  # the defaults are LLaMA-7B's
with torch.device("meta"):
    model = LlamaForCausalLM(config)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
model.init_weights()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)

for _ in figures.steps(6):
    tokens = torch.randint(config.vocab_size, (BATCH, random.randint(SHORTEST, LONGEST)), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

figures.report(loss)
dist.destroy_process_group()
