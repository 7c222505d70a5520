"""ResNet-101, training and evaluation in turns: large batches of large images without gradients between smaller ones with."""
import torch
import torch.nn.functional as F
import torchvision

import figures

TRAIN_BATCH, TRAIN_SIZE = 128, 224
EVAL_BATCH, EVAL_SIZE = 500, 288
EVAL_EVERY = 10

model = torchvision.models.resnet101().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def train() -> torch.Tensor:
    model.train()
    images = torch.randn(TRAIN_BATCH, 3, TRAIN_SIZE, TRAIN_SIZE, device="cuda")
    labels = torch.randint(1000, (TRAIN_BATCH,), device="cuda")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


@torch.inference_mode()
def evaluate() -> torch.Tensor:
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device="cuda")
    for batch in (EVAL_BATCH, EVAL_BATCH, EVAL_BATCH // 3):  # the last batch of a data set is seldom full
        images = torch.randn(batch, 3, EVAL_SIZE, EVAL_SIZE, device="cuda")
        labels = torch.randint(1000, (batch,), device="cuda")
        right += (model(images).argmax(1) == labels).sum()
    return right


for step in figures.steps(50):
    loss = train()
    if step % EVAL_EVERY == EVAL_EVERY - 1:
        evaluate()

figures.report(loss)
