"""ViT-B under torch.compile(backend="cudagraphs"): a graph for each size of batch, of training and of inference, in PyTorch's
graph pools."""
import torch
import torch.nn.functional as F
import torchvision

import figures

TRAIN_BATCHES = (192, 112)  # the last batch of a data set is seldom full
ANSWER_BATCHES = (512, 128)

with torch.device("cuda"):
    model = torchvision.models.vit_b_16()
compiled = torch.compile(model, backend="cudagraphs", dynamic=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def train(batch: int) -> torch.Tensor:
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (batch,), device="cuda")
    loss = F.cross_entropy(compiled(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@torch.no_grad()
def answer(batch: int) -> torch.Tensor:
    return compiled(torch.randn(batch, 3, 224, 224, device="cuda")).argmax(-1)


for step in figures.steps(16):
    model.train()
    loss = train(TRAIN_BATCHES[step % len(TRAIN_BATCHES)])
    model.eval()
    answer(ANSWER_BATCHES[step % len(ANSWER_BATCHES)])

figures.report(loss)
