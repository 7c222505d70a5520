"""
Checks the built library: shared and static, it exports what the headers declare CENOTE_API and no more; it is small, needs only the C library, and
cannot break its rules on purpose, as debug builds can.
It asks for variables by secure_getenv alone.
"""
import pathlib
import re
import shutil
import subprocess
import tempfile

from tree import Report, Tree

LIBRARY = "build/libcenote.so"
ARCHIVE = "build/libcenote.a"
MOST_BYTES = 460_000  # stripped: 450 KB, as CONTRIBUTING.md says
NEEDED = re.compile(r"lib(c|dl|pthread)\.so\.\d+|ld-linux.*")
DECLARED = re.compile(r"CENOTE_API\b[^;]*?\b(cenote_\w+)\s*\(")
SONAME = "libcenote.so.0"

HOST_LIBRARY = "build/libcenote_host.so"
HOST_HEADER = "include/cenote/host.h"
HOST_NEEDED = re.compile(NEEDED.pattern + r"|libhwloc\.so\.\d+")


def output(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def names_of(*nm: object) -> set[str]:
    """The names that nm lists. "A" marks a name of the export list itself; a line of one word names a member of an archive."""
    symbols = [line.split() for line in output("nm", "--defined-only", *nm).splitlines()]
    return {words[-1].split("@")[0] for words in symbols if len(words) == 3 and words[1] != "A"}


def exported(library: pathlib.Path) -> set[str]:
    return names_of("-D", library)


def visible(archive: pathlib.Path) -> set[str]:
    return names_of("--extern-only", archive)


def declared(tree: Tree) -> set[str]:
    headers = [path for path in tree.ending(".h") if path.startswith("include/cenote/") and path != HOST_HEADER]
    return {name for path in headers for name in DECLARED.findall(tree.text(path))}


def stripped_bytes(library: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(library, folder)
        output("strip", copy)
        return pathlib.Path(copy).stat().st_size


def check_environment(library: pathlib.Path) -> list[str]:
    """In a program with other rights than its caller's the environment is the caller's: secure_getenv finds nothing there."""
    asked = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", library).splitlines()}
    return [f"{library.name} calls getenv: secure_getenv is what it may call"] if "getenv" in asked else []


def check_host(tree: Tree) -> list[str]:
    """libcenote_host.so, if hwloc is installed to build it: it has its own header, and finds jemalloc at run time."""
    library = tree.root / HOST_LIBRARY
    if not library.exists():
        return []
    in_library, in_header = exported(library), set(DECLARED.findall(tree.text(HOST_HEADER)))
    problems = [f"{HOST_LIBRARY}: {name} is exported or declared, not both" for name in sorted(in_library ^ in_header)]
    dynamic = output("readelf", "-d", library)
    problems += check_environment(library)
    return problems + [f"{HOST_LIBRARY} needs {name}" for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic) if not HOST_NEEDED.fullmatch(name)]


def check(tree: Tree) -> Report:
    library = tree.root / LIBRARY
    if not library.exists():
        return Report(LIBRARY, [f"{LIBRARY} is not there: `make build` comes first"])

    in_library, in_headers = exported(library), declared(tree)
    problems = [f"{name} is exported, and no header declares it CENOTE_API" for name in sorted(in_library - in_headers)]
    problems += [f"{name} is declared CENOTE_API, and the library does not export it" for name in sorted(in_headers - in_library)]

    problems += [f"{name} is visible in {ARCHIVE}" for name in sorted(visible(tree.root / ARCHIVE) - in_headers)]

    if nodeless := [line for line in output("nm", "-D", "--defined-only", library).splitlines() if " T " in line and "@@CENOTE_0" not in line]:
        problems.append(f"{len(nodeless)} functions have no version node, as {nodeless[0].split()[-1]}: pool/cenote.map gives them CENOTE_0")

    size = stripped_bytes(library)
    if size > MOST_BYTES:
        problems.append(f"{size} bytes stripped, at most {MOST_BYTES}")

    dynamic = output("readelf", "-d", library)
    problems += [f"needs {name}" for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic) if not NEEDED.fullmatch(name)]
    if f"[{SONAME}]" not in dynamic:
        problems.append(f"its SONAME is not {SONAME}")
    problems += check_environment(library) + check_host(tree)
    if b"CENOTE_BREAK" in library.read_bytes():
        problems.append("its rules can be broken by CENOTE_BREAK: that is for debug builds (base/check.h)")
    return Report(f"{len(in_library)} exported functions, {size} bytes stripped", problems)
