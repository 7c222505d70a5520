"""One linear layer, called three times: the program of shreyansh26/MLSys-Experiments, model_memory_usage/profile_grad.py, without its recording.

    python linear.py [--no-grad]
"""
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--no-grad", action="store_true")
args = parser.parse_args()

model = torch.nn.Linear(10_000, 50_000, device="cuda")
with torch.set_grad_enabled(not args.no_grad):
    for _ in range(3):
        inputs = torch.randn(5_000, 10_000, device="cuda")
        outputs = model(inputs)
