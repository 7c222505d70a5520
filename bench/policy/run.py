"""What does the policy cost, and what would others? Recorded programs under two lists of prices, with the GPU level with the program and behind it.

    python bench/policy/run.py [--out FOLDER | --publish] [--from FILE.json] [--against FILE.json] [--check] [TRACE...]

Replays the traces of traces/ and those that are named (build/bin/cenote-replay: cenote itself, and models of PyTorch's allocator and its expandable
segments, four repetitions in the same pools) under each list of PRICES, with the GPU behind by each of LAGS. Says for each the waste, over what was
requested and over what was live or pending; the modelled time that the program's own thread waits for the driver, in the first repetition and in the
last; and how often an allocation waited for the device. Beside that it says what comes of LONG repetitions, and of the programs of traces/torch with
all sizes multiplied by each of SCALES; on how small a card each trace gets through, by which calls the time of the first repetition goes, what pages
of other sizes would waste and take, and what it takes to fill 80 GB. Writes the figures as JSON, and a page with two pictures of them.

GOALS are what cenote is to reach. --check ends with status 1 where one is missed, or where a trace wastes more than 0.1 points beyond --against.
"""
import argparse
import concurrent.futures
import datetime
import gzip
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Callable, NamedTuple, Optional, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from cenote.replay.report import COLORS  # noqa: E402  (needs the path above)

REPLAY = ROOT / "build/bin/cenote-replay"
PRICES = ("a100", "h100")
REAL = "h200"  # prices that one card has measured itself: the driver time of the programs is shown by them, too
LAGS = {"0": "level with the program", "5%": "5 % of the records behind", "step": "one step behind"}
REPEAT = 4
LONG = 32  # repetitions: a program that runs for days
SCALES = (0.7, 0.85, 1, 1.15, 1.4)  # what all sizes of a program are multiplied by: one trace alone says little of a rule
SCALED_REPEAT = 16
TINY_SCALES = (0.003, 0.01, 0.03, 0.1)  # the same, to have programs of 40 MB to 4 GB
TINY_PAGES = "2"  # MiB: the option beside the default
CARD = "h100"  # the list of prices under which smallest cards are searched for
CARD_STEPS = 160  # a smallest card is found to a CARD_STEPS-th of what was live or pending
TWO_DEVICES = "pipeline"  # the models know one
WORSE = 0.1  # points
PAGE = 16  # MiB: the largest pages that a card of 80 GiB gets
PAGES = (4, 8, PAGE, 32)
MIB2 = 2 << 20  # cards are multiples of this
CONTEXT = 500 << 20  # what the simulated context takes (sim/machine/shape.def); it belongs to no allocator
FILL = 80 * 10**9 // (64 << 20)  # blocks of 64 MiB
FILL_MOST = 500_000_000  # ns: a goal
SIZED = ("a", "f", "u")  # records that name the size of a block
SMALL = 64 << 20  # what asks for less has a few pages, and its waste is that of a page: it is shown and not judged

Figures = dict[str, Any]
Runs = list[Figures]


# --- measuring

def traces(more: Sequence[str]) -> list[pathlib.Path]:
    own = [*sorted((ROOT / "traces/torch").glob("*.csv.gz")), *sorted((ROOT / "traces").glob("*.csv.gz"))]
    return [path for path in own if not path.name.startswith(TWO_DEVICES)] + [pathlib.Path(path) for path in more]


