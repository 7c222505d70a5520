"""How much of a training step do labels cost?

    python bench/torch/label_steps.py [--json] [--rounds N]

Trains a GPT-2 of 124 million parameters (transformers, AdamW) on a simulated GPU, in one process: steps with labels off, steps with labels on, in
turn. CPU time of all threads for each step; least and median. The simulated kernels take no time, so this is what PyTorch takes on the host, and what
labels add to it; on a card a step takes far longer. The first steps after labels are switched on find all tensors, so they are not counted.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import speed

ROUNDS = 21
WARM, TIMED = 3, 5  # steps after each switch
TOKENS = (2, 128)


def make_step() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        ids = torch.zeros(TOKENS, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Times of steps in ms, without and with labels."""
    import cenote
    step = make_step()
    for on in (True, False):
        cenote.label(on)
        step()
        step()
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for on in (False, True):
            cenote.label(on)
            for number in range(WARM + TIMED):
                begin = time.process_time_ns()
                step()
                if number >= WARM:
                    found[on].append((time.process_time_ns() - begin) / 1e6)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="what labels cost in a training step")
    parser.add_argument("--json", action="store_true", help="a line of JSON instead of text")
    parser.add_argument("--rounds", metavar="N", type=int, default=ROUNDS)
    options = parser.parse_args()
    if "libcenote_sim.so" not in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"):
        speed.begin_again_on_the_simulated_gpu()
    import cenote
    cenote.install()
    import torch
    torch.set_num_threads(1)
    without, having = measure(options.rounds)
    least, median = (min(without), min(having)), (statistics.median(without), statistics.median(having))
    if options.json:
        print(json.dumps({"bench": "torch/label_steps", "date": str(datetime.date.today()), "machine": speed.machine(),
                          "gpu": f"simulated, {speed.SIM}", "torch": torch.__version__, "rounds": options.rounds,
                          "least_ms": [round(one, 3) for one in least], "median_ms": [round(one, 3) for one in median]}))
        return 0
    print(f"torch {torch.__version__}, simulated GPU, {options.rounds} rounds: CPU time of a step of GPT-2, ms")
    for name, (off, on) in (("least", least), ("median", median)):
        print(f"{name:<8} without labels {off:7.2f}   with labels {on:7.2f}   {100 * (on / off - 1):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
