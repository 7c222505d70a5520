"""shells: what completes the command `cenote` in a shell, made by shtab out of the parsers that `--help` is printed from.

    python3 cmake/manual/shells.py FOLDER        writes cenote.bash, cenote.zsh and cenote.fish

The build of the package runs it; in a tree `cenote completion` does.
"""
import argparse
import copy
import pathlib
import sys

import shtab

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from cenote import command, completion  # noqa: E402  (needs the path above)
from cenote.fit import cards  # noqa: E402
from cenote.fit.dry_run import UNKNOWN_VALUES  # noqa: E402
from cenote.launch import environment  # noqa: E402

FILES = "FILE", "FILE.html", "FILE.png", "NAME"  # placeholders of values that are files, but for CHOICES
CHOICES = {"--allocator": environment.ALLOCATORS, "--under": ("native", "expandable", "cenote"), "--prices": environment.PRICES,
           "--unknown": UNKNOWN_VALUES, "--gpu": cards.table()}
PROGRAMS = ("run", "dry-run")  # a script and its arguments come after the options


def with_values(action: argparse.Action) -> argparse.Action:
    made = copy.copy(action)
    name = next((name for name in action.option_strings if name in CHOICES), None)
    made.type = made.default = None
    if name and action.metavar != "FILE":
        made.choices = list(CHOICES[name])
    elif action.metavar in FILES or not action.option_strings and not action.choices:
        made.complete = shtab.FILE
    if action.help == argparse.SUPPRESS:
        made.help = "FILE"
    return made


def whole() -> argparse.ArgumentParser:
    """One parser with all subcommands: shtab knows no other."""
    (_, about, top), *others = command.parsers()
    parser = argparse.ArgumentParser("cenote", description=about, add_help=False)
    for action in top._actions:
        parser._add_action(with_values(action))
    commands = parser.add_subparsers(dest="command")
    for name, about, given in others:
        made = commands.add_parser(name, help=about.replace("%", "%%"), add_help=False)
        for action in given._actions:
            made._add_action(with_values(action))
        if name in PROGRAMS:
            made.add_argument("program", nargs="*", help="a script or program with its arguments").complete = shtab.FILE
    return parser


def text(shell: str) -> str:
    return shtab.complete(whole(), shell=shell).rstrip() + "\n"


if __name__ == "__main__":
    for shell in completion.SHELLS:
        pathlib.Path(sys.argv[1], f"cenote.{shell}").write_text(text(shell))
