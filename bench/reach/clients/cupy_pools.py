"""CuPy with one of its pools, or with cenote.cupy: what the pool holds over what the program asks for, and what a pair of calls costs.
rmm_pools.cpp is the same program in C++. Prints a line of JSON; bench/reach/pools.py starts it.

    python cupy_pools.py own|async|none|cenote
"""
import json
import os
import sys
import time

sys.setdlopenflags(os.RTLD_LAZY)  # its modules name functions that the simulated libraries lack
import cupy  # noqa: E402  (needs the flags)

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
    for step in range(STEPS):
        base = 512 << next(number) % 17
        size = base + next(number) % base
        while now + size > MOST or len(live) > 400:
            now -= live.pop(next(number) % len(live))[0]
        live.append((size, alloc(size)))
        now += size
        asked = max(asked, now)
        if step % 20 == 0:
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


def main(kind):
    if kind == "cenote":
        import cenote.cupy
        alloc = cenote.cupy.allocator
    else:
        alloc = {"own": cupy.cuda.MemoryPool, "async": cupy.cuda.MemoryAsyncPool, "none": lambda: None}[kind]()
        alloc = alloc.malloc if alloc else cupy.cuda.memory._malloc
    cupy.cuda.Stream(non_blocking=True).use()
    before = cupy.cuda.runtime.memGetInfo()[0]
    asked, held = hold(alloc, lambda: before - cupy.cuda.runtime.memGetInfo()[0])
    if kind == "cenote":
        held = cenote.cupy.stats()["reserved"].peak
    print(json.dumps({"requested": asked, "reserved": held, "ns": {size: cost(alloc, size) for size in SIZES}}), flush=True)


main(sys.argv[1])
