"""A vision transformer trained with the Trainer of Lightning, on random images, as the documentation of Lightning teaches it.

    python lightning_vit.py --batch-size 64
"""
import argparse

import lightning as L
import torch
import torchvision
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torchvision.models.vit_b_16(weights=None)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main():
    data = torchvision.datasets.FakeData(size=100_000, image_size=(3, 224, 224), num_classes=1000, transform=transforms.ToTensor())
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, precision="bf16-mixed", logger=False, enable_checkpointing=False)
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
