"""`cenote view`: reads traces and snapshots, and writes a picture of them: an HTML page or a PNG."""
from __future__ import annotations

import argparse
import gc
import gzip
import os
import sys
import zlib
from typing import NoReturn, Optional, Sequence, cast

from cenote import places
from cenote.base import inputs, outputs
from cenote.base.mistake import visible
from cenote.base.progress import Bar
from cenote.view import html_page, pool_snapshot, torch_snapshot
from cenote.view.history import Broken, History
from cenote.view.trace import TraceReader

USAGE = "cenote view [-o NAME.html | -o NAME.png] FILE..."
ABOUT = """Shows what a program used memory for: as an interactive page, in one file that needs no network, or as a PNG. A FILE is a recorded
trace (CENOTE_TRACE=x.csv.gz, cenote.save_trace), a snapshot of a pool (cenote.snapshot("x.json")) or a memory snapshot of PyTorch
(torch.cuda.memory._dump_snapshot("x.pickle")). The first bytes of a FILE tell its kind; its name does not matter."""
MORE = """examples:
  cenote run --sim 80GiB --allocator cenote --trace train.csv.gz train.py
  cenote view train.csv.gz                            writes train.html
  cenote view train.csv.gz snapshot.json -o all.html  both in one page
  cenote view snapshot.pickle -o memory.png           needs matplotlib"""
MOST_FILES = 32


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
    try:
        with inputs.opened(path) as found:
            return _read(title, found, bar, is_last)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise Broken(f"{title} is a broken gzip file, perhaps not written to its end: {problem}") from None
    except inputs.TooMuch as problem:
        raise Broken(f"{title} has {problem}, the most that is read") from None


def _read(title: str, found: inputs.Input, bar: Optional[Bar], is_last: bool) -> list[History]:
    if found.kind == inputs.PYTORCH:
        return torch_snapshot.read(title, found.file, is_last)
    if found.kind == inputs.POOL:
        return pool_snapshot.read(title, found.file)
    return TraceReader(title, found.path, bar.count if bar is not None else None).read()


def output_of(options: argparse.Namespace) -> str:
    if options.o is None:
        name = os.path.basename(options.files[0])
        for ending in (".gz", ".csv", ".json", ".pickle"):
            name = name[:-len(ending)] if name.endswith(ending) else name
        return f"{name or 'view'}.html"
    if not options.o.endswith((".html", ".png")):
        fail(f"{options.o[-40:]!r}: the name must end in .html or .png")
    return cast(str, options.o)


def draw(histories: list[History], path: str, bar: Optional[Bar] = None) -> bytes:
    if path.endswith(".html"):
        return html_page.page(histories, bar.begin if bar is not None else None).encode()
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
        data = draw(histories, path, bar)
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
    return parser


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    path = output_of(options)
    if len(options.files) > MOST_FILES:
        fail(f"{len(options.files)} files are too many: a picture shows {MOST_FILES} at most")
    bar = Bar(says_lines=True)
    try:
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
