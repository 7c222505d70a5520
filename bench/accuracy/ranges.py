"""Does what a card used lie in the range that `cenote dry-run` gives?

    python bench/accuracy/ranges.py --programs FILE       dry runs of the programs of examples/torch that ran on cards
    python bench/accuracy/ranges.py --published FILE      and of those of measured.json
    python bench/accuracy/ranges.py --page bench/results/DATE-ranges.jsonl bench/results/DATE-timm.jsonl       the table of docs/accuracy.md

A dry run says what the allocator held, and a range around it: cenote-replay plays the recording with other sizes of cuDNN's scratch memory, and other
addresses (fit/replays.py). A card's figure of reserved bytes is compared with that range. Of figures that have more in them (the context, what
libraries took) that part is subtracted first, as compare.py and sample.py add it. FILE gets lines of JSON as runs end; what it has already is not run
again. --programs needs the packages that the cards had: docs/accuracy.md lists them. The rows of TIMM are those of sample.py.
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Iterable, Iterator

import compare
import sample

sys.path.insert(0, str(compare.ROOT / "python"))
from cenote.fit import replays  # noqa: E402  (needs the path above)

PROGRAMS = compare.ROOT / "examples" / "torch"
CARDS = {"H200": "2026-11-26-h200-programs.jsonl", "H100": "2026-11-26-h100-programs.jsonl"}
SIZE = 143771 << 20  # of the larger one; none of the programs asks for it
PATH = str(compare.ROOT / "python")
KEEPING = """
import shutil, sys
from cenote import command
from cenote.fit import replays
kept = sys.argv.pop(1)
replays.of = lambda outcome: shutil.copy(outcome.recording, kept) and {}
sys.exit(command.main())
"""
NEAR = 0.01  # chosen: a verdict has three digits
BEGIN, END = "<!-- ranges: bench/accuracy/ranges.py --page -->", "<!-- ranges: end -->"
Row = dict[str, Any]  # of the page: source, name; bytes that the allocator reserved at most: measured, held, low, high


def lines_of(path: pathlib.Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add(save: pathlib.Path, rows: Iterable[Row]) -> None:
    with save.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


# --- the programs that ran on cards of our own

def measured_on(card: str) -> Iterator[Row]:
    """Once for each program and allocator: the first run of several, without settings or limits."""
    seen = set()
    for row in lines_of(compare.ROOT / "bench" / "results" / CARDS[card]):
        key = row.get("program"), row.get("allocator")
        if row.get("gpu") == "card" and "steps" in row and "conf" not in row and "limit_bytes" not in row and key not in seen:
            seen.add(key)
            yield {"program": row["program"], "steps": row["steps"], "allocator": row["allocator"], "card": card, "measured": row["reserved_peak"]}


def dry_run(program: str, steps: int) -> dict[str, Row]:
    """What the verdict says by allocator: {held, low, high}. One run answers for all, as docs/dry-run.md says; here the ranges are played for all."""
    with tempfile.TemporaryDirectory() as folder:
        recording = os.path.join(folder, "recording")
        command = [sys.executable, "-c", KEEPING, recording, "dry-run", "--gpu", f"{SIZE >> 20}MiB", "--steps", "0", "--allocator", "native",
                   "--quiet", str(PROGRAMS / f"{program}.py"), str(steps)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True)
        ties = replays.ties(importlib.metadata.version("torch"))
        played = replays.play(recording, SIZE, "--ties", ties, "--seeds", str(replays.SEEDS), "--under", ",".join(replays.PLAYED))
    if not played:
        raise RuntimeError(f"{program}: no recording\n{(done.stdout + done.stderr)[-2000:]}")
    return {row["under"]: {"held": row["reserved_peak_bytes"], "low": row["range_bytes"][0], "high": row["range_bytes"][1]} for row in played}


def play_programs(save: pathlib.Path) -> None:
    done = {row["program"] for row in lines_of(save)}
    rows = [row for card in CARDS for row in measured_on(card)]
    for program, steps in {row["program"]: row["steps"] for row in reversed(rows)}.items():
        if program not in done:
            found = dry_run(program, steps)
            add(save, [{**row, **found[row["allocator"]]} for row in rows if row["program"] == program])


# --- the programs that others have measured

def play_published(save: pathlib.Path) -> None:
    """Not those that ran out of memory on the card, and those whose figure is of tensors alone."""
    done = {(row["program"], row["card"], row["figure"]) for row in lines_of(save) if "figure" in row}
    for row in compare.read_rows()[1]:
        if not row["ran_out"] and row["figure"] != "allocated" and (compare.name_of(row), row["card"], row["figure"]) not in done:
            add(save, [published(row, compare.dry_run(row))])


def published(row: Row, found: Row) -> Row:
    measured = row["measured"] - (found["estimate"] - found["reserved"])
    return {"program": compare.name_of(row), "figure": row["figure"], "allocator": "native", "card": row["card"], "measured": measured,
            "held": found["reserved"], "low": found["low"], "high": found["high"]}


# --- the page

def of_ranges(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        source = "published, native" if "figure" in row else f"`examples/torch`, {row['allocator']}"
        yield {**row, "source": source, "name": f"`{row['program']}`, {row['allocator']}, {row['card']}"}


def of_sample(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if "high" in row and not row["ran_out"]:
            measured = (row["measured"] - sample.CONTEXT) * sample.MIB
            yield {"source": "TIMM, native", "name": f"{row['model']} with {row['batch']}", "measured": measured, "held": row["reserved_peak"],
                   "low": row["low"], "high": row["high"]}


def outside(row: Row) -> float:
    """How far the card's figure lies above (or, below zero, below) the range, as a part of it."""
    if row["measured"] > row["high"]:
        return float(row["measured"] / row["high"] - 1)
    return min(0.0, float(row["measured"] / row["low"] - 1))


