"""Whether memory rises from step to step, and what holds it: for the report of a dry run (fit_report.py).

After each step of the optimizer five figures of each device are kept, four of them of the same point of the step:

    stayed    bytes of blocks that have outlived the step in which they were allocated, without those of the first two steps (holders/growth.py; only
              under cenote)
    live      bytes of all live blocks
    peak      most live bytes at one time during the step
    held      bytes that the allocator holds from the driver
    outside   bytes in use on the device that the allocator does not hold: the context, libraries, other processes

A figure *seems* to rise if it rose over the last steps. Then the run goes on for some more steps, because most programs stop: caches fill, an
optimizer makes state for layers that came later. A figure *rises* if it went on rising in each third of the steps that were looked at. `stayed` knows
nothing of batches whose length varies, as long as each step frees its own tensors; the others do, so they have to rise in nearly every step.

What holds the memory is what `cenote.growth()` finds. Two things more are looked for: a tensor that is replaced by a larger one at each step, which
leaves no block of earlier steps behind; and garbage in reference cycles, which Python's collector has not freed yet. State that an optimizer makes
late is no growth: see late_state.py.
"""
import functools
import gc
import os
import time
from typing import Any, Callable, Optional, Sequence

from cenote.base import outputs
from cenote.base.source import Line
from cenote.holders import finder
from cenote.holders.causes import Block, Cause, Judge, called, keys, lines_for, owner, size_text, variable_of
from cenote.holders.growth import LEAST, Books, Growth
from cenote.inside.late_state import LateState
from cenote.inside.ledger_books import LedgerBooks, LedgerStacks, devices
from cenote.labels.names import Names

STEPS_LEAST = 5  # with fewer steps nothing is said about growth
STEPS_ENOUGH = 15  # a run in which memory seems to rise goes on until then
FIRST = 2  # steps in which the optimizer's state, the libraries' workspaces and the buckets of DDP come about: they do not count
FIGURES = ("stayed", "live", "peak", "held", "outside")
LAST = 3  # steps over which a figure has to rise to seem to
PARTS = 3
EVEN = 3  # the rise of each part is at least 1/EVEN of what it would be if all were alike
NEARLY = 0.8  # `live` rises in this part of the steps
SHARE = 0.1  # of the program's time may be spent on looking for causes: a server, whose caches grow with each word, has new ones all the time
FREE = 5  # s of it that do not count
SERIES_MAX = 1000  # figures of the last steps that are kept
LARGE = 200  # live blocks, the largest, that are looked at for a tensor that is replaced by a larger one
SAMPLES = (4, 2, 0)  # so many steps before the last: when they are looked at
MARK = ".rises"  # the ending of a file by which a rank tells the others that its memory seems to rise


class Series:
    """The figures of one device, one after each step."""

    def __init__(self, first: int) -> None:
        self.first = first  # the step of the first figures
        self.figures: dict[str, list[int]] = {name: [] for name in FIGURES}

    def add(self, *values: Optional[int]) -> None:
        for name, value in zip(FIGURES, values):
            if value is not None:
                self.figures[name].append(value)
                if len(self.figures[name]) > SERIES_MAX:
                    del self.figures[name][0]
                    self.first += name == "live"

    def seems_to_rise(self) -> bool:
        return seems_to_rise(self.figures["stayed"], False) or any(seems_to_rise(self.figures[name], True) for name in ("live", "peak", "outside"))

    def rise(self, name: str) -> Optional[int]:
        """Bytes a step, None if it does not rise."""
        return rise(self.figures[name], name != "stayed")


def seems_to_rise(figures: Sequence[int], every_step: bool) -> bool:
    """Whether they rose by LEAST over the last steps; with `every_step`, in each of them."""
    last = figures[1:][-LAST - 1:]  # the first step makes the optimizer's state
    if len(last) < 3 or last[-1] - last[0] < LEAST:
        return False
    return not every_step or all(before < after for before, after in zip(last, last[1:]))


