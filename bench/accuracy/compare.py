"""What does `cenote dry-run` say of programs whose memory others have measured on a card?

    python bench/accuracy/compare.py [--only WORD] [--save FILE]
    python bench/accuracy/compare.py --page bench/results/DATE-accuracy.jsonl

measured.json has a row for each measurement: the program, in this folder, what was measured, and where that is published. Each row is a dry run on a
simulated GPU of that card's memory under PyTorch's native allocator, as on the card, and is compared with the same figure:

    allocated            torch.cuda.max_memory_allocated()
    reserved             torch.cuda.max_memory_reserved()
    whole card           what the whole card has in use: reserved, the context, and what libraries took
    beyond the context   the same, less what it had when the context stood

If the program ran out of memory on the card, its figure is no need: then only the verdicts are compared. --page writes the tables of docs/accuracy.md
anew from saved results. The simulated GPU is the one of today; versions of PyTorch and of other packages are those that are installed.
"""
import argparse
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap
from typing import Any, Iterable, Optional

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONTEXT = 500 << 20  # of the simulated GPU: sim/machine, context_bytes
PACKAGES = ("torch", "torchvision", "transformers", "peft", "bitsandbytes")
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- {}: bench/accuracy/compare.py --page -->", "<!-- {}: end -->"
OURS = "cenote"
SECONDS = 900
Row = dict[str, Any]


def read_rows() -> tuple[dict[str, Row], list[Row]]:
    table = json.loads((HERE / "measured.json").read_text(encoding="utf-8"))
    return table["sources"], table["rows"]


def name_of(row: Row) -> str:
    return " ".join([pathlib.PurePath(row["program"]).name, *row["options"]])


def estimate(figure: str, device: Row) -> int:
    """The figure that the row is compared with, from the peaks of a dry run."""
    if figure == "allocated":
        return int(device["live_peak"])
    outside = {"reserved": 0, "whole card": device["others"], "beyond the context": device["others"] - CONTEXT}
    return int(device["reserved_peak"] + outside[figure])


def told(found: Row, reserved: int) -> Row:
    """The range of reserved bytes that the verdict prints: {low, high}; empty: the recording was not played."""
    own = found["replays"].get(found["allocator"])
    return {"low": reserved - own["held"] + own["low"], "high": reserved - own["held"] + own["high"]} if own and own["high"] else {}


def dry_run(row: Row) -> Row:
    """One row, run: {verdict, estimate, seconds...}. RuntimeError if there is no verdict."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [sys.executable, "-m", "cenote", "dry-run", "--gpu", row["gpu"], "--steps", "0", "--allocator", "native", "--quiet", "--json", out,
                   str((HERE / row["program"]).resolve()), *row["options"]]
        paths = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=SECONDS)
        if not os.path.exists(out):
            raise RuntimeError(f"{name_of(row)}: no verdict\n{done.stderr[-2000:]}")
        found = json.loads(pathlib.Path(out).read_text(encoding="utf-8"))
    if found["verdict"] not in ("fits", "fits not"):
        raise RuntimeError(f"{name_of(row)}: {found['verdict']}\n{(done.stdout + done.stderr)[-2000:]}")
    fits = found["verdict"] == "fits"
    peaks = (found if fits else found["largest"])["processes"][0]["devices"]["0"]  # if it does not fit, those of the run on the largest card
    return {"runs_out": not fits, "estimate": estimate(row["figure"], peaks), "live": peaks["live_peak"], "reserved": peaks["reserved_peak"],
            "others": peaks["others"], **told(found, peaks["reserved_peak"])}


def error(row: Row, figure: Optional[float]) -> Optional[float]:
    return None if row["ran_out"] or figure is None or figure < 0 else figure / row["measured"] - 1


def play(rows: list[Row], save: Optional[pathlib.Path]) -> Iterable[Row]:
    """Each row as soon as it is done; the file has it by then."""
    if save:
        save.write_text(json.dumps(head(len(rows))) + "\n", encoding="utf-8")
    for row in rows:
        found = {**row, **dry_run(row)}
        found["error"] = error(row, found["estimate"])
        said = "out of memory" if row["ran_out"] else f"{row['measured'] / 2**20:,.0f} MiB"
        ours = f"{found['estimate'] / 2**20:,.0f} MiB" + (", out of memory" if found["runs_out"] else "")
        off = "" if found["error"] is None else f"{found['error']:+.1%}"
        print(f"{row['card']:16} {name_of(row):66} {said:>14} {ours:>14} {off:>7}", flush=True)
        if save:
            with save.open("a", encoding="utf-8") as file:
                print(json.dumps(found), file=file)
        yield found


def head(rows: int) -> Row:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"date": datetime.date.today().isoformat(), "gpu": "simulated GPU, by row", "python": sys.version.split()[0], **versions, "rows": rows}


# --- metrics, as xMem defines them, over rows with an estimate of each tool

def metrics(rows: list[Row]) -> Row:
    """Of rows {error, ran_out, runs_out, measured, estimate}: the relative errors, wrong verdicts, estimates below what was used."""
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    fitting = [row for row in rows if not row["ran_out"]]
    return {"rows": len(rows), "median": statistics.median(errors), "mean": statistics.fmean(errors), "most": max(errors),
            "wrong": sum(row["ran_out"] != row["runs_out"] for row in rows), "below": sum(row["error"] < 0 for row in fitting),
            "fitting": len(fitting)}


def percentile(errors: Iterable[float], share: float) -> float:
    """The least error that so many of them do not exceed."""
    found = sorted(errors)
    return found[max(0, math.ceil(share * len(found)) - 1)]


def figures_table(rows: list[Row]) -> list[str]:
    """Each figure apart: they are not alike in what they know of the allocator, of the context and of the driver."""
    lines = ["| figure | measurements | median error | 90th percentile | largest | below what the card used |", "|---|---|---|---|---|---|"]
    for figure in dict.fromkeys(row["figure"] for row in rows):
        errors = [row["error"] for row in rows if row["figure"] == figure and row["error"] is not None]
        sizes = [abs(error) for error in errors]
        lines.append(f"| {figure} | {len(errors)} | {statistics.median(sizes):.1%} | {percentile(sizes, 0.9):.1%} | {max(sizes):.1%} "
                     f"| {sum(error < 0 for error in errors) / len(errors):.0%} |".replace("%", " %"))
    return lines


def as_tool(row: Row, tool: str) -> Row:
    if tool == OURS:
        return row
    said = row["estimates"][tool]
    return {**row, "error": error(row, said["bytes"]), "runs_out": said["ran_out"]}


def tools_table(rows: list[Row]) -> list[str]:
    """cenote beside the tools whose estimates of the same programs are published with the measurements."""
    compared = [row for row in rows if "estimates" in row]
    lines = ["| | programs | median error | mean | largest | wrong verdicts | below what the card used | failed as a limit |",
             "|---|---|---|---|---|---|---|---|"]
    for tool in (OURS, "xMem", "DNNMem", "SchedTune", "LLMem"):
        own = [row for row in compared if tool == OURS or tool in row["estimates"]]
        found = metrics([as_tool(row, tool) for row in own])
        failed = "not tried" if tool == OURS else str(sum(fails_as_limit(row, row["estimates"][tool]) for row in own))
        lines.append(f"| {tool} | {found['rows']} | {found['median']:.1%} | {found['mean']:.1%} | {found['most']:.1%} | {found['wrong']} "
                     f"| {found['below']} of {found['fitting']} | {failed} |".replace("%", " %"))
    return lines


def fails_as_limit(row: Row, said: Row) -> bool:
    """xMem's estimation failure: the verdict is wrong, or the program ran out with the estimate as its limit."""
    return bool(said["ran_out"] != row["ran_out"] or (not row["ran_out"] and said["capped_ran_out"] is not False))


