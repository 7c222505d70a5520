"""`cenote dry-run --world N --rank R,... --node M`: which job is meant, and which of its ranks run. Reads torchrun's arguments; runs nothing."""
import argparse
import os
import sys
from typing import Any, NamedTuple, Optional, Sequence

from cenote.base import quantity
from cenote.base.mistake import Mistake
from cenote.launch import command_line, python, run
from cenote.launch.ranks import REAL_MAX, Job

WORLD_MAX = 1 << 20  # RANKS_MAX of sim/libraries/nccl/nccl.h
NODE = 8  # ranks of a node, unless said otherwise

# torchrun's options with a value; those without one are FLAGS. Of both, - and _ are alike.
VALUED = ("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval", "start-method",
          "event-log-handler", "role", "log-dir", "r", "redirects", "t", "tee", "log-line-prefix-template", "local-ranks-filter",
          "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr", "logs-specs",
          "numa-binding", "signals-to-handle", "shutdown-timeout")
FLAGS = ("standalone", "m", "module", "no-python", "run-path", "virtual-local-rank")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")


OPTIONS = ("--world", "--rank", "--node")


class Torchrun(NamedTuple):
    nodes: int
    node: Optional[int]  # None: as many as there are devices
    command: list[str]  # of each rank


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world", metavar="N", type=world, help="ranks of the job; only those of --rank run, the others are phantoms: docs/ranks.md")
    parser.add_argument("--rank", metavar="R,...", type=ranks, help="the ranks that run, each a process of its own (default 0)")
    parser.add_argument("--node", metavar="N", type=node, help=f"ranks, and simulated GPUs, of each node (default {NODE}, or torchrun's)")


def world(text: str) -> int:
    number = command_line.count(text, WORLD_MAX)
    if not number:
        raise argparse.ArgumentTypeError("0 ranks: a job has 1 or more")
    return number


def node(text: str) -> int:
    number = command_line.count(text, command_line.MOST_DEVICES)
    if not number:
        raise argparse.ArgumentTypeError("0 ranks: a node has 1 or more")
    return number


def ranks(text: str) -> tuple[int, ...]:
    found = tuple(sorted({command_line.count(part, WORLD_MAX) for part in text.split(",")}))
    if len(found) > REAL_MAX:
        raise argparse.ArgumentTypeError(f"{len(found)} ranks: at most {REAL_MAX} can run; the others need no process")
    return found


# --- torchrun

def arguments_of_torchrun(program: Sequence[str]) -> Optional[list[str]]:
    """None: the program is not torchrun."""
    if program[:1] != ["--"] or len(program) < 2:
        return None
    name = os.path.basename(program[1])
    if name == "torchrun":
        return list(program[2:])
    is_module = name.startswith("python") and program[2:3] == ["-m"] and program[3:4] and program[3] in LAUNCHERS
    return list(program[4:]) if is_module or (program[1] == sys.executable and program[3:4] and program[3] in LAUNCHERS) else None


def number(name: str, text: str) -> int:
    least, _, most = text.partition(":")
    try:
        value = quantity.read_count(most or least)
    except ValueError:
        raise Mistake(f"torchrun's --{name} {text[:40]!r} is no number that a dry run can know: write it as one") from None
    if most and least != most:
        raise Mistake(f"torchrun's --{name} {text[:40]!r} is a range: a dry run is of one size, write that")
    if not value:
        raise Mistake(f"torchrun's --{name} is 0")
    return value


def read_torchrun(arguments: Sequence[str]) -> Torchrun:
    rest, found = list(arguments), {"nnodes": "1", "nproc-per-node": "1"}
    flags = set()
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option, equals, value = rest.pop(0).partition("=")
        name = option.lstrip("-").replace("_", "-")
        if name in FLAGS and not equals:
            flags.add(name)
        elif name in VALUED and (equals or rest):
            found[name] = value if equals else rest.pop(0)
        else:
            raise Mistake(f"{option[:40]!r} is no option of torchrun that this dry run knows: leave it out")
    rest = rest[1:] if rest[:1] == ["--"] else rest
    if not rest:
        raise Mistake("torchrun has no script")
    if "no-python" not in flags:
        rest = python.of_user(["-m", *rest] if flags & {"m", "module"} else rest)
    per_node = None if found["nproc-per-node"] in ("gpu", "auto") else number("nproc-per-node", found["nproc-per-node"])
    return Torchrun(number("nnodes", found["nnodes"]), per_node, rest)


# --- the job

def agree(name: str, asked: Optional[int], launched: Optional[int]) -> Optional[int]:
    if asked is not None and launched is not None and asked != launched:
        raise Mistake(f"{name} {asked} is asked for, and torchrun's own arguments come to {launched}; leave one of them out")
    return asked if asked is not None else launched


def check(size: int, per_node: int, real: Sequence[int]) -> None:
    if per_node > command_line.MOST_DEVICES:
        raise Mistake(f"{per_node} ranks of a node: a simulated machine has at most {command_line.MOST_DEVICES} GPUs")
    if size % per_node:
        raise Mistake(f"{size} ranks are no whole number of nodes of {per_node}: say --node, or another --world")
    if size > WORLD_MAX:
        raise Mistake(f"{size} ranks are more than {WORLD_MAX}")
    if real[-1] >= size:
        raise Mistake(f"--rank {real[-1]}: a job of {size} ranks has 0 to {size - 1}")


def of(size: int, program: Sequence[str]) -> tuple[Job, list[str]]:
    """Rank 0 of so many, of a program that may know nothing of ranks; and its command."""
    return Job(size, next(node for node in range(NODE, 0, -1) if size % node == 0), (0,)), run.command_line(program)


def read(options: Any, program: Sequence[str]) -> Optional[tuple[Job, list[str]]]:
    """The job, and the command of each of its ranks. None: a program as any other, which may start ranks by itself. Sets options.devices."""
    launched = arguments_of_torchrun(program)
    torchrun = read_torchrun(launched) if launched is not None and ("--help" not in launched and "-h" not in launched) else None
    if options.world is None and options.rank is None and options.node is None and (torchrun is None or torchrun.nodes == 1):
        return None
    if torchrun is None and options.world is None:
        raise Mistake("--rank and --node need --world N, the number of ranks, or a torchrun that says it")
    if options.devices is not None and options.node is not None and options.devices != options.node:
        raise Mistake(f"--devices {options.devices} and --node {options.node} contradict each other: a node has a GPU for each of its ranks")
    per_node = agree("--node", options.node if options.node is not None else options.devices, torchrun.node if torchrun else None)
    if torchrun is not None:
        per_node = per_node or NODE
        size = agree("--world", options.world, torchrun.nodes * per_node) or 0
    else:
        size = options.world
        per_node = per_node or min(NODE, size)
    real = options.rank or (0,)
    check(size, per_node, real)
    options.devices = per_node
    return Job(size, per_node, real), torchrun.command if torchrun is not None else run.command_line(program)
