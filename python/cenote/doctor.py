"""`cenote doctor`: what works on this machine, what does not, and what to do about it.

Each check prints its findings, one a line: fine, a remark (it works, but could work better), or wrong. Checks that use the driver come last but for
PyTorch's, because a broken driver may end the process. The doctor changes nothing, but compiles the adapter if that is missing.
"""
import argparse
import ctypes
import functools
import importlib.util
import json
import os
import resource
import shutil
import sys
from typing import Callable, Iterator, NamedTuple, Optional, Sequence

from cenote import places
from cenote.launch import environment
from cenote.launch import python as pythons
from cenote.launch.command_line import Parser, capacity, devices, split
from cenote.native import adapter, bindings
from cenote.torch import seams

FINE, REMARK, WRONG = "fine", "remark", "wrong"
MARKS = {FINE: "ok", REMARK: "!", WRONG: "WRONG"}
PROVIDERS = ("auto", "vmm: pages that move", "async: segments of the driver's pools", "plain: segments of cuMemAlloc",
             "guard: for debugging, each block apart")
INTEGRATED, VMM, FILES, RDMA = 18, 102, 103, 110  # CU_DEVICE_ATTRIBUTE_INTEGRATED, ..._VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
# ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
HANDLES = {0: "no handles for other processes", 1: "file descriptors", 8: "fabric handles", 9: "file descriptors and fabric handles"}
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
OLDEST_DRIVER = 11000  # CUDA 11.0; before 11.3 there is no cuGetProcAddress, and cenote finds versions of entry points by name

USAGE = """cenote doctor [--json]
       cenote doctor --sim SIZE [--devices N] [--quirk NAME,...] [--json] [-- PROGRAM]"""
ABOUT = "Says what works on this machine, what does not, and what to do. Exit status 0: what is there works; 1: something is wrong."
EXAMPLES = """examples:
  cenote doctor                 the GPUs of this machine
  cenote doctor --sim 80GiB     a simulated GPU, on a machine without one
  cenote doctor --sim 80GiB -- ./program    and whether this program can run on it
  cenote doctor --json          for programs"""


class Finding(NamedTuple):
    what: str
    state: str
    text: str
    advice: str = ""
    rows: tuple[dict[str, object], ...] = ()  # of a table, for --json


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 10):
        yield Finding("Python", WRONG, version, "cenote needs 3.10 or newer")
    else:
        yield Finding("Python", FINE, f"{version}, {sys.executable}")
    if not places.switch_is_installed(sys.path):
        yield Finding("switch", REMARK, "CENOTE=on has no effect in this Python: cenote is not installed in it",
                      "`pip install .` in the tree, or call cenote.install() in the program")


def library() -> Iterator[Finding]:
    try:
        path = places.library()
        bindings.loaded()
    except (places.NotBuilt, OSError) as error:
        yield Finding("library", WRONG, str(error), "`make build`, or install the package again")
        return
    yield Finding("library", FINE, f"cenote {places.version()}, {path}")
    options = ctypes.create_string_buffer(4096)
    default = bindings.loaded().cenote_options_default
    if default(options, ctypes.c_size_t(len(options))):
        yield Finding("CENOTE_CONF", WRONG, bindings.message(), "docs/options.md has all options; unset CENOTE_CONF for the defaults")
    elif os.environ.get("CENOTE_CONF"):
        yield Finding("CENOTE_CONF", FINE, os.environ["CENOTE_CONF"])


def pinned() -> Iterator[Finding]:
    """The package may have been built where hwloc's headers were missing, or run where hwloc is."""
    if not environment.is_on(environment.HOST, os.environ):
        return
    try:
        path = places.host_library()
        ctypes.CDLL(path)
    except (places.NotBuilt, OSError) as error:
        yield Finding("pinned memory", WRONG, f"{environment.HOST} is on, and {error}",
                      "pinned memory needs hwloc and jemalloc (Debian: libhwloc15, libjemalloc2); without the variable PyTorch pins it itself")
        return
    yield Finding("pinned memory", FINE, path)


def simulation() -> Iterator[Finding]:
    try:
        folder = places.simulation_folder()
    except places.NotBuilt as error:
        yield Finding("simulated GPU", REMARK, str(error), "its build needs the headers of CUDA 13: pip install nvidia-cuda-runtime, or a toolkit")
        return
    yield Finding("simulated GPU", FINE, folder + (f", in use: {os.environ[environment.SIM]}" if os.environ.get(environment.SIM) else ""))


# --- PyTorch

