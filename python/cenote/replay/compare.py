"""`cenote compare`: a PyTorch program under PyTorch's own allocator, its expandable segments and cenote: one table and one picture.

Runs the script three times by `cenote run`: if PyTorch can use a GPU of the machine, on that GPU, one run after the other; otherwise on simulated
GPUs, at the same time. The script needs no change. The exit status is 1 if a run failed.
"""
import argparse
import concurrent.futures
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple, Optional, Sequence

from cenote.base import outputs, quantity
from cenote.base.mistake import Mistake
from cenote.base.progress import Programs
from cenote.launch import command_line, python
from cenote.launch.command_line import Parser, split
from cenote.launch.run import command_line as line_of
from cenote.replay.report import COLORS

CAPACITY = "80GiB"
ALLOCATORS = {"native": "native", "expandable": "expandable segments", "cenote": "cenote"}
GIB = 1 << 30
MOST_SECONDS = 900
BACKGROUND, INK, FAINT, REQUESTED = "#ffffff", "#222222", "#9aa0a6", "#dfe3e6"

Figures = dict[str, Any]  # what `cenote run --json` writes


class Run(NamedTuple):
    allocator: str
    status: int
    figures: Optional[Figures]
    log: str

    def is_good(self) -> bool:
        return self.status == 0 and self.figures is not None


def has_gpu() -> bool:
    """Says whether the PyTorch of this Python can use a GPU. If there is a driver, that takes seconds."""
    if not os.path.exists("/dev/nvidiactl"):
        return False
    asked = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"
    done = subprocess.run(python.of_user(["-c", asked]), capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip() or "?").splitlines()[-1]
        print(f"This machine has a GPU that the torch of {sys.executable} cannot use: {why}", file=sys.stderr)
    return not done.returncode


def run(allocator: str, sim: Optional[str], script: list[str], folder: str) -> Run:
    file = pathlib.Path(folder, f"{allocator}.json")
    command = python.of_ours("cenote.command", "run", "--quiet", "--json", str(file), "--allocator", allocator, *(["--sim", sim] if sim else []),
                             *script)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return Run(allocator, 124, None, f"it did not end within {MOST_SECONDS} s")
    figures = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    why = "" if figures or done.returncode else "it used no GPU\n"
    return Run(allocator, done.returncode, figures, done.stdout + why)


def run_all(sim: Optional[str], script: list[str]) -> list[Run]:
    progress = Programs(len(ALLOCATORS))

    def one(allocator: str) -> Run:
        progress.start(allocator)
        result = run(allocator, sim, script, folder)
        progress.end(allocator, "done" if result.is_good() else "FAILED")
        return result

    at_a_time = len(ALLOCATORS) if sim else 1
    with tempfile.TemporaryDirectory(prefix="cenote-") as folder, concurrent.futures.ThreadPoolExecutor(at_a_time) as executor:
        runs = list(executor.map(one, ALLOCATORS))
    progress.close()
    return runs


# --- output

