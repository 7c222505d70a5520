"""A dry run in CI: `--limit SIZE`, and `--baseline FILE` with the difference to an earlier run's --json. This file runs nothing.

The difference is told by kind, and by module: the innermost one that has nearly all of it, or the largest ones in which it is.
"""
import collections
import json
import re
from typing import Any, NamedTuple, Optional

from cenote.base.mistake import Mistake
from cenote.base.quantity import readable as size
from cenote.fit.outcome import Outcome
from cenote.fit.verdict import NAMED_LEAST, Answer

BYTES_MAX = 1 << 26  # of a baseline's file
NEARLY = 0.8  # a module that has so much of the difference has it
MODULES_MAX = 3
PATH = re.compile(r"[A-Za-z_][\w*\[\]]*(\.[\w*\[\]]+)*")  # of a module or a parameter; rows of lines and of the optimizer have others
OF_PARAMETERS = ("parameters", "gradients", "buffers", "optimizer state")
SLACK = 100  # a peak is above the baseline if it is more than 1/100 higher: other versions of libraries move it by less


class Baseline(NamedTuple):
    path: str
    needed: int
    kinds: dict[str, int]
    modules: dict[str, int]


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
        worst = worst_of([device for process in run["processes"] for device in process["devices"].values()])
        found = Baseline(path, number(run["needed"]), kinds_of(worst), modules_of(worst))
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


def worst_of(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The device that held most."""
    return max(devices, key=lambda device: number(device["reserved_peak"]))


def kinds_of(device: dict[str, Any]) -> dict[str, int]:
    return {str(kind): number(bytes) for kind, bytes in (device.get("kinds") or {}).items()}


def modules_of(device: dict[str, Any]) -> dict[str, int]:
    """Bytes by module; layers that differ in their numbers alone are one (inside/holdings.py)."""
    found: collections.Counter[str] = collections.Counter()
    for row in (device.get("names") or {"patterns": []})["patterns"]:
        name, is_of_parameter = str(row["name"]), row["kind"] in OF_PARAMETERS
        module = name.rpartition(" of ")[2].rpartition(".")[0] if is_of_parameter else name
        if PATH.fullmatch(module):
            found[module] += number(row["bytes"])
    return dict(found)


def differences(now: dict[str, int], before: dict[str, int]) -> list[tuple[str, int]]:
    """The largest first."""
    changes = {name: now.get(name, 0) - before.get(name, 0) for name in {*now, *before}}
    return sorted(((name, bytes) for name, bytes in changes.items() if abs(bytes) >= NAMED_LEAST), key=lambda one: (-abs(one[1]), one[0]))


def below(modules: dict[str, int], path: str) -> dict[str, int]:
    """Bytes of the modules right below the path, each with all that is in it."""
    found: collections.Counter[str] = collections.Counter()
    depth = path.count(".") + 2 if path else 1
    for name, bytes in modules.items():
        if not path or name.startswith(path + "."):
            found[".".join(name.split(".")[:depth])] += bytes
    return dict(found)


def where(now: dict[str, int], before: dict[str, int], path: str = "") -> list[tuple[str, int]]:
    """The modules with the difference."""
    inner = differences(below(now, path), below(before, path))
    whole = sum(abs(bytes) for _, bytes in inner) + abs(now.get(path, 0) - before.get(path, 0))
    if inner and abs(inner[0][1]) >= NEARLY * whole:
        return where(now, before, inner[0][0]) or inner[:1]
    return [] if path else inner[:MODULES_MAX]


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
        worst = worst_of([device for report in told.used for device in report["devices"].values()])
        parts = [f"{kind} {signed(bytes)}" for kind, bytes in differences(kinds_of(worst), baseline.kinds)]
        modules = where(modules_of(worst), baseline.modules)
        lines.append(f"baseline: {signed(more)} since the baseline of {size(baseline.needed)}" + (f" ({', '.join(parts)})" if parts else ""))
        lines += ["  in " + ", ".join(f"{module} {signed(bytes)}" for module, bytes in modules)] if modules else []
        if is_more:
            lines.append("  that is more than 1 %: find the change, or write a new baseline with --json")
    return Judged(lines, is_above, is_more, content)
