"""The output of `cenote replay`: a table, JSON, a picture. If standard output is a terminal and rich is installed, rich draws the table."""
import argparse
import datetime
import importlib.util
import json
import os
import sys
from typing import Any, NamedTuple, Sequence

from cenote import places
from cenote.base import outputs
from cenote.launch import environment
from cenote.replay.trace_file import Trace

Run = dict[str, Any]
MOST_CURVES = 6  # of more traces, the picture shows the waste instead of the curves
COLORS = {"native": "#d1495b", "expandable": "#edae49", "cenote": "#00798c"}


# --- the table

def size(count: Any) -> str:
    """A number of bytes, with three significant digits."""
    if count is None:
        return ""
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= unit:
            number = count / unit
            return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {name}"
    return f"{count} B"


def seconds(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"


def outcome(run: Run) -> str:
    return "" if run["oom_record"] is None else f"at record {run['oom_record']:,}"


def waste(run: Run) -> str:
    return "" if run["waste_percent"] is None else f"{run['waste_percent']:+.1f} %"


def calls(run: Run) -> str:
    return str(run["driver_calls_first"]) if run["repeat"] == 1 else f"{run['driver_calls_first']} .. {run['driver_calls_last']}"


def under(run: Run) -> str:
    return run["allocator"] if run["page_bytes"] is None else f"{run['allocator']}, {run['page_bytes'] >> 20} MiB"


class Column(NamedTuple):
    head: str
    text: Any  # function: run -> text of its cell
    is_number: bool = True


def differ(runs: Sequence[Run], name: str) -> bool:
    """Whether the runs have different values under this name."""
    return len({run.get(name) for run in runs}) > 1


def columns(runs: Sequence[Run]) -> list[Column]:
    """The columns of the table. A property that all runs share has no column: `heading` names it."""
    is_search = any("smallest_bytes" in run for run in runs)
    found = [Column("trace", lambda run: run["trace"], False), Column("under", under, False)]
    if is_search:
        found.append(Column("smallest card", lambda run: size(run["smallest_bytes"]) or "none up to 1 TiB"))
    elif differ(runs, "capacity_bytes"):
        found.append(Column("card", lambda run: size(run["capacity_bytes"])))
    if differ(runs, "lag"):
        found.append(Column("lag", lambda run: f"{100 * run['lag']:g} %"))
    if differ(runs, "prices"):
        found.append(Column("prices", lambda run: os.path.basename(run["prices"]), False))
    found += [Column("requested", lambda run: size(run["requested_peak_bytes"])), Column("reserved", lambda run: size(run["reserved_peak_bytes"])),
              Column("waste", waste), Column("addresses", lambda run: size(run["address_bytes"])), Column("driver calls", calls),
              Column("driver time", lambda run: seconds(run["driver_ns"])),
              Column("ns/record", lambda run: "" if run["cpu_ns_per_record"] is None else f"{run['cpu_ns_per_record']:.0f}")]
    if any(run["oom_record"] is not None for run in runs):
        found.append(Column("out of memory", outcome))
    return found


def heading(runs: Sequence[Run]) -> str:
    first = runs[0]
    parts = ["Simulated GPU"]
    if not differ(runs, "capacity_bytes") and "smallest_bytes" not in first:
        parts.append(size(first["capacity_bytes"]))
    if not differ(runs, "lag") and first["lag"]:
        parts.append(f"{100 * first['lag']:g} % of the records behind the program")
    if not differ(runs, "prices") and first["prices"] != environment.PRICES[0]:
        parts.append(f"prices {os.path.basename(first['prices'])}")
    if first["repeat"] > 1:
        parts.append(f"{first['repeat']} times over")
    return (f"{', '.join(parts)}; torch {first['torch']}. Waste: reserved over requested, at their peaks. "
            "Driver time is modelled (sim/machine/cost.def).")


def print_plain(made: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(text) for text in [column.head, *(row[i] for row in rows)]) for i, column in enumerate(made)]
    for row in [[column.head for column in made], *rows]:
        print("  ".join(text.rjust(width) if column.is_number else text.ljust(width) for text, width, column in zip(row, widths, made)).rstrip())


