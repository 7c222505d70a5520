"""What searches of cudnn.benchmark would take beside the need. For verdict.py; reads what inside/searches.py noted.

PyTorch tries less where it is not there, and empties its cache afterwards: so it is never part of a need.
"""
from typing import Any, Mapping

from cenote.base.quantity import readable


def beyond(figures: Mapping[str, Any]) -> int:
    """Bytes of a device beyond its own peak."""
    searched: int = figures.get("searched", 0) - figures["reserved_peak"] - figures["others"]
    return max(0, searched)


def most(reports: Any) -> int:
    return max((beyond(figures) for report in reports for figures in report["devices"].values()), default=0)


def lines(reports: Any) -> list[str]:
    more = most(reports)
    return [f"  beside that: up to {readable(more)} more while cudnn.benchmark searches, if free"] if more else []
