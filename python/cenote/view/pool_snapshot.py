"""Reads a snapshot of a pool (docs/snapshot.md) for `cenote view`: the blocks of one moment, and the pages under them."""
from __future__ import annotations

import json
from typing import IO, Any

from cenote.view.history import FOR_EVER, Broken, History, Names

MOST_BYTES = 1 << 30  # of JSON
PAGE_STATES = ("owned", "free", "spare", "leaving")


def parsed(title: str, file: IO[bytes]) -> Any:
    text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise Broken(f"{title} has more than 1 GiB of JSON, the most that is read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Broken(f"{title} is no snapshot: {str(problem)[:100]}") from None


def load(title: str, file: IO[bytes]) -> dict[str, Any]:
    """Reads the JSON that cenote_pool_snapshot wrote. Checks only that the file says that it is a snapshot."""
    return checked(title, parsed(title, file))


def checked(title: str, snapshot: Any) -> dict[str, Any]:
    if not isinstance(snapshot, dict) or snapshot.get("snapshot") != 1:
        raise Broken(f"{title} is no snapshot of a pool; cenote_pool_snapshot and cenote.snapshot(\"x.json\") write one")
    return snapshot


def read(title: str, file: IO[bytes]) -> list[History]:
    return of_json(title, parsed(title, file))


def of_json(title: str, found: Any) -> list[History]:
    snapshot = checked(title, found)
    try:
        return [_history(title, snapshot)]
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as problem:
        raise Broken(f"{title} is an incomplete snapshot of a pool: {type(problem).__name__}: {str(problem)[:80]}") from None


def _rows(columns: list[str], rows: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row)) for row in rows]


def _history(title: str, snapshot: dict[str, Any]) -> History:
    history = History(title, int(snapshot["pool"]["device"]))
    names = {division: {row["key"]: row["name"] for row in snapshot["rows"][division]} for division in ("tag", "kind", "phase")}
    streams = _stream_names(snapshot)
    for segment in snapshot["segments"]:
        pieces = _rows(snapshot["piece_columns"], segment["pieces"])
        if segment["address"]:
            history.ranges.append((segment["address"], sum(piece["size"] for piece in pieces), 0, FOR_EVER))
        for piece in pieces:
            if piece["state"] != "free":
                history.allocate(piece["requested"], piece["address"], None)
                _divide(history, piece, names, snapshot["sites"])
                division = history.division("stream")
                division[1].append(division[0].number(streams.get((segment["group"], segment["stream_id"]), "unknown stream")))
    history.moment = _moment(snapshot)
    history.limits = {name: int(snapshot["pool"].get(key, 0)) for name, key in (("card", "capacity"), ("limit", "limit"))}
    history.divide_by_size()
    history.drop_plain_divisions()
    history.notes.append("A snapshot shows one moment. The time line has its last steps, 256 at most.")
    if not snapshot.get("one_moment", True):
        history.notes.append("Other threads allocated while the snapshot was taken: its blocks and pages are a little older than its counters.")
    return history


def _stream_names(snapshot: dict[str, Any]) -> dict[tuple[int, int], str]:
    """The name of each stream, by (group, stream_id)."""
    return {(arena["group"], arena["stream_id"]): (f"stream {arena['stream']:#x}" if arena["stream"] else "default stream")
            + (f", group {arena['group']}" if arena["group"] else "") for arena in snapshot["arenas"]}


def _divide(history: History, piece: dict[str, Any], names: dict[str, dict[int, str]], sites: dict[str, str]) -> None:
    """Appends the name of the piece in each division but "stream" and "size"."""
    labels = {division: names[division].get(piece[division]) or ("no tag" if division == "tag" else "other") for division in names}
    labels["line"] = sites.get(str(piece["site"]), "").split(" < ")[0].split("+0x")[0] or "unknown place"
    labels["state"] = piece["state"]
    labels["step"] = f"since step {piece['born'] + 1}"
    for division, name in labels.items():
        known, numbers = history.division(division)
        numbers.append(known.number(name))


def _moment(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What the HTML page shows besides blocks: figures, steps and pages."""
    steps = _rows(snapshot["steps"]["columns"], snapshot["steps"]["rows"])[::-1]
    counters = snapshot["counters"]
    figures = {name: int(counters[name]["current"]) for name in ("requested", "allocated", "reserved")}
    figures.update({f"{name}_peak": int(counters[name]["peak"]) for name in ("requested", "allocated", "reserved")})
    return {"figures": figures, "page_bytes": int(snapshot["pool"]["page_bytes"]), "ns": int(snapshot["ns"]),
            "steps": [[int(step[name]) for name in ("step", "ns", "live", "reserved", "peak")] for step in steps],
            **_pages(snapshot)}


def _pages(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A row for each page, and the names of the streams.

    A row is [number, bytes, state, times mapped, 1 if frozen or pinned, number of its arena's stream, addresses of its slots with the owner's first].
    """
    sizes = {region["region"]: region["bytes"] // region["count"] for region in snapshot["regions"]}  # of slots: pages are of two sizes
    bases = {region["region"]: region["base"] for region in snapshot["regions"]}
    mapped: dict[int, list[int]] = {}
    for region in snapshot["regions"]:
        for slot in _rows(snapshot["slot_columns"], region["slots"]):
            if slot["page"]:
                mapped.setdefault(slot["page"], []).append(int(region["base"] + slot["slot"] * sizes[region["region"]]))
    streams, keys = _stream_names(snapshot), {arena["arena"]: (arena["group"], arena["stream_id"]) for arena in snapshot["arenas"]}
    pages, users = [], Names()
    for page in _rows(snapshot["pages"]["columns"], snapshot["pages"]["rows"]):
        owner = bases[page["owner"][0]] + page["owner"][1] * sizes[page["owner"][0]] if page["owner"] and page["owner"][0] in bases else None
        places = sorted(mapped.get(page["page"], []), key=lambda at: at != owner)
        held = bool(page["frozen"] or page["pins"])
        stream = streams.get(keys.get(page["arena"], (0, 0)), "no stream yet")
        state = PAGE_STATES.index(page["state"])
        pages.append([int(page["page"]), int(page["bytes"]), state, int(page["maps"]), int(held), users.number(stream), places])
    return {"pages": pages, "page_users": users.names}
