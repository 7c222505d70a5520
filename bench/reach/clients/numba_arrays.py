"""numba-cuda: arrays of all kinds, taken and dropped in turn."""
import numpy
from numba import cuda

kept = [cuda.managed_array(1000), cuda.pinned_array(1000)]
for step in range(100):
    kept.append(cuda.device_array(1000 * (step % 17 + 1)))
    kept.append(cuda.to_device(numpy.zeros(1000 * (step % 5 + 1))))
    if step % 3:
        del kept[2]
cuda.synchronize()
