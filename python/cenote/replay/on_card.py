"""Plays traces, and trains a small model, under one of PyTorch's allocators on this machine's GPU. card_trial.py starts it once for each allocator.

It imports torch once, and forks for each trial, so that what a trial leaves behind goes with its process. Each trial writes a line of JSON to stdout.
A trace is played several times in a row: the first time the allocator takes its memory from the driver, and later times mostly from itself.
The host's clock measures, and at the end of each round the program waits for the device.
"""
from __future__ import annotations

import functools
import json
import os
import random
import statistics
import sys
import time
from typing import Any, Callable

from cenote.replay import player, trace_file

ROUNDS = 3
STEPS, LATE = 24, 12  # of training; the later ones are timed
TRAINING = "training step"  # the name of that trial
WIDTH, LAYERS, BATCH, LONGEST = 512, 6, 8, 512  # of a model that takes less than 1 GiB


def round_of(torch: Any, trace: trace_file.Trace, calls: player.Torch) -> int:
    blocks: list[Any] = [None] * trace.blocks
    arrays = (bytes(trace.op), trace.block, trace.size, trace.stream)
    begin = time.perf_counter_ns()
    for _, part in player.parts(arrays, len(trace.op)):
        player.play(part, blocks, calls.handles, calls, None)
    torch.cuda.synchronize()
    return time.perf_counter_ns() - begin


def trace_trial(torch: Any, path: str, allocator: str) -> dict[str, Any]:
    trace = trace_file.load(path)
    done: dict[str, Any] = {"trial": trace.name, "requested_peak_bytes": trace.live_peak}
    torch.zeros(1, device="cuda")  # makes the context, which takes memory and time
    if trace.live_peak > torch.cuda.mem_get_info()[0]:
        return {**done, "outcome": "no room"}
    calls = player.Torch(torch, {"streams": trace.streams, "allocator": allocator})
    try:
        ns = [round_of(torch, trace, calls) for _ in range(ROUNDS)]
    except torch.OutOfMemoryError:
        return {**done, "outcome": "out of memory"}
    return {**done, "outcome": "done", "reserved_peak_bytes": torch.cuda.max_memory_reserved(), "first_ns": ns[0], "later_ns": min(ns[1:])}


def training_trial(torch: Any) -> dict[str, Any]:
    try:
        return train(torch)
    except torch.OutOfMemoryError:
        return {"trial": TRAINING, "outcome": "out of memory", "requested_peak_bytes": torch.cuda.memory_stats()["requested_bytes.all.peak"]}


def train(torch: Any) -> dict[str, Any]:
    """Sequences of random lengths, the same for each allocator."""
    torch.zeros(1, device="cuda")  # makes the context
    draw = random.Random(1)
    with torch.device("cuda"):
        layer = torch.nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, dim_feedforward=4 * WIDTH, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ns = []
    for _ in range(STEPS):
        length = draw.randint(LONGEST // 8, LONGEST)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        model(torch.ones(BATCH, length, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        ns.append(time.perf_counter_ns() - begin)
    return {"trial": TRAINING, "outcome": "done", "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
            "requested_peak_bytes": torch.cuda.memory_stats()["requested_bytes.all.peak"], "first_ns": ns[0],
            "later_ns": round(statistics.median(ns[LATE:]))}


def in_child(trial: Callable[[], dict[str, Any]], output: int) -> int:
    """The exit status of a process that makes a trial; its parent never uses CUDA."""
    child = os.fork()
    if not child:
        player.end_with_parent()
        try:
            os.write(output, (json.dumps(trial()) + "\n").encode())
        except Exception as problem:
            print(f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    player.end_with_parent()
    output = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    allocator, *paths = sys.argv[1:]
    torch = player.prepare(allocator)
    trials = [*(functools.partial(trace_trial, torch, path, allocator) for path in paths), functools.partial(training_trial, torch)]
    return next(filter(None, (in_child(trial, output) for trial in trials)), 0)
