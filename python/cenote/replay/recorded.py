"""`cenote replay --recorded`: compares what PyTorch took from a card with what models of its allocators and cenote take for the same events.

recording.py reads the snapshots. The program cenote-replay (tools/replay/) plays them and needs no torch. The model of the allocator that was
recorded begins with the card's own segments and blocks. It is compared with the card after each event: it should hold as many bytes, and each block
should lie at the same address. The other model and cenote begin with the live blocks alone, and show what they would have held.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import zlib
from typing import Any, NamedTuple, Optional, Sequence

from cenote import places
from cenote.base import inputs, outputs
from cenote.base.mistake import Mistake
from cenote.native.records import BrokenTrace
from cenote.replay import recording, report
from cenote.replay.recording import Recording
from cenote.replay.report import Column, size
from cenote.view.torch_snapshot import place

MODELS = ("native", "expandable")
# Which of equal free blocks PyTorch takes differs by version, and the snapshot does not name the version: the model goes all ways until one is
# the card's.
TIES = {"address": "", "segment": "of equal free blocks the one in the oldest segment was taken, as PyTorch does since 2.13",
        "piece": "of equal free blocks the oldest was taken, as PyTorch 2.12 does"}
LARGEST = "1TiB"  # capacity for the models: the recording, not the model, says when the card was short of memory


class Compared(NamedTuple):
    recording: Recording
    model: str  # the model of the allocator that was recorded
    held: dict[str, list[int]]  # by allocator, after each of recording.moments
    addresses: list[int]  # after each of recording.moments, of the block that the model allocated
    ties: str  # of TIES: the way that the model went
    peak: dict[str, int]  # by allocator, the setup included


# --- the replay

def play(folder: str, lines: Sequence[str], allocator: str, *options: str) -> list[tuple[int, int]]:
    """Plays the lines of a trace. Returns, after each line, the bytes held and the address of the block."""
    trace, curve = os.path.join(folder, "trace.csv"), os.path.join(folder, "curve.csv")
    outputs.write(trace, (recording.COLUMNS + "".join(lines)).encode("ascii"))
    done = subprocess.run([places.replay_program(), "--under", allocator, "--curve", curve, *options, trace],
                          capture_output=True, text=True)
    if done.returncode:
        raise Mistake(f"{allocator}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    with open(curve, encoding="ascii") as file:
        next(file)
        return [(int(held), int(address)) for held, address in (line.split(",") for line in file)]


def held_at_moments(found: Recording, curve: Sequence[int]) -> list[int]:
    """The bytes held at each moment. `curve`: the bytes held after each line of `plain`, which has no line for the moment of a step."""
    held, i = [], found.plain_setup
    for line in found.model[found.model_setup:]:
        i += line.split(",", 2)[1] != "s"
        held.append(curve[i - 1] if i else 0)
    return held


def in_place(found: Recording, curve: Sequence[tuple[int, int]]) -> int:
    """How many blocks lie at the card's address. `curve`: from the first of found.moments on."""
    return sum(moment.address == address for moment, (_, address) in zip(found.moments, curve) if moment.address is not None)


def play_recorded(found: Recording, folder: str) -> tuple[str, list[tuple[int, int]]]:
    """The way of TIES that puts most blocks where the card had them, and what the model of the recorded allocator then did."""
    blocks = sum(moment.address is not None for moment in found.moments)
    best: tuple[int, str, list[tuple[int, int]]] = (-1, "", [])
    for ties in TIES:
        curve = play(folder, found.model, MODELS[found.is_expandable], "--recorded", str(found.model_setup), "--capacity", LARGEST, "--ties", ties)
        best = max(best, (in_place(found, curve[found.model_setup:]), ties, curve), key=lambda way: way[0])
        if best[0] == blocks:
            break
    return best[1:]


