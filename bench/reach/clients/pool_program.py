"""The program of cupy_pools.py and numba_pools.py; rmm_pools.cpp has it in C++."""
import json
import time

MIB, STEPS, MOST, PAIRS, ROUNDS = 1 << 20, 20_000, 1536 << 20, 500, 20
SIZES = (512, 64 << 10, 2 << 20, 32 << 20)


def numbers():
    x = 1
    while True:
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield x >> 33


def hold(alloc, used):
    """Takes and frees blocks of 512 bytes to 64 MiB at random, MOST bytes at one time. The most that was asked for, and the most that is used."""
    number, live, now, asked, held = numbers(), [], 0, 0, 0
    for _ in range(STEPS):
        base = 512 << next(number) % 17
        size = base + next(number) % base
        while now + size > MOST or len(live) > 400:
            now -= live.pop(next(number) % len(live))[0]
        live.append((size, alloc(size)))
        now += size
        asked = max(asked, now)
        held = max(held, used())
        if live and next(number) % 2:
            now -= live.pop(next(number) % len(live))[0]
    return asked, max(held, used())


def cost(alloc, size):
    """ns of an allocation and its free, the least of ROUNDS."""
    least = float("inf")
    for _ in range(ROUNDS):
        before = time.thread_time_ns()
        for _ in range(PAIRS):
            alloc(size)
        least = min(least, (time.thread_time_ns() - before) / PAIRS)
    return round(least)


def tell(asked, held, alloc):
    print(json.dumps({"requested": asked, "reserved": held, "ns": {size: cost(alloc, size) for size in SIZES}}), flush=True)