def wrap(text: str) -> list[str]:
    """A paragraph of prose, with a blank before each per cent."""
    return textwrap.wrap(text.replace("%", " %").replace("  %", " %"), 120, break_long_words=False, break_on_hyphens=False)


def rows_table(sources: dict[str, Row], rows: list[Row]) -> list[str]:
    lines = []
    for key, source in sources.items():
        own = [row for row in rows if row["source"] == key]
        found = metrics(own)
        lines += ["", *wrap(f"**{source['title']}** ([source]({source['address']}), read on {source['read']}). {source['versions']}. Measured: "
                            f"{source['said']}. Not known: {source['unknown']}. Median error {found['median']:.1%}."), "",
                  "| card | program | figure | measured, MiB | dry-run, MiB | error |", "|---|---|---|---|---|---|"]
        for row in own:
            measured = "out of memory" if row["ran_out"] else f"{row['measured'] / 2**20:,.0f}"
            ours = f"{row['estimate'] / 2**20:,.0f}" + (", out of memory" if row["runs_out"] else "")
            off = "" if row["error"] is None else f"{row['error']:+.1%}".replace("%", " %").replace("-0.0", "0.0").replace("+0.0", "0.0")
            if row["error"] is not None and abs(row["error"]) > 0.05:
                off = f"**{off}**"
            star = "\\*" if "assumed" in row else ""
            lines.append(f"| {row['card']} | `{name_of(row)}`{star} | {row['figure']} | {measured} | {ours} | {off} |")
        for assumed in dict.fromkeys(row["assumed"] for row in own if "assumed" in row):
            lines += ["", *wrap(f"\\* Assumed: {assumed}.")]
    return lines[1:]


def summary(rows: list[Row], first: Row) -> list[str]:
    found = metrics(rows)
    within = sum(row["error"] is not None and abs(row["error"]) <= 0.05 for row in rows)
    text = (f"Of {found['rows']} measurements, the card ran out of memory in {found['rows'] - found['fitting']}. For the other {found['fitting']}, "
            f"the median error is {found['median']:.1%}, the mean {found['mean']:.1%}, the largest {found['most']:.1%}; {within} are within 5 %, and "
            f"{found['below']} are below what the card used. {found['wrong']} verdicts are wrong. Simulated GPU of "
            f"{first['date']}, ")
    text += "".join(f"{count} rows of {day}, " for day, count in first.get("added", {}).items())
    text += ", ".join(f"{name} {first[name]}" for name in PACKAGES) + "."
    return wrap(text)


def page(text: str, results: pathlib.Path) -> str:
    """The text of docs/accuracy.md, with the tables of these results."""
    first, *rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    sources, _ = read_rows()
    for name, lines in (("summary", summary(rows, first)), ("figures", figures_table(rows)),
                        ("tools", tools_table(rows)), ("rows", rows_table(sources, rows))):
        before, rest = text.split(BEGIN.format(name), 1)
        _, after = rest.split(END.format(name), 1)
        text = before + BEGIN.format(name) + "\n\n" + "\n".join(lines) + "\n\n" + END.format(name) + after
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", metavar="WORD", default="", help="the rows of which source, card or program has WORD in it")
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, help="the results, one line of JSON each, as in bench/results/")
    parser.add_argument("--page", metavar="FILE", type=pathlib.Path, help="run nothing: write the tables of docs/accuracy.md from these results")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), args.page), encoding="utf-8")
        return
    _, rows = read_rows()
    rows = [row for row in rows if args.only in f"{row['source']} {row['card']} {name_of(row)}"]
    print(json.dumps(metrics(list(play(rows, args.save)))))


if __name__ == "__main__":
    main()
