"""Numba with cenote as its memory manager: arrays of changing sizes, and what they cost. docs/python-libraries.md"""
import random

import numpy
from numba import cuda

import cenote.numba

cuda.set_memory_manager(cenote.numba.Manager)  # the one line; or NUMBA_CUDA_MEMORY_MANAGER=cenote.numba in the environment

random.seed(1)
held = []
for _ in range(300):
    held.append(cuda.to_device(numpy.ones(random.randrange(1, 1 << 20), dtype=numpy.float64)))
    if len(held) > 40:
        held.pop(random.randrange(40))

stats = cenote.numba.stats()
requested, reserved = stats["requested"].peak, stats["reserved"].peak
print(f"peak requested {requested >> 20} MiB, peak reserved {reserved >> 20} MiB, waste {100 * (reserved / requested - 1):.1f} %")
