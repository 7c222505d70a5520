"""A training of twelve equal blocks, for `cenote dry-run --advise`: docs/dry-run.md shows what would help it."""
import argparse

import torch

WIDTH, WORDS = 256, 256


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WORDS, WIDTH)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    batch = parser.parse_args().batch_size
    data = torch.utils.data.DataLoader(Data(), batch_size=batch)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x in data:
        output = model(x.cuda())
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
