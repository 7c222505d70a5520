"""Makes the environment with which a program runs on the simulated GPU, or under a certain allocator of PyTorch.

The options are merged into the variables that are set already; a contradiction is a Mistake. All processes that the program starts (workers, ranks,
a shell) inherit the environment, and so the options.
"""
import ctypes
import os
import signal
from typing import Mapping, NamedTuple, Optional

from cenote import places
from cenote.base import quantity, switch
from cenote.base.mistake import Mistake


class Wish(NamedTuple):
    capacity: Optional[int] = None  # bytes of each device
    devices: Optional[int] = None
    lag: Optional[int] = None  # ns
    allocator: Optional[str] = None  # a key of ALLOCATORS
    trace: Optional[str] = None  # file for a trace of cenote's allocations
    figures: Optional[str] = None  # file for the program's figures, written when it ends
    report: Optional[str] = None  # file for the page of `cenote view`, written when it ends
    quirks: Optional[str] = None  # quirks of the simulated GPU, separated by commas
    prices: Optional[str] = None  # of prices(): what the driver calls of the simulated GPU cost
    preload: Optional[str] = None  # the path of libcenote_preload.so: cenote serves all that the program allocates
    line: Optional[bool] = None  # print a line of figures when it ends; None: leave that to the environment


SIM = "CENOTE_SIM"
PRELOAD = "LD_PRELOAD"
FOLDERS = "LD_LIBRARY_PATH"
SERVES = "CENOTE_PRELOAD"  # off: libcenote_preload.so leaves everything to the driver
TRITON = "TRITON_LIBCUDA_PATH"  # the folder in which Triton looks for libcuda.so.1 to link against, instead of asking ldconfig
KERNEL_CACHE = "USE_PYTORCH_KERNEL_CACHE"  # 0: kernels compiled for a simulated GPU must not be used on a real one
CENOTE = "CENOTE"  # on: cenote is PyTorch's allocator; fallback: also without the adapter
TRACE = "CENOTE_TRACE"  # the file to which the trace is written when the program ends
SUMMARY = "CENOTE_SUMMARY"  # on: a program prints its memory figures at its end, see inside/run_summary.py; quiet: it only writes files; off: neither
PROGRAM = "CENOTE_PROGRAM"  # the number of the process that `cenote run` became
FIGURES, REPORT = "CENOTE_FIGURES", "CENOTE_REPORT"  # the files that it writes
RECORDS = 1 << 20  # that a report shows, at most
ON_OOM, ON_SIGNAL = "CENOTE_ON_OOM", "CENOTE_ON_SIGNAL"  # a folder, or off; the name of a signal: see inside/ran_out.py
LABELS = "CENOTE_LABELS"  # on: reports have phases and kinds, see labels/hooks.py
DRY_RUN = "CENOTE_DRY_RUN"  # the folder for a program's reports to `cenote dry-run`, see inside/fit_report.py
DRY_FILES = "CENOTE_DRY_FILES"  # how a run that begins at a copy gets files of its own: what guard/again.py reads
DRY_REDIRECT = "CENOTE_DRY_REDIRECT"  # where Python code of a program under Landlock writes to: what guard/redirect.py's begin gets
DRY_STEPS = "CENOTE_DRY_STEPS"  # the step after which the program is ended; 0: it runs to its end
DRY_UNKNOWN = "CENOTE_DRY_UNKNOWN"  # what values that cannot be known are: a key of inside/values.py's POLICIES; empty: kernels compute nothing
DRY_REMEDIES = "CENOTE_DRY_REMEDIES"  # of `--advise`: what remedies/program.py tries in this run, or look
DRY_COPY = "CENOTE_DRY_COPY"  # of a program's first process: the socket on which it is asked to leave a copy, see inside/waiting.py
DRY_CONSTANT = "CENOTE_DRY_CONSTANT"  # NAME=VALUE=PATH: a number in this script that is another one in this run, see inside/constant.py
DRY_UNLIMITED = "CENOTE_DRY_UNLIMITED"  # on: a limit that the program sets its allocator does not count: the run says what it needs
DRY_RECORDS = "CENOTE_DRY_RECORDS"  # on: the program records what it allocates and frees, see inside/recording.py
DRY_RECORD = ".record"  # the ending of the file there
DRY_PAGE = "CENOTE_DRY_PAGE"  # on: it writes a page to that folder, too, see inside/recording.py
DRY_STACKS = ".stacks"  # the ending of the file there to which a process writes the stack of its main thread when it gets the signal DRY_ASK
DRY_ASK = signal.SIGRTMAX - 3  # no library is known that uses it
DRY_TELL = signal.SIGRTMAX - 4  # a process that gets it writes its report
PHANTOMS = "CENOTE_PHANTOMS"  # the real ranks of the job, 0,511; all others are phantoms; see phantoms/entry.py
PHANTOMS_STORE = "CENOTE_PHANTOMS_STORE"  # the file in which they find each other
UNHEARD = ".unheard"  # the same, if only an error suggests it: what that rank would have said was not known
ENDED = ".ended"  # the ending of a file RANK.ended in the folder of a dry run: that rank has no process any more
NEEDED = ".needed"  # the ending of a file RANK.needed in the folder of a dry run: that rank has to be real, too
HOST = "CENOTE_HOST"  # on: cenote is PyTorch's allocator of pinned memory, too
TUNABLES = "GLIBC_TUNABLES"
STATIC_TLS = "glibc.rtld.optional_static_tls"  # most builds of jemalloc need this space to be loaded into a running program
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# The settings that select each allocator of PyTorch; another value for one of these keys is a contradiction. "" stands for PyTorch's default, which
# is not written: `backend:native` can make a program fail that replaces the allocator itself.
ALLOCATORS: dict[str, dict[str, str]] = {
    "native": {"backend": "", "expandable_segments": ""},
    "expandable": {"backend": "", "expandable_segments": "True"},
    "cudaMallocAsync": {"backend": "cudaMallocAsync", "expandable_segments": ""},
    "cenote": {"backend": ""},  # with CENOTE=on
}
REPORTED = ("cenote", "native", "expandable")  # these tell of each block
PRICES = ("a100", "h100", "h200", "contended", "gh200")  # lists of sim/machine/cost.def
PATH_ROOM = 512  # of struct sim_shape