def width(row: Row) -> float:
    return float((row["high"] - row["low"]) / row["held"])


def table(rows: list[Row]) -> list[str]:
    lines = ["| | rows | inside | to 1 % | less, by more | more, by more | width, median | 90th percentile |", "|---|---|---|---|---|---|---|---|"]
    for source in [*dict.fromkeys(row["source"] for row in rows), "all"]:
        own = [row for row in rows if source in ("all", row["source"])]
        away = [outside(row) for row in own]
        widths = [width(row) for row in own]
        lines.append(f"| {source} | {len(own)} | {sum(part == 0 for part in away)} | {sum(abs(part) <= NEAR for part in away)} "
                     f"| {sum(part < -NEAR for part in away)} | {sum(part > NEAR for part in away)} | {statistics.median(widths):.1%} "
                     f"| {compare.percentile(widths, 0.9):.1%} |".replace("%", " %"))
    return lines


def missed(rows: list[Row]) -> list[str]:
    lines = ["| outside by more than 1 % | measured, MiB | held, MiB | range, MiB | outside |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=outside):
        if abs(outside(row)) > NEAR:
            measured, held, low, high = (f"{row[name] / sample.MIB:,.0f}" for name in ("measured", "held", "low", "high"))
            lines.append(f"| {row['name']} | {measured} | {held} | {low} to {high} | {outside(row):+.1%} |".replace("%", " %"))
    return lines


def page(text: str, results: list[pathlib.Path]) -> str:
    found, timm = map(lines_of, results)
    rows = [*of_ranges(found), *of_sample(timm)]
    enough = sum(outside(row) <= NEAR for row in rows)
    near = sum(abs(outside(row)) <= NEAR for row in rows)
    words = compare.wrap(f"Of {len(rows)} figures {enough} ({enough / len(rows):.0%}) are not above the range, and {near} ({near / len(rows):.0%}) "
                         "lie in it, to 1 %.")
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + "\n\n" + "\n".join([*words, "", *table(rows), "", *missed(rows)]) + "\n\n" + END + rest.split(END, 1)[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--published", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--page", metavar="FILE", type=pathlib.Path, nargs=2)
    args = parser.parse_args()
    if args.page:
        compare.PAGE.write_text(page(compare.PAGE.read_text(encoding="utf-8"), args.page), encoding="utf-8")
    if args.programs:
        play_programs(args.programs)
    if args.published:
        play_published(args.published)


if __name__ == "__main__":
    main()
