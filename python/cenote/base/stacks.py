"""Stacks as faulthandler writes them. Reads text, and no process."""
import re
from typing import NamedTuple

from cenote.base import source

FRAME = re.compile(r'  File "(.*)", line (\d+)(?: in (.*))?')


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{source.shown(self.file)}:{self.line}" + (f" in {self.function}" if self.function else "")


def last_stack(text: str) -> list[Frame]:
    """The last stack that faulthandler wrote, innermost frame first."""
    last = re.split(r"(?m)^(?:Stack|Current thread|Thread) .*$", text)[-1]
    found = (FRAME.match(line) for line in last.splitlines())
    return [Frame(match[1], int(match[2]), match[3] or "") for match in found if match]
