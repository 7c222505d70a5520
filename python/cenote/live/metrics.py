"""A moment as metrics, for Prometheus and what reads its format: a file for node_exporter's textfile collector, or a port of this machine.

Units are bytes and seconds. A figure that is not known has no line: 0 would be taken for a measurement. Peaks are since the last time that
metrics were written, so that a peak between two of them is not lost.
"""
from __future__ import annotations

from typing import Iterator, NamedTuple, Optional

from cenote.live.moment import Card, Member, Moment
from cenote.places import version

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    name: str
    kind: str  # gauge or counter
    unit: str
    text: str


CARD = (Family("card_total_bytes", "gauge", "bytes", "memory of the card"), Family("card_used_bytes", "gauge", "bytes", "of it, used by all processes"),
        Family("beside_bytes", "gauge", "bytes", "of what is used, what no pool of cenote holds"))
MEMBER = (Family("allocated_bytes", "gauge", "bytes", "held by live blocks"), Family("requested_bytes", "gauge", "bytes", "asked for by live blocks"),
          Family("reserved_bytes", "gauge", "bytes", "physical memory held from the driver"),
          Family("cached_bytes", "gauge", "bytes", "reserved but not allocated"),
          Family("asleep_bytes", "gauge", "bytes", "pages whose memory the driver has while their blocks sleep"),
          Family("limit_bytes", "gauge", "bytes", "most that the pool may hold, where there is a limit"),
          Family("peak_allocated_bytes", "gauge", "bytes", "highest allocated since metrics were written last"),
          Family("peak_reserved_bytes", "gauge", "bytes", "highest reserved since metrics were written last"),
          Family("blocks", "gauge", "", "live blocks"),
          Family("steps", "counter", "", "steps of the program that are over"),
          Family("waits", "counter", "", "times the host waited for the device"),
          Family("pages_created", "counter", "", "pages and segments asked of the driver"),
          Family("pages_moved", "counter", "", "free pages mapped at a second place"),
          Family("out_of_memory", "counter", "", "allocations that failed for want of memory"),
          Family("driver_seconds", "counter", "seconds", "time in calls of the driver, as of the last answer of the process"))


def card_values(card: Card) -> dict[str, Optional[int]]:
    beside = None if card.used is None else max(0, card.used - card.reserved)
    return {"card_total_bytes": card.total or None, "card_used_bytes": card.used, "beside_bytes": beside}


def member_values(member: Member) -> dict[str, Optional[float]]:
    answered = any(pool.numbers.get("answers") for pool in member.pools)
    driver = max((pool.figures.get("driver_ns", 0) for pool in member.pools), default=0) / 1e9  # of the process, so each pool says the same
    current = {f"{name}_bytes": float(member.current(name)) for name in ("allocated", "requested", "reserved")}
    peak = {f"peak_{name}_bytes": float(max(member.number(f"peak_{name}"), member.current(name))) for name in ("allocated", "reserved")}
    return {**current, "cached_bytes": member.cached, "asleep_bytes": member.number("asleep"), "limit_bytes": member.number("limit") or None, **peak,
            "blocks": member.current("blocks"), "steps": member.number("steps"), "waits": member.number("waits"),
            "pages_created": member.number("pages_created"), "pages_moved": member.number("pages_harvested"), "out_of_memory": member.number("ooms"),
            "driver_seconds": driver if answered else None}


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(card: Card, member: Optional[Member] = None) -> str:
    pairs = {"gpu": str(card.number) if card.number is not None else card.key, "uuid": card.uuid}
    if member:
        pairs.update(pid=str(member.person.pid), rank=member.rank)
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items() if value) + "}"


def family_lines(family: Family, samples: list[tuple[str, float]], open_metrics: bool) -> Iterator[str]:
    if not samples:
        return
    name = f"cenote_{family.name}"
    total = f"{name}_total" if family.kind == "counter" else name
    shown = name if open_metrics else total
    yield f"# HELP {shown} {family.text}"
    yield f"# TYPE {shown} {family.kind}"
    if open_metrics and family.unit:
        yield f"# UNIT {shown} {family.unit}"
    yield from (f"{total}{at} {value:.17g}" for at, value in samples)


def text(moment: Moment, open_metrics: bool) -> str:
    found: list[str] = []
    for family in CARD:
        samples = [(labels(card), float(value)) for card in moment.cards if (value := card_values(card)[family.name]) is not None]
        found += family_lines(family, samples, open_metrics)
    every = [(card, member, member_values(member)) for card in moment.cards for member in card.members]
    for family in MEMBER:
        known = [(labels(card, member), float(figure)) for card, member, values in every if (figure := values[family.name]) is not None]
        found += family_lines(family, known, open_metrics)
    found += family_lines(Family("build_info", "gauge", "", "the version of cenote that reads"), [(f'{{version="{escaped(version())}"}}', 1)], False)
    return "\n".join(found + (["# EOF"] if open_metrics else [])) + "\n"
