"""`cenote qualify`: runs the program cenote-qualify (tools/qualify/) on this machine's GPU or, with --sim, on a simulated one."""
import os
from typing import NoReturn, Sequence

from cenote import places
from cenote.base.mistake import Mistake
from cenote.launch import environment, run
from cenote.launch.command_line import Parser, capacity

ABOUT = "All options but --sim and --quirk go to the program cenote-qualify; --help shows them."


def main(arguments: Sequence[str]) -> NoReturn:
    parser = Parser("cenote qualify", description=ABOUT, allow_abbrev=False, add_help=False)
    parser.add_argument("--sim", metavar="SIZE", type=capacity)
    parser.add_argument("--quirk", metavar="NAME,...")
    options, others = parser.parse_known_args(arguments)
    if options.sim is None and options.quirk is not None:
        parser.error("--quirk is for the simulated GPU; add --sim SIZE")
    wish = environment.Wish(capacity=options.sim, quirks=options.quirk)
    try:
        if options.quirk is not None:
            from cenote.simulated import quirks
            quirks.check(options.quirk)
        preload = run.preload_library() if environment.is_simulated(wish, os.environ) else None
        variables = environment.prepare(wish, os.environ, preload)
        program = places.qualify_program()
    except (Mistake, places.NotBuilt) as mistake:
        parser.error(str(mistake))
    if preload:
        variables[environment.SIM] += "" if "quiet:" in variables[environment.SIM] else ",quiet:1"  # some experiments break rules on purpose
    run.become([program, *others], variables)
