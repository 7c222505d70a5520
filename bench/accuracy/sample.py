"""A sample of programs whose memory on a card others have measured, drawn by a seed before any of them was run here.

    python bench/accuracy/sample.py --draw FAKE_TENSOR.xlsx                                    prints the rows
    python bench/accuracy/sample.py --draw FAKE_TENSOR.xlsx --train TRAIN.PY --save FILE       runs them, one after the other

TRAIN.PY is timm's own, unchanged, of the release whose package is installed (1.0.9 has all models of the file). It reads JPEGs of random pixels,
with two workers and without evaluation, and the dry run ends it after STEPS steps. FILE gets a line of JSON as soon as a row is done; rows that it
has already are not run again.

    python bench/accuracy/sample.py --page bench/results/DATE-timm.jsonl                       writes the table of docs/accuracy.md

GPUMemNet's repository (github.com/itu-rad/GPUMemNet, commit f01eb05, Related_works/FakeTensor/fake_tensor.xlsx) has 5,085 runs of TIMM's models with
timm's own train.py on an A100 of 40 GB: model, batch, and the most that nvidia-smi showed in use on the whole card. SAMPLE of them are drawn.

The file does not say which runs ran out of memory; such a run shows what it had until then. `ran_out` decides by the file alone, never by a dry run:
the card was full; the batch half as large had as much; what FakeTensor counted of tensors alone is more; the step from half the batch, as large as
FakeTensor's, leads beyond the card; or half the batch ran out. Of these rows only the verdict is compared.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
import zipfile
from typing import Any, Iterator, Optional

import compare

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 900  # of a run; then the row has no figure
STEPS = 3
SEED = 1723
SAMPLE = 100
CARD = 40960       # MiB of an A100 of 40 GB
FULL = 39000       # the most in any row is 40,363
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
MIB = 1 << 20
# nvidia-smi's figure less what the dry run says is reserved: the median of six small programs of the file in an earlier
# comparison, fixed before the sample was drawn. And FakeTensor's own constant, of the same six.
CONTEXT, CONSTANT = 1696, 1836
BUMP = 500  # MiB above the line between half and twice the batch: chosen; nvidia-smi may have caught a search there
BEGIN, END = "<!-- sample: bench/accuracy/sample.py --page -->", "<!-- sample: end -->"
Run = tuple[str, int]  # model, batch
Measured = dict[Run, tuple[int, float]]  # MiB in use on the card; MiB by FakeTensor


def cells(path: pathlib.Path) -> Iterator[dict[str, str]]:
    """The rows of the first sheet, by the letters of their columns."""
    with zipfile.ZipFile(path) as archive:
        words = ["".join(part.text or "" for part in word.iter(f"{SHEET}t"))
                 for word in xml.etree.ElementTree.fromstring(archive.read("xl/sharedStrings.xml")).findall(f"{SHEET}si")]
        sheet = xml.etree.ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    for row in sheet.iter(f"{SHEET}row"):
        found = {}
        for cell in row.findall(f"{SHEET}c"):
            value = cell.findtext(f"{SHEET}v")
            if value is not None:
                found[cell.attrib["r"].rstrip("0123456789")] = words[int(value)] if cell.get("t") == "s" else value
        yield found


def read(path: pathlib.Path) -> Measured:
    measured = {}
    for row in list(cells(path))[1:]:
        model, batch = row["A"].removesuffix(".out").rsplit("_", 1)
        measured[model, int(batch)] = int(row["C"]), float(row["F"])
    return measured


def ran_out(measured: Measured, run: Run) -> bool:
    used, counted = measured[run]
    half: Optional[tuple[int, float]] = measured.get((run[0], run[1] // 2))
    if used > FULL or counted > used:
        return True
    return half is not None and (used <= half[0] or half[0] + counted - half[1] > CARD or ran_out(measured, (run[0], run[1] // 2)))


def on_the_line(measured: Measured, run: Run) -> Optional[int]:
    """MiB that the runs with half and twice as many images give for this one; None: one of them is missing, or ran out."""
    model, batch = run
    beside = [(model, batch // 2), (model, batch * 2)]
    if not all(one in measured and not ran_out(measured, one) for one in beside):
        return None
    low, high = (measured[one][0] for one in beside)
    return round((2 * low + high) / 3)


def draw(measured: Measured) -> list[dict[str, Any]]:
    """In the order in which they are run."""
    return [{"model": run[0], "batch": run[1], "measured": measured[run][0], "counted": round(measured[run][1]), "ran_out": ran_out(measured, run),
             "on_the_line": on_the_line(measured, run)} for run in random.Random(SEED).sample(sorted(measured), SAMPLE)]


def make_images(folder: pathlib.Path) -> None:
    """Enough for the largest batch in each step, and for what the loader reads ahead."""
    from PIL import Image
    pixels = random.Random(SEED)
    for number in range(1024):
        path = folder / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (16, 16), pixels.randbytes(16 * 16 * 3)).resize((300, 300)).save(path)


def dry_run(row: dict[str, Any], train: pathlib.Path, images: pathlib.Path) -> dict[str, Any]:
    """The row, and what the dry run said of it; or, if it said nothing, its last words."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        command = [sys.executable, "-m", "cenote", "dry-run", "--gpu", "a100-40gb", "--steps", str(STEPS), "--allocator", "native", "--quiet",
                   "--timeout", str(SECONDS), "--json", str(out), str(train), "--data-dir", str(images), "--val-split", "", "--workers", "2",
                   "--model", row["model"], "--batch-size", str(row["batch"])]
        paths = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"verdict": "none"}
    result = {**row, "verdict": found["verdict"], "seconds": round(time.monotonic() - begun)}
    runs = (found, found.get("largest") or {})
    peaks = [device for run in runs for process in run.get("processes", []) for device in process["devices"].values()]
    if not peaks:
        return {**result, "words": (done.stdout + done.stderr)[-300:]}
    # the run on the largest card says what a program needs that does not fit
    known = {name: peaks[-1][name] for name in ("live_peak", "reserved_peak", "others")}
    return {**result, **known, "search_room": found["search_room"], **compare.told(found, peaks[-1]["reserved_peak"])}


