"""A progress bar: on a terminal one line of standard error that is rewritten; elsewhere nothing, or a new line every ten seconds."""
import os
import sys
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