def print_rich(made: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in made:
        table.add_column(column.head, justify="right" if column.is_number else "left", no_wrap=column.head != "trace")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def print_table(runs: Sequence[Run]) -> None:
    made = columns(runs)
    rows = [[column.text(run) for column in made] for run in runs]
    print(heading(runs))
    for i in range(len(rows) - 1, 0, -1):  # the name of a trace stands in its first row only
        if rows[i][0] == rows[i - 1][0]:
            rows[i][0] = ""
    (print_rich if sys.stdout.isatty() and importlib.util.find_spec("rich") else print_plain)(made, rows)


# --- files

def as_json(runs: Sequence[Run]) -> str:
    shown = [{name: value for name, value in run.items() if not name.startswith("_")} for run in runs]
    head = {"date": str(datetime.date.today()), "gpu": "simulated", "cenote": places.version(), "cenote_conf": os.environ.get("CENOTE_CONF", "")}
    lines = ",\n  ".join(json.dumps(run) for run in shown)
    return json.dumps(head)[:-1] + f', "runs": [\n  {lines}\n]}}\n'


def plot(path: str, traces: Sequence[Trace], runs: Sequence[Run]) -> None:
    if len(traces) > MOST_CURVES:
        plot_waste(path, runs)
    else:
        plot_time(path, traces, runs)


def circumstances(run: Run, runs: Sequence[Run]) -> list[str]:
    """What tells the run from others of its trace and allocator."""
    card = [size(run["capacity_bytes"])] if differ(runs, "capacity_bytes") else []
    return card + ([f"lag {100 * run['lag']:g} %"] if differ(runs, "lag") else []) + \
        ([os.path.basename(run["prices"])] if differ(runs, "prices") else [])


def plot_waste(path: str, runs: Sequence[Run]) -> None:
    """Draws a group of bars for each trace. Uses only fields that the JSON has, too."""
    from matplotlib.figure import Figure
    names = list(dict.fromkeys(run["trace"] for run in runs))
    shown = [[run for run in runs if run["trace"] == name] for name in names]
    widest = max((run["waste_percent"] or 0 for run in runs), default=0)
    figure = Figure(figsize=(9, 0.8 + sum(0.19 * len(group) + 0.14 for group in shown)), layout="constrained")
    axis, at, places_of_names = figure.subplots(), 0.0, []
    for group in shown:
        for i, run in enumerate(group):
            axis.barh(at + i, run["waste_percent"] or 0, height=0.9, color=COLORS[run["allocator"]])
            text = ", ".join(["out of memory" if run["oom_record"] is not None else waste(run), *circumstances(run, runs)])
            axis.text(max(run["waste_percent"] or 0, 0) + widest / 150, at + i, text, va="center", fontsize=8)
        places_of_names.append(at + (len(group) - 1) / 2)
        at += len(group) + 0.7
    labels = [f"{name}\n{size(group[0]['requested_peak_bytes'])}".replace("$", r"\$") for name, group in zip(names, shown)]
    axis.set_yticks(places_of_names, labels, fontsize=9)
    axis.set_ylim(at - 0.9, -0.8)
    axis.set_xlim(0, max(widest * 1.12, 1))
    axis.set_xlabel("reserved beyond what was requested, at the peaks, in % of it", fontsize=9)
    axis.tick_params(axis="y", length=0)
    hide_frame(axis)
    colors = {under(run): COLORS[run["allocator"]] for run in runs}
    axis.legend([axis.barh([0], [0], color=color) for color in colors.values()], list(colors), loc="lower right", fontsize=9, frameon=False)
    axis.set_title("Simulated GPU, " + " or ".join(dict.fromkeys(size(run["capacity_bytes"]) for run in runs)), fontsize=10, loc="left")
    save_figure(figure, path)


def plot_time(path: str, traces: Sequence[Trace], runs: Sequence[Run]) -> None:
    """Draws requested and held memory over the records, one picture for each trace."""
    from matplotlib.figure import Figure
    wide = 2 if len(traces) > 1 else 1
    rows = -(-len(traces) // wide)
    figure = Figure(figsize=(7.5 * wide, 3.4 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False)
    for axis in axes.flat[len(traces):]:
        axis.set_visible(False)
    for i, (trace, axis) in enumerate(zip(traces, axes.flat)):
        draw(axis, trace, [run for run in runs if run["_number"] == i])
    figure.suptitle("Device memory held, simulated GPU", fontsize=11)
    save_figure(figure, path)


def draw(axis: Any, trace: Trace, runs: Sequence[Run]) -> None:
    unit, name = (1 << 30, "GiB") if trace.live_peak >= 1 << 30 else (1 << 20, "MiB")
    at = [(i + 1) * trace.every for i in range(len(trace.live))]
    axis.fill_between(at, [live / unit for live in trace.live], color="#cccccc", linewidth=0, label=f"requested, peak {size(trace.live_peak)}")
    for run in sorted(runs, key=lambda run: -run["reserved_peak_bytes"]):
        label = f"{under(run)} {waste(run)}" if run["oom_record"] is None else f"{under(run)}: out of memory"
        line, = axis.plot([record for record, _ in run["_samples"]], [held / unit for _, held in run["_samples"]], drawstyle="steps-post",
                          color=COLORS[run["allocator"]], linewidth=1.4, label=label)
        if run["oom_record"] is not None and run["_samples"]:
            axis.plot(*[[value] for value in (run["_samples"][-1][0], run["_samples"][-1][1] / unit)], marker="x", color=line.get_color())
    finish_axis(axis, trace.name, ("record", name), trace.records)


def finish_axis(axis: Any, title: str, labels: tuple[str, str], end: int) -> None:
    """Gives a picture over records 0 to `end` its title, its legend and the labels of its axes."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlim(0, end)
    axis.set_ylim(0)
    axis.set_xlabel(labels[0], fontsize=8)
    axis.set_ylabel(labels[1], fontsize=8)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=7, loc="lower right", framealpha=0.9)
    hide_frame(axis)


def hide_frame(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def save_figure(figure: Any, path: str) -> None:
    with outputs.whole(path) as file:
        figure.savefig(file, dpi=130, format="png")


def write(options: argparse.Namespace, traces: Sequence[Trace], runs: Sequence[Run]) -> None:
    if options.json == "-":
        print(as_json(runs), end="")
    else:
        print_table(runs)
        if options.json is not None:
            outputs.write(options.json, as_json(runs).encode())
    if options.plot is not None:
        plot(options.plot, traces, runs)