def rise(figures: Sequence[int], every_step: bool) -> Optional[int]:
    """Mean bytes a step over the second half of the steps, or over STEPS_ENOUGH - FIRST of them, if these figures went on rising; else None."""
    count = max(STEPS_ENOUGH - FIRST, len(figures) // 2)
    last = figures[FIRST:][-count:]
    steps = len(last) - 1
    if steps < STEPS_ENOUGH - FIRST - 1:
        return None
    whole = last[-1] - last[0]
    if whole < LEAST * steps or last[-1] < max(last) or last[-1] == last[-1 - LAST]:
        return None
    edges = [last[at * steps // PARTS] for at in range(PARTS + 1)]
    if any((after - before) * PARTS * EVEN < whole for before, after in zip(edges, edges[1:])):
        return None
    if every_step and sum(before < after for before, after in zip(last, last[1:])) < NEARLY * steps:
        return None
    return whole // steps


class Holders(Growth):
    """The watching of cenote.growth, whose steps and calls of modules fit_report.py and seen.py tell it. `tells`: it looks for causes by itself, and
    not only when it is asked at the end."""

    def __init__(self, alarm: Callable[[Any], object], names: Optional[Names]) -> None:
        self.tells = True
        self.judged = 0.0  # s of the program's time
        self.names = names
        super().__init__(alarm)

    def check(self, torch: Any) -> None:
        """Where cenote does not allocate, the ledger of plugins/names tells of blocks."""
        if torch is not None and torch.cuda.get_allocator_backend() == "cenote":
            self.names = None
        elif self.names is None:
            super().check(torch)

    def open_stacks(self) -> Any:
        return super().open_stacks() if self.names is None else LedgerStacks(self.names, self.books)

    def open_books(self) -> list[int]:
        if self.names is None:
            return super().open_books()
        found = devices(self.names, self.torch.cuda.device_count())
        for device in found:
            if device not in self.books:
                self.books[device] = LedgerBooks(device, self.names)
        return found

    def listen(self) -> list[Callable[[], Any]]:
        return []

    def judge(self) -> None:
        began = time.monotonic()
        if self.tells and self.judged <= max(FREE, SHARE * (began - self.began)):
            super().judge()
            self.judged += time.monotonic() - began

    def search(self) -> Judge:
        found = super().search()
        found.tells_all = True
        return found


def stays(books: Books, step: int, state: dict[int, int]) -> int:
    """Bytes of blocks that have outlived their step and are no growth: those of the first steps, and optimizers' state."""
    of_first = sum(bytes for first, bytes in books.cohorts.items() if first <= FIRST and first < step)
    return of_first + (sum(piece[1] for piece, first in books.first.items() if FIRST < first < step and piece[0] in state) if state else 0)


# --- tensors that are replaced by larger ones

Sample = dict[tuple[Any, ...], tuple[int, finder.Path, int]]  # bytes, path and address of the block, by the key of its holder


def sample(books: Books) -> Sample:
    """The largest live blocks that variables hold, by the variable."""
    largest = sorted((piece for piece in books.first if piece[1] >= LEAST), key=lambda piece: -piece[1])[:LARGE]
    sizes = {piece[0]: piece[1] for piece in largest}
    found: Sample = {}
    for address, path in finder.find((address, address + bytes) for address, bytes in sizes.items()).paths.items():
        key = keys(path)[-1] if path else ()
        if key and path[-1].how != "history" and sizes[address] > found.get(key, (0,))[0]:
            found[key] = sizes[address], path, address
    return found


def replaced(samples: list[Sample], device: int, step: int, stacks: dict[int, Any]) -> list[Cause]:
    """Holders whose block was larger in each sample than in the one before."""
    causes = []
    for key, (bytes, path, address) in samples[-1].items():
        sizes = [one[key][0] for one in samples if key in one]
        if len(sizes) < len(samples) or any(before >= after for before, after in zip(sizes, sizes[1:])):
            continue
        per_step = (sizes[-1] - sizes[0]) // (SAMPLES[0] - SAMPLES[-1])
        holder = f"held by {called(path)}{owner(path)}: a tensor that gets larger, {', '.join(map(size_text, sizes))}"
        sites = Judge(step, [], finder.Findings({}, {}, set(), ""), stacks).sites([Block(address, bytes, 0, device, step)])
        causes.append(Cause(key, holder, "", per_step, SAMPLES[0], step - SAMPLES[0], device, lines_for(path), sites, variable=variable_of(path),
                            name=called(path)))
    return sorted(causes, key=lambda cause: -cause.per_step)


# --- the report

def line_content(line: Line) -> dict[str, Any]:
    return {"file": line.file, "line": line.number, "text": str(line)}


def cause_content(cause: Cause) -> dict[str, Any]:
    return {"device": cause.device, "per_step": cause.per_step, "name": cause.name, "holder": cause.holder, "hint": cause.hint, "bound": cause.bound,
            "is_keyed": cause.is_keyed, "kept": [line_content(line) for line in cause.kept[:3]], "allocated": [site for site, _ in cause.sites[:3]]}


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """An error in here ends the watching, and neither the program's step nor the run. The report has its text."""
    @functools.wraps(method)
    def call(self: "Rises", *args: Any) -> Any:
        if self.trouble:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"[:200]
            return None
    return call


class Rises:
    """What was seen of the steps so far. One for a process; begun at the program's first use of a GPU."""

    def __init__(self, folder: str, most: int, told: Callable[[], object], late: LateState) -> None:
        self.folder, self.most, self.told, self.late = folder, most, told, late
        self.forget()

    def forget(self) -> None:
        """For a new process, and for a forked child."""
        self.holders: Optional[Holders] = None
        self.step = 0
        self.series: dict[int, Series] = {}
        self.samples: list[Sample] = []
        self.found: dict[str, Any] = {}
        self.trouble = ""

    def begin(self, names: Optional[Names]) -> None:
        try:
            self.holders = Holders(lambda cause: self.told(), names)
        except Exception:  # another allocator, or cenote without its adapter: figures without holders
            self.holders = None

    @guarded
    def call(self, module: Any) -> None:
        """The program calls a module. That is a step if no optimizer steps."""
        if self.holders is not None:
            self.holders.module_is_called(module, None)

    # steps

    @guarded
    def after_step(self, devices: dict[int, dict[str, Any]], peaks: dict[int, int]) -> None:
        self.step += 1
        self.late.look(self.step)
        if self.holders is not None:
            self.holders.tells = not self.most
            self.holders.step_is_over()
        late = self.late.blocks()
        for number, known in devices.items():
            state = late.get(number, {})
            books = self.holders.books.get(number) if self.holders is not None and not self.holders.trouble else None
            stayed = books.piled[-1][1] - stays(books, self.step, state) if books is not None and books.piled else None
            sum_of_state, peak = sum(state.values()), peaks.get(number)
            self.series.setdefault(number, Series(self.step)).add(stayed, known["live"] - sum_of_state, peak - sum_of_state if peak else None,
                                                                  known["reserved"] - sum_of_state, known["others"])
        if self.most >= STEPS_LEAST and self.has_ranks() and self.step == self.most - 1 and self.seems_to_rise():
            outputs.write(os.path.join(self.folder, f"{os.getpid()}{MARK}"), b"")
        if max(self.most, STEPS_ENOUGH) - self.step in SAMPLES and self.most >= STEPS_LEAST:
            self.take_sample()

    def seems_to_rise(self) -> bool:
        return any(series.seems_to_rise() for series in self.series.values())

    @staticmethod
    def has_ranks() -> bool:
        return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")

    @guarded
    def goes_on(self) -> Optional[bool]:
        """Whether the run goes on after its last step, because memory seems to rise. Ranks that wait for each other have to decide alike: each tells
        the others before its last step, and in its last step they have all been there."""
        if not STEPS_LEAST <= self.most or self.step >= STEPS_ENOUGH:
            return False
        if self.has_ranks():
            return any(name.endswith(MARK) for name in os.listdir(self.folder))
        return self.seems_to_rise()

    def take_sample(self) -> None:
        """Only if live memory seems to rise, and blocks of earlier steps do not explain it."""
        worst = next((number for number, series in self.series.items() if seems_to_rise(series.figures["live"], True)
                      and not seems_to_rise(series.figures["stayed"], False)), None)
        if worst is None or self.holders is None or worst not in self.holders.books:
            self.samples.clear()
            return
        self.samples.append(sample(self.holders.books[worst]))

    # the end

    @guarded
    def conclude(self) -> None:
        """After the last step, while the program's variables are still there: what rises, and what holds it."""
        rows: list[dict[str, Any]] = []
        for number, series in self.series.items():
            per_step = {name: series.rise(name) for name in series.figures}
            live = per_step["stayed"] or per_step["live"]
            parts = {"live": live, "peak": per_step["peak"] if live is None else None, "outside": per_step["outside"],
                     "held": per_step["held"] if live is None and per_step["peak"] is None else None}
            for name, bytes in parts.items():
                if bytes:
                    peak = max(bytes, per_step["peak"] or 0) if name == "live" else bytes
                    rows.append({"device": number, "of": name, "per_step": bytes, "peak_per_step": peak})
        self.found = {"rises": rows}
        if self.holders is not None and not self.most < STEPS_LEAST:
            self.found["host"] = [cause_content(cause) for cause in self.holders.histories()]
        to_come = self.late.to_come()
        if to_come is not None:
            self.found["late"] = to_come._asdict()
        if self.holders is not None and any(row["of"] == "live" for row in rows):
            self.found["causes"] = [cause_content(cause) for cause in self.causes(rows)]
            self.found["garbage"] = self.garbage()

    def causes(self, rows: list[dict[str, Any]]) -> list[Cause]:
        assert self.holders is not None
        judge = self.holders.search()
        causes = [cause for cause in judge.causes() if cause.per_step >= LEAST]
        if not causes and len(self.samples) == len(SAMPLES):
            device = next(row["device"] for row in rows if row["of"] == "live")
            causes = replaced(self.samples, device, self.holders.step, judge.stacks)
        return causes

    def garbage(self) -> int:
        """Bytes that Python's collector frees now. It comes last: what it frees is gone."""
        assert self.holders is not None
        self.samples.clear()
        before = sum(books.live for books in self.holders.books.values())
        gc.collect()
        self.holders.read()
        return max(before - sum(books.live for books in self.holders.books.values()), 0)

    def report(self) -> dict[str, Any]:
        told = list(self.holders.told.values()) if self.holders is not None else []
        series = {number: {"from": one.first, **one.figures} for number, one in self.series.items()}
        return {"steps": self.step, "series": series, "told": [cause_content(cause) for cause in told], "trouble": self.trouble or
                (self.holders.trouble if self.holders is not None else ""), **self.found}