def torch() -> Iterator[Finding]:
    try:
        import torch as module
    except ModuleNotFoundError:
        yield Finding("PyTorch", REMARK, "not installed in this Python", "pip install torch; the C library works without it")
        return
    except (ImportError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        if not has_driver() and can_simulate():
            yield Finding("PyTorch", FINE, f"installed; without NVIDIA's packages it loads on the simulated GPU alone ({why})")
        else:
            yield Finding("PyTorch", WRONG, f"installed, but does not load: {why}",
                          "install the NVIDIA packages that torch depends on; on the simulated GPU it needs none: cenote doctor --sim 80GiB")
        return
    version = tuple(int(part) for part in module.__version__.split("+")[0].split(".")[:2])
    if not module.version.cuda:
        yield Finding("PyTorch", WRONG, f"{module.__version__} is built without CUDA", "install a build with CUDA")
        return
    known = OLDEST_TORCH <= version <= NEWEST_TORCH
    yield Finding("PyTorch", FINE if known else REMARK, f"{module.__version__}, CUDA {module.version.cuda}",
                  "" if known else "tested with {}.{} to {}.{}".format(*OLDEST_TORCH, *NEWEST_TORCH))
    yield from adapter_findings(adapter.describe(module))
    yield from private_names(module.__version__)


def private_names(version: str) -> Iterator[Finding]:
    """The table of what cenote needs of PyTorch beyond what that promises: a line for each feature, in --json a row for each name."""
    looked = list(seams.examined())
    for feature in seams.table().values():
        of_it = [(seam, is_there) for one, seam, is_there in looked if one is feature]
        rows = [{**seam._asdict(), "is_there": is_there} for seam, is_there in of_it]
        missing = [seam.name for seam, is_there in of_it if not is_there and not seams.is_too_young(seam, version)]
        told = {"runs": feature.runs, "lost": feature.lost, "test": feature.test}
        if rows:
            yield Finding("private names", REMARK if missing else FINE, f"{feature.name}: {len(rows) - len(missing)} of {len(rows)}",
                          f"PyTorch {version} has no {', '.join(missing)}: {feature.lost}" if missing else "", tuple({**row, **told} for row in rows))


def adapter_findings(described: adapter.Torch) -> Iterator[Finding]:
    """A wheel or the cache may have the adapter: then no compiler is needed."""
    tool = adapter.compiler()
    said: list[str] = []
    if tool is not None:
        yield Finding("compiler", FINE, tool.says)
    try:
        made = adapter.opened(described, said.append)
    except adapter.NotMade as why:
        cure = "install g++, or name a compiler in CXX; " if tool is None else ""
        yield Finding("adapter", WRONG, " ".join(str(why).split()),
                      f"{cure}CENOTE=on does not start without it; CENOTE=fallback does, without memory_stats, "
                      "snapshots and histories")
        return
    os.close(made.descriptor)
    for text in said:
        yield Finding("adapter cache", REMARK, text.removeprefix("cenote: "), "name a folder that you alone can write to in XDG_CACHE_HOME")
    yield Finding("adapter", FINE, made.path)


# --- the driver and its devices

START = {  # what to do about an error of cuInit
    100: "no GPU is visible: look at CUDA_VISIBLE_DEVICES and at `nvidia-smi`",
    803: "driver and libcuda.so.1 have different versions: restart, or take the compat libraries off LD_LIBRARY_PATH",
}

def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


def can_simulate() -> bool:
    try:
        return bool(places.simulation_folder())
    except places.NotBuilt:
        return False


def dry_runs() -> Iterator[Finding]:
    """What needs no GPU."""
    if not can_simulate() or importlib.util.find_spec("torch") is None:
        return  # which the lines about the simulated GPU and PyTorch say
    yield Finding("dry runs", FINE, "ready, without a GPU: cenote dry-run train.py, cenote run --sim 80GiB train.py")


def driver() -> Iterator[Finding]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield Finding("driver", REMARK if can_simulate() else WRONG, "there is no GPU here: no libcuda.so.1 is found",
                      "if there should be one: install NVIDIA's driver, or start the container with --gpus all; about the simulated GPU: "
                      "cenote doctor --sim 80GiB")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    error = cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version)) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if error:
        yield Finding("driver", WRONG, f"the driver does not start: error {error}", START.get(error, "look at `nvidia-smi`"))
        return
    kind = "simulated" if os.environ.get(environment.SIM) else loaded_from("/libcuda.so.")
    name = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {kind}"
    old = version.value < OLDEST_DRIVER
    yield Finding("driver", WRONG if old else FINE, name, "cenote needs a driver for CUDA 11 or newer" if old else "")
    if not count.value:
        yield Finding("devices", WRONG, "no GPU is visible", "look at CUDA_VISIBLE_DEVICES")
    for number in range(count.value):
        yield from device(cuda, number)


