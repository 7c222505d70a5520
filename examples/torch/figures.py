"""What a program took of the GPU and of the host, by PyTorch's own figures: prints one line of JSON at the end.

The programs here count their steps with steps() and end with report(). If a program has several ranks, each rank prints a line.
"""
import json
import os
import resource
import statistics
import sys
import time
from typing import Iterator

import torch

MIB = 1 << 20
step_seconds: list[float] = []  # CPU time of this process in each step


def steps(count: int) -> Iterator[int]:
    """range(count), or the range of the program's first argument if there is one. Keeps the CPU time of each step."""
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else count):
        start = time.process_time()
        yield step
        step_seconds.append(time.process_time() - start)


def report() -> None:
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    late = step_seconds[-20:]  # by then everything that is built on first use is there
    line = {
        "program": os.path.basename(sys.argv[0]),
        "rank": int(os.environ.get("RANK", 0)),
        "backend": torch.cuda.get_allocator_backend(),
        "requested_peak": stats.get("requested_bytes.all.peak", 0),  # cudaMallocAsync does not count it: 0
        "allocated_peak": stats.get("allocated_bytes.all.peak", 0),
        "reserved_peak": stats.get("reserved_bytes.all.peak", 0),
        "retries": stats.get("num_alloc_retries", 0),
        "host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "steps": len(step_seconds),
        "step_cpu_ms": round(1000 * statistics.median(late), 1) if late else None,
        "device": torch.cuda.get_device_name(),
    }
    sys.stdout.write("\n" + json.dumps(line) + "\n")  # one write, so that the lines of several ranks do not mix
    sys.stdout.flush()
