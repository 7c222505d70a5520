"""cuda.core with cenote as its memory resource: cuda_core_buffers.py by the adapter's route."""
import cenote.cuda_core
from cuda.core import Device

device = Device()
device.set_current()
device.memory_resource = cenote.cuda_core.MemoryResource(device)
stream = device.create_stream()
kept = []
for step in range(100):
    kept.append(device.allocate(4096 * (step % 17 + 1), stream=stream))
    kept.append(device.allocate(65536 * (step % 5 + 1), stream=stream))
    if step % 3:
        kept.pop(0).close(stream)
stream.sync()
