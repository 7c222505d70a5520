"""`cenote view -o x.png`: draws histories with matplotlib. Above: live bytes by division; below: blocks by address."""
from __future__ import annotations

import io
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cenote.view.history import History
from cenote.view.html_page import Condensed

COLORS = ("#2f6fde", "#f0a818", "#0fa39a", "#e2557b", "#7bb661", "#8a5cd6", "#f47b42", "#5cc3ee", "#a0522d", "#c9b037", "#5d6f9e", "#98a3a6")
PREFERRED = ("kind", "tag", "line", "stream", "size")
MOST_BLOCKS = 20_000
GAP = 2 << 20  # larger gaps between addresses are not drawn
GIB = 1 << 30


def png(histories: list[History]) -> bytes:
    drawn = [Condensed(history, len(histories)) for history in histories]
    figure = Figure(figsize=(12, 7 * len(drawn)), dpi=110, layout="constrained")
    parts = figure.subplots(2 * len(drawn), 1, squeeze=False, height_ratios=[3, 2] * len(drawn))
    for i, picture in enumerate(drawn):
        draw_levels(parts[2 * i][0], picture)
        draw_addresses(parts[2 * i + 1][0], picture)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def division_of(picture: Condensed) -> str:
    return next(name for name in PREFERRED if name in picture.history.groups)


def color_of(picture: Condensed, rank: int) -> str:
    return COLORS[min(rank, len(COLORS) - 1)]


def legend_name(name: str) -> str:
    """The name for the legend: matplotlib reads $ as mathematics, and leaves out names that start with _."""
    return " " + name.replace("$", r"\$")[:60]


def draw_levels(axes: Any, picture: Condensed) -> None:
    """Draws what lived over the records."""
    history, division = picture.history, division_of(picture)
    axes.set_title(f"{history.title}, device {history.device}".replace("$", r"\$"), loc="left")
    axes.set_ylabel("GiB")
    if history.is_moment():
        draw_moment(axes, picture, division)
    else:
        rows = [[value / GIB for value in row] for row in picture.stacks[division]]
        axes.stackplot(picture.moments, list(zip(*rows)), labels=[legend_name(name) for name in picture.groups(division)], step="post",
                       colors=[color_of(picture, i) for i in range(len(picture.groups(division)))])
        if picture.reserved is not None:
            axes.step(picture.moments, [picture.reserved[at] / GIB for at in picture.moments], where="post", color="#d9480f", label="reserved")
        for step in history.steps[:: max(1, len(history.steps) // 60)]:
            axes.axvline(step, color="#5b6b6b", linewidth=.5, alpha=.4)
        peak = picture.levels[picture.peak]
        axes.annotate(f"peak {history.unit} {peak / GIB:.2f} GiB", (picture.peak, peak / GIB), xytext=(6, 4), textcoords="offset points", fontsize=9)
        axes.set_xlim(0, max(1, len(history.time)))
        axes.set_xlabel("records; lines: steps" if history.steps else "records")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False, title=f"by {division}")


def draw_moment(axes: Any, picture: Condensed, division: str) -> None:
    """Draws a snapshot: a bar for the live bytes of each group, and one for the reserved bytes."""
    names, sums = picture.groups(division), [0] * len(picture.groups(division))
    numbers = picture.history.groups[division][1]
    for block, size in enumerate(picture.history.size):
        sums[min(picture.rank[division][numbers[block]], len(sums) - 1)] += size
    for i, (name, total) in enumerate(zip(names, sums)):
        axes.bar(i, total / GIB, color=color_of(picture, i), label=legend_name(name))
    held = (picture.history.moment or {}).get("figures", {}).get("reserved")
    if held is not None:
        axes.bar(len(names), held / GIB, color="#ffffff", edgecolor="#d9480f", linewidth=2, label="reserved, in total")
    axes.set_xticks([])


def draw_addresses(axes: Any, picture: Condensed) -> None:
    """Draws each block as a rectangle: its lifetime wide, its addresses high."""
    history, division = picture.history, division_of(picture)
    axes.set_ylabel("addresses, GiB")
    if history.address is None:
        axes.text(.5, .5, "the trace does not tell where blocks lay", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    end = max(1, len(history.time))
    kept = sorted(picture.blocks, key=lambda i: history.size[i], reverse=True)[:MOST_BLOCKS]
    bottoms, top = compacted([(history.address[i], history.size[i]) for i in kept])
    numbers, corners, colors = history.groups[division][1], [], []
    for i, bottom in zip(kept, bottoms):
        left, right, low, high = history.born[i], min(history.gone[i], end), bottom / GIB, (bottom + history.size[i]) / GIB
        corners.append([(left, low), (left, high), (right, high), (right, low)])
        colors.append(color_of(picture, picture.rank[division][numbers[i]]))
    axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors="none"))
    axes.set_xlim(0, end)
    axes.set_ylim(0, max(top / GIB, 1e-9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("records" if history.time else "")
    if not history.time:
        axes.set_xticks([])


def compacted(pieces: list[tuple[int, int]]) -> tuple[list[int], int]:
    """The positions of the pieces, each (address, size), if gaps larger than GAP are left out; and the end of the last piece."""
    order, bottoms = sorted(range(len(pieces)), key=lambda i: pieces[i][0]), [0] * len(pieces)
    shift, end = 0, 0
    for place, i in enumerate(order):
        address, size = pieces[i]
        if place == 0 or address - end > GAP:
            shift += address - end
        bottoms[i] = address - shift
        end = max(end, address + size)
    return bottoms, end - shift
