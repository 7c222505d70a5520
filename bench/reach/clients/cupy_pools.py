"""CuPy with one of its pools, or with cenote.cupy: what the pool holds over what the program asks for, and what a pair of calls costs.
rmm_pools.cpp is the same program in C++. Prints a line of JSON; bench/reach/pools.py starts it.

    python cupy_pools.py own|async|none|cenote
"""
import sys

import cupy
from pool_program import hold, tell


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
    tell(asked, held, alloc)


main(sys.argv[1])
