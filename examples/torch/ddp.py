"""ConvNeXt-Large, trained by data parallelism (accelerate) on pictures of varying size.

Start it with `accelerate launch --multi_gpu --num_processes 4 ddp.py`.
"""
import random

import torch
import torch.nn.functional as F
import torchvision
from accelerate import Accelerator

import figures

BATCH = 32  # of each rank
SIZES = range(192, 321, 32)

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
random.seed(0)  # the same sizes on all ranks
with accelerator.device:
    model = torchvision.models.convnext_large()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
model, optimizer = accelerator.prepare(model, optimizer)

for _ in figures.steps(16):
    size = random.choice(SIZES)
    with accelerator.accumulate(model):
        images = torch.randn(BATCH, 3, size, size, device=accelerator.device)
        labels = torch.randint(1000, (BATCH,), device=accelerator.device)
        loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

figures.report(loss)
accelerator.end_training()
