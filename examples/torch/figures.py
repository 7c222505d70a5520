"""What a program took of the GPU and of the host, by PyTorch's own figures: prints one line of JSON at the end.

The programs here count their steps with steps() and end with report(), which is given what the program computed: a loss, or a sum of tokens. The
seeds are the same in each run, so a real GPU computes nearly the same under every allocator. If a program has several ranks, each rank prints a line.
"""
import json
import os
import random
import resource
import statistics
import sys
import time
from typing import Iterator, Optional

import torch

random.seed(0)
torch.manual_seed(0)
step_seconds: list[float] = []  # CPU time of this process in each step
moments: list[float] = []  # when the steps began, when the GPU had done the first one, and when it had done all


def now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def steps(count: int) -> Iterator[int]:
    """range(count), or the range of the program's first argument if there is one. Waits for the GPU after the first step and after the last one."""
    moments.append(now())
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else count):
        start = time.process_time()
        yield step
        step_seconds.append(time.process_time() - start)
        if step == 0:
            moments.append(now())
    moments.append(now())


def wall_ms() -> tuple[Optional[float], Optional[float]]:
    """What the first step took, and each of the others on average."""
    if len(step_seconds) < 2:
        return None, None
    began, first, last = moments
    return round(1000 * (first - began), 1), round(1000 * (last - first) / (len(step_seconds) - 1), 1)


def report(result: torch.Tensor) -> None:
    value = result.item()
    first_ms, later_ms = wall_ms()
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
        "first_step_ms": first_ms,
        "step_ms": later_ms,
        "result": value,
        "device": torch.cuda.get_device_name(),
    }
    sys.stdout.write("\n" + json.dumps(line) + "\n")  # one write, so that the lines of several ranks do not mix
    sys.stdout.flush()