def loaded_from(name: str) -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return next((line.split()[-1] for line in maps if name in line), name)


def attribute(cuda: ctypes.CDLL, which: int, number: int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), which, number)
    return value.value


def device(cuda: ctypes.CDLL, number: int) -> Iterator[Finding]:
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    cuda.cuDeviceGetName(name, 256, number)
    cuda.cuDeviceGetPCIBusId(bus, 32, number)
    what = f"device {number}"
    pool = ctypes.c_void_p()
    try:
        bindings.call("cenote_pool_default", number, ctypes.byref(pool))
    except bindings.Error as error:
        advice = "" if error.name == "BAD_OPTION" else "does another program use it exclusively? `nvidia-smi` shows that"
        yield Finding(what, WRONG, f"{name.value.decode()}: {error}", advice)
        return
    works = holds_what_is_written(cuda, number, pool)  # the first memory: what pages can be is known only now
    stats = bindings.stats_struct()()
    bindings.call("cenote_pool_stats", pool, ctypes.byref(stats), ctypes.sizeof(stats))
    provider = bindings.loaded().cenote_pool_provider(pool)
    yield Finding(what, FINE, f"{name.value.decode()}, {stats.capacity / (1 << 30):.1f} GiB, pages of {stats.page_bytes >> 20} MiB")
    moves = PROVIDERS[provider].startswith(("vmm", "guard"))
    why = "" if moves else "; the driver says that it has virtual memory management, and refuses it" if attribute(cuda, VMM, number) else \
        "; no virtual memory management"
    is_chosen = "provider" in os.environ.get("CENOTE_CONF", "")
    yield Finding(what, FINE if moves or is_chosen else REMARK, f"provider {PROVIDERS[provider]}" + ("" if is_chosen else why),
                  "" if moves or is_chosen else "memory cannot move between sizes and streams here (WSL, Jetson, vGPU)")
    if moves:
        yield from pages(what, stats, bool(attribute(cuda, FILES, number)), bool(attribute(cuda, RDMA, number)))
    if attribute(cuda, INTEGRATED, number):
        yield Finding(what, REMARK, f"its memory is the host's: the driver takes the page cache for memory in use; {available()}",
                      "cenote asks for that memory all the same; a program that sizes itself by torch.cuda.mem_get_info() gets less")
    if not works:
        yield Finding(what, WRONG, "memory does not hold what is written to it", "CENOTE_CONF=provider:plain; please report this")
    yield from topology(what, bus.value.decode().lower())
    bindings.call("cenote_pool_trim", pool, 0, bindings.WAIT)


def holds_what_is_written(cuda: ctypes.CDLL, number: int, pool: ctypes.c_void_p) -> bool:
    """In a process of our own, where a fault does no harm. Memory that cannot be had is an Error."""
    size = 1 << 20
    block, context = ctypes.c_void_p(), ctypes.c_void_p()
    written, read = os.urandom(size), ctypes.create_string_buffer(size)
    bindings.check(bindings.loaded().cenote_alloc(pool, ctypes.c_size_t(size), None, ctypes.byref(block)))
    address = ctypes.c_uint64(block.value or 0)
    failed = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) or cuda.cuCtxPushCurrent_v2(context)
    failed = failed or cuda.cuMemcpyHtoD_v2(address, written, ctypes.c_size_t(size)) or cuda.cuMemcpyDtoH_v2(read, address, ctypes.c_size_t(size))
    cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
    cuda.cuDevicePrimaryCtxRelease_v2(number)
    bindings.check(bindings.loaded().cenote_free(block))
    return not failed and read.raw == written


def pages(what: str, stats: ctypes.Structure, says_files: bool, says_rdma: bool) -> Iterator[Finding]:
    """What pages can be, against what the driver says of them."""
    text = f"pages have {HANDLES.get(stats.page_handles, stats.page_handles)}" + (", made for RDMA" if stats.page_rdma else "")
    lost = says_files and not stats.page_handles & 1
    text += "; the driver says that they have file descriptors, and refuses them" if lost else ""
    yield Finding(what, REMARK if lost else FINE, text,
                  "tensors cannot be shared between processes, and UCX copies between GPUs through the host, much slower" if lost else "")
    if says_rdma and not stats.page_rdma:
        yield Finding(what, REMARK, "the driver says that memory can be made for RDMA, and refuses it",
                      "network cards and gdrcopy may not reach this memory; under WSL2 a driver from R615 on mends it")


