"""Shows which of several programs run, and for how long. Knows nothing of what they are."""
import os
import sys
import threading
import time


class Progress:
    """Shows what runs, and for how long: on a terminal one line that changes, elsewhere a line whenever a program has ended."""

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
