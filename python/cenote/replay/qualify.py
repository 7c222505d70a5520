"""`cenote qualify`: runs the program cenote-qualify (tools/qualify/) on this machine's GPU or, with --sim, on a simulated one. Then it compares the
allocators of PyTorch there (replay/card_trial.py)."""
from __future__ import annotations

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

ABOUT = "All options but --sim, --quirk and --without-torch go to the program cenote-qualify; --help shows them."
MORE = """and of the command:
  --sim SIZE      on a simulated GPU with this much memory
  --quirk NAME    which behaves as some real machines do
  --without-torch does not compare PyTorch's allocators, if torch is installed"""
JUDGED = (0, 3, 4)  # exit statuses of the program with a verdict


def main(arguments: Sequence[str]) -> int:
    parser = Parser("cenote qualify", description=ABOUT, allow_abbrev=False, add_help=False)
    parser.add_argument("--sim", metavar="SIZE", type=capacity)
    parser.add_argument("--quirk", metavar="NAME,...")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--without-torch", action="store_true")
    options, others = parser.parse_known_args(arguments)
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
        status = subprocess.run([program, *others, *(["--json", options.json] if options.json else [])], env=variables).returncode
        if status == 0 and "--help" in others:
            print(MORE)
        elif status in JUDGED and not options.without_torch and "--first-use" not in others:
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
