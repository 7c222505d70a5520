"""RMM: buffers of each of its memory resources over the device's memory."""
import rmm

mib = 1 << 20
for make in (rmm.mr.CudaMemoryResource, rmm.mr.CudaAsyncMemoryResource, lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 64 * mib),
             lambda: rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), 64 * mib)):
    rmm.mr.set_current_device_resource(make())
    kept = []
    for step in range(50):
        kept.append(rmm.DeviceBuffer(size=65536 * (step % 17 + 1)))
        if step % 3:
            kept.pop(0)
    kept.clear()
    rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
