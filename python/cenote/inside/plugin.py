"""cenote as PyTorch's allocator in this process.

`install` installs the adapter, compiled for this torch (native/adapter.py). If it cannot be compiled, libcenote is installed through PyTorch's
CUDAPluggableAllocator, which can do less. `status` says which of them is active. cenote stays installed: PyTorch cannot change an allocator in use.
"""
import atexit
import ctypes
import functools
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple, Optional

from cenote import places
from cenote.inside import first_use, moment
from cenote.labels import hooks, step_counter
from cenote.launch import environment
from cenote.native import adapter, bindings
from cenote.native.adapter import NotMade

ROOM = 1000  # bytes for a message of the adapter's

# Settings of PyTorch's own allocator that have no effect on cenote.
UNNECESSARY = ("expandable_segments", "expandable_segments_reserve", "expandable_segments_reserve_by_class",
               "graph_capture_record_stream_reuse", "large_segment_size_mb", "max_non_split_rounding_mb", "max_split_size_mb",
               "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "roundup_power2_divisions")

FALLBACK = """cenote: no adapter for torch {version} could be made: {why}.
cenote: it is PyTorch's allocator all the same, through CUDAPluggableAllocator: allocation, record_stream, empty_cache and
set_per_process_memory_fraction work; memory_stats and functions that use it, snapshots, graphs and pools do not, and running out of memory is
a RuntimeError."""


class Status(NamedTuple):
    """The result of `status`."""

    allocator: Optional[str]  # torch.cuda.get_allocator_backend(): "cenote", "pluggable", "native"; None while torch is not imported
    adapter: Optional[str]  # path of the library between PyTorch and libcenote
    torch: Optional[str]  # version of torch
    note: str  # if cenote was asked for and is not the allocator: why; else empty


_adapter: Optional[str] = None
_note = ""


def say(text: str) -> None:
    """Prints to stderr, once for a program: not in workers, and of several ranks only in the first."""
    import multiprocessing
    if multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)


def install() -> None:
    """Makes cenote the allocator of PyTorch in this process and, by CENOTE=on, in those that it starts.

    Comes before the first use of a GPU; RuntimeError after it. A second call changes nothing.
    """
    global _adapter, _note
    import torch  # with CENOTE=on this import may call install() itself
    if _adapter:
        return
    if not torch.version.cuda:
        _note = f"torch {torch.__version__} is built without CUDA"
        return
    check_settings(torch)
    first_use.look(say)
    ctypes.CDLL(places.library(), ctypes.RTLD_GLOBAL)  # the adapter finds it by its soname
    try:
        path, library = adapter.loaded(adapter.describe(torch), say)
        hook_up(library)
        trim_before_mem_get_info(torch)
        _adapter = path
    except NotMade as why:
        library = fall_back(torch, str(why))
        _adapter, _note = places.pluggable_library(), str(why)
        bindings.stands_in()
    tell_of_synchronizations(torch, library)
    os.environ[environment.CENOTE] = "on"
    step_counter.watch(torch)
    moment.watch(torch, library)
    if environment.is_on(environment.LABELS, os.environ):
        hooks.label_if_possible(torch, say)


def hook_up(library: ctypes.CDLL) -> None:
    why = ctypes.create_string_buffer(ROOM)
    library.cenote_torch_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if library.cenote_torch_install(why, ROOM):
        raise RuntimeError(f"cenote.install: {why.value.decode(errors='replace')}")
    adapter.active = library
    atexit.register(library.cenote_torch_python_ends)  # ctypes releases Python's lock for the call, which waits for threads that ask for the lock
    if environment.is_on(environment.HOST, os.environ):
        library.cenote_torch_install_host.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        if library.cenote_torch_install_host(places.host_library().encode(), why, ROOM):
            raise RuntimeError(f"cenote.install, {environment.HOST}=on: {why.value.decode(errors='replace')}")


def trim_before_mem_get_info(torch: ModuleType) -> None:
    """torch.cuda.mem_get_info() asks the driver and not the allocator, which may have deferred the trim of an empty_cache(). So read a counter of the
    allocator first: that makes it trim."""
    inside = torch.cuda.mem_get_info

    @functools.wraps(inside)
    def mem_get_info(device: Any = None) -> Any:
        if torch.cuda.is_initialized():
            torch.cuda.memory_reserved(device)
        return inside(device)
    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info


def tell_of_synchronizations(torch: ModuleType, library: ctypes.CDLL) -> None:
    """With announced:0 cenote must not wait for a device as a whole. If the program does, by torch.cuda.synchronize() or
    torch.accelerator.synchronize(), memory comes back of streams that ended without a word."""
    inside, inside_of = torch._C._cuda_synchronize, torch._C._accelerator_synchronizeDevice

    @functools.wraps(inside)
    def synchronize() -> None:
        library.cenote_torch_sync_begin()
        inside()
        library.cenote_torch_sync_end()

    @functools.wraps(inside_of)
    def synchronize_device(index: int) -> None:
        library.cenote_torch_sync_begin()
        inside_of(index)
        accelerator = torch.accelerator.current_accelerator()
        if accelerator and accelerator.type == "cuda" and torch.cuda.is_initialized():
            with torch.cuda.device(index):  # the context that was waited for
                library.cenote_torch_sync_end()
    torch._C._cuda_synchronize, torch._C._accelerator_synchronizeDevice = synchronize, synchronize_device


def retire(stream: Any) -> None:
    library, why = ctypes.CDLL(_adapter) if _adapter else None, ctypes.create_string_buffer(ROOM)
    if library is None:
        raise RuntimeError("cenote.retire: cenote is not PyTorch's allocator, or has no adapter (cenote.status)")
    handle = getattr(stream, "cuda_stream", stream)
    if library.cenote_torch_retire(ctypes.c_ulonglong(handle), why, ctypes.c_size_t(ROOM)):
        raise RuntimeError(f"cenote.retire: {why.value.decode(errors='replace')}")


def fall_back(torch: ModuleType, why: str) -> ctypes.CDLL:
    """Installs cenote without the adapter."""
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
    """Says which settings have no effect. PyTorch's own parser refuses malformed ones."""
    settings = {}
    for name in reversed(environment.ALLOCATOR_VARIABLES):
        settings.update({key: name for key, value in environment.split_settings(os.environ.get(name, ""))
                         if (key, value) != ("expandable_segments", "False")})  # that one asks for memory that is no pages
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        where = settings.get("backend", "its settings")
        raise RuntimeError(f"cenote.install: PyTorch's allocator is {backend!r} already; leave `backend` out of {where}")
    needless = [key for key in settings if key in UNNECESSARY]
    if needless:
        say(f"cenote: {', '.join(needless)} in {settings[needless[0]]}: not needed here, without effect, and can be left out")


def status() -> Status:
    """Which allocator PyTorch uses in this process. Imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return Status(None, None, None, _note)
    return Status(torch.cuda.get_allocator_backend(), _adapter, torch.__version__, _note)
