"""`cenote completion`: prints what completes the command in a shell. cmake/manual/shells.py makes it, when the package is built; in a tree, for
each call."""
import argparse
import os
import runpy
import sys
from typing import Sequence

from cenote import places
from cenote.launch.command_line import Parser

SHELLS = ("bash", "zsh", "fish")
USAGE = "cenote completion bash|zsh|fish"
ABOUT = "Prints what completes `cenote` in a shell, its subcommands, options and their values."
MORE = """examples:
  eval "$(cenote completion bash)"     in ~/.bashrc
  eval "$(cenote completion zsh)"      in ~/.zshrc, after compinit
  cenote completion fish | source      in ~/.config/fish/config.fish

Nothing of that is needed if cenote was installed into /usr or /usr/local: there the shells find these files by themselves."""


def make_parser() -> Parser:
    parser = Parser("cenote completion", usage=USAGE, description=ABOUT, epilog=MORE, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shell", choices=SHELLS, help="the shell: " + ", ".join(SHELLS))
    return parser


def main(arguments: Sequence[str]) -> int:
    shell = make_parser().parse_args(arguments).shell
    try:
        print(text(shell), end="")
    except places.NotBuilt as missing:
        print(f"cenote completion: {missing}", file=sys.stderr)
        return 1
    return 0


def text(shell: str) -> str:
    made = places.find(f"shells/cenote.{shell}", os.path.join(places.TREE, "cmake/manual/shells.py"))
    if places.is_installed():
        with open(made, encoding="utf-8") as file:
            return file.read()
    try:
        return str(runpy.run_path(made)["text"](shell))
    except ModuleNotFoundError as missing:
        raise places.NotBuilt(f"in a tree it takes {missing.name}, which `pip install {missing.name}` installs") from None