def replay(path: pathlib.Path, prices: str, lag: str, *more: str, under: Sequence[str] = tuple(COLORS), repeat: int = REPEAT) -> Runs:
    command = [str(REPLAY), "--json", "--repeat", str(repeat), "--under", ",".join(under), "--prices", prices, "--gpu-lag", lag, *more, str(path)]
    environ = {name: value for name, value in os.environ.items() if name not in ("CENOTE_CONF", "CENOTE_SIM")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        sys.exit(f"bench/policy: {' '.join(command)}\n{done.stderr.strip()}")
    return [{**json.loads(line), "prices": prices} for line in done.stdout.splitlines()]


def measure(paths: Sequence[pathlib.Path]) -> Runs:
    jobs = [(path, prices, lag) for path in paths for prices in PRICES for lag in LAGS] + [(path, REAL, "0") for path in programs()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [run for found in pool.map(lambda job: replay(*job), jobs) for run in found]


def measure_long(paths: Sequence[pathlib.Path]) -> Runs:
    jobs = [(path, prices, lag) for path in paths for prices in PRICES for lag in ("0", "step")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [run for found in pool.map(lambda job: replay(*job, under=("cenote",), repeat=LONG), jobs) for run in found]


def programs() -> list[pathlib.Path]:
    return sorted((ROOT / "traces/torch").glob("*.csv.gz"))


def scaled(path: pathlib.Path, scale: float, target: pathlib.Path) -> pathlib.Path:
    """The same program, all sizes multiplied."""
    with gzip.open(path, "rt", encoding="utf-8") as old, gzip.open(target, "wt", compresslevel=1, encoding="utf-8") as new:
        head = next(old)
        new.write(head)
        names = head.strip().split(",")
        for line in old:
            cells = line.rstrip("\n").split(",")
            at = names.index("bytes")
            cells[at] = str(max(1, int(int(cells[at]) * scale))) if cells[names.index("op")] in SIZED else cells[at]
            new.write(",".join(cells) + "\n")
    return target


def measure_scaled() -> Runs:
    """The programs with other sizes, under cenote, by the prices CARD."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        def one(job: tuple[pathlib.Path, float]) -> Runs:
            path, scale = job
            trace = scaled(path, scale, pathlib.Path(folder, f"{path.name.split('.')[0]}-{scale}.csv.gz"))
            return [{**replay(trace, CARD, lag, under=("cenote",), repeat=SCALED_REPEAT)[0], "trace": path.name.split(".")[0], "scale": scale}
                    for lag in LAGS]
        return [run for found in pool.map(one, [(path, scale) for path in programs() for scale in SCALES]) for run in found]


def measure_tiny() -> Runs:
    """The programs as small ones, by the prices CARD; under cenote with pages of TINY_PAGES, too."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        def one(job: tuple[pathlib.Path, float]) -> Runs:
            path, scale = job
            trace = scaled(path, scale, pathlib.Path(folder, f"{path.name.split('.')[0]}-{scale}.csv.gz"))
            found = [run for lag in LAGS for run in [
                *replay(trace, CARD, lag),
                *({**run, "under": "page_mib"} for run in replay(trace, CARD, lag, "--page-mib", TINY_PAGES, under=("cenote",)))]]
            return [{**run, "trace": path.name.split(".")[0], "scale": scale} for run in found]
        return [run for found in pool.map(one, [(path, scale) for path in programs() for scale in TINY_SCALES]) for run in found]


def smallest_card(path: pathlib.Path, under: str) -> Figures:
    """The smallest card on which the replay does not run out of memory, with the GPU one step behind, by bisection. SMALL traces are not tried."""
    whole = replay(path, CARD, "step", under=(under,))[0]
    need = whole["pending_peak_bytes"]
    pages = ("--page-mib", str(PAGE)) if under == "cenote" else ()  # those of the card of 80 GiB, so that the card alone differs

    def card(steps: int) -> int:
        return (need + need * steps // CARD_STEPS + MIB2 - 1) // MIB2 * MIB2
    bad, good = -1, CARD_STEPS * 2
    while good - bad > 1 and need >= SMALL:
        tried = (bad + good) // 2
        run = replay(path, CARD, "step", "--capacity", str(card(tried) + CONTEXT), *pages, under=(under,))[0]
        bad, good = (tried, good) if run["ooms"] else (bad, tried)
    return {"trace": whole["trace"], "under": under, "prices": CARD, "lag": "step", "pending_peak_bytes": need,
            "reserved_peak_bytes": whole["reserved_peak_bytes"], "smallest_bytes": card(good)}


def measure_smallest(paths: Sequence[pathlib.Path]) -> Runs:
    jobs = [(path, under) for path in paths for under in COLORS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: smallest_card(*job), jobs))


def measure_pages() -> Runs:
    """The programs under pages of each size."""
    jobs = [(path, prices, page) for path in programs() for prices in PRICES for page in PAGES]

    def one(path: pathlib.Path, prices: str, page: int) -> Figures:
        return {**replay(path, prices, "0", "--page-mib", str(page), under=("cenote",))[0], "page_mib": page}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: one(*job), jobs))


def measure_fill() -> Runs:
    """A program that allocates blocks of 64 MiB until it has 80 GB, one each millisecond."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "fill.csv")
        lines = [f"{1000 * i},a,{i + 1},{64 << 20},0,0" for i in range(FILL)]
        path.write_text("\n".join(["t_us,op,id,bytes,stream,device", *lines]) + "\n", encoding="utf-8")
        return [run for prices in (*PRICES, REAL) for run in replay(path, prices, "0")]


def machine() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    return f"{name[1] if name else platform.machine()}, {os.cpu_count()} cores"


# --- judging

def percent(run: Figures, over: str) -> float:
    return 100 * (run["reserved_peak_bytes"] / run[over] - 1)


def waste(run: Figures) -> float:
    return percent(run, "live_peak_bytes")


def lost(run: Figures) -> float:
    """Beyond what was live or pending: what another allocator could have done without."""
    return percent(run, "pending_peak_bytes")


class Goal(NamedTuple):
    name: str
    lags: tuple[str, ...]
    figure: Callable[[Figures, Figures], float]  # of cenote, and of expandable segments beside it; at most 0 is reached


def lost_behind(run: Figures) -> float:
    """Beyond what it may lose with the GPU behind; fsdp's memory is in flight on another stream."""
    return 0 if run["trace"] == "fsdp" else lost(run) - (12 if run["live_peak_bytes"] < 4 << 30 else 8)


GOALS = (
    Goal("waste over what was live or pending, level, at most 2 %", ("0",), lambda run, _: lost(run) - 2),
    Goal("the same behind, at most 8 %, and 12 % of less than 4 GiB; `fsdp` apart", ("5%", "step"), lambda run, _: lost_behind(run)),
    Goal("no wait for the device", tuple(LAGS), lambda run, _: run["waits"]),
    Goal("driver time of the first repetition, at most that of expandable segments", ("0",),
         lambda run, other: run["driver_first_ns"] - other["driver_first_ns"]),
    Goal("driver time of the last repetition, at most that of expandable segments", ("0",),
         lambda run, other: run["driver_last_ns"] - other["driver_last_ns"]),
)


class Case(NamedTuple):
    """A trace under a list of prices, with a lag."""

    trace: str
    prices: str
    lag: str
    by: dict[str, Figures]  # allocator


def cases(runs: Runs) -> list[Case]:
    found: dict[tuple[str, str, str], dict[str, Figures]] = {}
    for run in runs:
        found.setdefault((run["trace"], run["prices"], run["lag"]), {})[run["under"]] = run
    return [Case(*key, by) for key, by in found.items()]


MEANS = (("level", ("0",), 0.9), ("behind, `fsdp` apart", ("5%", "step"), 2.0))


def is_judged(case: Case) -> bool:
    return case.by["cenote"]["live_peak_bytes"] >= SMALL and (case.lag == "0" or case.trace != "fsdp")


def judged(goal: Goal, prices: str, all_cases: Sequence[Case]) -> list[Case]:
    return [case for case in all_cases if case.prices == prices and case.lag in goal.lags and case.by["cenote"]["live_peak_bytes"] >= SMALL]


def missed(goal: Goal, prices: str, all_cases: Sequence[Case]) -> list[str]:
    return [case.trace for case in judged(goal, prices, all_cases) if goal.figure(case.by["cenote"], case.by["expandable"]) > 0]


def worse(runs: Runs, before: Runs) -> list[str]:
    old = {(run["trace"], run["prices"], run["lag"]): run for run in before if run["under"] == "cenote"}
    said = []
    for case in cases(runs):
        then = old.get(case[:3])
        if then and lost(case.by["cenote"]) > lost(then) + WORSE:
            said.append(f"{case.trace}, {case.prices}, lag {case.lag}: {lost(case.by['cenote']):+.2f} % instead of {lost(then):+.2f} %")
    return said


# --- the page

def size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def table(all_cases: Sequence[Case], prices: str, lag: str) -> list[str]:
    lines = [row("trace", "requested", "live or pending", *COLORS, "cenote over live or pending", "waits"), "|" + "---|" * 8]
    for case in all_cases:
        if (case.prices, case.lag) == (prices, lag):
            ours = case.by["cenote"]
            more = percent({**ours, "reserved_peak_bytes": ours["pending_peak_bytes"]}, "live_peak_bytes")
            shares = [f"{'**' if name == 'cenote' else ''}{waste(case.by[name]):+.1f} %{'**' if name == 'cenote' else ''}" for name in COLORS]
            lines.append(row(case.trace, size(ours["live_peak_bytes"]), f"{more:+.1f} %", *shares, f"{lost(ours):+.1f} %", str(ours["waits"])))
    return lines


def driver_table(all_cases: Sequence[Case], prices: str) -> list[str]:
    lines = [row("trace", *(f"{name}, {which}" for which in ("first", "last") for name in COLORS)), "|" + "---|" * 7]
    for case in all_cases:
        if (case.prices, case.lag) == (prices, "0"):
            lines.append(row(case.trace, *(f"{case.by[name][f'driver_{which}_ns'] / 1e6:.1f}" for which in ("first", "last") for name in COLORS)))
    return lines


def split_table(all_cases: Sequence[Case], prices: str) -> list[str]:
    names = ("create", "map", "access", "unmap", "release")
    lines = [row("trace", "expandable", "cenote", *names, "the rest", "pages created", "pages moved"), "|" + "---|" * 10]
    for case in all_cases:
        split = case.by["cenote"].get("driver_first_split")
        if (case.prices, case.lag) == (prices, "0") and split:
            total = case.by["cenote"]["driver_first_ns"]
            parts = [split[f"{name}_ns"] for name in names]
            shown = [case.by["expandable"]["driver_first_ns"], total, *parts, total - sum(parts)]
            lines.append(row(case.trace, *(f"{ns / 1e6:.1f}" for ns in shown), f"{split['pages_created']:,}", f"{split['pages_moved']:,}"))
    return lines


def pages_table(all_cases: Sequence[Case], runs: Runs, prices: str) -> list[str]:
    """The first repetition, as a part of what expandable segments take, and the waste."""
    lines = [row("trace", *(f"{page} MiB" for page in PAGES)), "|" + "---|" * (1 + len(PAGES))]
    by = {(run["trace"], run["page_mib"]): run for run in runs if run["prices"] == prices}
    for case in all_cases:
        if (case.prices, case.lag) == (prices, "0") and (case.trace, PAGES[0]) in by:
            of = [by[case.trace, page] for page in PAGES]
            other = case.by["expandable"]["driver_first_ns"]
            lines.append(row(case.trace, *(f"{run['driver_first_ns'] / other:.2f}, {waste(run):+.2f} %" for run in of)))
    return lines


def fill_ns(fills: Runs, prices: str, under: str = "cenote") -> int:
    return next((run["driver_first_ns"] for run in fills if (run["prices"], run["under"]) == (prices, under)), 0)


def goals_table(all_cases: Sequence[Case], fills: Runs) -> list[str]:
    lines = [row("goal", *(f"missed under {prices}" for prices in PRICES)), "|" + "---|" * (1 + len(PRICES))]
    for goal in GOALS:
        found = [missed(goal, prices, all_cases) for prices in PRICES]
        of = [len(judged(goal, prices, all_cases)) for prices in PRICES]
        lines.append(row(goal.name, *(f"{len(names)} of {count}" for names, count in zip(found, of))))
    for name, lags, most in MEANS:
        wastes = [[lost(case.by["cenote"]) for case in all_cases if case.prices == prices and case.lag in lags and is_judged(case)]
                  for prices in PRICES]
        means = [statistics.mean(found) for found in wastes if found]
        lines += [row(f"mean waste {name}, at most {most} %", *(f"{'missed' if mean > most else 'reached'}: {mean:.2f} %" for mean in means))]
    if fills:
        taken = [fill_ns(fills, prices) for prices in PRICES]
        lines.append(row("driver time of filling 80 GB, at most 0.5 s",
                         *(f"{'missed' if ns > FILL_MOST else 'reached'}: {ns / 1e9:.2f} s" for ns in taken)))
    return lines


def long_table(all_cases: Sequence[Case], longs: Runs) -> list[str]:
    """Waste over what was live or pending, and all driver time, of LONG repetitions."""
    by = {(run["trace"], run["prices"], run["lag"]): run for run in longs}
    places = [(prices, lag) for prices in PRICES for lag in ("0", "step")]
    lines = [row("trace", *(f"{prices}, {'level' if lag == '0' else 'one step behind'}" for prices, lag in places)), "|" + "---|" * 5]
    for trace in dict.fromkeys(case.trace for case in all_cases):
        found = [by.get((trace, *place)) for place in places]
        lines += [row(trace, *(f"{lost(run):+.1f} %, {run['driver_ns'] / 1e9:.2f} s" for run in found if run))] if all(found) else []
    return lines


def scaled_table(runs: Runs) -> list[str]:
    """Of all SCALES: the mean of the waste over what was live or pending, the worst of it, and the mean of all driver time."""
    lines = [row("program", *LAGS.values()), "|" + "---|" * (1 + len(LAGS))]
    for trace in dict.fromkeys(run["trace"] for run in runs):
        cells = []
        for lag in LAGS:
            found = [run for run in runs if (run["trace"], run["lag"]) == (trace, lag)]
            shares, seconds = [lost(run) for run in found], [run["driver_ns"] / 1e9 for run in found]
            cells.append(f"{statistics.mean(shares):+.1f} % (worst {max(shares):+.1f} %), {statistics.mean(seconds):.2f} s")
        lines.append(row(trace, *cells))
    return lines


def tiny_table(runs: Runs) -> list[str]:
    """Of each scale and lag: the mean over the programs, and the worst one, of the waste over what was live or pending."""
    names = (*COLORS, "page_mib")
    lines = [row("sizes times", "live or pending", "the GPU", *COLORS, f"cenote, `page_mib:{TINY_PAGES}`"), "|" + "---|" * (3 + len(names))]
    for scale in TINY_SCALES:
        for lag, text in LAGS.items():
            found = {name: [run for run in runs if (run["scale"], run["lag"], run["under"]) == (scale, lag, name)] for name in names}
            needs = [run["pending_peak_bytes"] / (1 << 20) for run in found["cenote"]]
            cells = []
            for name in names:
                shares = [lost(run) for run in found[name]]
                cells.append(f"{statistics.mean(shares):+.1f} % (worst {max(shares):+.0f} %)")
            lines.append(row(f"{scale:g}", f"{min(needs):,.0f} to {max(needs):,.0f} MiB", text, *cells))
    return lines


def smallest_table(all_cases: Sequence[Case], found: Runs) -> list[str]:
    lines = [row("trace", "live or pending", *COLORS, "cenote on 80 GiB"), "|" + "---|" * (3 + len(COLORS))]
    by = {(run["trace"], run["under"]): run for run in found}
    for trace in dict.fromkeys(case.trace for case in all_cases):
        ours = by.get((trace, "cenote"))
        if ours and ours["pending_peak_bytes"] >= SMALL:
            cards = [{**by[trace, name], "reserved_peak_bytes": by[trace, name]["smallest_bytes"]} for name in COLORS]
            lines.append(row(trace, size(ours["pending_peak_bytes"]), *(f"{lost(card):+.1f} %" for card in cards), f"{lost(ours):+.1f} %"))
    return lines


# tools/wrap wraps it.
PROSE = """# What the policy costs

`make policy` makes this page ([JSON]({json}), {date}, {machine}): recorded programs under cenote, and under models of PyTorch's allocator
("native") and its expandable segments that hold what the real ones hold, to the byte. Simulated GPU of 80 GiB, default options, {repeat} repetitions
of each trace in the same pools. The pool's clock goes by the times of the trace ([traces.md](traces.md#replaying)), driver calls by two lists of
[prices](simulated-gpu.md#prices).

The first twelve traces are the programs of [traces/torch](../traces/README.md), the next three are synthetic, the others public ones of real cards.

Waste is the most that was reserved over the most that was requested, each at its own moment. What was freed while
another stream's use of it was not done is **pending**: no allocator can give it away, so the last but one column of the
tables compares with what was live or pending.

## Goals

What cenote is to reach, and how many traces of at least 64 MiB miss it today. A smaller one holds a few pages.

{goals}

## Waste

![Waste of each trace with the GPU level with the program, 5 % and one step behind](pictures/policy-waste.png)

{wastes}

## In the long run

What {long} repetitions come to under cenote: waste over what was live or pending, and all driver time.

{longs}

## The same programs with other sizes

One trace says little about a rule, because a small change of it changes which block lies where. So here all sizes of
each program are multiplied by {scales}: the mean of the waste over what was live or pending, the worst of it, and the
mean of all driver time, of {scaled_repeat} repetitions each under cenote, by the prices `{card}`.

{scaled}

## Small programs

The same programs with all sizes multiplied by a small number, {repeat} repetitions each, by the prices `{card}`, on a
card of 80 GiB: the waste over what was live or pending, the mean of the twelve and the worst.

{tiny}

## The smallest card

The smallest card on which four repetitions get through with the GPU one step behind, by the prices `{card}`, beyond what
was live or pending; to {exact} %, and without the CUDA context. The last column says what cenote holds on a card of 80
GiB: the difference is memory that it holds only while the card has room. Before they give up, the models of PyTorch's
allocator give their cache back, as PyTorch does; that PyTorch waits for the device then is not counted.

{smallest}

## Driver time

Milliseconds that the program's own thread would wait for the driver, in the first repetition and in the last, with the
GPU level with the program. On an H100 cenote spent 0.1 to 0.7 s of a program's 4 to 30 s in driver calls, all of its
steps together, and first steps took about as long as under expandable segments
([real-cards.md](real-cards.md#programs-on-an-h100)).

![Driver time of each trace in the first and in the last repetition](pictures/policy-driver.png)

{drivers}

### Where it goes

The first repetition under cenote by the driver's calls, milliseconds, and how many pages were created and moved. A page
that moves is mapped and opened again; mostly something else is mapped at its new place, and is unmapped first.

{splits}

### Pages of other sizes

The first repetition as a part of what expandable segments take, whose handles have 20 MiB, and the waste, by the size
of the largest pages (`page_mib`). A call costs by handle and not by byte, so larger pages take less time; what holds a
part of a page holds all of it, so they waste more. On an H100 two of these sizes were compared with the default:
[real-cards.md](real-cards.md#programs-on-an-h100).

{pages}

### Filling the card

Blocks of 64 MiB until 80 GB are live, seconds of driver time:

{fills}
"""


def write_page(content: Figures, folder: pathlib.Path, json_path: pathlib.Path) -> None:
    all_cases = cases(content["runs"])
    wastes, drivers, splits, pages = [], [], [], []
    sizes, fills, longs, smallest, scales, tiny = (content.get(name, []) for name in ("pages", "fill", "long", "smallest", "scaled", "tiny"))
    for prices in PRICES:
        for lag, text in LAGS.items():
            wastes += [f"### {prices}, the GPU {text}", "", *table(all_cases, prices, lag), ""]
        drivers += [f"### {prices}", "", *driver_table(all_cases, prices), ""]
        splits += [f"{prices}:", "", *split_table(all_cases, prices), ""]
        pages += [f"{prices}:", "", *pages_table(all_cases, sizes, prices), ""] if sizes else ["Not measured."]
    drivers += [f"### {REAL}", "", "The programs, by prices that `cenote qualify` measured on a card.", "", *driver_table(all_cases, REAL)]
    filled = [row("", *COLORS), "|" + "---|" * (1 + len(COLORS)),
              *(row(prices, *(f"{fill_ns(fills, prices, name) / 1e9:.2f}" for name in COLORS)) for prices in (*PRICES, REAL))]
    parts = {"goals": goals_table(all_cases, fills), "wastes": wastes, "drivers": drivers, "splits": splits, "pages": pages,
             "fills": filled if fills else [], "longs": long_table(all_cases, longs) if longs else [],
             "smallest": smallest_table(all_cases, smallest) if smallest else [],
             "scaled": scaled_table(scales) if scales else [], "tiny": tiny_table(tiny) if tiny else []}
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    page = PROSE.format(json=os.path.relpath(json_path, folder), repeat=content["repeat"], date=content["date"], machine=content["machine"],
                        long=LONG, card=CARD, exact=round(100 / CARD_STEPS, 1), scaled_repeat=SCALED_REPEAT,
                        scales=f"{', '.join(map(str, SCALES[:-1]))} and {SCALES[-1]}",
                        **{name: "\n".join(lines).strip() or "Not measured." for name, lines in parts.items()})
    (folder / "policy.md").write_text(page, encoding="utf-8")
    subprocess.run([ROOT / "tools/wrap", folder / "policy.md"], check=True, stdout=subprocess.DEVNULL)
    draw_waste(all_cases, folder / "pictures/policy-waste.png")
    draw_driver(all_cases, folder / "pictures/policy-driver.png")


# --- the pictures

def panels(count: int, rows: int, title: str) -> Any:
    from matplotlib.figure import Figure
    figure = Figure(figsize=(4.2 * count, 1.3 + 0.24 * rows), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        axis.tick_params(axis="y", length=0, labelsize=8)
        axis.tick_params(axis="x", labelsize=8)
    return figure, axes


def dots(axis: Any, values: Sequence[float], name: str, is_open: bool, label: str) -> None:
    color = COLORS[name]
    axis.plot(values, range(len(values)), "o", color=color, markerfacecolor="none" if is_open else color, markersize=6, label=label)


def draw_waste(all_cases: Sequence[Case], path: pathlib.Path) -> None:
    names = list(dict.fromkeys(case.trace for case in all_cases))
    figure, axes = panels(len(LAGS), len(names), "Waste over what was requested, %: four repetitions, simulated GPU of 80 GiB")
    for axis, (lag, text) in zip(axes, LAGS.items()):
        of = {prices: [case.by for case in all_cases if (case.prices, case.lag) == (prices, lag)] for prices in PRICES}
        for name in ("native", "expandable"):
            dots(axis, [waste(by[name]) for by in of[PRICES[0]]], name, False, name)
        for prices in PRICES:
            dots(axis, [waste(by["cenote"]) for by in of[prices]], "cenote", prices != PRICES[0], f"cenote, {prices}")
        axis.set_xscale("symlog", linthresh=1, linscale=0.7)
        axis.set(xlim=(-0.1, None), yticks=range(len(names)), yticklabels=names, xticks=[0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200],
                 xticklabels=["0", "", "1", "2", "5", "10", "20", "50", "100", "200"])
        axis.set_title(f"the GPU {text}", fontsize=9, loc="left")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path)


def draw_driver(all_cases: Sequence[Case], path: pathlib.Path) -> None:
    names = list(dict.fromkeys(case.trace for case in all_cases))
    figure, axes = panels(2 * len(PRICES), len(names), "ms of modelled driver time, the GPU level with the program; at the left edge: none")
    for axis, (prices, which) in zip(axes, [(prices, which) for prices in PRICES for which in ("first", "last")]):
        for name in COLORS:
            ns = [case.by[name][f"driver_{which}_ns"] for case in all_cases if (case.prices, case.lag) == (prices, "0")]
            dots(axis, [max(each / 1e6, 0.01) for each in ns], name, False, name)
        axis.set_xscale("log")
        axis.set(yticks=range(len(names)), yticklabels=names)
        axis.set_title(f"{prices}, {which} repetition", fontsize=9, loc="left")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path)


