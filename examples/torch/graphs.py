"""Serving with CUDA graphs, as serving engines do it.

Weights lie in a MemPool of their own; the cache of keys and values has a fixed size; each size of batch has a graph of one decoding
step, and all graphs share a pool. Between two rounds the weights are dropped and made again, as by a model that sleeps.
"""
import torch
import torch.nn.functional as F
from torch import nn

import figures

WIDTH, LAYERS, HEADS, WORDS = 4096, 32, 32, 32000
BATCHES = (64, 32, 16, 8, 4, 2, 1)  # from the largest, so that the others find room in its memory
LONGEST = 1024


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * 11008, bias=False), nn.Linear(11008, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        batch, new = x.shape[:2]
        query, key, value = self.qkv(self.norm1(x)).view(batch, new, 3, HEADS, -1).unbind(2)
        keys, values = cache[:, :batch].unbind(0)
        keys.index_copy_(1, at, key)
        values.index_copy_(1, at, value)
        seen = F.scaled_dot_product_attention(query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, caches: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache, at)
        return self.head(x[:, -1]).argmax(-1, keepdim=True)


def make_model() -> Model:
    with torch.device("cuda"):
        return Model().eval()


def serve(model: Model, caches: list[torch.Tensor]) -> torch.Tensor:
    """Captures a decoding step for every size of batch, then fills the cache and replays the graphs in turns."""
    tokens = torch.zeros(BATCHES[0], 1, dtype=torch.int64, device="cuda")
    at = torch.zeros(1, dtype=torch.int64, device="cuda")
    shared = torch.cuda.graph_pool_handle()
    model(tokens, caches, at)  # libraries allocate their workspaces before the capture
    steps = {}
    for batch in BATCHES:
        steps[batch] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(steps[batch], pool=shared):
            tokens[:batch] = model(tokens[:batch], caches, at)
    for i, batch in enumerate(BATCHES):
        prompt = torch.randint(WORDS, (batch, 64 * (i + 1)), device="cuda")
        tokens[:batch] = model(prompt, caches, torch.arange(prompt.shape[1], device="cuda"))
        for place in range(prompt.shape[1], LONGEST, 4):
            at.fill_(place)
            steps[batch].replay()
    return tokens.sum()


@torch.inference_mode()
def main() -> torch.Tensor:
    torch.set_default_dtype(torch.float16)
    caches = [torch.zeros(2, BATCHES[0], LONGEST, HEADS, WIDTH // HEADS, device="cuda") for _ in range(LAYERS)]
    for _ in figures.steps(3):
        weights = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(weights):
            model = make_model()
        result = serve(model, caches)
        torch.cuda.synchronize()
        del model, weights
        torch.cuda.empty_cache()
    return result


figures.report(main())
