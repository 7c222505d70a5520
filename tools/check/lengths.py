"""Checks that files have at most 600 lines, functions 60, lines 150 columns (prose and pool/ 120), and neither tabs nor blanks at the end."""
import ast
import re
from typing import Iterator

from tree import Report, Tree

FILE_LINES = 600
FUNCTION_LINES = 60
SOURCES = (".c", ".h", ".cpp", ".hpp", ".py")
COLUMNS = 150   # aim at 140; a comment that ends a little later is no error
NARROW = "pool/"   # the core is read two files side by side
PROSE_COLUMNS = 120
NO_PROSE = ("|", "![", "<")   # tables, pictures and HTML of a document
CODE = "    "

# A function opens with a brace of its own below a line that ends a parameter list, or (in C++ classes) with one at its end.
BELOW = re.compile(r"^(\s*)\{$")
ENDS_PARAMETERS = re.compile(r"\)( const| noexcept| override| final)*$")
NO_FUNCTION = r"(?!.*\b(?:if|for|while|switch|else|do|catch|namespace)\b)"
AT_END = re.compile(r"^(\s*)" + NO_FUNCTION + r"[\w:~<>,*&\s]+\(.*\)( const| noexcept| override| final)* \{$")


def c_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each function, from 1."""
    start, indent = 0, ""
    for number, line in enumerate(lines, 1):
        if start:
            if line.rstrip(";") == indent + "}":
                yield start, number
                start = 0
            continue
        below = BELOW.match(line)
        if below and number > 1 and ENDS_PARAMETERS.search(lines[number - 2]):
            start, indent = signature_start(lines, number - 1), below[1]
        elif match := AT_END.match(line):
            start, indent = number, match[1]


def signature_start(lines: list[str], last: int) -> int:
    """The line where a signature that ends at line `last` begins: continuation lines are indented."""
    while last > 1 and lines[last - 1].startswith("  ") and lines[last - 2].rstrip().endswith((",", "(")):
        last -= 1
    return last


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


def check_file(tree: Tree, path: str) -> list[str]:
    lines = tree.lines(path)
    problems = []
    if len(lines) > FILE_LINES:
        problems.append(f"{path}: {len(lines)} lines, at most {FILE_LINES}")
    is_python = path.endswith(".py") or (lines[:1] and lines[0].startswith("#!") and "python" in lines[0])
    functions = python_functions(tree.text(path)) if is_python else c_functions(lines) if path.endswith(SOURCES) else ()
    for first, last in functions:
        if last - first + 1 > FUNCTION_LINES:
            problems.append(f"{path}:{first}: a function of {last - first + 1} lines, at most {FUNCTION_LINES}")
    for number, line in enumerate(lines, 1):
        most = PROSE_COLUMNS if path.startswith(NARROW) and not path.endswith(".md") else COLUMNS
        if len(line) > most:
            problems.append(f"{path}:{number}: {len(line)} columns, at most {most}")
        if "\t" in line or line != line.rstrip():
            problems.append(f"{path}:{number}: a tab, or a blank at the end")
    return problems


def check_document(tree: Tree, path: str) -> list[str]:
    problems, fenced, goes_on = [], False, False
    for number, line in enumerate(tree.lines(path), 1):
        fenced ^= line.lstrip().startswith("```")
        is_code = line.startswith(CODE) and not goes_on  # below prose such a line is a part of its item
        goes_on = not fenced and line.strip() != "" and not line.startswith(NO_PROSE) and not is_code
        if goes_on and len(line) > PROSE_COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns of prose, at most {PROSE_COLUMNS}: tools/wrap {path}")
    return problems


def check(tree: Tree) -> Report:
    files = tree.ending(*SOURCES, ".html", ".css", ".js", ".sh") + tree.scripts()
    report = Report(f"{len(files)} files, {sum(len(tree.lines(path)) for path in files)} lines")
    for path in files:
        report.problems += check_file(tree, path)
    for path in tree.ending(".md"):
        report.problems += check_document(tree, path)
    return report
