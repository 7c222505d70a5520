"""Several devices in one process, and only the first is full."""
import torch

models = []
try:
    while True:
        models.append(torch.nn.Linear(16384, 16384, device="cuda"))  # "cuda" is the current device: 0, however many there are
except torch.OutOfMemoryError as error:
    print(error)
