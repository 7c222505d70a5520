"""`cenote top`: all processes of this machine with cenote, by card, as a screen that changes, once, as JSON, or as metrics.

The processes make no call for it, but those that a key asks for. It also shows processes without cenote, where NVML says what they hold.
"""
from __future__ import annotations

import argparse
import http.server
import json
import os
import sys
import time
from typing import Any, Optional, Sequence

from cenote.base import outputs
from cenote.launch.command_line import Parser
from cenote.live import boards, metrics, screen
from cenote.live.moment import Card, Member, Moment, Watcher

ABOUT = "What the processes of this machine hold of its GPUs now. In a terminal the screen changes; h shows the keys."
MORE = """examples:
  cenote top                            a screen that changes
  cenote top --once                     the same, once: for a terminal that is not one, or a log
  cenote top --json                     for programs
  cenote top --metrics cenote.prom      for node_exporter, rewritten every 15 seconds
  cenote top --port 9407                for Prometheus, at http://127.0.0.1:9407/metrics

A process is seen if this user may look at its open files. docs/top.md says more."""
SECONDS = {"screen": 1.0, "metrics": 15.0}
WIDTH = 100  # where there is no terminal
LEAST, MOST = 0.1, 3600.0


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not LEAST <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of seconds from {LEAST:g} to {MOST:g}")
    return value


def port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no port from 1 to 65535; 0: any that is free")
    return int(text)


def make_parser() -> Parser:
    parser = Parser("cenote top", description=ABOUT, epilog=MORE, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print the screen once")
    how.add_argument("--json", action="store_true", help="print one moment as JSON")
    how.add_argument("--metrics", metavar="FILE", help="write metrics to FILE again and again, each time whole (/dev/stdout: once)")
    how.add_argument("--port", metavar="N", type=port, help="answer to /metrics on this port of 127.0.0.1")
    parser.add_argument("--every", metavar="SECONDS", type=seconds, help="between two screens (default 1) or two files (default 15)")
    return parser


def member_json(member: Member) -> dict[str, Any]:
    person = member.person
    return {"pid": person.pid, "command": person.command, "user": person.user, "rank": member.rank or None, "job": person.job or None,
            "held_bytes": member.held, "growth_bytes_per_step": member.growth, "cached_bytes": member.cached,
            "asleep_bytes": member.number("asleep"), "pools": [pool_json(pool) for pool in member.pools]}


def pool_json(pool: boards.Pool) -> dict[str, Any]:
    levels = {name: level._asdict() for name, level in pool.levels.items() if name != "cached"}  # derived: the member has it
    hidden = ("wished", "answers", "error", "is_labelled")
    return {"provider": pool.texts.get("provider"), "user": pool.texts.get("user") or None, **levels,
            **{name: value for name, value in pool.numbers.items() if name not in hidden and name not in levels},
            "kinds": [row._asdict() for row in pool.kinds if row.peak], "phases": [row._asdict() for row in pool.phases if row.peak],
            "tags": [row._asdict() for row in pool.tags], "groups": [row._asdict() for row in pool.groups],
            "steps_kept": [note._asdict() for note in pool.notes]}


def card_json(card: Card) -> dict[str, Any]:
    return {"gpu": card.number, "name": card.name, "uuid": card.uuid or None, "key": card.key, "total_bytes": card.total, "used_bytes": card.used,
            "processes": [member_json(member) for member in card.members],
            "others": [{"pid": other.person.pid, "command": other.person.command, "user": other.person.user, "held_bytes": other.held}
                       for other in card.others]}


def moment_json(moment: Moment) -> dict[str, Any]:
    return {"at": moment.at, "nvml": moment.has_nvml, "cards": [card_json(card) for card in moment.cards]}


def print_once(moment: Moment) -> None:
    width = os.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    encoding = sys.stdout.encoding or "ascii"
    for line in screen.lines(moment, {}, screen.State(chosen=-1), width):
        print("".join(text for text, _ in line).rstrip().encode(encoding, "replace").decode(encoding))


def scraped(watcher: Watcher, open_metrics: bool) -> str:
    """Metrics of now. Peaks begin anew."""
    moment = watcher.take()
    for _, member in screen.members(moment):
        for pool in member.pools:
            boards.forget_peaks(pool)
            boards.wish(pool, "refresh")
    return metrics.text(moment, open_metrics)


def write_metrics(watcher: Watcher, path: str, every: float) -> int:
    is_told = False
    while True:
        outputs.write(path, scraped(watcher, open_metrics=False).encode())
        if os.path.realpath(path).startswith(("/dev/", "/proc/")):
            return 0
        if not is_told:
            print(f"cenote top: {path} is written, and again every {every:g} s", file=sys.stderr, flush=True)
            is_told = True
        time.sleep(every)


def serve(watcher: Watcher, number: int) -> int:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # s, chosen: who connects and asks nothing keeps others waiting no longer

        def do_GET(self) -> None:  # pylint: disable=invalid-name
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "here is /metrics")
                return
            open_metrics = "application/openmetrics-text" in self.headers.get("Accept", "")
            body = scraped(watcher, open_metrics).encode()
            self.send_response(200)
            self.send_header("Content-Type", metrics.OPENMETRICS if open_metrics else metrics.PLAIN)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: a line for each scrape helps nobody."""

    with http.server.HTTPServer(("127.0.0.1", number), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/metrics", flush=True)
        server.serve_forever()
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    watcher = Watcher()
    try:
        if options.metrics:
            return write_metrics(watcher, options.metrics, options.every or SECONDS["metrics"])
        if options.port is not None:
            return serve(watcher, options.port)
    except OSError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(moment_json(watcher.take()), indent=2))
    elif options.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_once(watcher.take())
    else:
        show(watcher, options.every)
    return 0


def show(watcher: Watcher, every: Optional[float]) -> None:
    from cenote.live import terminal  # not every Python has curses
    terminal.show(watcher, every or SECONDS["screen"])
