"""cenote as PyTorch's allocator in this process.

`install` puts it there: the adapter compiled for this torch (native/adapter.py) or, where that cannot be, libcenote's entry points through PyTorch's
own CUDAPluggableAllocator, which can do less. `status` says which one is active. Once there, it stays: PyTorch cannot change an allocator that is
in use.
"""
import atexit
import ctypes
import functools
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple, Optional

from cenote import places
from cenote.inside import moment
from cenote.labels import hooks, step_counter
from cenote.launch import environment
from cenote.native import adapter, bindings
from cenote.native.adapter import NotMade

ROOM = 1000  # bytes for a message of the adapter's

# Settings of PyTorch's own allocator that have nothing to act on here.
UNNECESSARY = ("expandable_segments", "expandable_segments_reserve", "expandable_segments_reserve_by_class",
               "graph_capture_record_stream_reuse", "large_segment_size_mb", "max_non_split_rounding_mb", "max_split_size_mb",
               "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "roundup_power2_divisions")

FALLBACK = """cenote: no adapter for torch {version} could be made: {why}.
cenote: it is PyTorch's allocator all the same, through its interface for any allocator: allocation, record_stream, empty_cache and
set_per_process_memory_fraction work; memory_stats and all that reads it, snapshots, graphs and pools do not, and running out of memory is
a RuntimeError."""


class Status(NamedTuple):
    """What `status` tells."""

    allocator: Optional[str]  # as torch.cuda.get_allocator_backend() says it: "cenote", "pluggable", "native"; None while torch is not imported
    adapter: Optional[str]  # the library that stands between PyTorch and libcenote
    torch: Optional[str]  # its version
    note: str  # why it is not "cenote" although it was asked for; else empty


_adapter: Optional[str] = None
_note = ""


def say(text: str) -> None:
    """To stderr, once for a program: workers and ranks beside the first one keep silent."""
    import multiprocessing
    if multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)


def install() -> None:
    """Makes cenote the allocator of PyTorch in this process and, by CENOTE=on, in those that it starts.

    Comes before the first use of a GPU; RuntimeError after it. A second call changes nothing.
    """
    global _adapter, _note
    import torch  # which may have us called on the way, by CENOTE=on
    if _adapter:
        return
    if not torch.version.cuda:
        _note = f"torch {torch.__version__} is built without CUDA"
        return
    check_settings(torch)
    ctypes.CDLL(places.library(), ctypes.RTLD_GLOBAL)  # the adapter finds it by its soname
    try:
        made = adapter.opened(adapter.describe(torch), say)
        library = hook_up(made)
        settle_before_looking(torch)
        _adapter = made.path
    except NotMade as why:
        library = fall_back(torch, str(why))
        _adapter, _note = places.pluggable_library(), str(why)
        bindings.stands_in()
    os.environ[environment.CENOTE] = "on"
    step_counter.watch(torch)
    moment.watch(torch, library)
    if environment.is_on(environment.LABELS, os.environ):
        hooks.label(torch, True)


def hook_up(made: adapter.Library) -> ctypes.CDLL:
    try:
        library = adapter.load(made)
    except OSError as error:
        raise NotMade(f"what was compiled cannot be loaded: {error}") from None
    why = ctypes.create_string_buffer(ROOM)
    library.cenote_torch_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if library.cenote_torch_install(why, ROOM):
        raise RuntimeError(f"cenote.install: {why.value.decode(errors='replace')}")
    atexit.register(library.cenote_torch_python_ends)  # ctypes lets go of Python's lock, for which those who are in Python may wait
    if environment.is_on(environment.HOST, os.environ):
        library.cenote_torch_install_host.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        if library.cenote_torch_install_host(places.host_library().encode(), why, ROOM):
            raise RuntimeError(f"cenote.install, {environment.HOST}=on: {why.value.decode(errors='replace')}")
    return library


def settle_before_looking(torch: ModuleType) -> None:
    """torch.cuda.mem_get_info() asks the driver, past the allocator, which may have put off what empty_cache() was asked for: who reads counters is
    shown that it is gone, and so is who reads this."""
    inside = torch.cuda.mem_get_info

    @functools.wraps(inside)
    def mem_get_info(device: Any = None) -> Any:
        if torch.cuda.is_initialized():
            torch.cuda.memory_reserved(device)
        return inside(device)
    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info


def fall_back(torch: ModuleType, why: str) -> ctypes.CDLL:
    """The road without a compiler."""
    path = places.pluggable_library()
    library = ctypes.CDLL(path)

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    if torch.cuda.is_initialized():
        raise RuntimeError("cenote.install: PyTorch has used a GPU already: install cenote before the first tensor on one")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "cenote_pluggable_alloc", "cenote_pluggable_free")
    inside = allocator.allocator()
    inside.set_record_stream_fn(address("cenote_pluggable_use"))
    inside.set_reset_fn(address("cenote_pluggable_reset"))
    inside.set_memory_fraction_fn(address("cenote_pluggable_fraction"))
    torch.cuda.memory.change_current_allocator(allocator)
    say(FALLBACK.format(version=torch.__version__, why=why))
    return library


def check_settings(torch: ModuleType) -> None:
    """Says which settings have nothing to act on. PyTorch's own parser refuses what is malformed."""
    settings = {}
    for name in reversed(environment.ALLOCATOR_VARIABLES):
        settings.update({key: name for key, _ in environment.split_settings(os.environ.get(name, ""))})
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        where = settings.get("backend", "its settings")
        raise RuntimeError(f"cenote.install: PyTorch's allocator is {backend!r} already; leave `backend` out of {where}")
    needless = [key for key in settings if key in UNNECESSARY]
    if needless:
        say(f"cenote: {', '.join(needless)} in {settings[needless[0]]}: not needed here, and without effect")


def status() -> Status:
    """Which allocator PyTorch has in this process. Imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return Status(None, None, None, _note)
    return Status(torch.cuda.get_allocator_backend(), _adapter, torch.__version__, _note)
