"""A dry run in CI: `--limit SIZE`, and `--baseline FILE` with the difference to an earlier run's --json. This file runs nothing."""
import json
from typing import Any, NamedTuple, Optional

from cenote.base.mistake import Mistake
from cenote.base.quantity import readable as size
from cenote.fit.verdict import NAMED_LEAST, Answer, Outcome

BYTES_MAX = 1 << 26  # of a baseline's file
SLACK = 100  # a peak is above the baseline if it is more than 1/100 higher: other versions of libraries move it by less


class Baseline(NamedTuple):
    path: str
    needed: int
    kinds: dict[str, int]


class Judged(NamedTuple):
    lines: list[str]
    is_above_limit: bool
    is_above_baseline: bool
    content: dict[str, Any]  # for --json


def number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def read(path: str, allocator: str) -> Baseline:
    """What an earlier run held. Mistake if the file is none of `cenote dry-run --json`, or of a run that says nothing about what the script needs."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(BYTES_MAX + 1)
        content: dict[str, Any] = json.loads(text) if len(text) <= BYTES_MAX else {}
        run = content["largest"] or content
        found = Baseline(path, number(run["needed"]), kinds_of([device for process in run["processes"] for device in process["devices"].values()]))
        verdict, other = str(run["verdict"]), str(content["allocator"])
    except OSError as problem:
        raise Mistake(f"--baseline {path[-60:]!r}: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Mistake(f"--baseline {path[-60:]!r} is no file that `cenote dry-run --json` wrote for one card") from None
    if verdict not in ("fits", "grows"):
        raise Mistake(f"--baseline {path[-60:]!r} is of a run that does not tell what the script needs: make it on a larger card")
    if other != allocator:
        raise Mistake(f"--baseline {path[-60:]!r} is of the allocator {other[:20]}, and this run of {allocator}")
    return found


def kinds_of(devices: list[dict[str, Any]]) -> dict[str, int]:
    """Of the device that held most."""
    worst = max(devices, key=lambda device: number(device["reserved_peak"]))
    return {str(kind): number(bytes) for kind, bytes in (worst.get("kinds") or {}).items()}


def signed(bytes: int) -> str:
    return f"{'-' if bytes < 0 else '+'}{size(abs(bytes))}"


def judge(answer: Answer, limit: Optional[int], baseline: Optional[Baseline]) -> Judged:
    """The peak against both. Nothing if no run told what the script needs: the verdict says why."""
    told: Optional[Outcome] = next((one for one in (answer.outcome, answer.largest) if one is not None and one.fits), None)
    if told is None or (limit is None and baseline is None):
        is_asked = limit is not None or baseline is not None
        return Judged(["limit and baseline: not compared, because what the script needs is not known"] if is_asked else [], False, False, {})
    needed, lines, is_above, is_more = told.needed(), [], False, False
    content: dict[str, Any] = {}
    if limit is not None:
        is_above = needed > limit
        by = f"{size(abs(limit - needed))} {'above' if is_above else 'below'}"
        content["above_limit"] = needed - limit
        lines.append(f"limit: {size(needed)} at most, {by} the limit of {size(limit)}")
    if baseline is not None:
        more = needed - baseline.needed
        content["since_baseline"] = more
        is_more = more * SLACK > baseline.needed
        now = kinds_of([device for report in told.used for device in report["devices"].values()])
        changes = {kind: now.get(kind, 0) - baseline.kinds.get(kind, 0) for kind in {*now, *baseline.kinds}}
        parts = [f"{kind} {signed(bytes)}" for kind, bytes in sorted(changes.items(), key=lambda one: -abs(one[1])) if abs(bytes) >= NAMED_LEAST]
        lines.append(f"baseline: {signed(more)} since the baseline of {size(baseline.needed)}" + (f" ({', '.join(parts)})" if parts else ""))
        if is_more:
            lines.append("  that is more than 1 %: find the change, or write a new baseline with --json")
    return Judged(lines, is_above, is_more, content)
