"""CuPy: arrays of its pool, and of cudaMallocAsync. REACH_POOL names one pool alone: "none" takes each array by cudaMalloc, "async" by
cudaMallocAsync, "cenote" from cenote.cupy."""
import os

import cupy

pool = os.environ.get("REACH_POOL")
if pool == "none":
    cupy.cuda.set_allocator(None)
elif pool == "async":
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
elif pool == "cenote":
    import cenote.cupy
    cenote.cupy.install()
kept = []
for step in range(100):
    kept.append(cupy.empty(1000 * (step % 17 + 1), cupy.float32))
    if step % 3:
        kept.pop(0)
if not pool:
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        kept.append(cupy.empty(1 << 20))
