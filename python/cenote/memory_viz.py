"""Converts a pool's snapshot for PyTorch's viewer: see cenote/view/memory_viz.py.

    python -m cenote.memory_viz SNAPSHOT.json PICTURE.pickle [TRACE.csv]
"""
import sys

from cenote.view.history import Broken
from cenote.view.memory_viz import main, read_snapshot, read_trace, to_memory_viz, write_memory_viz

__all__ = ["Broken", "main", "read_snapshot", "read_trace", "to_memory_viz", "write_memory_viz"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
