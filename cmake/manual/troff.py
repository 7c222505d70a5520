"""troff: the parts of a manual page, as man(7) writes them. Knows neither commands nor headers.

A page is text with a line of its own for each macro. No library makes it: argparse-manpage joins the lines of usages and examples into paragraphs,
and Doxygen reads comments of a syntax that is not that of these headers.
"""
import re
import textwrap
from typing import Iterable

COLUMNS = 78  # of the page's source; a reader's terminal fills lines itself


def escape(text: str) -> str:
    """As it is written: no dash becomes a hyphen, and no line a macro."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti").replace("'", "\\(aq")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def prose(text: str) -> str:
    """A paragraph of a comment or a help text. What stands in `backticks` is bold."""
    lines = []
    for sentence in re.split(r"(?<=[.:;?]) +(?=[A-Z`(])", " ".join(text.split())):
        lines += textwrap.wrap(sentence, COLUMNS, break_long_words=False, break_on_hyphens=False)
    joined = "\n".join(lines)
    pieces = re.split(r"`([^`]+)`", joined)
    marked = "".join(bold(piece).replace("\n", " ") if index % 2 else escape(piece) for index, piece in enumerate(pieces))
    return re.sub(r"^([.'])", r"\\&\1", marked, flags=re.MULTILINE)


def code(text: str) -> str:
    return ".nf\n" + "\n".join(escape(line) if line.strip() else "\\&" for line in text.rstrip("\n").splitlines()) + "\n.fi"


def example(text: str) -> str:
    return f".PP\n.RS 4\n{code(text)}\n.RE"


def item(label: str, text: str) -> str:
    return f".TP\n{label}\n{prose(text)}"


def section(title: str) -> str:
    return f".SH {escape(title.upper())}"


def page(name: str, number: int, about: str, version: str, parts: Iterable[str], others: Iterable[str] = ()) -> str:
    """`others` are further names by which `man` and `apropos` find the page. There is no date: the same sources give the same page."""
    names = ", ".join([name, *others])
    listed = "\n".join(textwrap.wrap(names, COLUMNS, break_on_hyphens=False))
    head = [f'.TH {escape(name.upper()).replace(" ", "-")} {number} "" "cenote {version}" "cenote"', ".SH NAME",
            f"{escape(listed)}\n\\- {escape(about)}"]
    return re.sub(r"^(\.SH .*\n)\.PP\n", r"\1", "\n".join([*head, *parts]) + "\n", flags=re.MULTILINE)
