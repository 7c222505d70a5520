"""ResNet-50 trained by a plain loop, with mixed precision, on random images, as the tutorials of PyTorch teach it.

    python torchvision_loop.py --batch-size 128
"""
import argparse

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="resnet50")
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


def train(model, loader, device):
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type)
    model.train()
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torchvision.datasets.FakeData(size=100_000, image_size=(3, 224, 224), num_classes=1000, transform=transforms.ToTensor())
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True)
    model = torchvision.models.get_model(args.model, weights=None).to(device)
    train(model, loader, device)


if __name__ == "__main__":
    main()
