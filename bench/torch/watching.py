"""How much time do growth(), labels and recording cost a program? Measures the CPU time of a training step with and without, in turns.

    python bench/torch/watching.py [--rounds N] [--json] [--check]

The program is GPT-2 with 355 million parameters on a simulated GPU. Kernels take no time there: a step is Python and PyTorch on the host, so that the
share is smaller on a real GPU. The least of all rounds counts, because a disturbance can only add. --check ends with status 1 if a feature takes more
than MOST of a step.
"""
import argparse
import datetime
import json
import os
import platform
import sys
import time
from typing import Callable

SIM = "80GiB"
STEPS = 6   # in a round
MOST = {"growth": 0.4, "growth with stacks": 1.0, "labels": 1.0, "recording": 0.3}  # chosen after measuring, with room for a busy machine


def begin_again_on_the_simulated_gpu() -> None:
    """Replaces this process by `cenote run` of this program."""
    os.execve(sys.executable, [sys.executable, "-m", "cenote", "run", "--sim", SIM, "--allocator", "cenote", *sys.argv], dict(os.environ))


def make_step() -> Callable[[], None]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        tokens = torch.zeros(8, 512, dtype=torch.long, device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def measure(rounds: int) -> dict[str, float]:
    """The least CPU milliseconds of a step, for each feature."""
    import cenote
    step = make_step()
    least: dict[str, float] = {}

    def run(name: str) -> None:
        start = time.process_time()
        for _ in range(STEPS):
            step()
        ms = (time.process_time() - start) / STEPS * 1000
        least[name] = min(ms, least.get(name, ms))

    run("warm-up")
    for _ in range(rounds):
        run("nothing")
        watch = cenote.growth(alarm=None)
        run("growth with stacks")  # PyTorch records them in the first steps
        for _ in range(4):
            step()
        run("growth")
        watch.close()
        cenote.label()
        run("labels")
        cenote.label(False)
        cenote.record(1_000_000)
        run("recording")
        cenote.record(0)
    return least


def main() -> int:
    parser = argparse.ArgumentParser(description="what watching a program costs")
    parser.add_argument("--rounds", metavar="N", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="one line for bench/results")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not os.environ.get("CENOTE_SIM"):
        begin_again_on_the_simulated_gpu()
    least = measure(options.rounds)
    base = least["nothing"]
    for name in MOST:
        share = (least[name] - base) / base
        print(f"{name:<20} {least[name]:6.1f} ms of CPU a step, {base:.1f} without: {100 * share:+5.1f} %  (at most {100 * MOST[name]:.0f})")
    if options.json:
        print(json.dumps({"bench": "torch/watching", "date": datetime.date.today().isoformat(), "machine": platform.machine(),
                          "device": "simulated GPU", "cpu_ms": {name: round(ms, 2) for name, ms in least.items()}}))
    return int(options.check and any((least[name] - base) / base > most for name, most in MOST.items()))


if __name__ == "__main__":
    sys.exit(main())
