"""What the environment of a program must say for it to run as asked: on the simulated GPU, with a certain allocator of PyTorch's.

Nothing that is there already is lost: what is asked is merged into it, and a contradiction is a Mistake. Everything is in the environment, so that
whatever the program starts (workers, ranks, a shell) gets it too.
"""
import os
from typing import Mapping, NamedTuple, Optional

from cenote import places
from cenote.base import quantity
from cenote.base.mistake import Mistake


class Wish(NamedTuple):
    capacity: Optional[int] = None  # bytes of each device
    devices: Optional[int] = None
    lag: Optional[int] = None  # ns
    allocator: Optional[str] = None  # a key of ALLOCATORS
    trace: Optional[str] = None  # where what cenote allocates is recorded
    figures: Optional[str] = None  # where the program's figures go when it ends
    report: Optional[str] = None  # and a page of what was allocated
    quirks: Optional[str] = None  # of the simulated GPU, with commas between
    line: Optional[bool] = None  # a line of figures when it ends; None: it is nobody's to say


SIM = "CENOTE_SIM"
PRELOAD = "LD_PRELOAD"
TRITON = "TRITON_LIBCUDA_PATH"  # where it looks for libcuda.so.1 to link against, instead of asking ldconfig
KERNEL_CACHE = "USE_PYTORCH_KERNEL_CACHE"  # 0: what is compiled for a simulated GPU is not kept for real ones
CENOTE = "CENOTE"  # on: cenote is PyTorch's allocator
TRACE = "CENOTE_TRACE"  # what is recorded goes there when the program ends
SUMMARY = "CENOTE_SUMMARY"  # on: a program says at its end what memory it took, see inside/run_summary.py; quiet: it only writes files; off: neither
FIGURES, REPORT = "CENOTE_FIGURES", "CENOTE_REPORT"  # the files
RECORDS = 1 << 20  # that a report is made of, at most
LABELS = "CENOTE_LABELS"  # on: phases and kinds, see labels/hooks.py
DRY_RUN = "CENOTE_DRY_RUN"  # the folder where a program tells `cenote dry-run` what it held, see inside/fit_report.py
DRY_STEPS = "CENOTE_DRY_STEPS"  # after how many steps it ends; 0: by itself
HOST = "CENOTE_HOST"  # on: of pinned memory, too
TUNABLES = "GLIBC_TUNABLES"
STATIC_TLS = "glibc.rtld.optional_static_tls"  # room for jemalloc, which most builds of it need to be loaded into a program that runs
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# What each allocator of PyTorch's wants said, and what it must not meet. "" stands for PyTorch's default, which needs no saying: a program
# that replaces the allocator may stumble over `backend:native`.
ALLOCATORS: dict[str, dict[str, str]] = {
    "native": {"backend": "", "expandable_segments": ""},
    "expandable": {"backend": "", "expandable_segments": "True"},
    "cudaMallocAsync": {"backend": "cudaMallocAsync", "expandable_segments": ""},
    "cenote": {"backend": ""},  # with CENOTE=on
}
ALLOCATOR_DEFAULTS = {"backend": "native", "expandable_segments": "False"}


def is_simulated(wish: Wish, old: Mapping[str, str]) -> bool:
    return wish.capacity is not None or bool(old.get(SIM))


def prepare(wish: Wish, old: Mapping[str, str], preload: Optional[str]) -> dict[str, str]:
    """`old` with what `wish` needs. `preload` is libcenote_sim.so, None for a program that is not simulated."""
    new = dict(old)
    if preload is not None:
        new[SIM] = merge_sim(wish, old.get(SIM, ""))
        new[PRELOAD] = merge_preload(preload, old.get(PRELOAD, ""))
        new[TRITON] = os.path.dirname(preload)
        new.setdefault(KERNEL_CACHE, "0")
    if is_on(HOST, new) and STATIC_TLS not in new.get(TUNABLES, ""):
        new[TUNABLES] = ":".join(filter(None, [new.get(TUNABLES), f"{STATIC_TLS}=16384"]))
    if wish.allocator is not None:
        merge_switch(wish.allocator, new)
        there = [name for name in ALLOCATOR_VARIABLES if old.get(name)]
        for name in there or ALLOCATOR_VARIABLES[:1]:
            text = merge_allocator(wish.allocator, old.get(name, ""), name)
            if text:
                new[name] = text
    if wish.trace is not None:
        merge_trace(wish, new)
    if wish.line is not None:
        merge_end(wish, new)
    return new


