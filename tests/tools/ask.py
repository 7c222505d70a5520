"""What the driver answers when: the simulated one as the table says, and what of that no card was seen to do and cenote relies on.

cenote relies on a row if the library calls the entry point (driver/driver.def) in that state: what is timed is called in mode RELAXED alone; the
rest, in the mode of the thread that calls cenote. A call that fails, or ends a capture, is no permission.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TABLE = pathlib.Path("sim/entries/answers.txt")
SECTION = "## What cenote assumes"


# A driver around the simulated one. `after`: after cuProfilerStop the process dies when it waits for the context. `shut`: a context that is lost
# cannot be made current. Each process that loads it leaves a byte in a file.
OTHER_DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int dies, lost;
static int is(const char *how) { return !strcmp(getenv("OTHER_DRIVER"), how); }
static void *inner(const char *name) { return dlsym(dlopen("libcudb.so.1", RTLD_NOW | RTLD_NOLOAD), name); }
int cuProfilerStop(void) { dies = is("after"); return ((int (*)(void))inner("cuProfilerStop"))(); }
int cuCtxSynchronize(void)
{
    if (dies) _exit(1);
    int result = ((int (*)(void))inner("cuCtxSynchronize"))();
    lost = lost || result == 700;
    return result;
}
int cuCtxSetCurrent(void *context)
{
    int result = ((int (*)(void *))inner("cuCtxSetCurrent"))(context);
    return lost && is("shut") ? 700 : result;
}
__attribute__((constructor)) static void count(void) { FILE *file = fopen(getenv("OTHER_LOADS"), "a"); fputc('.', file); fclose(file); }
"""


def ask(*arguments: str, driver: str = "", **others: str) -> subprocess.CompletedProcess[str]:
    build, program = os.environ["CENOTE_BUILD"], os.environ["CENOTE_BIN"] + "/cenote-ask"
    environment = dict(os.environ, LD_LIBRARY_PATH=driver or build + "/sim", CENOTE_SIM="capacity:8GiB", **others)
    return subprocess.run([program, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def assumed() -> dict[str, list[str]]:
    """By the name of a row: the states in which cenote relies on a permission that is assumed."""
    called = {name: kind for kind, name in re.findall(r"^DRIVER\(\w+, (\w+), (\w+),", pathlib.Path("driver/driver.def").read_text(), re.MULTILINE)}
    found: dict[str, list[str]] = {}
    headings: list[str] = []
    for line in TABLE.read_text().splitlines():
        name, cells = line[:60].strip(), line[60:].split()
        if line.startswith("#"):
            headings = cells
            continue
        symbol = name.split()[0]
        kind = called.get(symbol) or called.get(re.sub(r"_v\d$", "", symbol))
        states = headings[1:] if kind == "untimed" else ["eased", "o-eased", "lost"] if kind else []
        if rests := [state for state in states if re.fullmatch(r"0e?\?", cells[headings.index(state)])]:
            found[name] = rests
    return found


def with_other_drivers() -> int:
    """What a call leaves behind is not the next one's answer, and a lost context costs no child for each row."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        simulated = (pathlib.Path(os.environ["CENOTE_BUILD"]) / "sim/libcuda.so.1").read_bytes()
        (folder / "libcudb.so.1").write_bytes(simulated.replace(b"libcuda.so.1", b"libcudb.so.1"))
        (folder / "other.c").write_text(OTHER_DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1,--no-as-needed", "other.c", "-o", "libcuda.so.1", "-L.",
                        "-l:libcudb.so.1", f"-Wl,-rpath,{folder}"], cwd=folder, check=True)
        done = ask(str(TABLE), driver=name, OTHER_DRIVER="after", OTHER_LOADS=name + "/after")
        if done.returncode:
            print(f"a driver with which a process dies after a call has answered:\n{done.stdout[-500:]}")
            failed += 1
        done = ask(str(TABLE), driver=name, OTHER_DRIVER="shut", OTHER_LOADS=name + "/shut")
        rows, children = int(done.stdout.splitlines()[-1].split()[0]), (folder / "shut").stat().st_size
        if 2 * children > rows:
            print(f"{children} children for {rows} rows, if a lost context cannot be made current")
            failed += 1
    return failed


def main() -> int:
    failed = with_other_drivers()
    done = ask(str(TABLE))
    if done.returncode:
        print(done.stdout, f"the simulated driver and {TABLE} differ: mend one of them; cenote-ask writes the table anew", sep="\n")
        failed += 1
    changed = TABLE.read_text().replace("900x", "0   ", 1)
    with tempfile.NamedTemporaryFile("w") as other:
        other.write(changed)
        other.flush()
        done = ask(other.name)
    if done.returncode != 1 or ", 1 differences" not in done.stdout:
        print(f"a table with another answer is taken for the same:\n{done.stdout[-500:]}")
        failed += 1
    section = pathlib.Path("docs/real-cards.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    for name, states in assumed().items():
        symbol = re.sub(r"_v\d$", "", name.split()[0])
        if f"`{symbol}`" not in section and f"`{name.split()[0]}`" not in section:
            print(f"cenote relies on {name} ({', '.join(states)}), and docs/real-cards.md does not say so")
            failed += 1
    if not section:
        print(f"docs/real-cards.md lacks {SECTION}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
