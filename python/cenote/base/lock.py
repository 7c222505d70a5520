"""Does this Python run without its lock (the build for free threading)?

What names blocks, tags them and looks for what holds them reads the frames and objects of other threads, and keeps its own books, under that lock.
Without it these would be torn: labels, growth and reports say so in one line, and the program runs without them.
"""
import sys

WORDS = "needs Python's lock, which this Python runs without: start it with PYTHON_GIL=1"


def is_off() -> bool:
    return not getattr(sys, "_is_gil_enabled", lambda: True)()
