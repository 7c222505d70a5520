"""driver/driver.def agrees with cuda.h: driver/check_cuda_h.c compiles only if every row has the type that cuda.h gives it."""
import subprocess

from tree import Report, Tree

SOURCE = "driver/check_cuda_h.c"


def check(tree: Tree) -> Report:
    include = tree.build_setting("CENOTE_CUDA_INCLUDE")
    if not include:
        return Report(SOURCE, ["build/ does not say where cuda.h is: `make build` comes first"])
    if SOURCE not in tree.files:
        return Report(SOURCE, ["the file is not there"])
    flags = "-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -I. -Iinclude".split()
    command = ["cc", *flags, "-isystem", include, SOURCE]
    result = subprocess.run(command, cwd=tree.root, capture_output=True, text=True)
    rows = sum(line.startswith("DRIVER(") for line in tree.lines("driver/driver.def"))
    return Report(f"{rows} rows of driver.def against cuda.h", result.stderr.splitlines() if result.returncode else [])