# --- the command

def read(path: Optional[pathlib.Path]) -> Figures:
    return json.loads(path.read_text(encoding="utf-8")) if path else {"runs": []}


def write_json(content: Figures, path: pathlib.Path) -> None:
    lists = [name for name, value in content.items() if isinstance(value, list)]
    head = json.dumps({name: value for name, value in content.items() if name not in lists})
    body = "".join(f', "{name}": [\n  ' + ",\n  ".join(map(json.dumps, content[name])) + "\n]" for name in lists)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head[:-1] + body + "}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="what the policy costs, and what others would")
    parser.add_argument("--out", metavar="FOLDER", type=pathlib.Path, default=ROOT / "build/policy", help="for policy.json, policy.md and pictures")
    parser.add_argument("--publish", action="store_true", help="write to bench/results and docs instead")
    parser.add_argument("--from", dest="old", metavar="FILE.json", type=pathlib.Path, help="do not measure: the page of these figures")
    parser.add_argument("--against", metavar="FILE.json", type=pathlib.Path, help="say which traces waste more than there")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a goal is missed, or a trace wastes more than in --against")
    parser.add_argument("traces", metavar="TRACE", nargs="*", help="beside those of traces/")
    options = parser.parse_args()
    today = str(datetime.date.today())
    content = read(options.old) if options.old else {
        "date": today, "machine": machine(), "gpu": "simulated, 80GiB", "bench": "bench/policy/run.py", "repeat": REPEAT,
        "runs": measure(traces(options.traces)), "long": measure_long(traces(options.traces)), "scaled": measure_scaled(), "tiny": measure_tiny(),
        "smallest": measure_smallest(traces(options.traces)),
        "pages": measure_pages(), "fill": measure_fill()}
    page = ROOT / "docs" if options.publish else options.out
    path = ROOT / f"bench/results/{content['date']}-policy.json" if options.publish else options.out / "policy.json"
    write_json(content, path)
    write_page(content, page, path)
    said = worse(content["runs"], read(options.against)["runs"])
    fills = content.get("fill", [])
    for line in [*goals_table(cases(content["runs"]), fills), *said]:
        print(line)
    print(f"{page / 'policy.md'}, {path}")
    is_missed = any(missed(goal, prices, cases(content["runs"])) for goal in GOALS for prices in PRICES)
    is_missed = is_missed or any(fill_ns(fills, prices) > FILL_MOST for prices in PRICES)
    return 1 if options.check and (is_missed or said) else 0


if __name__ == "__main__":
    sys.exit(main())
