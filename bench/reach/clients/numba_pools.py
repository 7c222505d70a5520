"""numba-cuda with its own memory manager, or with cenote.numba: what is held over what the program asks for, and what a pair of calls costs.
Prints a line of JSON; bench/reach/pools.py starts it.

    python numba_pools.py own|cenote
"""
import sys

from numba import cuda
from pool_program import hold, tell


def main(kind):
    if kind == "cenote":
        import cenote.numba
        cuda.set_memory_manager(cenote.numba.Manager)
    context = cuda.current_context()
    before = context.get_memory_info().free
    asked, held = hold(context.memalloc, lambda: before - context.get_memory_info().free)
    if kind == "cenote":
        held = cenote.numba.stats()["reserved"].peak
    tell(asked, held, context.memalloc)


main(sys.argv[1])
