"""A model of LLaMA-7B's shape answers requests: batches of prompts, then token after token with a cache of keys and values that grows."""
import random

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import figures

REQUESTS = 6
BATCHES = (4, 8, 16, 32)

random.seed(0)
torch.set_default_dtype(torch.float16)
config = LlamaConfig()  # the defaults are LLaMA-7B's
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.eval()


@torch.inference_mode()
def answer(batch: int, prompt: int, length: int) -> torch.Tensor:
    """Greedy decoding of `length` tokens."""
    cache = DynamicCache(config=config)
    tokens = torch.randint(config.vocab_size, (batch, prompt), device="cuda")
    text = [tokens]
    for _ in range(length):
        logits = model(input_ids=tokens, past_key_values=cache, logits_to_keep=1).logits
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        text.append(tokens)
    return torch.cat(text, 1)


for _ in figures.steps(REQUESTS):
    text = answer(random.choice(BATCHES), random.randint(64, 1024), random.randint(32, 128))

figures.report(text.sum())
