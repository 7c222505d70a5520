"""What a dry run saw of a program that trains, beside its steps, and what it did not see. For verdict.py; reads what inside/seen.py reported.
And what the remedies saw, for advice.py and search.py."""
from typing import Any, Optional, Sequence

from cenote.base import source
from cenote.base.quantity import readable

PLACES_MAX = 3


def peak(parts: Sequence[dict[str, Any]]) -> str:
    """The highest of all devices and ranks."""
    most = max((bytes for part in parts for bytes in part["peaks"].values()), default=0)
    return f", {readable(most)} live at most" if most else ""


def times(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def evaluation(seen: Sequence[dict[str, Any]]) -> Optional[str]:
    parts = [one["evaluation"] for one in seen]
    calls = max(part["times"] for part in parts)
    return f"evaluation ({times(calls, 'call')} of a model in eval mode{peak(parts)})" if calls else None


def saving(seen: Sequence[dict[str, Any]]) -> Optional[str]:
    parts = [one["saving"] for one in seen]
    if not any(part["times"] for part in parts):
        return None
    places = list(dict.fromkeys((place["by"], f" at {source.shown(place['file'])}:{place['line']}" if place["file"] else "")
                                for part in parts for place in part["places"]))
    named = ", ".join(by + at for by, at in places[:PLACES_MAX]) + (", ..." if len(places) > PLACES_MAX else "")
    return f"saving ({named}{peak(parts)})"


def epoch(seen: Sequence[dict[str, Any]]) -> Optional[str]:
    ends = max(one["epochs"] for one in seen)
    return f"the end of {times(ends, 'epoch')}" if ends else None


PHASES = (("evaluation", evaluation), ("saving", saving), ("the end of an epoch", epoch))


def missing(reports: Sequence[dict[str, Any]]) -> list[str]:
    """What a program that trains did not do in the run."""
    seen = [report["seen"] for report in reports if report["steps"] and report.get("seen")]
    return [name for name, text in PHASES if not text(seen)] if seen else []


def lines(reports: Sequence[dict[str, Any]], was_ended: bool) -> list[str]:
    """Empty for a program that does not train."""
    training = [report for report in reports if report["steps"] and report.get("seen")]
    if not training:
        return []
    seen = [report["seen"] for report in training]
    steps = times(max(report["steps"] for report in training), "step") + " of the optimizer"
    found = {name: text(seen) for name, text in PHASES}
    without = max(one["without_gradients"] for one in seen)
    there = [steps, *(text for text in found.values() if text)]
    there += [f"{times(without, 'call')} of a model in training mode without gradients"] if without else []
    result = [f"  seen: {', '.join(there)}"]
    if not_there := missing(reports):
        whole = " (--steps 0 runs the whole script, and what it saves is written)" if was_ended else ""
        result.append(f"  not seen: {', '.join(not_there)}{whole}")
    return result


def remedies(outcome: Any) -> dict[str, dict[str, Any]]:
    """What the remedies have seen (cenote/remedies), in the process that has most to change."""
    reports = [report["remedies"] for report in outcome.reports if report.get("remedies")]
    return max(reports, key=lambda report: sum(not one["why_not"] for one in report.values()), default={})
