"""ViT-L/16 of torchvision with Lightning Fabric on images of 224 x 224: the scripts 01-2 to 06 of rasbt/pytorch-memory-optim (measured.json).

    python vit.py --precision 16-mixed --batch 64
    python vit.py --precision bf16-true --batch 4 --accumulate 4 [--sgd]

A loop of plain PyTorch. Without accumulation it clears gradients between forward and backward; with it, after each step. After each batch it counts
right answers, and at the end it evaluates a batch. The scripts ran with a PyTorch of June 2023, whose Adam had a second temporary as large as the
model (it has one since July 2023: pytorch#104898 and its likes). Here it has two again.
"""
import argparse

import lightning
import torch
import torchmetrics
import torchvision

STEPS = 8
EPSILON = 1e-8  # Adam's; the one number that its step adds to a list

parser = argparse.ArgumentParser()
parser.add_argument("--precision", choices=("32-true", "16-mixed", "bf16-true"), default="32-true")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--sgd", action="store_true")
args = parser.parse_args()


class SecondTemporary:
    """sqrt(v) + eps in memory of its own, until the step has used it."""

    def __init__(self):
        self.kept = None
        self.add, self.addcdiv = torch._foreach_add_, torch._foreach_addcdiv_
        torch._foreach_add_, torch._foreach_addcdiv_ = self.add_to, self.divide

    def add_to(self, tensors, other, **more):
        if other == EPSILON:
            self.kept = torch._foreach_add(tensors, other)
        else:
            self.add(tensors, other, **more)

    def divide(self, *lists):
        self.addcdiv(*lists)
        self.kept = None


class Data(torch.utils.data.Dataset):
    def __init__(self, batches):
        self.count = batches * args.batch

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3, 224, 224), index % 10


def train(fabric, model, optimizer, scheduler, loader):
    right = torchmetrics.Accuracy(task="multiclass", num_classes=10).to(fabric.device)
    for index, (features, targets) in enumerate(loader):
        model.train()
        logits = model(features)
        loss = torch.nn.functional.cross_entropy(logits, targets) / args.accumulate
        if args.accumulate == 1:
            optimizer.zero_grad()
        fabric.backward(loss)
        if index % args.accumulate == 0:
            optimizer.step()
            if scheduler:
                scheduler.step()
            if args.accumulate > 1:
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right.update(torch.argmax(logits, 1), targets)


def main():
    SecondTemporary()
    fabric = lightning.Fabric(accelerator="cuda", devices=1, precision=args.precision)
    fabric.launch()
    if args.precision != "32-true":
        torch.set_float32_matmul_precision("high")
    loader, evaluated = fabric.setup_dataloaders(*(torch.utils.data.DataLoader(Data(batches), args.batch) for batches in (STEPS, 1)))
    model = torchvision.models.vit_l_16(weights=None)
    model.heads.head = torch.nn.Linear(1024, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if args.sgd else torch.optim.Adam(model.parameters(), lr=5e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS) if args.sgd else None
    model, optimizer = fabric.setup(model, optimizer)
    train(fabric, model, optimizer, scheduler, loader)
    with torch.no_grad():
        for features, _ in evaluated:
            torch.argmax(model(features), 1)


if __name__ == "__main__":
    main()
