"""plugins/preload/hooks.def names every function of cuda.h that hands out, takes back or describes device memory: served, or left to the driver with
a reason. That each row has the parameters that cuda.h gives it, plugins/preload/check_cuda_h.c shows in every build. plugins/forward/names.def has
every function of the driver's headers.

    tools/check/preload.py FOLDER...     prints the functions that the headers of these folders have and names.def lacks
"""
import os
import re
import subprocess
import sys

from tree import Report, Tree

HOOKS = "plugins/preload/hooks.def"
NAMES = "plugins/forward/names.def"
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
ROW = re.compile(r"^(HOOK|HOOK_STREAM|ROOM|ROOM_STREAM|REAL|UNTOUCHED)\((?:(?:\w+), )?(\w+), ", re.MULTILINE)
DECLARED = re.compile(r"CUresult CUDAAPI (cu\w+)\(")
RENAMED = re.compile(r"^\s*#define (cu\w+)\s+(?:__CUDA_API_PT[SD][ZS]\()?(cu\w+)\)?\s*$", re.MULTILINE)
DECLARES = re.compile(r"\b(cu[A-Z]\w*)\s*\(")
OF_MEMORY = re.compile(
    r"cu(Mem(Alloc|Free|Pool|GetInfo|GetAddressRange|HostAlloc|RetainAllocationHandle|GetHandleForAddressRange|\w*MemPool)|Pointer"
    r"|IpcGetMem|IpcOpenMem|IpcCloseMem|DeviceGetMemPool|DeviceSetMemPool|DeviceGetDefaultMemPool|GetProcAddress|CtxCreate|CtxDestroy"
    r"|Ctx\w+PeerAccess|DevicePrimaryCtx(Reset|Release)|StreamDestroy|StreamBegin\w*Capture|StreamEndCapture)\w*")


def rows(text: str) -> set[str]:
    """The symbols of all rows. In rows that are served the symbol stands second, in the others first."""
    return {match[2] for match in ROW.finditer(text)}


def symbols(header: str) -> set[str]:
    """What a program that is compiled with this header calls: each name as its macro of the header turns it into a symbol."""
    macros = dict(RENAMED.findall(header))
    found = set()
    for name in DECLARED.findall(header):
        if OF_MEMORY.fullmatch(name):
            found.add(macros.get(name, name).removesuffix("_ptsz"))  # which HOOK_STREAM expands to, too
    return found


def exported(folder: str) -> set[str]:
    """What the driver exports, as the headers in a folder have it: the newest form of each function, and all others if they are asked for all. A
    header that needs another one, which is not installed here, is left out."""
    found = set()
    for header in HEADERS:
        for macros in ((), ("-D__CUDA_API_VERSION_INTERNAL",)):
            done = subprocess.run(["cc", "-E", "-P", "-I", folder, *macros, os.path.join(folder, header)], capture_output=True, text=True)
            found |= set(DECLARES.findall(done.stdout)) if not done.returncode else set()
    return found


def forwarded(text: str) -> set[str]:
    return set(re.findall(r"FORWARD\((cu\w+)\)", text.partition("*/")[2]))


def check(tree: Tree) -> Report:
    include = tree.build_setting("CENOTE_CUDA_INCLUDE")
    if not include:
        return Report(HOOKS, ["build/ does not say where cuda.h is: `make build` comes first"])
    listed = rows(tree.text(HOOKS))
    asked = symbols(open(include + "/cuda.h").read())
    missing = sorted(asked - listed)
    names, driver = forwarded(tree.text(NAMES)), exported(include)
    return Report(f"{len(listed)} rows against {len(asked)} functions of cuda.h, {len(names)} names against {len(driver)}",
                  [f"{HOOKS}: cuda.h has {name}, of which no row says whether it is served" for name in missing]
                  + [f"{NAMES}: the headers have {name}, which is not forwarded" for name in sorted(driver - names)])


if __name__ == "__main__":
    here = open(os.path.join(os.path.dirname(__file__), "../..", NAMES)).read()
    print(*sorted(set().union(*map(exported, sys.argv[1:])) - forwarded(here)), sep="\n")
