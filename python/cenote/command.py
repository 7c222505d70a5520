"""The command `cenote`: reads its arguments and calls the module of the subcommand."""
import argparse
import importlib
import os
import signal
import sys
from typing import Iterator, Optional, Sequence

from cenote.base.mistake import Mistake
from cenote.launch import environment, run
from cenote.launch.command_line import MOST_DEVICES, PRICES_HELP, Parser, allocator, capacity, devices, lag, split
from cenote.places import NotBuilt, version

USAGE = """cenote run [OPTION...] SCRIPT.py [ARGUMENT...]
       cenote run [OPTION...] -m MODULE [ARGUMENT...]
       cenote run [OPTION...] -c CODE [ARGUMENT...]
       cenote run [OPTION...] -- PROGRAM [ARGUMENT...]"""
ABOUT = """Runs a program, and all processes that it starts, on a simulated GPU (memory is real, kernels do nothing) or, without --sim, on the
machine's own GPU, under an allocator of your choice. When the program ends, a line says how much memory it took."""
MORE = """examples:
  cenote run --sim 80GiB train.py --epochs 1
  cenote run --allocator cenote --report memory.html train.py
  cenote run --sim 80GiB --devices 4 -- torchrun --nproc-per-node 4 train.py

If CENOTE_SIM is set in the environment, --sim is not needed. The options are merged into CENOTE, CENOTE_SIM, LD_PRELOAD, LD_LIBRARY_PATH,
PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF of the environment. The exit status is the program's own; 2, 126 or 127 with a line that starts with
"cenote run:" means that the program did not start."""


def make_parser() -> Parser:
    parser = Parser("cenote run", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim", metavar="SIZE", type=capacity, help="a simulated GPU with this much memory: 80GiB, 24576MiB, 80GB (10^9), 80g (GiB)")
    parser.add_argument("--devices", metavar="N", type=devices, help=f"how many simulated GPUs, 0 to {MOST_DEVICES} (default 1)")
    parser.add_argument("--lag", metavar="NS", type=lag, help="the simulated GPU runs this many nanoseconds behind the program (default 0)")
    parser.add_argument("--quirk", metavar="NAME,...", help="the simulated GPU behaves as some real machines do; a wrong name lists them all")
    parser.add_argument("--prices", metavar="LIST", help=PRICES_HELP)
    parser.add_argument("--allocator", metavar="NAME", type=allocator, help="PyTorch's allocator: " + ", ".join(environment.ALLOCATORS))
    parser.add_argument("--preload", action="store_true", help="cenote serves all device memory that the program and its libraries take, by "
                        "LD_PRELOAD: docs/preload.md")
    parser.add_argument("--trace", metavar="FILE", help="record what cenote allocates, also as PyTorch's allocator, and write it when the program "
                        "ends, for `cenote view` and `cenote replay`; gzip if FILE ends in .gz; %%p in FILE becomes the process id")
    parser.add_argument("--report", metavar="FILE.html", help="write the page of `cenote view` when the program ends, with each block's kind, module "
                        "and line; under cenote, unless --allocator says native or expandable")
    parser.add_argument("--json", metavar="FILE", help="write the program's memory figures, in all and for each step, when it ends")
    parser.add_argument("--quiet", action="store_true", help="print no line at the end")
    return parser


def run_main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    ours, program = split(arguments, parser)
    options = parser.parse_args(ours)
    by_default = options.report or options.trace and not options.preload  # where PyTorch's own allocator takes its segments from cenote
    allocator_name = options.allocator or ("cenote" if by_default else None)
    wish = environment.Wish(options.sim, options.devices, options.lag, allocator_name, options.trace, options.json, options.report,
                            options.quirk, options.prices, line=not options.quiet)
    try:
        if options.preload:
            wish = wish._replace(preload=run.serving_library())
        return run.run(wish, program)
    except (Mistake, NotBuilt) as mistake:
        parser.error(str(mistake))


# Subcommand: the module whose main(arguments) runs it and whose make_parser() reads them, and a line for the help text.
COMMANDS = {
    "doctor": ("doctor", "what works on this machine, what does not, and what to do"),
    "qualify": ("replay.qualify", "does this machine's GPU do what cenote relies on? experiments on it, and a verdict"),
    "run": ("command", "a program on a simulated GPU, or with cenote as PyTorch's allocator"),
    "dry-run": ("fit.dry_run", "will it fit? a script on a simulated GPU for a few steps, and a verdict"),
    "compare": ("replay.compare", "a program under PyTorch's own allocator, its expandable segments and cenote: a table and a picture"),
    "replay": ("replay.comparison", "recorded allocations under cenote, PyTorch's own allocator and its expandable segments"),
    "top": ("live.top", "what the processes of this machine hold of its GPUs now, live; metrics for Prometheus"),
    "view": ("view.viewer", "a recorded trace or a snapshot as a page to click in, or as PNG"),
    "diff": ("view.diff", "two runs: what held more at the peak, by kind, name and line"),
    "export": ("view.export", "memory over time as tracks for Perfetto, alone or beside those of torch.profiler"),
    "completion": ("completion", "what completes this command in a shell: bash, zsh or fish"),
}


ABOUT_ALL = "Device memory for CUDA programs."


def make_whole_parser() -> Parser:
    listed = "".join(f"\n  cenote {name:<10} {about}" for name, (_, about) in COMMANDS.items())
    parser = Parser("cenote", usage="cenote COMMAND --help | cenote --version", description=f"{ABOUT_ALL}\n{listed}",
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"cenote {version()}")
    return parser


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The parser of the command, named "", and of each subcommand, with a line about it: for manual pages and shell completion."""
    yield "", "device memory for CUDA programs", make_whole_parser()
    for name, (module, about) in COMMANDS.items():
        yield name, about, importlib.import_module(f"cenote.{module}").make_parser()


def run_command(module: str, arguments: Sequence[str]) -> int:
    try:
        status: int = importlib.import_module(f"cenote.{module}").main(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe. Without this, Python prints the error again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def main(arguments: Optional[Sequence[str]] = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] and given[0] in COMMANDS:
        name = COMMANDS[given[0]][0]
        if name == "command":
            return run_main(given[1:])
        return run_command(name, given[1:])
    parser = make_whole_parser()
    parser.parse_known_args(given)
    if given:
        parser.error(f"{given[0][:40]!r} is no command; there are " + ", ".join(f"`cenote {name}`" for name in COMMANDS))
    parser.print_help()
    return 2
