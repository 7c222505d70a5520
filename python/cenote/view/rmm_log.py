"""Reads a log of RMM's logging_resource_adaptor (Thread,Time,Action,Pointer,Size,Stream) for `cenote view`."""
from __future__ import annotations

import csv
import io
from typing import IO

from cenote.view.history import Broken, History

DAY = 24 * 3600 * 1_000_000.0


def microseconds(text: str) -> float:
    """Of a day: 12:34:56:789012, or with a point before the fraction."""
    hours, minutes, rest = text.split(":", 2)
    seconds, _, fraction = rest.replace(":", ".").partition(".")
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1e6 + float(f"0.{fraction or 0}") * 1e6


def read(title: str, file: IO[bytes]) -> list[History]:
    history, live = History(title, 0), dict[int, int]()
    names, numbers = history.division("stream")
    began, last, days = None, 0.0, 0
    try:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            now = microseconds(row["Time"])
            days += now < last - DAY / 2  # past midnight
            last, now = now, now + days * DAY
            began = now if began is None else began
            address, size = int(row["Pointer"], 16), int(row["Size"])
            if row["Action"] == "allocate":
                live[address] = history.allocate(size, address, now - began)
                numbers.append(names.number(row["Stream"], f"stream {row['Stream']}"))
            elif row["Action"] == "free" and address in live:
                history.free(live.pop(address), now - began)
            elif row["Action"] == "allocate failure":
                history.marks.append((len(history.time), f"out of memory: {size:,} bytes"))
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as problem:
        raise Broken(f"{title} is a damaged log of RMM: {type(problem).__name__}: {str(problem)[:80]}") from None
    if not len(history.size):
        raise Broken(f"{title}: there is no allocation in it")
    history.notes.append("A log of RMM does not tell the device, nor what was reserved; blocks from before it are not in it.")
    history.divide_by_size()
    history.drop_plain_divisions()
    return [history]
