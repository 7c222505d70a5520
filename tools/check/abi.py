"""
Checks that programs that were compiled with older headers keep working: the structs and values of abi.def are still there (abi.c), every struct of
the headers has rows in it, and every function with a struct takes its size, which a macro adds (rule 10 of docs/design.md). Names of functions begin
with their object.
"""
import re
import subprocess

from tree import Report, Tree

TABLE, SOURCE = "tools/check/abi.def", "tools/check/abi.c"
HEADERS = tuple(f"include/cenote/{name}.h" for name in ("cenote", "report", "share", "host"))
CLOSED = {"cenote_level", "cenote_share"}  # they never change
STRUCT = re.compile(r"^typedef struct (cenote_\w+) \{", re.MULTILINE)
FUNCTION = re.compile(r"^CENOTE_API\b[^;]*?\b(cenote_\w+)\(([^;]*)\);\n(.*)", re.MULTILINE)
OBJECT = re.compile(r"(?:const )?(cenote_(?:pool|group|options|stats)) \*")
INSIDE = ("cenote_alloc", "cenote_group_create", "cenote_capture_", "cenote_stream_")  # these take a pool or a group, and are about something in it
FLAGS = "-std=c11 -Wall -Wextra -Wpadded -Werror -fsyntax-only -I. -Iinclude".split()


def unsized(text: str, structs: set[str]) -> list[str]:
    """Functions that take a struct, but not its size through a macro in the next line."""
    found = []
    for name, parameters, next_line in FUNCTION.findall(text):
        given = [word for word in re.findall(r"\w+", parameters) if word in structs or word.removesuffix("_fn") in structs]
        for struct in dict.fromkeys(word.removesuffix("_fn") for word in given):
            macro = f"#define {name}(...) {name}(__VA_ARGS__, sizeof({struct}))"
            if not parameters.endswith("size_t size") or next_line != macro:
                found.append(f"{name} takes a {struct}: its last argument is `size_t size`, and the next line is {macro}")
    return found


def misnamed(text: str) -> list[str]:
    """Functions whose first argument is an object, and which do not begin with its name."""
    first = [(name, OBJECT.match(parameters)) for name, parameters, _ in FUNCTION.findall(text)]
    return [f"{name} is about a {match[1]}: its name begins with {match[1]}_" for name, match in first
            if match and not name.startswith((match[1] + "_", *INSIDE))]


def check(tree: Tree) -> Report:
    texts = {path: tree.text(path) for path in HEADERS}
    structs = {name for text in texts.values() for name in STRUCT.findall(text)}
    rows = re.findall(r"^(MEMBER|VALUE)\((\w+)", tree.text(TABLE), re.MULTILINE)
    result = subprocess.run(["cc", *FLAGS, SOURCE], cwd=tree.root, capture_output=True, text=True)
    problems = [line for line in result.stderr.splitlines() if "error:" in line]
    problems += [f"{name} has no rows in {TABLE}" for name in sorted(structs - {name for kind, name in rows if kind == "MEMBER"})]
    problems += [f"{path}: {problem}" for path, text in texts.items() for problem in unsized(text, structs - CLOSED)]
    problems += [f"{path}: {problem}" for path, text in texts.items() for problem in misnamed(text)]
    return Report(f"{len(rows)} rows of {TABLE} against the headers, {len(structs)} structs", problems)
