"""Checks that neither the sources nor the library have a path of the machine that they were made on."""
import re

from tree import Report, Tree

# Written apart, so that this file does not hold what it forbids.
FORBIDDEN = ["/" + word for word in ("work/", "tmp/bash_jobs", "root/", "home/")]
PATTERN = re.compile(r"(?<![\w.$}])(" + "|".join(FORBIDDEN) + ")")
BINARY = (".gz", ".png", ".so", ".a", ".bin")


def check(tree: Tree) -> Report:
    files = [path for path in tree.files if not path.endswith(BINARY)]
    report = Report(f"{len(files)} files")
    for path in files:
        for number, line in enumerate(tree.lines(path), 1):
            if match := PATTERN.search(line):
                report.problems.append(f"{path}:{number}: a path of one machine: {match[1]}")
    library = tree.root / "build/libcenote.so"
    if library.exists() and str(tree.root).encode() in library.read_bytes():
        report.problems.append("build/libcenote.so: holds the path of the folder it was built in")
    return report
