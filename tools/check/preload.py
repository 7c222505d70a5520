"""plugins/preload/hooks.def names every function of cuda.h that hands out, takes back or describes device memory: served, or left to the driver with
a reason. That each row has the parameters that cuda.h gives it, plugins/preload/check_cuda_h.c shows in every build."""
import re

from tree import Report, Tree

HOOKS = "plugins/preload/hooks.def"
ROW = re.compile(r"^(HOOK|HOOK_STREAM|ROOM|ROOM_STREAM|REAL|UNTOUCHED)\((?:(?:\w+), )?(\w+), ", re.MULTILINE)
DECLARED = re.compile(r"CUresult CUDAAPI (cu\w+)\(")
RENAMED = re.compile(r"^\s*#define (cu\w+)\s+(?:__CUDA_API_PT[SD][ZS]\()?(cu\w+)\)?\s*$", re.MULTILINE)
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


def check(tree: Tree) -> Report:
    include = tree.build_setting("CENOTE_CUDA_INCLUDE")
    if not include:
        return Report(HOOKS, ["build/ does not say where cuda.h is: `make build` comes first"])
    listed = rows(tree.text(HOOKS))
    asked = symbols(open(include + "/cuda.h").read())
    missing = sorted(asked - listed)
    return Report(f"{len(listed)} rows against {len(asked)} functions of cuda.h",
                  [f"{HOOKS}: cuda.h has {name}, of which no row says whether it is served" for name in missing])