def compare(found: Recording, capacity: int, folder: str) -> Compared:
    model = MODELS[found.is_expandable]
    ties, as_recorded = play_recorded(found, folder)
    held = {model: [bytes_held for bytes_held, _ in as_recorded[found.model_setup:]]}
    peak = {model: max(bytes_held for bytes_held, _ in as_recorded)}
    for name in (*MODELS, "cenote"):
        if name == model:
            continue
        card = str(capacity) if name == "cenote" else LARGEST
        curve = [bytes_held for bytes_held, _ in play(folder, found.plain, name, "--capacity", card)]
        held[name], peak[name] = held_at_moments(found, curve), max(curve)
    return Compared(found, model, held, [address for _, address in as_recorded[found.model_setup:]], ties, peak)


# --- the comparison

def first_difference(c: Compared) -> Optional[int]:
    """The first moment at which the model holds other bytes than the card."""
    return next((i for i, (held, moment) in enumerate(zip(c.held[c.model], c.recording.moments)) if held != moment.reserved), None)


def first_misplaced(c: Compared) -> Optional[int]:
    """The first moment at which the model put a block at another address than the card."""
    return next((i for i, (address, moment) in enumerate(zip(c.addresses, c.recording.moments)) if moment.address not in (None, address)), None)


def change_text(held: Sequence[int], before: int, i: int) -> str:
    step = held[i] - (held[i - 1] if i else before)
    return f"took {size(step)}" if step > 0 else f"gave back {size(-step)}" if step < 0 else "took nothing"


def event_text(c: Compared, i: int) -> str:
    """The event of a moment, for a message."""
    moment = c.recording.moments[i]
    event = c.recording.events[moment.event]
    where = place(event.get("frames"))
    return (f"event {moment.event:,} ({event['action']}, {size(event.get('size', 0))}, stream {event.get('stream', 0):#x}"
            f"{'' if where == 'no line of Python' else ', ' + where})")


def findings(c: Compared) -> list[str]:
    """Sentences for below the table, one a line."""
    found, lines = c.recording, []
    differs, misplaced = first_difference(c), first_misplaced(c)
    card = [moment.reserved for moment in found.moments]
    if differs is not None:
        model = c.held[c.model]
        before = found.reserved_before
        lines.append(f"first disagreement: {event_text(c, differs)}: the card {change_text(card, before, differs)} and held {card[differs]:,} bytes, "
                     f"the model {change_text(model, before, differs)} and held {model[differs]:,}")
    if misplaced is not None:
        lines.append(f"first block at another address: {event_text(c, misplaced)}: at {found.moments[misplaced].address:#x} on the card, "
                     f"at {c.addresses[misplaced]:#x} in the model")
    return lines + [TIES[c.ties]] * bool(TIES[c.ties]) + found.notes


def as_run(c: Compared) -> dict[str, Any]:
    found = c.recording
    moments = found.moments
    differs, misplaced = first_difference(c), first_misplaced(c)
    return {
        "recording": os.path.basename(found.title).removesuffix(".gz").removesuffix(".pickle").removesuffix(".pkl"),
        "device": found.device, "model": c.model,
        "streams": len({line.split(",", 5)[4] for line in found.plain}), "events": len(found.events), "compared": len(moments),
        "equal": sum(held == moment.reserved for held, moment in zip(c.held[c.model], moments)),
        "segment_events": sum(moment.changes for moment in moments),
        "segment_events_equal": sum(moment.changes for held, moment in zip(c.held[c.model], moments) if held == moment.reserved),
        "blocks": sum(moment.address is not None for moment in moments),
        "blocks_in_place": sum(moment.address == address for moment, address in zip(moments, c.addresses) if moment.address is not None),
        "requested_peak_bytes": max(moment.live for moment in moments), "card_first_bytes": found.reserved_before,
        "card_peak_bytes": max(found.reserved_before, *(moment.reserved for moment in moments)),
        "native_peak_bytes": c.peak["native"], "expandable_peak_bytes": c.peak["expandable"], "cenote_peak_bytes": c.peak["cenote"],
        "first_difference_event": None if differs is None else moments[differs].event,
        "first_elsewhere_event": None if misplaced is None else moments[misplaced].event, "findings": findings(c),
    }


# --- output

