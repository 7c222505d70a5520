"""A program that fits and grows: at which step will memory run out, and what holds it? For verdict.py; reads what inside/rise.py reported.

The estimate: the peak so far, and from there as much more at each step as the peaks of steps rise, or live memory if they rise less. A holder of
bounded length (a deque with a `maxlen`) takes at most so many times what it takes at one step.
"""
from typing import Any, NamedTuple, Sequence

from cenote.base import source
from cenote.base.quantity import readable

CAUSES_MAX = 3  # that are listed
MOST = 0.5  # of the growth, from which on a cause explains it


GROWS = {"live": "grows", "peak": "the peak of a step grows", "outside": "memory outside PyTorch grows", "held": "what the allocator holds grows"}
LATE = "state of the optimizer that is still to come has no room"


class Pace(NamedTuple):
    """Growth of one figure of one device."""

    report: dict[str, Any]
    device: str
    of: str  # live, peak, outside or held: see inside/rise.py; state: see inside/late_state.py
    per_step: int
    peak_per_step: int
    capacity: int

    @property
    def steps(self) -> int:
        return int(self.report["growth"]["steps"])

    @property
    def causes(self) -> list[dict[str, Any]]:
        """What holds it, the most first."""
        if self.of != "live":
            return []
        return [cause for cause in self.report["growth"].get("causes", []) if str(cause["device"]) == self.device]

    @property
    def left(self) -> int:
        figures = self.report["devices"][self.device]
        held, limit = int(figures["reserved_peak"]), int(figures.get("limit", 0))
        left = self.capacity - held - int(figures["others"])
        return max(min(left, limit - held) if limit else left, 0)

    @property
    def last_step(self) -> int:
        """At about which memory runs out."""
        return self.steps + self.left // self.peak_per_step + 1

    @property
    def most(self) -> int:
        """Bytes that are still to come if what grows is of bounded length, else 0."""
        if self.causes and self.causes[0]["bound"] and self.causes[0]["per_step"] >= MOST * self.per_step:
            return int(self.causes[0]["bound"]) * self.per_step
        return 0

    @property
    def has_no_end(self) -> bool:
        """Whether it runs out of memory if it goes on like this."""
        return self.of != "held" and not 0 < self.most <= self.left

    @property
    def garbage(self) -> int:
        return int(self.report["growth"].get("garbage", 0)) if self.of == "live" else 0


def paces(reports: Sequence[dict[str, Any]], capacity: int) -> list[Pace]:
    """Of all devices and ranks; the one that runs out of memory first comes first."""
    found = [Pace(report, str(row["device"]), row["of"], row["per_step"], row["peak_per_step"], capacity)
             for report in reports for row in (report.get("growth") or {}).get("rises", []) if str(row["device"]) in report["devices"]]
    for report in reports:
        for device, figures in report["devices"].items():
            late = late_bytes(report, device)
            if late and figures["reserved_peak"] + figures["others"] + late > capacity:
                found.append(Pace(report, device, "state", late, late, capacity))
    return sorted(found, key=lambda pace: (not pace.has_no_end, pace.last_step))


def place(cause: dict[str, Any]) -> str:
    """Where the holder gets it, else where it was allocated."""
    if cause["kept"]:
        return f"{source.shown(cause['kept'][0]['file'])}:{cause['kept'][0]['line']}"
    return str(cause["allocated"][0]).partition(" in ")[0] if cause["allocated"] else ""


def short(pace: Pace) -> str:
    """grows 64.0 MiB a step (list `outputs`, leak.py:20); out of memory at about step 50"""
    if pace.of == "state":
        return f"{LATE}: {readable(pace.per_step)}, and {readable(pace.left)} left"
    return f"{rises(pace)}; out of memory at about step {pace.last_step:,}"


def rises(pace: Pace) -> str:
    """The same without an end."""
    what = GROWS[pace.of]
    cause = next(iter(pace.causes), None)
    holder = f" ({', '.join(filter(None, (cause['name'], place(cause))))})" if cause else " (garbage in reference cycles)" if is_garbage(pace) else ""
    return f"{what} {readable(pace.per_step)} a step{holder}"


def is_garbage(pace: Pace) -> bool:
    return pace.garbage >= MOST * pace.per_step * pace.steps


