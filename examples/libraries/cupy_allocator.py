"""CuPy with cenote as its allocator: arrays of changing sizes on two streams, and what they cost. docs/python-libraries.md

CuPy's wheel needs a real GPU; on the simulated one this says so and ends.
"""
import random

import cupy

import cenote.cupy

cenote.cupy.install()  # the one line

try:
    cupy.cuda.Device().use()
except cupy.cuda.runtime.CUDARuntimeError as error:
    raise SystemExit(f"CuPy cannot use this GPU: {error}. Its static CUDA runtime does not take the simulated one")

random.seed(1)
streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)]
held = []
for _ in range(1000):
    with random.choice(streams):
        held.append(cupy.ones(random.randrange(1, 1 << 20), dtype=cupy.float64))
        if len(held) > 40:
            held.pop(random.randrange(40))

stats = cenote.cupy.stats()
requested, reserved = stats["requested"].peak, stats["reserved"].peak
print(f"peak requested {requested >> 20} MiB, peak reserved {reserved >> 20} MiB, waste {100 * (reserved / requested - 1):.1f} %")
