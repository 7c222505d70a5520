"""A DataLoader that pins, with pinned memory from cenote:

    CENOTE_HOST=on cenote run --sim 80GiB --allocator cenote examples/pinned.py

Run it with --allocator native to compare: PyTorch's own pinned memory rounds to powers of two.
"""
import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Batches of 32 images with sides of 160 to 288; the side differs from batch to batch."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> torch.Tensor:
        side = 160 + i * 7 % 5 * 32
        return torch.zeros(32, 3, side, side)


def main() -> None:
    requested = largest = 0
    ahead: list[torch.Tensor] = []
    for batch in DataLoader(Images(), batch_size=None, pin_memory=True):
        assert batch.is_pinned()
        ahead.append(batch)
        requested = sum(host.nbytes for host in ahead)
        largest = max(largest, requested)
        if len(ahead) > 8:
            ahead.pop(0).to("cuda", non_blocking=True)
    stats = torch.cuda.host_memory_stats()
    held = stats["allocated_bytes.peak"]
    print(f"{largest / 2**20:.0f} MiB of batches at most, {held / 2**20:.0f} MiB pinned at most, in {stats['num_host_alloc']} steps")


if __name__ == "__main__":
    main()
