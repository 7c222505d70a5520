"""The part of `cenote qualify` that compares PyTorch's own allocator, its expandable segments and cenote on this machine's GPU.

Each allocator gets a process of its own (on_card.py), one after the other. What they take is read from PyTorch, and how long from the host's clock:
the time of the first round beyond that of later ones is what taking the memory from the driver cost.
"""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Callable, Mapping

from cenote import places
from cenote.launch import environment, python
from cenote.launch.environment import Wish

ALLOCATORS = ("native", "expandable", "cenote")
TRACES = ("lstm.csv.gz", "resnet50_amp.csv.gz")
SECONDS = 300  # limit for one allocator

Trial = dict[str, Any]


def run(variables: Mapping[str, str], preload: str | None, tell: Callable[[str], None]) -> list[Trial]:
    """The trials of all allocators. An allocator that cannot be tried is told, and the others go on."""
    if importlib.util.find_spec("torch") is None:
        tell(f"PyTorch's allocators are not compared: {sys.executable} has no torch")
        return []
    found: list[Trial] = []
    for allocator in ALLOCATORS:
        rows, why = under(allocator, variables, preload)
        found += rows
        if why:
            tell(f"{allocator}: {why}")
    return found


def under(allocator: str, variables: Mapping[str, str], preload: str | None) -> tuple[list[Trial], str]:
    """The trials that ended, and what kept the others from ending."""
    wish = Wish(allocator=None if allocator == "cenote" else allocator)
    old = {name: value for name, value in variables.items() if name not in ("CENOTE", *environment.ALLOCATOR_VARIABLES)}
    old[environment.ON_OOM] = "off"  # that memory runs out is an answer here
    command = python.of_ours("cenote.replay.on_card", allocator, *(places.trace(name) for name in TRACES))
    try:
        done = subprocess.run(command, env=environment.prepare(wish, old, preload), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"it did not end within {SECONDS} s"
    lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
    return [{**json.loads(line), "allocator": allocator} for line in done.stdout.splitlines()], lines[-1][:300] if done.returncode else ""


# --- the screen

def gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def ms(ns: int) -> str:
    return f"{ns / 1e6:,.1f} ms"


def line(trial: Trial) -> str:
    head = f"  {trial['trial']:<16}{trial['allocator']:<12}{gib(trial['requested_peak_bytes']):>10}"
    if trial["outcome"] != "done":
        return f"{head}  {trial['outcome']}"
    waste = 100 * (trial["reserved_peak_bytes"] / trial["requested_peak_bytes"] - 1)
    return f"{head}{gib(trial['reserved_peak_bytes']):>11}{waste:>+8.1f} %{ms(trial['first_ns']):>12}{ms(trial['later_ns']):>12}"


def table(trials: list[Trial]) -> str:
    order = list(dict.fromkeys(trial["trial"] for trial in trials))
    rows = sorted(trials, key=lambda trial: order.index(trial["trial"]))
    head = f"  {'':<16}{'':<12}{'requested':>10}{'reserved':>11}{'waste':>10}{'first time':>12}{'later':>12}"
    return "\n".join([head, *map(line, rows)])
