"""The lines of a verdict that say by name what holds the memory. Reads what inside/holdings.py wrote; runs nothing."""
from typing import Any, Optional

from cenote.base import quantity

LINES_MAX = 12
LINES_BEFORE_END = 6  # when memory ran out: what the program would hold at its peak follows
SHARE_LEAST = 200  # what is less than a 200th of all is not listed


def place_lines(place: Optional[dict[str, Any]]) -> list[str]:
    if not place or not place["module"]:
        return []
    operation = f", computing gradients ({place['operation']})" if place["operation"] else ""
    return [f"  in module {place['module']}{operation}"]


def each(row: dict[str, Any]) -> str:
    count = f"{row['blocks']} blocks" if row["blocks"] > 1 else ""
    return ", ".join(part for part in (row["shape"], count) if part)


def where(row: dict[str, Any]) -> str:
    """The lines: of what has a name of its own they say little."""
    if row["kind"] in ("parameters", "gradients", "optimizer state", "buffers") or row["name"].endswith(row["line"]):
        return ""
    inside = f", inside {short(row['library'])}" if row["library"] else ""
    return f", at {short(row['line'])}{inside}" if row["line"] else ""


def short(line: str) -> str:
    """A line in a library without the folder of packages."""
    return line.rpartition("site-packages/")[2]


def what(row: dict[str, Any]) -> str:
    is_told = row["name"] == row["kind"] or row["name"].startswith("outside modules") and row["kind"] == "outside of modules"
    return row["name"] if is_told else f"{row['kind']}: {row['name']}"


def lines(names: Optional[dict[str, Any]], when: str, most: int = LINES_MAX) -> list[str]:
    if not names or not names["patterns"]:
        return []
    rows = [row for row in names["patterns"] if row["bytes"] * SHARE_LEAST >= names["bytes"]][:most]
    found = [f"    largest {when}:"]
    for row in rows:
        details = each(row)
        found.append(f"      {quantity.readable(row['bytes']):>10}  {what(row)}{f' ({details})' if details else ''}{where(row)}")
    rest = names["bytes"] - sum(row["bytes"] for row in rows)
    return found + ([f"      {quantity.readable(rest):>10}  smaller ones"] if rest and rows else [])
