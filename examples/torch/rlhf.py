"""Reinforcement learning on one card: a model generates, the same model is trained, in turns; who does not work sleeps. Needs cenote.

    cenote run --sim 2700MiB --allocator cenote examples/torch/rlhf.py            # fits, because one of them sleeps
    cenote run --sim 4GiB --allocator cenote examples/torch/rlhf.py --resident    # what both take together

The trainer has parameters and the moments of AdamW in float32; the engine that generates has its weights in float16, and a cache of keys and values
of a fixed size. What the trainer holds is kept while it sleeps. Of the engine nothing is: the trainer gives it new weights, and a cache begins empty.
It ends with one line of JSON: the most bytes held, and the bytes copied between card and host.
"""
import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import cenote

STEPS, BATCH, PROMPT, LENGTH, CACHE = 3, 64, 64, 16, 512
CONFIG = LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, max_position_embeddings=512)
sleeps = "--resident" not in sys.argv
copied = {"to the host": 0, "to the card": 0}


def fall_asleep(what: object, keep: bool) -> None:
    if sleeps:
        copied["to the host"] += cenote.pause(what, keep).kept


def wake(what: object) -> None:
    if sleeps:
        copied["to the card"] += cenote.resume(what).kept


trainer = LlamaForCausalLM(CONFIG).cuda().train()
optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-5)
fall_asleep(trainer, keep=True)
engine = LlamaForCausalLM(CONFIG).half().cuda().eval()
cache = StaticCache(config=CONFIG, max_cache_len=CACHE)


@torch.inference_mode()
def generate() -> torch.Tensor:
    cache.reset()
    tokens = torch.randint(CONFIG.vocab_size, (BATCH, PROMPT), device="cuda")
    text = [tokens]
    for _ in range(LENGTH):
        tokens = engine(input_ids=tokens, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        text.append(tokens)
    return torch.cat(text, 1).cpu()


def train(text: torch.Tensor) -> None:
    for part in text.split(BATCH // 16):
        part = part.to("cuda")
        trainer(input_ids=part, labels=part).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def give_weights() -> None:
    for new, old in zip(engine.parameters(), trainer.parameters()):
        new.copy_(old)


for _ in range(STEPS):
    text = generate()
    keys_and_values = [(layer.keys, layer.values) for layer in cache.layers]
    fall_asleep([engine, keys_and_values], keep=False)
    wake([trainer, optimizer])
    train(text)
    wake(engine)
    give_weights()
    fall_asleep([trainer, optimizer], keep=True)
    wake(keys_and_values)

torch.cuda.synchronize()
print(json.dumps({"sleeps": sleeps, "peak held": torch.cuda.max_memory_reserved(), "copied": copied}))