def step_ms(figures: Figures) -> Optional[float]:
    """Time of a step in the later half of the steps, when everything that is built on first use is there."""
    ends = [step["seconds"] for step in figures["steps"]]
    late = [1000 * (b - a) for a, b in zip(ends, ends[1:])][len(ends) // 2:]
    return statistics.median(late) if late else None


def cells(run: Run, is_simulated: bool) -> list[str]:
    name = ALLOCATORS[run.allocator]
    if run.figures is None:
        return [name, "failed", *[""] * 4]
    f = run.figures
    waste = f"{100 * (f['reserved_peak'] / f['requested_peak'] - 1):+.1f} %" if f["requested_peak"] else "?"
    ms = step_ms(f)
    time = f"{f['modelled_driver_ns'] / 1e6:,.0f} ms" if is_simulated else f"{ms:,.1f} ms" if ms is not None else "?"
    return [name, f"{f['requested_peak'] / GIB:.2f} GiB", f"{f['reserved_peak'] / GIB:.2f} GiB", waste, f"{f['driver_calls']:,}", time]


def table(runs: list[Run], is_simulated: bool) -> str:
    heads = ["allocator", "peak requested", "peak reserved", "waste", "driver calls [1]", "driver time [2]" if is_simulated else "a step"]
    rows = [cells(run, is_simulated) for run in runs]
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    edge = [f"{left}{middle.join('─' * (width + 2) for width in widths)}{right}" for left, middle, right in ("╭┬╮", "├┼┤", "╰┴╯")]
    lines = ["│" + "│".join(f" {cell:{'<' if i == 0 else '>'}{width}} " for i, (cell, width) in enumerate(zip(row, widths))) + "│"
             for row in [heads, *rows]]
    notes = ["[1] as each counts itself: PyTorch the segments it took and gave back, cenote every call"]
    notes += ["[2] what all calls of the driver would have taken on a real one, by the model of sim/machine/cost.def"] if is_simulated else []
    return "\n".join([edge[0], lines[0], edge[1], *lines[1:], edge[2], *notes])


def title(script: list[str], figures: Figures) -> str:
    return f"{os.path.basename(script[0])}, {figures['steps_seen']} steps, PyTorch {figures['torch'].partition('+')[0]}, {figures['device']}"


def picture(runs: list[Run], heading: str) -> bytes:
    """Draws what was reserved after each step, above what the program asked for in that step, as cenote counts it; and the peaks."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 4.4), dpi=130, layout="constrained", facecolor=BACKGROUND)
    over, bars = figure.subplots(1, 2, width_ratios=[3, 1.25])
    good = [run for run in runs if run.figures is not None]
    asked = (good[-1].figures or {})["steps"]
    steps = [step["step"] for step in asked]
    over.fill_between(steps, [step["requested"] / GIB for step in asked], step="mid", color=REQUESTED, linewidth=0, label="requested")
    for i, run in enumerate(good):
        f, name, color = run.figures or {}, ALLOCATORS[run.allocator], COLORS[run.allocator]
        reserved = [step["reserved"] / GIB for step in f["steps"]]
        over.plot([step["step"] for step in f["steps"]], reserved, drawstyle="steps-mid", color=color, linewidth=2, label=name)
        bars.barh(i, f["reserved_peak"] / GIB, color=color, height=0.6)
        bars.barh(i, f["requested_peak"] / GIB, color=REQUESTED, height=0.6)
        waste = f"{100 * (f['reserved_peak'] / f['requested_peak'] - 1):+.1f} %" if f["requested_peak"] else ""
        bars.text(f["reserved_peak"] / GIB, i, f" {f['reserved_peak'] / GIB:.1f} GiB\n {waste}", va="center", color=INK, fontsize=9)
    bars.set(yticks=range(len(good)), yticklabels=[ALLOCATORS[run.allocator].replace(" ", "\n") for run in good], xlabel="GiB at most")
    bars.set_xlim(0, 1.35 * max((run.figures or {})["reserved_peak"] for run in good) / GIB)
    bars.invert_yaxis()
    over.set(xlabel="step", ylabel="GiB", xlim=(steps[0], steps[-1]), ylim=(0, None))
    over.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=9)
    for axis in (over, bars):
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(FAINT)
        axis.tick_params(colors=FAINT, labelcolor=INK)
    figure.suptitle(heading, fontsize=10, color=INK)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


ABOUT = "A PyTorch program under PyTorch's own allocator, its expandable segments and cenote: a table, and a picture if you ask for one."


def make_parser() -> Parser:
    parser = Parser("cenote compare", usage="cenote compare [OPTION...] SCRIPT.py [ARGUMENT...]", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--sim", metavar="SIZE", type=command_line.capacity,
                        help=f"a simulated GPU, also where there is a real one; without one: {CAPACITY}")
    parser.add_argument("--picture", metavar="FILE.png", help="draw what was reserved step by step; needs matplotlib")
    return parser


def tell(script: list[str], sim: Optional[str], path: Optional[str]) -> int:
    where = f"a simulated GPU of {sim}: memory is real, kernels do nothing" if sim else "this GPU"
    print(f"{script[0]} under {', '.join(ALLOCATORS)} on {where}", flush=True)
    runs = run_all(sim, script)
    good = [run.figures for run in runs if run.figures is not None]
    if good:
        heading = title(script, good[0])
        print(f"\n{heading}\n{table(runs, sim is not None)}")
        if path is not None and good[0]["steps"]:
            try:
                outputs.write(path, picture(runs, heading))
                print(f"picture: {path}")
            except ImportError:
                print("no picture: it needs matplotlib (pip install matplotlib)", file=sys.stderr)
    failed = [run for run in runs if not run.is_good()]
    for run in failed:
        last = "\n".join(run.log.splitlines()[-6:])
        print(f"\nunder {run.allocator} it ended with status {run.status}; its last lines:\n{last}", file=sys.stderr)
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    ours, script = split(arguments, parser)
    options = parser.parse_args(ours)
    try:
        line_of(script)  # Mistake if there is none
        command_line.check_output(options.picture)
    except Mistake as mistake:
        parser.error(str(mistake))
    sim = quantity.write_size(options.sim) if options.sim else None if has_gpu() else CAPACITY
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that cannot draw lines
    return tell(script, sim, options.picture)
