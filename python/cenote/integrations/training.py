"""What callbacks of Trainers tell of GPU memory (transformers.py, lightning.py): figures of the current device, and what makes memory grow.

Works under PyTorch's own allocators, too; what grows is known under cenote alone (cenote.growth).
"""
import sys
from typing import Any, Optional

from cenote.base.quantity import GIB
from cenote.holders.causes import Cause
from cenote.holders.growth import Growth
from cenote.inside import reports
from cenote.native import bindings

GROWTH = "memory_growth"


class Memory:
    """Of one training, from its begin to `close`."""

    def __init__(self) -> None:
        self.torch: Any = bindings.torch_with_gpu()
        self.news: list[str] = []  # causes of growth that `growth` has not told yet
        is_ours = self.torch is not None and self.torch.cuda.get_allocator_backend() == "cenote"
        self.watch: Optional[Growth] = Growth(self.alarm) if is_ours else None

    def alarm(self, cause: Cause) -> None:
        print(cause, file=sys.stderr, flush=True)
        self.news.append("; ".join(cause.lines()))

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()

    def figures(self) -> dict[str, float]:
        """In GiB, the waste in per cent; under cenote also waits and seconds. Nothing if the training uses no GPU."""
        if self.torch is None or not self.torch.cuda.is_initialized():
            return {}
        found = counters(self.torch)
        figures = {f"memory_{name}_gib": found[name] / GIB for name in ("allocated", "allocated_peak", "reserved", "reserved_peak")}
        figures["memory_cached_gib"] = (found["reserved"] - found["allocated"]) / GIB
        if found["requested_peak"]:  # cudaMallocAsync does not count them
            figures["memory_waste_percent"] = 100 * (found["reserved_peak"] / found["requested_peak"] - 1)
        if "waits" in found:
            figures |= {"memory_waits": found["waits"], "memory_driver_seconds": found["driver_ns"] / 1e9}
        return figures

    def growth(self) -> dict[str, str]:
        """What has begun to grow since the last call."""
        news, self.news = self.news, []
        return {GROWTH: "; ".join(news)} if news else {}


def counters(torch: Any) -> dict[str, int]:
    names = ("allocated", "reserved", "requested")
    if bindings.is_torchs(torch):  # not by torch.cuda.memory_stats, which makes cenote do its deferred trims
        ours: Any = reports.stats()
        levels = {key: value for name in names for key, value in ((name, ours[name].current), (f"{name}_peak", ours[name].peak))}
        return levels | {name: ours[name] for name in ("waits", "driver_ns")}
    stats = torch.cuda.memory_stats()
    return {key: stats.get(f"{name}_bytes.all.{level}", 0) for name in names for key, level in ((name, "current"), (f"{name}_peak", "peak"))}