def play(rows: list[dict[str, Any]], train: pathlib.Path, save: pathlib.Path) -> None:
    done = {(row["model"], row["batch"]) for row in map(json.loads, save.read_text(encoding="utf-8").splitlines())} if save.exists() else set()
    with tempfile.TemporaryDirectory() as folder, save.open("a", encoding="utf-8") as file:
        make_images(pathlib.Path(folder))
        for row in rows:
            if (row["model"], row["batch"]) not in done:
                print(json.dumps(dry_run(row, train, pathlib.Path(folder))), file=file, flush=True)


# --- the page, of rows as `dry_run` gives them

def estimates(row: dict[str, Any]) -> dict[str, float]:
    """MiB in use on the whole card, by name of who says so."""
    held = row["reserved_peak"] / MIB
    return {"cenote, with the context of that card": held + CONTEXT, "cenote, as the verdict says": held + row["others"] / MIB,
            "FakeTensor + 1,836 MiB": row["counted"] + CONSTANT, "FakeTensor, as published": row["counted"]}


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| | median error | 90th percentile | largest | within 5 % | within 10 % | below what the card used |", "|---|---|---|---|---|---|---|"]
    for name in estimates(rows[0]):
        errors = [estimates(row)[name] / row["measured"] - 1 for row in rows]
        sizes = [abs(error) for error in errors]
        largest = max(errors, key=abs)
        lines.append(f"| {name} | {statistics.median(sizes):.1%} | {compare.percentile(sizes, 0.9):.1%} | {largest:+.1%} "
                     f"| {sum(size <= 0.05 for size in sizes)} | {sum(size <= 0.1 for size in sizes)} "
                     f"| {sum(error < 0 for error in errors) / len(errors):.0%} |".replace("%", " %").replace("5  %", "5 %"))
    return lines


def is_above_the_line(row: dict[str, Any]) -> bool:
    return not row["ran_out"] and row["on_the_line"] is not None and row["measured"] > row["on_the_line"] + BUMP


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| model | images | measured, MiB | dry-run, MiB | error | FakeTensor, MiB | a search may take, MiB |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        start = f"| {row['model']} | {row['batch']} | {row['measured']:,}" + (", out of memory?" if row["ran_out"] else "")
        start += f", {row['on_the_line']:,} on the line" if is_above_the_line(row) else ""
        if "reserved_peak" not in row:
            lines.append(f"{start} | no figure: {row['verdict']} | | {row['counted']:,} | |")
            continue
        said = row["reserved_peak"] / MIB + CONTEXT
        error = said / row["measured"] - 1
        shown = "" if row["ran_out"] else f"**{error:+.1%}**" if abs(error) > 0.05 else f"{error:+.1%}"
        verdict = "" if row["verdict"] == "fits" else f", {row['verdict']}"
        lines.append(f"{start} | {said:,.0f}{verdict} | {shown.replace('%', ' %')} | {row['counted']:,} | {row['search_room'] / MIB:,.0f} |")
    return lines


def section(rows: list[dict[str, Any]]) -> list[str]:
    known = [row for row in rows if "reserved_peak" in row and not row["ran_out"]]
    out = [row for row in rows if row["ran_out"]]
    wrong = [row for row in rows if "reserved_peak" in row and (row["verdict"] == "fits") == row["ran_out"]]
    caught = [f"{row['model']} with {row['batch']}" for row in known if is_above_the_line(row)]
    text = (f"{len(rows)} of the {SAMPLE} were run. {len(out)} ran out of memory on the card, by the rules; "
            f"{len(rows) - len(known) - len(out)} gave no figure; {len(wrong)} verdicts are not those of the rules"
            + (": " + ", ".join(f"{row['model']} with {row['batch']}" for row in wrong) if wrong else "")
            + f". {len(caught)} used more than {BUMP} MiB more than the line between half and twice the batch says"
            + (f" ({', '.join(caught)})" if caught else "") + f". Of the {len(known)} that did not run out, the whole card:")
    return [*compare.wrap(text), "", *summary(known), "", "Bold: more than 5 %.", "", *table(rows)]


def page(text: str, results: pathlib.Path) -> str:
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + "\n\n" + "\n".join(section(rows)) + "\n\n" + END + rest.split(END, 1)[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", metavar="FAKE_TENSOR.xlsx", type=pathlib.Path)
    parser.add_argument("--train", metavar="TRAIN.PY", type=pathlib.Path)
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--page", metavar="FILE", type=pathlib.Path)
    args = parser.parse_args()
    if args.page:
        compare.PAGE.write_text(page(compare.PAGE.read_text(encoding="utf-8"), args.page), encoding="utf-8")
        return
    if not args.draw:
        parser.error("--draw or --page")
    rows = draw(read(args.draw))
    if args.train and args.save:
        play(rows, args.train.resolve(), args.save)
        return
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
