"""What do ten graphs of different batch sizes that share a pool hold, beside eager work, under native, expandable segments and cenote?

    python bench/torch/graphs.py [--json]

A decoder of 8 layers on a simulated GPU of 80 GiB: one graph of a speculative decoding step for each size of batch, then prompts of many
lengths, computed eagerly, between replays. The graphs are captured from the largest batch to the smallest, as serving engines do, and in a second
run the other way round. Each run is a process of its own. All figures are PyTorch's own; peak reserved divided by peak requested is what counts.
"""
import argparse
import datetime
import json
import os
import random
import subprocess
import sys
from typing import Any

SIM = "80GiB"
ALLOCATORS = ("native", "expandable", "cenote")
ORDERS = ("largest first", "smallest first")
BATCHES = (512, 384, 256, 192, 128, 96, 64, 32, 16, 8)
WIDTH, LAYERS, HEADS, WORDS, LONGEST = 4096, 8, 32, 32000, 128
GUESSED = 16  # tokens in one step, as in speculative decoding
ROUNDS = 40
GIB = 1 << 30


def decoder() -> Any:
    """Layers of attention over a cache of fixed size, and a head."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            batch, new = x.shape[:2]
            query, key, value = self.qkv(self.norm1(x)).view(batch, new, 3, HEADS, -1).unbind(2)
            keys, values = cache[:, :batch].unbind(0)
            keys.index_copy_(1, at, key)
            values.index_copy_(1, at, value)
            seen = F.scaled_dot_product_attention(query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.down(F.silu(self.up(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, tokens: torch.Tensor, caches: list, at: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer, cache in zip(self.layers, caches):
                x = layer(x, cache, at)
            return self.head(x[:, -1]).softmax(-1)

    with torch.device("cuda"):
        return Decoder().eval()


def capture(model: Any, tokens: Any, caches: list, at: Any, batches: tuple) -> dict:
    """A graph and its result for each size of batch, all in one pool."""
    import torch

    shared, graphs = torch.cuda.graph_pool_handle(), {}
    for batch in batches:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=shared):
            result = model(tokens[:batch], caches, at)
        graphs[batch] = graph, result
    return graphs


def serve(order: str) -> None:
    """One run, in the process of one allocator. Ends with a line of JSON."""
    import torch

    torch.set_default_dtype(torch.float16)
    dice = random.Random(1)
    with torch.inference_mode():
        model = decoder()
        caches = [torch.zeros(2, BATCHES[0], LONGEST, HEADS, WIDTH // HEADS, device="cuda") for _ in range(LAYERS)]
        tokens, at = torch.zeros(BATCHES[0], GUESSED, dtype=torch.int64, device="cuda"), torch.arange(GUESSED, device="cuda")
        model(tokens[:8], caches, at)  # libraries allocate their workspaces before the capture
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graphs = capture(model, tokens, caches, at, BATCHES if order == ORDERS[0] else BATCHES[::-1])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        pool = torch.cuda.memory_reserved() - before
        for _ in range(ROUNDS):
            batch, length = dice.choice(BATCHES[4:]), dice.randrange(GUESSED, LONGEST)
            model(torch.zeros(batch, length, dtype=torch.int64, device="cuda"), caches, torch.arange(length, device="cuda"))
            graphs[dice.choice(BATCHES)][0].replay()
        torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    peaks = {name: stats[f"{name}_bytes.all.peak"] for name in ("requested", "reserved")}
    sys.stdout.write("\n" + json.dumps({"graphs": len(graphs), "pool": pool, **peaks}) + "\n")


def run(allocator: str, order: str) -> dict:
    command = [sys.executable, "-m", "cenote", "run", "--sim", SIM, "--allocator", allocator]
    command += ["--", sys.executable, __file__, "--serve", order]
    environ = {name: value for name, value in os.environ.items() if name not in ("CENOTE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    done = subprocess.run(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"graphs"')]
    if done.returncode or not said:
        raise SystemExit(f"{order} under {allocator} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return {"allocator": allocator, "order": order, **said[0], "waste": round(said[0]["reserved"] / said[0]["requested"] - 1, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description="ten graphs that share a pool beside eager work: what PyTorch reserves under each allocator")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    parser.add_argument("--only", metavar="ALLOCATOR", choices=ALLOCATORS)
    parser.add_argument("--serve", metavar="ORDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    if options.json:
        what = __doc__.splitlines()[0]
        print(json.dumps({"date": str(datetime.date.today()), "machine": f"simulated GPU, {SIM}", "what": what}))
    else:
        print(f"{'':16} {'allocator':12} {'graphs hold':>12} {'requested':>12} {'reserved':>12} {'over':>8}")
    for order in ORDERS:
        for allocator in (options.only,) if options.only else ALLOCATORS:
            line = run(allocator, order)
            if options.json:
                print(json.dumps(line), flush=True)
            else:
                sizes = "".join(f"{line[name] / GIB:>9.3f} GiB" for name in ("pool", "requested", "reserved"))
                print(f"{order:16} {allocator:12}{sizes} {100 * line['waste']:>+7.1f} %", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
