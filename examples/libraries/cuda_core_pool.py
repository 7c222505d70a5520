"""cuda.core with cenote as its memory resource: buffers of changing sizes on two streams, and what they cost. docs/python-libraries.md"""
import random

from cuda.core import Device

import cenote.cuda_core

device = Device()
device.set_current()
resource = device.memory_resource = cenote.cuda_core.MemoryResource(device)  # the one line

random.seed(1)
streams = [device.create_stream(), device.create_stream()]
held = []
for _ in range(1000):
    stream = random.choice(streams)
    held.append(device.allocate(random.randrange(1, 8 << 20), stream=stream))
    if len(held) > 40:
        held.pop(random.randrange(40)).close()

stats = resource.stats()
requested, reserved = stats["requested"].peak, stats["reserved"].peak
print(f"peak requested {requested >> 20} MiB, peak reserved {reserved >> 20} MiB, waste {100 * (reserved / requested - 1):.1f} %")
