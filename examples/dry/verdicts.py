"""Five programs of a few lines, one for each verdict that other examples do not get: docs/dry-run.md shows what `cenote dry-run` says of them.

    python verdicts.py halves       takes half the batch if memory runs out
    python verdicts.py keeps        goes on with what scores above zero
    python verdicts.py fails        has a mistake
    python verdicts.py waits        waits for what does not come
    torchrun --nproc-per-node 2 verdicts.py ranks       wants a GPU for each rank
"""
import os
import queue
import sys

import torch


def halves():
    batch = 65536
    while True:
        try:
            return train(batch)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            batch //= 2


def train(batch):
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(5):
        model(torch.randn(batch, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def keeps():
    scores = torch.nn.Linear(2048, 16384).cuda()(torch.randn(4096, 2048, device="cuda")).amax(1)
    kept = [row for row, score in enumerate(scores.tolist()) if score > 0]
    return torch.empty(len(kept), 1 << 18, device="cuda")       # 1 MiB for each


def fails():
    model = torch.nn.Linear(2048, 1000).cuda()
    return model(torch.randn(64, 1024, device="cuda"))


def waits():
    batches = queue.Queue()     # that no thread fills
    model = torch.nn.Linear(2048, 1000).cuda()
    return model(batches.get().cuda())


def ranks():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.nn.Linear(2048, 1000).cuda()


{"halves": halves, "keeps": keeps, "fails": fails, "waits": waits, "ranks": ranks}[sys.argv[1]]()
