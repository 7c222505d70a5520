"""`cenote view`: reads traces and snapshots, and writes a picture of them: an HTML page or a PNG. With --at: what held memory at a moment."""
from __future__ import annotations

import argparse
import gc
import gzip
import os
import sys
import zlib
from contextlib import contextmanager
from typing import Iterator, NoReturn, Optional, Sequence, cast

from cenote import places
from cenote.base import inputs, outputs
from cenote.base.mistake import visible
from cenote.base.progress import Bar
from cenote.view import html_page, kineto, moments, page_file, pool_snapshot, rmm_log, tables, torch_snapshot
from cenote.view.history import Broken, History
from cenote.view.moments import Moment
from cenote.view.trace import TraceReader

USAGE = """cenote view [-o NAME.html | -o NAME.png] FILE...
       cenote view --at peak|end|STEP [--top N] [--by NAME,...] [--json] FILE..."""
ABOUT = """Shows what a program used memory for: as an interactive page, in one file that needs no network, or as a PNG. A FILE is a recorded
trace (CENOTE_TRACE=x.csv.gz, cenote.save_trace), a snapshot of a pool (cenote.snapshot("x.json")), a memory snapshot of PyTorch
(torch.cuda.memory._dump_snapshot("x.pickle")), a log of RMM, or JSON of Kineto with memory events; with --at also a page (cenote run --report
x.html) or the JSON of `cenote dry-run --json`. The first bytes of a FILE tell its kind; its name does not matter."""
MORE = """examples:
  cenote run --sim 80GiB --allocator cenote --trace train.csv.gz train.py
  cenote view train.csv.gz                            writes train.html
  cenote view train.csv.gz snapshot.json -o all.html  both in one page
  cenote view snapshot.pickle -o memory.png           needs matplotlib
  cenote view --at peak --top 20 train.html           what held most at the peak, as text
  cenote view --at 3 --by module --json train.html    at the peak of the third step, by module, as JSON"""
MOST_FILES = 32
TOP = 20  # rows of --at
MARK_WITHIN = 4096  # bytes of a page, from its start, in which its mark stands


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str) -> NoReturn:
    text = " ".join(message.split())
    print(f"cenote view: {visible(text.encode('ascii', 'backslashreplace').decode())}", file=sys.stderr)
    sys.exit(2)


def read(path: str, bar: Optional[Bar] = None, is_last: bool = False) -> list[History]:
    """A history for each device in the file. `is_last`: the process ends soon after it has drawn this file."""
    title = os.path.basename(path)
    if bar is not None:
        bar.begin(f"reading {title}")
    with understood(title), inputs.opened(path) as found:
        return _read(title, found, bar, is_last)


