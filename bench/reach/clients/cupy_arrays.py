"""CuPy: arrays of its pool, and of cudaMallocAsync."""
import cupy

kept = []
for step in range(100):
    kept.append(cupy.empty(1000 * (step % 17 + 1), cupy.float32))
    if step % 3:
        kept.pop(0)
with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
    kept.append(cupy.empty(1 << 20))