def merge_end(wish: Wish, variables: dict[str, str]) -> None:
    """What is there already is of a run around this one, whose files are not ours to write again."""
    for name, value in ((FIGURES, wish.figures), (REPORT, wish.report)):
        variables.pop(name, None)
        if value is not None:
            variables[name] = os.path.abspath(value)
            if not os.path.isdir(os.path.dirname(variables[name])):
                raise Mistake(f"there is no folder {os.path.dirname(variables[name])!r} for {value[-40:]!r}")
    if wish.report is not None:
        if not wish.report.endswith(".html"):
            raise Mistake(f"a report is a page, and {wish.report[-40:]!r} does not end in .html")
        if wish.allocator != "cenote":
            raise Mistake("a report is made of what cenote allocates; use --allocator cenote")
        variables["CENOTE_CONF"] = ",".join(filter(None, [f"record:{RECORDS}", variables.get("CENOTE_CONF")]))  # the last one wins
    has_files = wish.figures is not None or wish.report is not None
    if wish.line and variables.get(SUMMARY) != "off":
        variables[SUMMARY] = "on"
    else:
        variables[SUMMARY] = "quiet" if has_files else "off"


def merge_trace(wish: Wish, variables: dict[str, str]) -> None:
    path = os.path.abspath(wish.trace or "")
    if not os.path.isdir(os.path.dirname(path)):
        raise Mistake(f"there is no folder {os.path.dirname(path)!r} for the trace")
    if wish.allocator not in (None, "cenote"):
        raise Mistake(f"what cenote allocates is recorded, and --allocator says {wish.allocator}; use --allocator cenote")
    if variables.get(TRACE, path) != path:
        raise Mistake(f"{TRACE} says {variables[TRACE][:40]!r} already; leave one of them out")
    variables[TRACE] = path


def is_on(name: str, variables: Mapping[str, str]) -> bool:
    value = variables.get(name, "")
    if value not in ("", "on", "off"):
        raise Mistake(f"{name} says {value[:40]!r}; on and off are what it may say")
    return value == "on"


def merge_sim(wish: Wish, old: str) -> str:
    shape = {}
    for item in filter(None, old.split(",")):
        name, colon, value = item.partition(":")
        if not colon:
            raise Mistake(f'{SIM} has "{item}", which is not name:value')
        shape[name] = value
    asked = {
        "capacity": None if wish.capacity is None else quantity.write_size(wish.capacity),
        "devices": None if wish.devices is None else str(wish.devices),
        "lag": None if wish.lag is None else str(wish.lag),
        "quirks": None if wish.quirks is None else wish.quirks.replace(",", "+"),
    }
    for name, text in asked.items():
        if text is None:
            continue
        if name in shape and not is_same_size(shape[name], text):
            raise Mistake(f"{SIM} says {name}:{shape[name]} already, and {name}:{text} is asked for; leave one of them out")
        shape.setdefault(name, text)
    # One machine for this program and all that it starts; a program within a program is on the machine of the outer one.
    shape.setdefault("machine", "run-" + os.urandom(8).hex())
    return ",".join(f"{name}:{value}" for name, value in shape.items())


def is_same_size(one: str, other: str) -> bool:
    try:
        return quantity.read_size(one) == quantity.read_size(other)
    except ValueError:
        return one == other


def merge_preload(library: str, old: str) -> str:
    """First, and once. The dynamic linker splits the variable at spaces and colons and knows no quotes."""
    if any(character in library for character in places.SPLITS):
        raise Mistake(f"{library} cannot be preloaded: its path has a space or a colon")
    others = [name for name in old.replace(":", " ").split() if name != library]
    return ":".join([library, *others])


def merge_switch(allocator: str, variables: dict[str, str]) -> None:
    there = variables.get(CENOTE, "")
    wanted = "on" if allocator == "cenote" else "off"
    if there and there != wanted:
        raise Mistake(f"{CENOTE} says {there[:40]!r} already, which is not --allocator {allocator}; leave one of them out")
    if allocator == "cenote":
        variables[CENOTE] = "on"


def merge_allocator(allocator: str, old: str, variable: str) -> str:
    there = dict(split_settings(old))
    additions = []
    for key, value in ALLOCATORS[allocator].items():
        wanted = value or ALLOCATOR_DEFAULTS[key]
        if there.get(key, wanted) != wanted:
            raise Mistake(f"{variable} says {key}:{there[key]} already, which is not --allocator {allocator}; leave one of them out")
        if value and key not in there:
            additions.append(f"{key}:{value}")
    return ",".join(filter(None, [old, *additions]))


def split_settings(text: str) -> list[tuple[str, str]]:
    """`key:value,key:[a:b,c:d]`, with spaces anywhere, as PyTorch reads it; later ones win."""
    items, depth, item = [], 0, ""
    for character in "".join(text.split()) + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            items.append(item)
            item = ""
        else:
            item += character
    pairs = (item.partition(":") for item in items if item)
    return [(key, value) for key, _, value in pairs]
