"""What a run would hold under other allocators, and on a card: its recording, played by cenote-replay. For dry_run.py; verdict.py tells of it.

The program ran once, under one allocator. Its recording (inside/recording.py) is played through the models of PyTorch's own allocator and of
expandable segments, and through cenote itself. That is right as long as the program does not ask its allocator how much there is. Figures are of the
device that held most, of one process.
"""
import json
import subprocess
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from cenote import places
from cenote.fit.outcome import Outcome
from cenote.launch import command_line

PLAYED = ("native", "expandable", "cenote")
SEEDS = 16  # disturbed replays: 8 of each order of addresses
PATIENCE = 600  # s for all replays of one recording: the largest of traces/torch takes a hundredth
CONTEXT = 500 << 20  # of cenote-replay's simulated GPU: sim/machine, context_bytes
WIDE = 50  # a range is told if it is wider than 1/50 of what is held


class Replay(NamedTuple):
    """Bytes beside the context."""

    held: int  # the allocator's peak where there is room
    least: int  # with which the program gets through; 0: not known
    low: int = 0  # of disturbed replays, which have the card's memory; 0: none was made. As far from `held` as they are from what the run held
    high: int = 0

    @property
    def is_wide(self) -> bool:
        return self.high - self.low > self.held // WIDE


Replays = dict[str, Replay]


def ties(torch: str) -> str:
    """Which of equal free blocks that version of PyTorch takes."""
    with suppress(ValueError):
        major, minor = (int(part) for part in torch.split(".")[:2])
        if (major, minor) < (2, 12):
            return "address"
        if (major, minor) < (2, 13):
            return "piece"
    return "segment"


def play(path: str, capacity: int, *options: str) -> Optional[list[dict[str, Any]]]:
    """A row for each allocator; None: it cannot be played."""
    try:
        done = subprocess.run([places.replay_program(), "--json", "--trims", "--capacity", str(capacity), *options, path], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return [json.loads(line) for line in done.stdout.splitlines()] if not done.returncode else None


def of(outcome: Outcome) -> Replays:
    """Empty if the run left no recording, or if it cannot be played."""
    worst = outcome.worst()
    if worst is None or not outcome.recording:
        return {}
    way = ("--ties", ties(str(worst[0]["torch"])))
    others = play(outcome.recording, command_line.MOST_CAPACITY, *way, "--least", "--under", ",".join(PLAYED))
    found = {row["under"]: Replay(row["reserved_peak_bytes"], row["least_bytes"]) for row in others or []}
    if outcome.allocator in found:
        room = outcome.capacity - int(worst[1]["others"]) + CONTEXT
        own = play(outcome.recording, room, *way, "--seeds", str(SEEDS), "--under", outcome.allocator)
        for row in own or []:
            # The run itself is the truth for its allocator; the models tell how far it may be off.
            apart = found[outcome.allocator].held - row["reserved_peak_bytes"]
            low, high = row["range_bytes"]
            found[outcome.allocator] = found[outcome.allocator]._replace(low=low + apart, high=high + apart)
    return found
