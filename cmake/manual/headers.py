"""headers: manual pages of section 3 out of include/cenote/*.h, a page for each header and a link to it for each call.

    python3 cmake/manual/headers.py VERSION FOLDER        writes cenote.h.3, cenote_report.h.3, ..., cenote_alloc.3, ...

A header is read as it is laid out, not as C: its opening comment; lines of dashes that end with the title of a section; then, from one blank line to
the next, a comment with the declarations below it. A table (*.def) that a declaration includes is printed after it, row by row.
"""
import ast
import pathlib
import re
import sys
import textwrap
from typing import Iterator

import troff

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include/cenote"
SECTION = re.compile(r"/\* -{20,} (.*) \*/")
COMMENT = re.compile(r"\s*/\*(.*?)\*/\n?", re.DOTALL)
CALL = re.compile(r"CENOTE_API\b[^;]*?\b(cenote_\w+)\s*\(")
SIZE_MACRO = re.compile(r"^#define (cenote_\w+)\(\.\.\.\).*\n?", re.MULTILINE)
TABLE = re.compile(r"#include <cenote/(\w+\.def)>")
ROW = re.compile(r"^CENOTE_\w+\((.*)\)$", re.MULTILINE)
LIBRARY = {"host.h": "-lcenote_host"}


def spoken(comment: str) -> str:
    """A comment's text, without its stars."""
    return "\n".join(re.sub(r"^ \* ?", "", line).rstrip() for line in comment.strip("\n").splitlines()).strip("\n")


def paragraphs(text: str) -> Iterator[str]:
    """Prose, indented code, and lists of a word and its text, which hangs: as comments are laid out."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            yield troff.example(textwrap.dedent(block))
        elif re.match(r"[A-Z]+$", lines[0]) and len(lines) > 1:
            yield troff.section(lines[0])
            for label, words in re.findall(r"^  (\w+)  +(.*(?:\n {8,}.*)*)", "\n".join(lines[1:]), re.MULTILINE):
                yield troff.item(troff.bold(label), words)
        else:
            yield ".PP\n" + troff.prose(block)


def prototypes(declarations: str) -> str:
    """As a program writes them: without CENOTE_API, and without the size where a macro of the same name adds it."""
    sized = set(SIZE_MACRO.findall(declarations))
    text = re.sub(r"^#define CENOTE_API .*\n?|CENOTE_API ", "", SIZE_MACRO.sub("", declarations), flags=re.MULTILINE)
    for name in sized:
        text = re.sub(rf"(\b{name}\([^;]*),\s+size_t size\);", r"\1);", text)
    return re.sub(r"^\w.*\([^;{]*\);$", folded, text, flags=re.MULTILINE)


def folded(prototype: re.Match[str]) -> str:
    """Breaks a long one behind a comma."""
    lines, words = [], re.split(r"(?<=,)\s+", prototype[0])
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= troff.COLUMNS:
            lines[-1] += " " + word
        else:
            lines.append("    " * bool(lines) + word)
    return "\n".join(lines)


def rows(table: str, declarations: str) -> Iterator[str]:
    """What a table says, a row an item: the name as the declarations make it, and its last text."""
    prefix = next(iter(re.findall(r"(\w+)##name", declarations)), "")
    for row in ROW.findall((INCLUDE / table).read_text()):
        name = next(word for word in re.split(r"\s*,\s*", row) if re.match(r"[A-Za-z]\w*$", word))
        yield troff.item(troff.bold(prefix + name), ast.literal_eval(re.search(r'("(?:[^"\\]|\\.)*")$', row)[1]))


def body(text: str) -> Iterator[str]:
    """The parts of a header between its guards."""
    for block in re.split(r"\n\s*\n", text):
        block = block.strip("\n")
        if title := SECTION.match(block):
            yield troff.section(title[1])
            block = block[title.end():].strip("\n")
        comment = COMMENT.match(block)
        declarations = block[comment.end():] if comment else block
        if not block or block.startswith(("#ifdef", "#endif", "#ifndef", "#include", "}")):
            continue
        if declarations.strip():
            yield troff.example(prototypes(declarations))
        if comment:
            yield ".RS 4\n" + "\n".join(paragraphs(spoken(comment[1]))) + "\n.RE"
        for table in TABLE.findall(declarations):
            yield ".RS 4\n" + "\n".join(rows(table, declarations)) + "\n.RE"


def page(header: pathlib.Path, version: str) -> dict[str, str]:
    text = header.read_text()
    opening = COMMENT.match(text)
    about, _, description = spoken(opening[1]).partition("\n\n")
    name = header.name if header.stem == "cenote" else f"cenote_{header.name}"
    calls = CALL.findall(text)
    first, _, rest = about.removeprefix(f"{header.name}: ").partition(". ")
    parts = [troff.section("synopsis"), troff.code(f"#include <cenote/{header.name}>\n\nLink with {LIBRARY.get(header.name, '-lcenote')}."),
             troff.section("description"), *([troff.prose(rest)] if rest else []), *paragraphs(description), ".PP",
             troff.prose("Where a call's last argument is the size of a struct, a macro of its name adds it: it is left out here."),
             *body(text[opening.end():])]
    others = [other.name if other.stem == "cenote" else f"cenote_{other.name}" for other in sorted(INCLUDE.glob("*.h")) if other != header]
    parts += [troff.section("see also"), ",\n".join(f"\\fB{other}\\fR(3)" for other in others)]
    about = " ".join(first.removesuffix(".").split())
    return {f"{name}.3": troff.page(name, 3, about, version, parts, calls), **{f"{call}.3": f".so man3/{name}.3\n" for call in calls}}


def pages(version: str) -> dict[str, str]:
    return {file: text for header in sorted(INCLUDE.glob("*.h")) for file, text in page(header, version).items()}


if __name__ == "__main__":
    for file, text in pages(sys.argv[1]).items():
        (pathlib.Path(sys.argv[2]) / file).write_text(text)