ALLOCATOR_DEFAULTS = {"backend": "native", "expandable_segments": "False"}


def chosen(variables: Mapping[str, str]) -> str:
    """The allocator that a program would have with these variables."""
    if is_on(CENOTE, variables):
        return "cenote"
    settings = dict(split_settings(next((variables[name] for name in reversed(ALLOCATOR_VARIABLES) if variables.get(name)), "")))
    if settings.get("backend") == "cudaMallocAsync":
        return "cudaMallocAsync"
    return "expandable" if settings.get("expandable_segments") == "True" else "native"


def is_simulated(wish: Wish, old: Mapping[str, str]) -> bool:
    return wish.capacity is not None or bool(old.get(SIM))


def prepare(wish: Wish, old: Mapping[str, str], preload: Optional[str]) -> dict[str, str]:
    """The variables `old`, with those that `wish` needs. `preload`: the path of libcenote_sim.so, None without a simulated GPU."""
    new = dict(old)
    if preload is not None:
        new[SIM] = merge_sim(wish, old.get(SIM, ""))
        new[PRELOAD] = merge_preload(preload, old.get(PRELOAD, ""))
        look_first(os.path.dirname(preload), new)
        new[TRITON] = os.path.dirname(preload)
        new.setdefault(KERNEL_CACHE, "0")
    if wish.preload is not None:
        merge_serving(wish.preload, new)
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
    """Replaces the files of a `cenote run` around this one: only the outer program writes those."""
    for name, value in ((FIGURES, wish.figures), (REPORT, wish.report)):
        variables.pop(name, None)
        if value is not None:
            variables[name] = os.path.abspath(value)
            if not os.path.isdir(os.path.dirname(variables[name])):
                raise Mistake(f"there is no folder {os.path.dirname(variables[name])!r} for {value[-40:]!r}: make it first")
    if wish.report is not None:
        if not wish.report.endswith(".html"):
            raise Mistake(f"--report writes a page, and {wish.report[-40:]!r} does not end in .html: name a .html")
        if wish.allocator not in REPORTED:
            raise Mistake(f"--report shows blocks by name, under the allocators {', '.join(REPORTED)}: use --allocator cenote")
        if wish.allocator == "cenote":
            variables["CENOTE_CONF"] = ",".join(filter(None, [f"record:{RECORDS}", variables.get("CENOTE_CONF")]))  # the last one wins
    has_files = wish.figures is not None or wish.report is not None
    if wish.line and variables.get(SUMMARY) != "off":
        variables[SUMMARY] = "on"
    else:
        variables[SUMMARY] = "quiet" if has_files else "off"
    if variables[SUMMARY] != "off":
        variables[PROGRAM] = str(os.getpid())