def lines_of_cause(cause: dict[str, Any]) -> list[str]:
    lines = [f"  +{readable(cause['per_step'])} a step, {cause['holder']}" if cause["per_step"] else f"  {cause['holder']}"]
    lines += [f"      kept at {line['text']}" for line in cause["kept"]]
    lines += [f"      allocated at {site}" for site in cause["allocated"]]
    if cause["is_keyed"]:
        lines.append("      if that is a cache, it ends when all keys were met: more steps (--steps 100) show it")
    if cause["bound"]:
        lines.append(f"      it takes {cause['bound']:,} at most: {readable(cause['bound'] * cause['per_step'])} in all")
    return lines + ([f"      {cause['hint']}"] if cause["hint"] else [])


def lines_of(pace: Pace, allocator: str) -> list[str]:
    rank = f"rank {pace.report['rank']}, " if pace.report["rank"] is not None else ""
    where = f"{rank}cuda:{pace.device}, "
    if pace.of == "state":
        return []
    if pace.of == "held":
        return [f"  {where}what the allocator holds grew {readable(pace.per_step)} a step, and live memory did not: that is lost between blocks or "
                "cached", "      more steps (--steps 100) show where it ends"]
    if pace.of == "peak":
        return [f"  {where}what is live after a step does not grow, the peak within a step does: are its inputs longer each time?"]
    if pace.of == "outside":
        return [f"  {where}+{readable(pace.per_step)} a step is not PyTorch's: a library takes it from the driver (cudaMalloc, CuPy, NCCL)"]
    lines = [line for cause in pace.causes[:CAUSES_MAX] for line in lines_of_cause(cause)]
    if is_garbage(pace):
        lines.append(f"  {readable(pace.garbage)} of it was garbage in reference cycles, which stays until Python's collector runs: gc.collect()")
    elif not lines:
        lines.append(f"  {where}no variable was found that holds it" if allocator != "cudaMallocAsync" else
                     f"  {where}what holds it is not known under cudaMallocAsync: --allocator native")
    return lines


def late_bytes(report: dict[str, Any], device: str) -> int:
    """Of optimizer state and gradients that are still to come."""
    late = (report.get("growth") or {}).get("late")
    return int(late["bytes"].get(device, 0)) if late else 0


def late_lines(reports: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for report in reports:
        late = (report.get("growth") or {}).get("late")
        most = max((late_bytes(report, device) for device in report["devices"]), default=0)
        rank = f"rank {report['rank']}: " if report["rank"] is not None else ""
        if late and most and late["history"]:
            lines.append(f"  {rank}the optimizer keeps {late['history']:,} steps, and has {late['kept']:,} of them: "
                         f"{readable(most)} more once it has all")
        elif late and most:
            lines.append(f"  {rank}{late['parameters']:,} of the optimizer's {late['of']:,} parameters have had no gradient yet: "
                         f"{readable(most)} more once they have, for it and the state")
    return lines


STEPS_LEAST = 5  # of inside/rise.py
LEAST = 64 << 10  # bytes, of holders/growth.py


def unknown_lines(reports: Sequence[dict[str, Any]], steps: int, was_ended: bool) -> list[str]:
    """Why nothing is said about growth."""
    troubles = [report["growth"]["trouble"] for report in reports if (report.get("growth") or {}).get("trouble")]
    if troubles:
        return [f"  whether memory grows is not known: {troubles[0]}"]
    if was_ended and steps < STEPS_LEAST:
        return [f"  whether memory grows from step to step is not known: that takes {STEPS_LEAST} steps"]
    return []


def rose(growth: dict[str, Any]) -> bool:
    """Whether more was live after the last step of an optimizer than in the middle. If not, what grew (in an evaluation) is gone."""
    all_live = [one["live"] for one in growth.get("series", {}).values()]
    return not any(len(live) >= STEPS_LEAST for live in all_live) or any(live and live[-1] - live[len(live) // 2] >= LEAST for live in all_live)


def told_lines(reports: Sequence[dict[str, Any]]) -> list[str]:
    """What grew in a program that ran to its end, or in which no optimizer steps: there a call of a model is a step. And histories of autograd that
    grow in the host's memory alone."""
    growths = [report["growth"] for report in reports if report.get("growth")]
    causes = [cause for growth in growths for cause in (*(growth.get("told", []) if rose(growth) else ()), *growth.get("host", []))]
    return [line for cause in sorted(causes, key=lambda cause: -int(cause["per_step"]))[:CAUSES_MAX] for line in lines_of_cause(cause)]


def content(pace: Pace) -> dict[str, Any]:
    return {"rank": pace.report["rank"], "pid": pace.report["pid"], "device": int(pace.device), "of": pace.of, "per_step": pace.per_step,
            "steps_seen": pace.steps, "out_of_memory_at_step": pace.last_step if pace.has_no_end and pace.of != "state" else None,
            "bounded_by": pace.most or None, "garbage": pace.garbage, "causes": pace.causes}
