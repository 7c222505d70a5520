"""`cenote export --perfetto`: memory over time as counters for Perfetto (ui.perfetto.dev) and chrome://tracing, alone or in a file of Kineto.

The legacy JSON format, which both open. Of a long history it has the same points as the page, so that no peak is lost.
"""
from __future__ import annotations

import argparse
import json
import os
from typing import Any, Iterator, Optional, Sequence

from cenote import places
from cenote.base import inputs, outputs
from cenote.base.mistake import Mistake
from cenote.base.progress import Bar
from cenote.base.quantity import readable
from cenote.launch import command_line
from cenote.launch.command_line import Parser
from cenote.view import kineto, pool_snapshot, viewer
from cenote.view.history import Broken, History
from cenote.view.html_page import Condensed

USAGE = "cenote export --perfetto NAME.json [--kineto FILE] FILE..."
ABOUT = """Writes memory over time as tracks for Perfetto: what was live, what was reserved, and what each tag, kind or line held; steps, memory that
went back to the driver, and memory that ran out as instants. With --kineto they join the tracks of a file of torch.profiler, of the same run, on its
clock: that file needs its memory events (profile_memory=True)."""
MORE = """examples:
  cenote export --perfetto memory.json train.csv.gz                      open it in ui.perfetto.dev
  cenote export --perfetto both.json --kineto profile.json train.csv.gz  beside operators"""
FIRST_PROCESS = 900_000_000  # numbers of the tracks' processes, which no real process has
BACK_LEAST = 64 << 20  # bytes that went back at one time, of which the file speaks
STACKED = ("kind", "tag", "line", "stream", "size")


def counter(process: int, name: str, ts: float, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": process, "name": name, "ts": ts, "args": {"bytes": value}}


def instant(process: int, name: str, ts: float) -> dict[str, Any]:
    return {"ph": "i", "s": "p", "pid": process, "tid": 0, "name": name, "ts": ts}


def tracks(history: History, process: int, shift: float) -> Iterator[dict[str, Any]]:
    picture = Condensed(history)
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"memory of GPU {history.device}, {history.title}"}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": -1000 + history.device}}
    times = [time + shift for time in picture.times()]
    for name, line in picture.series().items():
        yield from changes(process, name, times, line)
    division = next((name for name in STACKED if name in picture.stacks), None)
    if division is not None:
        for column, name in enumerate(picture.groups(division)):
            yield from changes(process, f"{division}: {name}", times, [row[column] for row in picture.stacks[division]])
    yield from instants(history, process, shift)


def changes(process: int, name: str, times: Sequence[float], line: Sequence[int]) -> Iterator[dict[str, Any]]:
    last: Optional[int] = None
    for ts, value in zip(times, line):
        if value != last:
            yield counter(process, name, ts, value)
        last = value


def instants(history: History, process: int, shift: float) -> Iterator[dict[str, Any]]:
    def at(moment: int) -> float:
        return history.time[max(0, moment - 1)] + shift
    for number, moment in enumerate(history.steps, 1):
        yield instant(process, f"step {number * history.every} ends", at(moment))
    for moment, words in history.marks:
        yield instant(process, words, at(moment))
    before = history.reserved_first
    for moment, held in enumerate(history.reserved or (), 1):
        if before - held >= BACK_LEAST:
            yield instant(process, f"{readable(before - held)} went back to the driver", at(moment))
        before = held


def kineto_of(path: str) -> tuple[str, dict[str, Any]]:
    title = os.path.basename(path)
    with viewer.understood(title), inputs.opened(path) as found:
        content = pool_snapshot.parsed(title, found.file)
    if not kineto.is_kineto(content):
        raise Broken(f"{title} is no file of Kineto: prof.export_chrome_trace() of torch.profiler writes one")
    return title, content


def made(paths: Sequence[str], profile: Optional[str], bar: Bar) -> dict[str, Any]:
    histories = [history for path in paths for history in viewer.read(path, bar)]
    moments = [history.title for history in histories if history.is_moment()]
    if moments:
        raise Broken(f"{moments[0]} is a snapshot of one moment, which has no time: export a trace")
    whole: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ms"}
    shift = 0.0
    if profile is not None:
        title, whole = kineto_of(profile)
        shift = kineto.offset(title, whole, histories)
    for number, history in enumerate(histories):
        whole["traceEvents"] += tracks(history, FIRST_PROCESS + number, shift)
    return whole


def make_parser() -> Parser:
    parser = Parser("cenote export", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace, or a memory snapshot of PyTorch with its history")
    parser.add_argument("--perfetto", metavar="NAME.json", required=True, help="what to write")
    parser.add_argument("--kineto", metavar="FILE", help="a file of torch.profiler, whose events go first into what is written")
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    bar = Bar(says_lines=True)
    try:
        if any(os.path.exists(options.perfetto) and os.path.samefile(path, options.perfetto) for path in options.files if os.path.exists(path)):
            raise Mistake(f"{options.perfetto} is what is to be read: name another file to write")
        command_line.check_output(options.perfetto)
        data = json.dumps(made(options.files, options.kineto, bar), separators=(",", ":")).encode()
        outputs.write(options.perfetto, data)
    except (Mistake, Broken, places.NotBuilt) as problem:
        parser.error(str(problem))
    except OSError as problem:
        parser.error(f"{problem.filename or options.perfetto}: {problem.strerror or problem}")
    finally:
        bar.clear()
    print(f"{options.perfetto}: {len(data) / 1e6:.1f} MB; open it in ui.perfetto.dev")
    return 0
