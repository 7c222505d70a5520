"""What a dry run found, as Markdown for the summary of a job in CI: `python -m cenote.integrations.job_summary FOLDER`, for action.yml.

FOLDER has memory.json, which `cenote dry-run --json` wrote, and `output`, what it printed. If it ended before it wrote the first, it printed why.
"""
import html
import json
import os
import sys
from typing import Any, Iterator

from cenote.base.quantity import readable as size
from cenote.fit import limit, verdict

HEAD = "--- cenote dry-run "  # the verdict begins with this line


def table(content: dict[str, Any]) -> list[list[str]]:
    if "cards" in content:
        return [["GPU", "memory", "verdict"],
                *([card["card"], size(card["capacity"]), verdict.WORDS[card["verdict"]]] for card in content["cards"])]
    told = content["largest"] or content
    needed = told["needed"] if told["verdict"] in ("fits", "grows") else None
    cells = {"GPU": size(content["capacity"]), "verdict": verdict.WORDS[content["verdict"]],
             "needs": size(needed) if needed is not None else "not known"}
    above = content.get("above_limit")
    if above is not None:
        cells["limit"] = f"{size(told['needed'] - above)}: {size(abs(above))} {'above' if above > 0 else 'below'}"
    if content.get("since_baseline") is not None:
        cells["since the baseline"] = limit.signed(content["since_baseline"])
    return [list(cells), list(cells.values())]


def markdown(folder: str) -> Iterator[str]:
    yield "### GPU memory (simulated GPU)\n"
    path = os.path.join(folder, "memory.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            head, *rows = table(json.load(file))
        for cells in (head, ["---"] * len(head), *rows):
            yield f"| {' | '.join(cells)} |"
    with open(os.path.join(folder, "output"), encoding="utf-8", errors="replace") as file:
        _, found, text = file.read().rpartition(HEAD)
    yield f"\n<pre>{html.escape(found + text)}</pre>" if found else "\nThe dry run ended without a verdict: its log says why."


if __name__ == "__main__":
    print("\n".join(markdown(sys.argv[1])))