def part(run: dict[str, Any], name: str, of: str) -> str:
    return "all" if run[name] == run[of] else f"{run[name]:,}"


COLUMNS = [
    Column("recording", lambda run: run["recording"] + (f", device {run['device']}" if run["device"] else ""), False),
    Column("recorded", lambda run: run["model"], False), Column("streams", lambda run: str(run["streams"])),
    Column("events", lambda run: f"{run['events']:,}"), Column("of segments", lambda run: f"{run['segment_events']:,}"),
    Column("equal", lambda run: part(run, "equal", "compared")), Column("in place", lambda run: part(run, "blocks_in_place", "blocks")),
    Column("requested", lambda run: size(run["requested_peak_bytes"])), Column("card first", lambda run: size(run["card_first_bytes"])),
    Column("card", lambda run: size(run["card_peak_bytes"])), Column("native", lambda run: size(run["native_peak_bytes"])),
    Column("expandable", lambda run: size(run["expandable_peak_bytes"])), Column("cenote", lambda run: size(run["cenote_peak_bytes"])),
]


def print_table(runs: Sequence[dict[str, Any]]) -> None:
    print("Peak bytes held, by the card and in the replay. Equal: events after which the model of what was recorded holds what the card held.\n"
          "In place: blocks that lie at the card's address.")
    report.print_plain(COLUMNS, [[column.text(run) for column in COLUMNS] for run in runs])
    for run in runs:
        for line in run["findings"]:
            print(f"{run['recording']}: {line}")


def plot(path: str, compared: Sequence[Compared]) -> None:
    from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 3.4 * len(compared) + 0.4), layout="constrained")
    for axis, c in zip(figure.subplots(len(compared), squeeze=False)[:, 0], compared):
        moments, name = c.recording.moments, os.path.basename(c.recording.title)
        unit, label = (1 << 30, "GiB") if max(moment.reserved for moment in moments) >= 1 << 30 else (1 << 20, "MiB")
        at = range(len(moments))
        axis.fill_between(at, [moment.live / unit for moment in moments], step="post", color="#cccccc", linewidth=0, label="requested")
        card = [moment.reserved / unit for moment in moments]
        axis.plot(at, card, drawstyle="steps-post", color="#222222", linewidth=3, alpha=0.4, label="the card")
        for allocator, color in report.COLORS.items():
            text = f"{allocator}, from {'what the card held' if allocator == c.model else 'the live blocks'}"
            held = [held / unit for held in c.held[allocator]]
            axis.plot(at, held, drawstyle="steps-post", color=color, linewidth=1.2, label=text)
        differs = first_difference(c)
        if differs is not None:
            axis.axvline(differs, color="#222222", linewidth=0.8, linestyle="--")
            axis.text(differs, 0, " first disagreement", rotation=90, va="bottom", fontsize=7)
        title = name + (f", device {c.recording.device}" if c.recording.device else "")
        report.finish_axis(axis, title, ("event", label), len(moments))
    report.save_figure(figure, path)


# --- the command

def read(path: str) -> list[Recording]:
    try:
        with inputs.opened(path) as found:
            if found.kind != inputs.PYTORCH:
                raise BrokenTrace(f"{path}: --recorded reads memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot)")
            return recording.recordings(path, found.file)
    except (EOFError, OSError, ValueError, zlib.error) as problem:
        raise BrokenTrace(f"{path}: {getattr(problem, 'strerror', None) or problem}") from None


def run(options: argparse.Namespace) -> None:
    found = [r for path in options.traces for r in read(path)]
    with tempfile.TemporaryDirectory(prefix="cenote-replay-") as folder:
        compared = [compare(r, options.sim[0], folder) for r in found]
    runs = [as_run(c) for c in compared]
    text = json.dumps({"cenote": places.version(), "runs": runs}, indent=1) + "\n"
    if options.json == "-":
        print(text, end="")
    else:
        print_table(runs)
        if options.json is not None:
            outputs.write(options.json, text.encode())
    if options.plot is not None:
        plot(options.plot, compared)
