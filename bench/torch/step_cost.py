"""How much of a training step do labels cost, or what a dry run does so that values can be read back?

    python bench/torch/step_cost.py [--of labels|values] [--json] [--rounds N]

Trains a GPT-2 of 124 million parameters (transformers, AdamW) on a simulated GPU, in one process: steps without and steps with it, in turn. The
program reads its loss back in each step. CPU time of all threads for each step; least and median. The simulated kernels take no time, so this is
what PyTorch takes on the host, and what is added to it; on a card a step takes far longer. The first steps after each switch find all tensors, so
they are not counted.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any, Callable

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
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return step


def switch_of(what: str) -> Callable[[bool], Any]:
    import cenote
    if what == "labels":
        return cenote.label
    import torch
    from cenote.inside import values
    from cenote.launch import environment
    os.environ[environment.DRY_UNKNOWN] = "typical"
    begun = values.begin(torch, lambda text: print(text, file=sys.stderr))
    if begun is None:
        raise SystemExit("bench/torch: values are not kept")
    begun.library.cenote_values_see_thread(True)
    key = torch._C._parse_dispatch_key("Fake")
    # A thread that is not seen is seen from its first read on: without values its operators pass by the key.
    return lambda on: torch._C._dispatch_tls_set_dispatch_key_excluded(key, not on)


def measure(what: str, rounds: int) -> tuple[list[float], list[float]]:
    """Times of steps in ms, without and with it."""
    step, switch = make_step(), switch_of(what)
    for on in (True, False):
        switch(on)
        step()
        step()
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for on in (False, True):
            switch(on)
            for number in range(WARM + TIMED):
                begin = time.process_time_ns()
                step()
                if number >= WARM:
                    found[on].append((time.process_time_ns() - begin) / 1e6)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="what labels, or values, cost in a training step")
    parser.add_argument("--of", choices=("labels", "values"), default="labels")
    parser.add_argument("--json", action="store_true", help="a line of JSON instead of text")
    parser.add_argument("--rounds", metavar="N", type=int, default=ROUNDS)
    options = parser.parse_args()
    if "libcenote_sim.so" not in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"):
        speed.begin_again_on_the_simulated_gpu()
    import cenote
    cenote.install()
    import torch
    torch.set_num_threads(1)
    without, having = measure(options.of, options.rounds)
    least, median = (min(without), min(having)), (statistics.median(without), statistics.median(having))
    if options.json:
        print(json.dumps({"bench": "torch/step_cost", "of": options.of, "date": str(datetime.date.today()), "machine": speed.machine(),
                          "gpu": f"simulated, {speed.SIM}", "torch": torch.__version__, "rounds": options.rounds,
                          "least_ms": [round(one, 3) for one in least], "median_ms": [round(one, 3) for one in median]}))
        return 0
    print(f"torch {torch.__version__}, simulated GPU, {options.rounds} rounds: CPU time of a step of GPT-2, ms")
    for name, (off, on) in (("least", least), ("median", median)):
        print(f"{name:<8} without {options.of} {off:7.2f}   with {options.of} {on:7.2f}   {100 * (on / off - 1):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
