"""A sample of programs whose memory on a card others have measured, drawn by a seed before any of them was run here.

    python bench/accuracy/sample.py --draw FAKE_TENSOR.xlsx

GPUMemNet's repository (github.com/itu-rad/GPUMemNet, commit f01eb05, Related_works/FakeTensor/fake_tensor.xlsx) has 5,085 runs of TIMM's models with
timm's own train.py on an A100 of 40 GB: model, batch, and the most that nvidia-smi showed in use on the whole card. SAMPLE of them are drawn from all.

The file does not say which runs ran out of memory; such a run shows what it had until then. `ran_out` decides by the file alone, never by a dry run:
the card was full; the batch half as large had as much; what FakeTensor counted of tensors alone is more; the step from half the batch, as large as
FakeTensor's, leads beyond the card; or half the batch ran out. Of these rows only the verdict is compared.
"""
import argparse
import json
import pathlib
import random
import xml.etree.ElementTree
import zipfile
from typing import Any, Iterator, Optional

SEED = 1723
SAMPLE = 100
CARD = 40960       # MiB of an A100 of 40 GB
FULL = 39000       # the most in any row is 40,363
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
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


def draw(measured: Measured) -> list[dict[str, Any]]:
    """In the order in which they are run."""
    return [{"model": model, "batch": batch, "measured": measured[model, batch][0], "counted": round(measured[model, batch][1]),
             "ran_out": ran_out(measured, (model, batch))} for model, batch in random.Random(SEED).sample(sorted(measured), SAMPLE)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", metavar="FAKE_TENSOR.xlsx", type=pathlib.Path, required=True)
    args = parser.parse_args()
    for row in draw(read(args.draw)):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
