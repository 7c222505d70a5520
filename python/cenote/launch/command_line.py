"""Readers of arguments for all commands: sizes and numbers within the limits of the simulated GPU."""
import argparse
import sys
from typing import NoReturn, Optional, Sequence

from cenote.base import outputs, quantity
from cenote.base.mistake import Mistake
from cenote.launch import environment

MIB = 1 << 20
LEAST_CAPACITY, MOST_CAPACITY = MIB, 1 << 40  # these and the limits below are those of sim/machine/shape.def
MOST_DEVICES = 16
MOST_LAG = (1 << 64) - 1
PRICES_HELP = (f"what the simulated GPU's driver calls cost: {', '.join(environment.PRICES)}, or a file of `cenote qualify --prices FILE` "
               f"(default {environment.PRICES[0]})")


class Parser(argparse.ArgumentParser):
    """Prints an error in one line."""

    def error(self, message: str) -> NoReturn:
        text = " ".join(message.split())
        print(f"{self.prog}: {text.encode('ascii', 'backslashreplace').decode()}", file=sys.stderr)
        sys.exit(2)


def refuse(why: str) -> NoReturn:
    raise argparse.ArgumentTypeError(why)


def capacity(text: str) -> int:
    try:
        size = quantity.read_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no size; write 80GiB, 24576MiB, 80GB or 80g") from None
    if not LEAST_CAPACITY <= size <= MOST_CAPACITY:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not between 1MiB and 1TiB")
    return size


def count(text: str, most: int) -> int:
    try:
        number = quantity.read_count(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number") from None
    if number > most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is more than {most}")
    return number


def devices(text: str) -> int:
    return count(text, MOST_DEVICES)


def lag(text: str) -> int:
    return count(text, MOST_LAG)


def allocator(text: str) -> str:
    if text not in environment.ALLOCATORS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no allocator; use one of {', '.join(environment.ALLOCATORS)}")
    return text


def split(arguments: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """The options of the parser, and the program with its arguments, which are not read."""
    valued = {name for action in parser._actions if action.nargs is None for name in action.option_strings}
    i = 0
    while i < len(arguments) and arguments[i].startswith("-") and arguments[i] not in ("-m", "-c", "--", "-"):
        i += 2 if arguments[i] in valued else 1
    return list(arguments[:i]), list(arguments[i:])


def check_output(path: Optional[str]) -> None:
    """Mistake if the file cannot be written. To be called before long work."""
    if path is not None:
        try:
            outputs.check(path)
        except (OSError, ValueError) as problem:
            raise Mistake(f"{path}: {getattr(problem, 'strerror', None) or problem}") from None
