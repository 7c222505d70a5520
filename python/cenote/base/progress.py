"""How far work is, on standard error: on a terminal one line that is rewritten.

`Bar`: of one piece of work; elsewhere nothing, or a new line every ten seconds. `Programs`: which of several run; elsewhere a line whenever one has
ended.
"""
import os
import sys
import threading
import time

WIDTH = 24  # of the bar
PATIENCE = 10.0  # seconds between two lines where standard error is no terminal


class Bar:
    def __init__(self, says_lines: bool = False) -> None:
        """`says_lines`: print lines where standard error is no terminal."""
        self.says_lines = says_lines
        self.is_shown = sys.stderr.isatty()
        self.what = ""
        self.last = time.monotonic()

    def write(self, text: str) -> None:
        now = time.monotonic()
        if self.is_shown and now - self.last > 0.05:
            self.last = now
            width = max(20, os.get_terminal_size(2).columns - 1)
            sys.stderr.write("\r\033[K" + f"{self.what}{text}"[:width])
            sys.stderr.flush()
        elif self.says_lines and not self.is_shown and now - self.last > PATIENCE:
            self.last = now
            sys.stderr.write(f"cenote: {self.what}{text}\n")
            sys.stderr.flush()

    def begin(self, what: str) -> None:
        self.what = what
        if self.is_shown:
            self.last = 0.0
        self.write(" ...")

    def show(self, part: int, whole: int) -> None:
        filled = WIDTH * part // max(whole, 1)
        self.write(f" [{'#' * filled}{'.' * (WIDTH - filled)}] {100 * part // max(whole, 1)} %")

    def count(self, records: int) -> None:
        self.write(f": {records:,} records")

    def clear(self) -> None:
        if self.is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class Programs:

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.running: dict[str, float] = {}
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.tick, daemon=True)
        if sys.stderr.isatty():
            self.thread.start()

    def tick(self) -> None:
        while not self.over.wait(0.5):
            with self.lock:
                now = ", ".join(f"{name} {time.monotonic() - since:.0f} s" for name, since in self.running.items())
                print(f"\r\033[K{self.done}/{self.total} done; {now}"[: 4 + terminal_width()], end="", file=sys.stderr, flush=True)

    def start(self, name: str) -> None:
        with self.lock:
            self.running[name] = time.monotonic()

    def end(self, name: str, outcome: str) -> None:
        with self.lock:
            self.done += 1
            seconds = time.monotonic() - self.running.pop(name)
            clear = "\r\033[K" if sys.stderr.isatty() else ""
            print(f"{clear}{self.done:2}/{self.total} {name}: {outcome}, {seconds:.0f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        self.over.set()


def terminal_width() -> int:
    return os.get_terminal_size(sys.stderr.fileno()).columns - 1