def merge_trace(wish: Wish, variables: dict[str, str]) -> None:
    path = os.path.abspath(wish.trace or "")
    if not os.path.isdir(os.path.dirname(path)):
        raise Mistake(f"there is no folder {os.path.dirname(path)!r} for the trace: make it first")
    if wish.allocator not in (None, "cenote"):
        raise Mistake(f"--trace records what cenote allocates, and --allocator says {wish.allocator}: use --allocator cenote")
    if variables.get(TRACE, path) != path:
        raise Mistake(f"{TRACE} says {variables[TRACE][:40]!r} already; leave one of them out")
    variables[TRACE] = path


def is_on(name: str, variables: Mapping[str, str]) -> bool:
    value = variables.get(name, "")
    try:
        return name == CENOTE and switch.accepts_fallback(value) or switch.is_on(value)
    except ValueError:
        raise Mistake(f"{name} says {value[:40]!r}; set it to on or off") from None


def merge_sim(wish: Wish, old: str) -> str:
    shape = {}
    for item in filter(None, old.split(",")):
        name, colon, value = item.partition(":")
        if not colon:
            raise Mistake(f'{SIM} has "{item}", which is not name:value; docs/simulated-gpu.md lists what it can have')
        shape[name] = value
    asked = {
        "capacity": None if wish.capacity is None else quantity.write_size(wish.capacity),
        "devices": None if wish.devices is None else str(wish.devices),
        "lag": None if wish.lag is None else str(wish.lag),
        "quirks": None if wish.quirks is None else wish.quirks.replace(",", "+"),
        "prices": wish.prices,
    }
    for name, text in asked.items():
        if text is None:
            continue
        if name in shape and not is_same_size(shape[name], text):
            raise Mistake(f"{SIM} says {name}:{shape[name]} already, and {name}:{text} is asked for; leave one of them out")
        shape.setdefault(name, text)
    # This program and all processes that it starts are on one simulated machine; if such a process is a `cenote run` of its own, too.
    shape.setdefault("machine", "run-" + os.urandom(8).hex())
    return ",".join(f"{name}:{value}" for name, value in shape.items())


def prices(text: Optional[str], preload: str) -> Optional[str]:
    """What an option says, as CENOTE_SIM has it, where commas separate items, and every process has to find the file."""
    if text is None or text in PRICES:
        return text
    whole, why = os.path.abspath(text), ctypes.create_string_buffer(256)
    sim = ctypes.CDLL(os.path.join(os.path.dirname(preload), "libcuda.so.1"))
    sim.sim_prices_are_fine.restype = ctypes.c_bool
    if "," in whole or len(os.fsencode(whole)) >= PATH_ROOM:
        why.value = f"the path has a comma, or {PATH_ROOM} bytes".encode()
    elif sim.sim_prices_are_fine(os.fsencode(whole), why, ctypes.c_size_t(len(why))):
        return whole
    raise Mistake(f"--prices: {text[-40:]!r} is none of {', '.join(PRICES)}, and no file that `cenote qualify --prices FILE` wrote: "
                  f"{why.value.decode(errors='replace')}")


def is_same_size(one: str, other: str) -> bool:
    try:
        return quantity.read_size(one) == quantity.read_size(other)
    except ValueError:
        return one == other


def merge_preload(library: str, old: str) -> str:
    """LD_PRELOAD with the library first, and once. The dynamic linker splits it at spaces and colons and knows no quotes."""
    if any(character in library for character in places.SPLITS):
        raise Mistake(f"{library} cannot be preloaded: its path has a space or a colon; install or build cenote in another folder")
    others = [name for name in old.replace(":", " ").split() if name != library]
    return ":".join([library, *others])


def look_first(folder: str, variables: dict[str, str]) -> None:
    """The dynamic linker looks for libraries in that folder before others. For a program that is linked to libcudart.so.13 it does so before it comes
    to those that libcenote_sim.so depends on, and might find NVIDIA's."""
    others = [name for name in variables.get(FOLDERS, "").split(":") if name != folder] if variables.get(FOLDERS) else []
    variables[FOLDERS] = ":".join([folder, *others])


def merge_serving(library: str, variables: dict[str, str]) -> None:
    """Before the simulated driver, too: the dynamic linker takes the first library that has a function."""
    if variables.get(SERVES, "on") == "off":
        raise Mistake(f"{SERVES} says off already, which is not --preload; leave one of them out")
    variables[PRELOAD] = merge_preload(library, variables.get(PRELOAD, ""))


def merge_switch(allocator: str, variables: dict[str, str]) -> None:
    there = variables.get(CENOTE, "")
    if there and is_on(CENOTE, variables) != (allocator == "cenote"):
        raise Mistake(f"{CENOTE} says {there[:40]!r} already, which is not --allocator {allocator}; leave one of them out")
    if allocator == "cenote":
        variables[CENOTE] = switch.FALLBACK if switch.accepts_fallback(there) else "on"


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
