"""PyCUDA: device memory, pitched memory, arrays of its gpuarray, and its pool."""
import numpy
import pycuda.driver as cuda

cuda.init()
context = cuda.Device(0).make_context()
from pycuda import gpuarray  # noqa: E402  (needs the context)
from pycuda.tools import DeviceMemoryPool  # noqa: E402

host = numpy.arange(1 << 18, dtype=numpy.int32)
block = cuda.mem_alloc(host.nbytes)
cuda.memcpy_htod(block, host)
back = numpy.empty_like(host)
cuda.memcpy_dtoh(back, block)
assert (back == host).all()
kept = [block, cuda.mem_alloc_pitch(1000, 1000, 4), gpuarray.to_gpu(host)]
pool = DeviceMemoryPool()
blocks = [pool.allocate(100_000 * (i % 7 + 1)) for i in range(100)]
del blocks, kept, block
pool.stop_holding()
context.pop()