def topology(what: str, bus: str) -> Iterator[Finding]:
    """The device's place in the machine, from /sys, where hwloc reads it, too."""
    folder = f"/sys/bus/pci/devices/{bus}"
    try:
        hwloc = bool(ctypes.CDLL("libhwloc.so.15"))
    except OSError:
        hwloc = False
    if not os.path.isdir(folder):
        yield Finding(what, FINE, f"PCI {bus} is not on this machine's bus: the device is simulated, or a virtual machine hides it")
        return
    node, near = (first_line(os.path.join(folder, name)) for name in ("numa_node", "local_cpulist"))
    yield Finding(what, FINE if hwloc else REMARK, f"PCI {bus}, NUMA node {node}, processors {near}",
                  "" if hwloc else "libhwloc.so.15 is missing: no pinned memory, and the background thread runs anywhere: apt install libhwloc15")


def available() -> str:
    """As /proc/meminfo has it: `MemAvailable 12345 kB`."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next((" ".join(line.replace(":", "").split()) for line in file if line.startswith("MemAvailable")), "MemAvailable is not known")


def first_line(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.readline().strip()


# --- limits of the system

def limits() -> Iterator[Finding]:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield Finding("address space", REMARK, f"limited to {most >> 30} GiB (ulimit -v)",
                      "CUDA and cenote reserve hundreds of GiB of addresses, which cost no memory: ulimit -v unlimited")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY and locked < 64 << 20:
        yield Finding("locked memory", REMARK, f"limited to {locked >> 10} KiB (ulimit -l)",
                      "registered memory for InfiniBand needs more: ulimit -l unlimited")
    set_by = [name for name in environment.ALLOCATOR_VARIABLES if os.environ.get(name)]
    for name in set_by:
        yield Finding(name, REMARK, os.environ[name], "settings of PyTorch's own allocator; under cenote most have no effect (docs/pytorch.md)")


# --- libraries that register memory, or share it past cenote: docs/sharing.md, docs/pytorch.md

NCCL_ALL_SEGMENTS = (2, 29)  # from here on it registers every allocation of a range
UCX_CUDA_IPC = (1, 22)  # from here on cuda_ipc takes memory of pages
ALL_REDUCES = {"vllm": "vLLM", "sglang": "SGLang", "flashinfer": "FlashInfer"}


def neighbours() -> Iterator[Finding]:
    yield from nccl()
    yield from ucx()
    graphs = "graphs:pages" in "".join(os.environ.get("CENOTE_CONF", "").split())
    for module, name in ALL_REDUCES.items():
        if importlib.util.find_spec(module):
            yield Finding(name, REMARK if graphs else FINE, "its custom all-reduce shares the memory of CUDA graphs by legacy CUDA IPC"
                          + (", which refuses pages" if graphs else ": graphs get memory of cudaMalloc"),
                          "with more than one rank: --disable-custom-all-reduce, or leave graphs:pages out of CENOTE_CONF" if graphs else "")


def nccl() -> Iterator[Finding]:
    try:
        found = ctypes.CDLL("libnccl.so.2")
    except OSError:
        return
    number = ctypes.c_int()
    if found.ncclGetVersion(ctypes.byref(number)):
        return
    version = divmod(number.value // 100, 100)
    text = f"{version[0]}.{version[1]}.{number.value % 100}"
    if version >= NCCL_ALL_SEGMENTS:
        yield Finding("NCCL", FINE, f"{text} registers blocks on several pages")
    else:
        yield Finding("NCCL", REMARK, f"{text} registers the first page of a block alone",
                      "register memory of torch.cuda.MemPool(no_split=True) or of ncclMemAlloc; NCCL_GRAPH_REGISTER=0; or NCCL 2.29")


def ucx() -> Iterator[Finding]:
    try:
        found = ctypes.CDLL("libucp.so.0")
    except OSError:
        return
    major, minor, release = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    found.ucp_get_version(ctypes.byref(major), ctypes.byref(minor), ctypes.byref(release))
    advice = []
    if (major.value, minor.value) < UCX_CUDA_IPC:
        advice.append("it copies memory of pages without cuda_ipc, hundreds of times slower: use UCX 1.22, or MemPool(no_split=True)")
    if os.environ.get("UCX_MEMTYPE_CACHE", "").lower() not in ("n", "no", "0"):
        advice.append("UCX_MEMTYPE_CACHE=n, because its hooks do not see memory that cenote gives back")
    yield Finding("UCX", REMARK if advice else FINE, f"{major.value}.{minor.value}.{release.value}", "; ".join(advice))


# --- CUDA runtimes that the simulated GPU cannot replace: docs/simulated-gpu.md

SHOWN = 3  # files in a finding


def packages() -> Iterator[Finding]:
    if os.environ.get(environment.SIM):
        from cenote.simulated import static_runtime
        for package in static_runtime.packages(places.simulation_folder()):
            yield Finding(package.name, REMARK, f"{package.version} has a CUDA runtime of its own, which the simulated GPU cannot serve: "
                          + files(package.files), static_runtime.way_around(package.name))


def files(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more files" if len(names) > SHOWN else "")


def program(path: str) -> Iterator[Finding]:
    from cenote.simulated import elf, static_runtime
    name = os.path.basename(path)
    try:
        loaded = static_runtime.loaded_with(path)
    except elf.ElfError:
        yield Finding(name, REMARK, f"{path} is not a program of 64-bit machine code, so what it loads is not known",
                      "look at the program that runs it; the packages of this Python are listed here, too")
        return
    own = static_runtime.own_runtimes(loaded, places.simulation_folder())
    if own:
        yield Finding(name, WRONG, f"{files(own)} has a CUDA runtime of its own, which asks the driver for private tables of NVIDIA's: on the "
                      "simulated GPU its first call fails with cudaErrorNotSupported", static_runtime.GENERAL)
    else:
        yield Finding(name, FINE, f"{path} and the {len(loaded) - 1} libraries that are loaded with it have no CUDA runtime of their own")


Check = Callable[[], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (python, library, pinned, simulation, limits, driver, torch, dry_runs, neighbours, packages)


def examine(path: Optional[str]) -> Iterator[Finding]:
    checks: dict[str, Check] = {check.__name__: check for check in CHECKS}
    if path is not None:
        checks["program"] = functools.partial(program, path)
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:  # a check that breaks is a finding, not a traceback
            text = " ".join(str(error).split())[:200]
            yield Finding(name, WRONG, f"the check failed: {type(error).__name__}: {text}", "please report this")


def line(finding: Finding) -> str:
    advice = f"\n{'':24}-> {finding.advice}" if finding.advice else ""
    return f"{MARKS[finding.state]:<6}{finding.what:<18}{finding.text}{advice}"


def on_the_simulated_gpu(options: argparse.Namespace, path: Optional[str]) -> int:
    """Runs the doctor in a new process, because the simulated libcuda.so.1 has to be preloaded."""
    import subprocess
    size = ["--sim", str(options.sim)] + (["--devices", str(options.devices)] if options.devices is not None else [])
    size += ["--quirk", options.quirk] if options.quirk is not None else []
    doctor = ["doctor", *(["--json"] if options.json else []), *(["--", path] if path is not None else [])]
    command = pythons.of_ours("cenote.command", "run", *size, "--", *pythons.of_ours("cenote.command", *doctor))
    variables = os.environ if places.is_installed() else {**os.environ, "CENOTE_BUILD": places.build_folder()}
    return subprocess.run(command, env=variables).returncode


def find_file(program: str) -> Optional[str]:
    """A program in PATH, or any file by its path: libraries can be looked at, too."""
    path = shutil.which(program) or (program if os.path.isfile(program) else None)
    return os.path.abspath(path) if path else None


def make_parser() -> Parser:
    parser = Parser("cenote doctor", usage=USAGE, description=ABOUT, epilog=EXAMPLES, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim", metavar="SIZE", type=capacity, help="look at a simulated GPU with this much memory")
    parser.add_argument("--devices", metavar="N", type=devices, help="how many simulated GPUs")
    parser.add_argument("--quirk", metavar="NAME,...", help="the simulated GPU behaves as some real machines do")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    return parser


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    ours, named = split(arguments, parser)
    options = parser.parse_args(ours if named[:1] == ["--"] else arguments)
    is_simulated = options.sim is not None or bool(os.environ.get(environment.SIM))
    if options.sim is None and (options.devices is not None or options.quirk is not None) or named and not is_simulated:
        parser.error("--devices, --quirk and -- PROGRAM are for the simulated GPU; add --sim SIZE")
    path = find_file(named[1]) if len(named) > 1 else None
    if named and path is None:
        parser.error(f"there is no program {named[1]!r}" if len(named) > 1 else "no program after --")
    if options.sim is not None:
        return on_the_simulated_gpu(options, path)
    found = []
    for finding in examine(path):
        found.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    if options.json:
        print(json.dumps([{name: value for name, value in finding._asdict().items() if name != "rows" or value} for finding in found]))
    return 1 if any(finding.state == WRONG for finding in found) else 0
