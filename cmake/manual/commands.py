"""commands: manual pages of section 1 out of the parsers of the command, which `--help` is printed from.

    python3 cmake/manual/commands.py VERSION FOLDER        writes cenote.1, cenote-run.1, ...
"""
import argparse
import pathlib
import re
import sys

import troff

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from cenote import command  # noqa: E402  (needs the path above)

EXAMPLES = "examples:\n"


def synopsis(parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage:")
    return troff.section("synopsis") + "\n" + troff.code("\n".join(line.strip() for line in usage.splitlines()))


def option(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" \\fI{troff.escape(str(action.metavar or action.dest.upper()))}\\fR"
    names = [troff.bold(name) + value for name in action.option_strings] or [value.strip()]
    return troff.item(", ".join(names), (action.help or "") % {**vars(action), "prog": "cenote"})


def options(parser: argparse.ArgumentParser) -> list[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # argparse has no public name for them
    return [troff.section("options"), *map(option, shown)] if shown else []


def epilog(text: str) -> list[str]:
    """Examples stay as they are, because their lines are commands; everything else is prose."""
    parts = []
    for block in re.split(r"\n\n", text or ""):
        if block.startswith(EXAMPLES):
            parts += [troff.section("examples"), troff.code("\n".join(line.strip() for line in block.removeprefix(EXAMPLES).splitlines()))]
        elif block:
            parts += [troff.section("notes") if troff.section("notes") not in parts else ".PP", troff.prose(block)]
    return parts


def see_also(name: str, names: list[str]) -> list[str]:
    return [troff.section("see also"), ",\n".join(f"\\fB{troff.escape(other)}\\fR(1)" for other in names if other != name)]


def pages(version: str) -> dict[str, str]:
    names = ["cenote", *(f"cenote-{name}" for name in command.COMMANDS)]
    made = {}
    for name, about, parser in command.parsers():
        full = f"cenote-{name}" if name else "cenote"
        parser.prog = f"cenote {name}".strip()
        described = [troff.section("description"), troff.prose(parser.description or about)]
        if not name:
            described = [troff.section("description"), troff.prose(command.ABOUT_ALL), *(
                troff.item(troff.bold(f"cenote {other}"), text) for other, (_, text) in command.COMMANDS.items())]
        parts = [synopsis(parser), *described, *options(parser), *epilog(parser.epilog), *see_also(full, names)]
        made[f"{full}.1"] = troff.page(full, 1, about, version, parts)
    return made


if __name__ == "__main__":
    for file, text in pages(sys.argv[1]).items():
        (pathlib.Path(sys.argv[2]) / file).write_text(text)
