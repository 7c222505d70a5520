"""program.py FOLDER NAME: programs whose memory history is recorded, as in this folder on an H100 (docs/real-cards.md). Writes
FOLDER/NAME-*.pickle (PyTorch's own allocators) and prints what they took: `cenote run --allocator NAME traces/h100/program.py FOLDER NAME`.

    whole, middle, two    random allocations: from the first on; with a cache that is emptied; on two streams, from the middle on
    short                 on two streams under a limit, so that cached segments go back and memory runs out
    train                 a transformer, trained on batches that a second stream prefetches, with an evaluation and an emptied cache in between
"""
import json
import pickle
import random
import sys
import time

import torch

folder, name = sys.argv[1:3]
native = torch.cuda.get_allocator_backend() == "native"
MIB = 1 << 20
chance, live = random.Random(7), []
streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
refused = [0]


def work(steps, count, largest=25.0, most=60):
    for _ in range(steps):
        if live and (len(live) > most or chance.random() < 0.45):
            live.pop(chance.randrange(len(live)))
            continue
        stream = chance.choice(streams[:count])
        with torch.cuda.stream(stream):
            try:
                block = torch.empty(int(2 ** chance.uniform(6, largest)), dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                refused[0] += 1
                del live[::2]
                continue
            if chance.random() < 0.5:
                block.fill_(1)  # work on the stream
        if chance.random() < 0.2:
            block.record_stream(streams[-1])
        live.append(block)


def dump(what):
    print(json.dumps({"recording": f"{name}-{what}", "reserved": torch.cuda.memory_reserved(), "live": torch.cuda.memory_allocated(),
                      "retries": torch.cuda.memory_stats()["num_alloc_retries"], "refused": refused[0], "at": round(time.time() - began, 2)}))
    if native:
        with open(f"{folder}/{name}-{what}.pickle", "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        torch.cuda.memory._record_memory_history(None)


def record(most=100000):
    if native:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history(max_entries=most, stacks="python")


began = time.time()
record()
work(800, 1)
dump("whole")

record()
work(600, 1)
torch.cuda.empty_cache()
work(600, 1)
dump("middle")

record(1800)
work(1800, 2)
live[:] = live[::2]
torch.cuda.empty_cache()
work(600, 2)
dump("two")

live.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
free, total = torch.cuda.mem_get_info()
record()
torch.cuda.set_per_process_memory_fraction(768 * MIB / total)
work(1500, 2, 27.0)
dump("short")
torch.cuda.set_per_process_memory_fraction(1.0)

live.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
record(1000000)
torch.manual_seed(1)
WIDTH, LAYERS, BATCH, WORDS = 1024, 8, 16, 16000
layer = torch.nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, dim_feedforward=4 * WIDTH, batch_first=True, device="cuda")
model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
embed = torch.nn.Embedding(WORDS, WIDTH, device="cuda")
head = torch.nn.Linear(WIDTH, WORDS, device="cuda")
optimizer = torch.optim.AdamW([*model.parameters(), *embed.parameters(), *head.parameters()], lr=1e-4, foreach=True)
side = streams[1]


def fetch(length):
    """A batch that the second stream brings over and prepares."""
    words = torch.randint(WORDS, (BATCH, length)).pin_memory()
    with torch.cuda.stream(side):
        there = words.to("cuda", non_blocking=True)
        noise = torch.rand(BATCH, length, WIDTH, device="cuda")
        mask = (noise < 0.1).to(torch.float32)
    return there, mask


lengths = [chance.randint(64, 512) for _ in range(12)]
batch = fetch(lengths[0])
for step in range(len(lengths)):
    torch.cuda.current_stream().wait_stream(side)
    words, mask = batch
    for tensor in batch:
        tensor.record_stream(torch.cuda.current_stream())
    if step + 1 < len(lengths):
        batch = fetch(lengths[step + 1])
    loss = torch.nn.functional.cross_entropy(head(model(embed(words) * (1 - mask))).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        with torch.inference_mode():
            model.eval()
            head(model(embed(torch.randint(WORDS, (3 * BATCH, 512), device="cuda"))))
            model.train()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
print("loss", loss.item())
dump("train")
