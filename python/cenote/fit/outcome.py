"""One run of `cenote dry-run`, as its processes reported it (inside/fit_report.py), and what it shows. Reads; runs nothing.

Its verdict is one of five: "fits"; "grows": it fits for now, and memory grows from step to step (for_now.py); "caught": memory ran out, and the
program caught the error and went on; "fits not"; "unknown": the program used no GPU, or failed for another reason.
"""
from typing import Any, NamedTuple, Optional

from cenote.fit import for_now

DECIDING = ("number", "copy", "count")  # kinds of values that are read back and may decide sizes


class Outcome(NamedTuple):
    """One run."""

    capacity: int
    allocator: str
    pid: int
    status: int  # of subprocess: negative for a signal
    reports: list[dict[str, Any]]
    tail: str  # the end of its output, if that was not shown
    stopped: str = ""  # it ran for too long: where it was
    unknown: str = "typical"  # what unknown values were
    devices: int = 1  # that each process sees
    world: Optional[int] = None  # ranks of the job, if only some of them ran
    is_idle: bool = False  # it made no step, and another run of the same question did: it shows nothing
    recording: str = ""  # the path of that of the device that held most: replays.py plays it
    page: str = ""  # the path of that of its process, for --report

    @property
    def own(self) -> Optional[dict[str, Any]]:
        """The report of the process that `cenote dry-run` started."""
        return next((report for report in self.reports if report["pid"] == self.pid), None)

    @property
    def used(self) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["used_gpu"]]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [report["error"] for report in self.reports if report["error"]]

    @property
    def failure(self) -> Optional[dict[str, Any]]:
        """The first time that memory ran out, in the first rank where it did."""
        for report in self.used:
            if report["failures"]:
                return dict(report["failures"][0])
        for error in self.errors:
            if error["is_out_of_memory"]:
                return {"device": None, "bytes": None, "step": self.steps + 1, "phase": "outside", "stack": error["stack"], "text": error["text"]}
        return None

    @property
    def failures(self) -> int:
        return sum(report["failures_count"] for report in self.used)

    @property
    def steps(self) -> int:
        return max((report["steps"] for report in self.used), default=0)

    @property
    def was_ended(self) -> bool:
        return any(report["end"] == "steps" for report in self.reports)

    @property
    def was_caught(self) -> bool:
        """Whether the program caught the error and went on."""
        return self.failure is not None and not any(error["is_out_of_memory"] for error in self.errors) and (self.status == 0 or self.was_ended)

    @property
    def went_on(self) -> bool:
        """Whether memory ran out, and something else ended the program: then it is not known whether it would have done without that memory."""
        other = bool(self.errors) and not any(error["is_out_of_memory"] for error in self.errors)
        return self.failure is not None and not self.was_ended and (bool(self.stopped) or other)

    @property
    def ranks_errors(self) -> list[dict[str, Any]]:
        """Reports of ranks that another error has ended."""
        return [report for report in self.reports if report["rank"] is not None and report["pid"] != self.pid and report["error"]
                and not report["error"]["is_out_of_memory"]]

    @property
    def verdict(self) -> str:
        if self.went_on:
            return "unknown"
        if self.failure is not None:
            return "caught" if self.was_caught and not self.ranks_errors and not self.stopped else "fits not"
        if self.is_idle:
            return "unknown"
        if not any(report["devices"] for report in self.used) or (not self.was_ended and self.status != 0) or self.ranks_errors or self.stopped:
            return "unknown"
        return "grows" if self.was_ended and self.grows else "fits"

    @property
    def fits(self) -> bool:
        return self.verdict in ("fits", "grows")

    @property
    def paces(self) -> list[for_now.Pace]:
        return for_now.paces(self.used, self.capacity)

    @property
    def grows(self) -> bool:
        return any(pace.has_no_end for pace in self.paces)

    @property
    def has_its_capacity(self) -> bool:
        """Whether the program saw GPUs of the size that was asked for."""
        return all(figures.get("capacity") in (None, self.capacity) for report in self.used for figures in report["devices"].values())

    @property
    def keeps_values(self) -> bool:
        return bool(self.used) and all(report.get("values") is not None for report in self.used)

    @property
    def unknown_reads(self) -> list[dict[str, Any]]:
        """What the program read back that cannot be known, by place, of all ranks together; most often read first."""
        sums: dict[tuple[str, int, str], int] = {}
        for report in self.used:
            for row in (report.get("values") or {"unknown": []})["unknown"]:
                place = row["file"], row["line"], row["kind"]
                sums[place] = sums.get(place, 0) + row["times"]
        return [{"file": file, "line": line, "kind": kind, "times": times}
                for (file, line, kind), times in sorted(sums.items(), key=lambda row: -row[1])]

    @property
    def known_reads(self) -> int:
        return sum((report.get("values") or {"known_reads": 0})["known_reads"] for report in self.used)

    @property
    def may_differ(self) -> bool:
        """Whether it read back unknown values that may decide sizes: anything but losses and flags."""
        return any(row["kind"] in DECIDING for row in self.unknown_reads)

    @property
    def unstepped(self) -> int:
        """Optimizers of processes in which none has stepped."""
        return sum(report.get("optimizers", 0) for report in self.used if not report.get("optimizer_steps"))

    def worst(self) -> Optional[tuple[dict[str, Any], dict[str, Any], str]]:
        """Report, figures and number of the device with the highest reserved peak."""
        found = [(report, figures, number) for report in self.used for number, figures in report["devices"].items()]
        return max(found, key=lambda one: one[1]["reserved_peak"], default=None)

    def others_on(self, device: int) -> int:
        """Bytes that the context and others take on the device; 0: not known."""
        return max((figures["others"] for report in self.used for number, figures in report["devices"].items() if int(number) == device), default=0)

    def least_needed(self) -> int:
        """The peak of live bytes and the context: no allocator can do with less."""
        worst = self.worst()
        return worst[1]["live_peak"] + worst[1]["others"] if worst else 0

    def held(self) -> int:
        """The peak of what the allocator holds."""
        worst = self.worst()
        return int(worst[1]["reserved_peak"]) if worst else 0

    def needed(self) -> int:
        worst = self.worst()
        return self.held() + int(worst[1]["others"]) if worst else 0

    @property
    def limit(self) -> int:
        """Bytes that the program lets its allocator hold on the device that ran out, or else on the one with most; 0: as many as there are."""
        worst = self.worst()
        return int((self.failure or (worst[1] if worst else {})).get("limit", 0))

    def missing(self, largest: "Outcome") -> tuple[int, bool]:
        """Bytes by which a run without limits was larger, and whether it is the program's own limit that they are missing from."""
        worst, on_card = largest.worst(), largest.least_needed() - self.capacity
        own = worst[1]["live_peak"] - self.limit if worst and self.limit else 0
        return (own, True) if own > max(on_card, 0) else (max(on_card, 0), False)


def idle(outcome: Outcome, steps: int) -> Outcome:
    """A run without a step is no evidence if another made `steps`, unless memory ran out in it."""
    return outcome._replace(is_idle=steps > 0 and not outcome.steps and outcome.failure is None)
