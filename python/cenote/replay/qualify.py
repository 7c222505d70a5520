"""`cenote qualify`: runs the program cenote-qualify (tools/qualify/) on this machine's GPU or, with --sim, on a simulated one. Then it compares the
allocators of PyTorch there (replay/card_trial.py)."""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Mapping, Sequence

from cenote import places
from cenote.base import outputs
from cenote.base.mistake import Mistake
from cenote.launch import command_line, environment, run
from cenote.launch.command_line import Parser, capacity
from cenote.replay import card_trial

USAGE = "cenote qualify [OPTION...]"
ABOUT = "Tries what cenote relies on, on this machine's GPU, and says: fit, fit without something, or use provider:plain."
MORE = "Exit status: 0 fit, 3 fit without something, 4 use provider:plain, 1 nothing could be tried or a file not written, 2 a wrong argument."
# Options of the program cenote-qualify, with the texts of its own --help (tools/qualify/main.c).
VALUED = {
    "--device": ("N", "which GPU (default 0)"),
    "--seconds": ("N", "how long random programs run (default 20); 0: one program"),
    "--seed": ("N", "seed of the first random program (default 1)"),
    "--json": ("FILE", "writes all results to FILE"),
    "--prices": ("FILE", "writes what the driver's calls cost to FILE, for the simulated GPU (cenote run --sim 80GiB --prices FILE)"),
}
FIRST_USE = ("--first-use", "runs only the experiments without which cenote cannot start on a card")
SECONDS_SIMULATED = 5  # of random programs on the simulated GPU, whose answers are known: with all else that is 20 s at most on two cores
JUDGED = (0, 3, 4)  # exit statuses of the program with a verdict


def make_parser() -> Parser:
    parser = Parser("cenote qualify", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False)
    for name, (metavar, text) in VALUED.items():
        parser.add_argument(name, metavar=metavar, help=text)
    parser.add_argument(FIRST_USE[0], action="store_true", help=FIRST_USE[1])
    parser.add_argument("--sim", metavar="SIZE", type=capacity, help="on a simulated GPU with this much memory")
    parser.add_argument("--quirk", metavar="NAME,...", help="which behaves as some real machines do")
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, help="compares PyTorch's allocators, too (default on a GPU, if torch is "
                        "installed; on a simulated GPU `cenote compare` says more)")
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    is_simulated = environment.is_simulated(environment.Wish(capacity=options.sim), os.environ)
    if is_simulated and options.seconds is None:
        options.seconds = str(SECONDS_SIMULATED)
    given = ((name, getattr(options, name.removeprefix("--"))) for name in VALUED)
    others = [word for name, value in given if value is not None for word in (name, value)] + [FIRST_USE[0]] * options.first_use
    if options.sim is None and options.quirk is not None:
        parser.error("--quirk is for the simulated GPU; add --sim SIZE")
    wish = environment.Wish(capacity=options.sim, quirks=options.quirk)
    try:
        if options.quirk is not None:
            from cenote.simulated import quirks
            quirks.check(options.quirk)
        command_line.check_output(options.json)
        preload = run.preload_library() if environment.is_simulated(wish, os.environ) else None
        variables = environment.prepare(wish, os.environ, preload)
        program = places.qualify_program()
    except (Mistake, places.NotBuilt) as mistake:
        parser.error(str(mistake))
    if preload:
        variables[environment.SIM] += "" if "quiet:" in variables[environment.SIM] else ",quiet:1"  # some experiments break rules on purpose
    try:
        status = subprocess.run([program, *others], env=variables).returncode
        if status in JUDGED and (not is_simulated if options.torch is None else options.torch) and not options.first_use:
            compare(variables, preload, options.json)
    except KeyboardInterrupt:
        return 130
    return status if status >= 0 else 128 - status


def compare(variables: Mapping[str, str], preload: str | None, path: str | None) -> None:
    """Prints what each allocator took, and adds it to the JSON file that the program wrote."""
    trials = card_trial.run(variables, preload, lambda text: print(f"cenote qualify: {text}", file=sys.stderr))
    if trials:
        print("\nPyTorch's allocators on this GPU" + (" (simulated: the times are this machine's)" if preload else ""))
        print(card_trial.table(trials))
    if path is not None and os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        outputs.write(path, json.dumps({**found, "allocators": trials}).encode())
