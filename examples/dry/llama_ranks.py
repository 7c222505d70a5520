"""Trains a model like Llama on many GPUs: sharded data (FSDP2), tensor and sequence parallelism (DTensor), a pipeline, recomputation.

An ordinary script for torchrun. Weights and data are made up, and there are no rotary embeddings, which hold no memory to speak of. The defaults are
a model of 0.2 billion parameters; for the size of Llama 3 70B:

    --dim 8192 --layers 80 --heads 64 --kv-heads 8 --hidden 28672 --vocabulary 128256 --length 8192 --batch 1 --recompute
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

SIZES = {"dim": 1024, "layers": 8, "heads": 16, "kv-heads": 8, "hidden": 4096, "vocabulary": 32000, "length": 1024, "batch": 4, "steps": 5,
         "tensor": 1, "pipeline": 1, "microbatches": 4, "replicas": 1}


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.width = o.dim // o.heads
        self.query, self.output = nn.Linear(o.dim, o.dim, bias=False), nn.Linear(o.dim, o.dim, bias=False)
        self.key = nn.Linear(o.dim, o.kv_heads * self.width, bias=False)
        self.value = nn.Linear(o.dim, o.kv_heads * self.width, bias=False)

    def forward(self, x):
        query, key, value = (made.unflatten(-1, (-1, self.width)).transpose(1, 2) for made in (self.query(x), self.key(x), self.value(x)))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.gate, self.up = nn.Linear(o.dim, o.hidden, bias=False), nn.Linear(o.dim, o.hidden, bias=False)
        self.down = nn.Linear(o.hidden, o.dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.before_attention, self.before_feed = nn.RMSNorm(o.dim), nn.RMSNorm(o.dim)
        self.attention, self.feed = Attention(o), FeedForward(o)

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.feed(self.before_feed(x))


class Llama(nn.Module):
    """One stage of the pipeline: all of the model if there is one stage."""

    def __init__(self, o, stage):
        super().__init__()
        each = o.layers // o.pipeline
        self.embedding = nn.Embedding(o.vocabulary, o.dim) if stage == 0 else nn.Identity()
        self.layers = nn.ModuleDict({str(number): Layer(o) for number in range(stage * each, (stage + 1) * each)})
        is_last = stage == o.pipeline - 1
        self.norm, self.head = (nn.RMSNorm(o.dim), nn.Linear(o.dim, o.vocabulary, bias=False)) if is_last else (nn.Identity(), nn.Identity())

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x))


def split_tensors(model, mesh):
    """Between layers each rank has a part of the sequence, inside them a part of the heads and of the hidden width."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    whole = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
             "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
    parallelize_module(model, mesh, {name: plan for name, plan in whole.items() if not isinstance(getattr(model, name), nn.Identity)})
    columns, rows = ("attention.query", "attention.key", "attention.value", "feed.gate", "feed.up"), ("attention.output", "feed.down")
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {
            "before_attention": SequenceParallel(), "before_feed": SequenceParallel(), "attention": gather, "feed": gather,
            **{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel(output_layouts=Shard(1)) for name in rows}})


def shard(model, mesh, is_piped):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers.values(), model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_piped)


def build(o, mesh):
    with torch.device("meta"):
        model = Llama(o, mesh.get_local_rank("pipeline"))
    if o.tensor > 1:
        split_tensors(model, mesh["tensor"])
    if o.recompute:
        for number in list(model.layers):
            model.layers[number] = checkpoint_wrapper(model.layers[number])
    data = mesh["replicas", "shards"] if o.replicas > 1 else mesh["shards"]
    if mesh["shards"].size() > 1:
        shard(model, data, o.pipeline > 1)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def loss_of(found, wanted):
    return F.cross_entropy(found.flatten(0, 1).float(), wanted.flatten())


def piped(o, model, mesh):
    """What a rank does in a step of the pipeline."""
    stage = mesh.get_local_rank("pipeline")
    schedule = Schedule1F1B(PipelineStage(model, stage, o.pipeline, torch.device("cuda"), group=mesh.get_group("pipeline")), o.microbatches,
                            loss_fn=loss_of)
    if stage == 0:
        return schedule.step
    return (lambda words: schedule.step(target=words)) if stage == o.pipeline - 1 else (lambda words: schedule.step())


def main():
    parser = argparse.ArgumentParser()
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    o = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    shards = dist.get_world_size() // (o.pipeline * o.replicas * o.tensor)
    mesh = init_device_mesh("cuda", (o.pipeline, o.replicas, shards, o.tensor), mesh_dim_names=("pipeline", "replicas", "shards", "tensor"))
    model = build(o, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = piped(o, model, mesh) if o.pipeline > 1 else lambda words: loss_of(model(words), words).backward()
    for _ in range(o.steps):
        step(torch.zeros(o.batch, o.length, dtype=torch.long, device="cuda"))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
