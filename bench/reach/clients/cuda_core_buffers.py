"""cuda.core: buffers of the device's pool, of a pool of the program's own, and of cuMemAlloc."""
from cuda.bindings import driver
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

device = Device()
device.set_current()
stream = device.create_stream()
own = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
kept = []
for step in range(100):
    kept.append(device.allocate(4096 * (step % 17 + 1), stream=stream))
    kept.append(own.allocate(65536 * (step % 5 + 1), stream=stream))
    error, address = driver.cuMemAlloc(1 << 20)
    assert not error
    assert not driver.cuMemFree(address)[0]
    if step % 3:
        kept.pop(0).close(stream)
stream.sync()
