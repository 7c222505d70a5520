"""Reads a page of `cenote view` or `--report` again, for `cenote view --at` and `cenote diff`: the blocks that the page has."""
from __future__ import annotations

import base64
import json
import sys
from array import array
from typing import Any

from cenote.view.history import FOR_EVER, Broken, History

MOST_BYTES = 1 << 28
BEFORE = "const DATA = "


def read(title: str, data: bytes) -> list[History]:
    text = data.decode("utf-8", "replace")
    start = text.find(BEFORE)
    if start < 0:
        raise Broken(f"{title} is a page, and none that cenote wrote")
    try:
        views = json.JSONDecoder().raw_decode(text, start + len(BEFORE))[0]["views"]
        return [history_of(view) for view in views]
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as problem:
        raise Broken(f"{title} is a damaged page: {type(problem).__name__}: {str(problem)[:80]}") from None


def unpacked(kind: str, text: str) -> "array[Any]":
    """What html_page.packed() made."""
    column: array[Any] = array(kind)
    column.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def history_of(view: dict[str, Any]) -> History:
    """Without times. The changes are those of the blocks in the page; the peak is the one that the page states."""
    history, blocks, records = History(str(view["title"]), int(view["device"])), view["blocks"], int(view["records"])
    history.unit = str(view["unit"])
    history.born, history.gone = array("L", unpacked("I", blocks["born"])), array("L", unpacked("I", blocks["gone"]))
    history.size = array("Q", map(int, unpacked("d", blocks["size"])))
    history.change = array("q", bytes(8 * records))
    for size, born, gone in zip(history.size, history.born, history.gone):
        if born:
            history.change[born - 1] += size
        else:
            history.live_first += size
        if gone != FOR_EVER:
            history.change[gone - 1] -= size
    for division, packed in blocks["groups"].items():
        names, numbers = history.division(division)
        for i, name in enumerate(view["names"][division]):
            names.number(i, str(name))
        numbers.extend(array("L", unpacked("H", packed)))
    history.steps, history.all_steps = array("L", view["steps"]), int(view["all_steps"])
    history.every = max(1, -(-history.all_steps // max(1, len(history.steps))))
    history.moment = view["moment"]
    history.marks = [(int(moment), str(words)) for moment, words in view.get("marks", ())]
    if history.moment is None:
        history.known_peak = int(view["peak"]), int(view["peaks"][history.unit])
        reserved = view["series"].get("reserved")
        if reserved is not None:
            history.reserved = at_each(unpacked("I", view["moments"]), unpacked("d", reserved), records)
            history.reserved_first = int(unpacked("d", reserved)[0])
    return history


def at_each(moments: "array[Any]", values: "array[Any]", records: int) -> "array[int]":
    """The value after each record, of values at some of the moments."""
    found = array("q", bytes(8 * records))
    for i, (moment, value) in enumerate(zip(moments, values)):
        until = moments[i + 1] if i + 1 < len(moments) else records + 1
        for at in range(max(moment, 1), until):
            found[at - 1] = int(value)
    return found
