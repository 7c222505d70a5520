"""`cenote completion`: prints what completes the command in a shell. The files are in shells/; tools/completion writes them."""
import argparse
import pathlib
from typing import Sequence

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
    print((pathlib.Path(__file__).parent / "shells" / f"cenote.{shell}").read_text(), end="")
    return 0
