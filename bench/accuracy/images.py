"""Four steps of training a classifier of torchvision on random images of 86 x 86: the program that xMem's authors measured (measured.json).

    python images.py convnext_base --optimizer AdamW --batch 294

Their loop, with what it keeps alive from one step to the next: the outputs, the loss and the predictions, but not the images, because the name is
bound to the next batch on the host before that is copied. It asks the driver for the card's memory before anything else, so the context is there
when their measurement begins.
"""
import argparse

import torch
import torchvision

TEN_CLASSES = {"mnasnet1_0": torchvision.models.mnasnet1_0, "mobilenet_v3_large": torchvision.models.mobilenet_v3_large,
               "mobilenet_v3_small": torchvision.models.mobilenet_v3_small}  # the others have the 1000 of ImageNet
STEPS = 4

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--optimizer", choices=("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"), required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--zero-grad", choices=("first", "before-backward", "last"), default="first", help="where in the step gradients are cleared")
args = parser.parse_args()


def batches():
    for _ in range(STEPS):
        yield torch.rand(args.batch, 3, 86, 86), torch.randint(10, (args.batch,))


def main():
    model = TEN_CLASSES[args.model](num_classes=10) if args.model in TEN_CLASSES else torchvision.models.get_model(args.model, weights=None)
    device = torch.device("cuda:0")
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    model.to(device)
    model.train()
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.001)
    criterion = torch.nn.CrossEntropyLoss()
    for inputs, labels in batches():
        if args.zero_grad == "first":
            optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        if args.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, predictions = torch.max(outputs, 1)
        if args.zero_grad == "last":
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