@contextmanager
def understood(title: str) -> Iterator[None]:
    """What is wrong with a file, in words."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise Broken(f"{title} is a broken gzip file, perhaps not written to its end: {problem}") from None
    except inputs.TooMuch as problem:
        raise Broken(f"{title} has {problem}, the most that is read") from None


def _read(title: str, found: inputs.Input, bar: Optional[Bar], is_last: bool) -> list[History]:
    if found.kind == inputs.PYTORCH:
        return torch_snapshot.read(title, found.file, is_last)
    if found.kind == inputs.JSON:
        return of_json(title, pool_snapshot.parsed(title, found.file))
    if found.kind == inputs.RMM:
        return rmm_log.read(title, found.file)
    if found.kind == inputs.PAGE:
        raise Broken(f"{title} is a page already: open it in a browser, or ask it with --at peak")
    return TraceReader(title, found.path, bar.count if bar is not None else None).read()


def of_json(title: str, content: object) -> list[History]:
    return kineto.read(title, content) if kineto.is_kineto(content) else pool_snapshot.of_json(title, content)


def moments_of(path: str, at: str, bar: Optional[Bar] = None) -> list[Moment]:
    """What each device held at a moment, of every kind of file."""
    title = os.path.basename(path)
    with understood(title), inputs.opened(path) as found:
        if found.kind == inputs.PAGE:
            histories = page_file.read(title, found.file.read(page_file.MOST_BYTES))
        elif found.kind == inputs.JSON:
            content = pool_snapshot.parsed(title, found.file)
            if isinstance(content, dict) and moments.is_dry_run(content):
                return moments.of_dry_run(title, content, at)
            histories = of_json(title, content)
        else:
            histories = _read(title, found, bar, False)
    for history in histories:
        history.title = title  # a page has that of what it shows
    told = {history.device for history in histories if not history.is_moment()}  # a page of a shortage has the time line and a snapshot
    return [moments.of_history(history, at) for history in histories if not (history.is_moment() and history.device in told)]


def output_of(options: argparse.Namespace) -> str:
    """Where the picture goes. Without -o no file is replaced that another command has written."""
    if options.o is None:
        name = os.path.basename(options.files[0])
        for ending in (".gz", ".csv", ".json", ".pickle"):
            name = name[:-len(ending)] if name.endswith(ending) else name
        free = [path for path in (f"{name or 'view'}.html", f"{name or 'view'}.view.html") if is_free(path)]
        if not free:
            fail(f"{name or 'view'}.html and {name or 'view'}.view.html are there, and `cenote view` did not write them: name another file with -o")
        return free[0]
    if not options.o.endswith((".html", ".png")):
        fail(f"{options.o[-40:]!r}: the name must end in .html or .png")
    return cast(str, options.o)


def is_free(path: str) -> bool:
    """Whether there is no file, or a page of `cenote view`."""
    try:
        with open(path, "rb") as file:
            return html_page.MARK.encode() in file.read(len(html_page.MARK) + MARK_WITHIN)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def draw(histories: list[History], path: str, bar: Optional[Bar] = None, is_views: bool = False) -> bytes:
    """`is_views`: it is `cenote view` that draws, which may write over the page later."""
    if path.endswith(".html"):
        return html_page.page(histories, bar.begin if bar is not None else None, is_views).encode()
    try:
        from cenote.view import picture
    except ImportError:
        fail("a PNG needs matplotlib: pip install matplotlib; -o NAME.html needs no package")
    return picture.png(histories)


def make(names: Sequence[str], path: str, bar: Bar) -> bytes:
    """Reads the files, writes the picture and returns its bytes. Nothing here is a cycle: to look for some among millions of events takes most of the
    time that a large snapshot takes."""
    gc.disable()
    try:
        histories = [history for i, name in enumerate(names, 1) for history in read(name, bar, i == len(names))]
        data = draw(histories, path, bar, True)
        outputs.write(path, data)
        return data
    finally:
        gc.enable()
        bar.clear()


def make_parser() -> Parser:
    parser = Parser("cenote view", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace, a snapshot of a pool or one of PyTorch, plain or gzip")
    parser.add_argument("-o", metavar="NAME", help="what to write: .html (default: the first FILE's name, in this folder) or .png")
    parser.add_argument("--at", metavar="MOMENT", type=tables.moment, help="prints what held memory then, and writes no picture: peak, end, or the "
                        "number of a step, at its peak")
    parser.add_argument("--top", metavar="N", type=tables.rows, help=f"with --at: so many rows (default {TOP})")
    parser.add_argument("--by", metavar="NAME,...", type=tables.divisions, help="with --at: what divides memory: kind, name, module, line, tag, "
                        "stream or size, as the file tells")
    parser.add_argument("--json", action="store_true", help="with --at: as JSON")
    return parser


def answer(options: argparse.Namespace, bar: Bar) -> str:
    found = [moment for name in options.files for moment in moments_of(name, options.at, bar)]
    bar.clear()
    return (tables.json_of if options.json else tables.text_of)(found, options.by, options.top or TOP)


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    if options.at is None and (options.top or options.by or options.json):
        fail("--top, --by and --json belong to --at peak, --at end or --at STEP")
    if options.at is not None and options.o is not None:
        fail("--at prints, and -o writes a picture: leave one of them out")
    if len(options.files) > MOST_FILES:
        fail(f"{len(options.files)} files are too many: a picture shows {MOST_FILES} at most")
    return told(options)


def told(options: argparse.Namespace) -> int:
    bar = Bar(says_lines=True)
    path = ""
    try:
        if options.at is not None:
            print(answer(options, bar))
            return 0
        path = output_of(options)
        data = make(options.files, path, bar)
    except (Broken, places.NotBuilt) as problem:
        fail(str(problem))
    except OSError as problem:
        fail(f"{problem.filename or path}: {problem.strerror or problem}")
    except OverflowError:
        fail("the sizes in these files add up to more than 2^63 bytes")
    except MemoryError:
        fail("there is not enough host memory: keep fewer records, for example with CENOTE_CONF=record:1000000")
    print(f"{path}: {len(data) / 1e6:.1f} MB; open it in a browser" if path.endswith(".html") else path)
    return 0
