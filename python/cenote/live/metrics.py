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


CARD = (Family("cenote_card_total_bytes", "gauge", "bytes", "memory of the card"),
        Family("cenote_card_used_bytes", "gauge", "bytes", "of it, used by all processes"),
        Family("cenote_beside_bytes", "gauge", "bytes", "of what is used, what no pool of cenote holds"))
MEMBER = (Family("cenote_allocated_bytes", "gauge", "bytes", "held by live blocks"),
          Family("cenote_requested_bytes", "gauge", "bytes", "asked for by live blocks"),
          Family("cenote_reserved_bytes", "gauge", "bytes", "physical memory held from the driver"),
          Family("cenote_cached_bytes", "gauge", "bytes", "reserved but not allocated"),
          Family("cenote_asleep_bytes", "gauge", "bytes", "pages whose memory the driver has while their blocks sleep"),
          Family("cenote_limit_bytes", "gauge", "bytes", "most that the pool may hold, where there is a limit"),
          Family("cenote_peak_allocated_bytes", "gauge", "bytes", "highest allocated since metrics were written last"),
          Family("cenote_peak_reserved_bytes", "gauge", "bytes", "highest reserved since metrics were written last"),
          Family("cenote_blocks", "gauge", "", "live blocks"),
          Family("cenote_steps_total", "counter", "", "steps of the program that are over"),
          Family("cenote_waits_total", "counter", "", "times the host waited for the device"),
          Family("cenote_pages_created_total", "counter", "", "pages and segments asked of the driver"),
          Family("cenote_pages_moved_total", "counter", "", "free pages mapped at a second place"),
          Family("cenote_out_of_memory_total", "counter", "", "allocations that failed for want of memory"),
          Family("cenote_driver_seconds_total", "counter", "seconds", "time in calls of the driver, as of the last answer of the process"))


def card_values(card: Card) -> dict[str, Optional[float]]:
    beside = None if card.used is None else max(0, card.used - card.reserved)
    return {"cenote_card_total_bytes": card.total or None, "cenote_card_used_bytes": card.used, "cenote_beside_bytes": beside}


def member_values(member: Member) -> dict[str, Optional[float]]:
    answered = any(pool.numbers.get("answers") for pool in member.pools)
    driver = max((pool.figures.get("driver_ns", 0) for pool in member.pools), default=0) / 1e9  # of the process, so each pool says the same
    return {"cenote_allocated_bytes": member.current("allocated"), "cenote_requested_bytes": member.current("requested"),
            "cenote_reserved_bytes": member.current("reserved"), "cenote_cached_bytes": member.cached, "cenote_asleep_bytes": member.number("asleep"),
            "cenote_limit_bytes": member.number("limit") or None,
            "cenote_peak_allocated_bytes": max(member.number("peak_allocated"), member.current("allocated")),
            "cenote_peak_reserved_bytes": max(member.number("peak_reserved"), member.current("reserved")),
            "cenote_blocks": member.current("blocks"), "cenote_steps_total": member.number("steps"), "cenote_waits_total": member.number("waits"),
            "cenote_pages_created_total": member.number("pages_created"), "cenote_pages_moved_total": member.number("pages_harvested"),
            "cenote_out_of_memory_total": member.number("ooms"), "cenote_driver_seconds_total": driver if answered else None}


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
    shown = family.name.removesuffix("_total") if open_metrics else family.name
    yield f"# HELP {shown} {family.text}"
    yield f"# TYPE {shown} {family.kind}"
    if open_metrics and family.unit:
        yield f"# UNIT {shown} {family.unit}"
    yield from (f"{family.name}{at} {value:.17g}" for at, value in samples)


def text(moment: Moment, open_metrics: bool) -> str:
    found: list[str] = []
    for family in CARD:
        samples = [(labels(card), float(value)) for card in moment.cards if (value := card_values(card)[family.name]) is not None]
        found += family_lines(family, samples, open_metrics)
    every = [(card, member, member_values(member)) for card in moment.cards for member in card.members]
    for family in MEMBER:
        known = [(labels(card, member), float(figure)) for card, member, values in every if (figure := values[family.name]) is not None]
        found += family_lines(family, known, open_metrics)
    build = Family("cenote_build_info", "gauge", "", "the version of cenote that reads")
    found += family_lines(build, [(f'{{version="{escaped(version())}"}}', 1)], open_metrics)
    return "\n".join(found + (["# EOF"] if open_metrics else [])) + "\n"
