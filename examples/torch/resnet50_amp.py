"""ResNet-50, trained in mixed precision (fp16, loss scaling) on batches of images of varying size."""
import random

import torch
import torch.nn.functional as F
import torchvision

import figures

BATCH = 256
SIZES = range(160, 289, 32)

random.seed(0)
model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
scaler = torch.amp.GradScaler()

for _ in figures.steps(60):
    size = random.choice(SIZES)
    images = torch.randn(BATCH, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (BATCH,), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

figures.report(loss)
