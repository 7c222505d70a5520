"""cenote as PyTorch's allocator in this process.

`install` installs the adapter, compiled for this torch (native/adapter.py). If there is none, it raises, or with CENOTE=fallback it installs
libcenote through PyTorch's CUDAPluggableAllocator, which can do less (fallback.py). `status` says which of them is active. cenote stays installed:
PyTorch cannot change an allocator in use.
"""
import atexit
import ctypes
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple, Optional

from cenote import places
from cenote.base import switch
from cenote.inside import fallback, first_use, memory_saver, moment, ran_out, vllm_sleep
from cenote.labels import hooks, step_counter
from cenote.launch import environment
from cenote.native import adapter, bindings
from cenote.native.adapter import NotMade
from cenote.torch import features, patches
from cenote.torch.features import say

ROOM = 1000  # bytes for a message of the adapter's

# Settings of PyTorch's own allocator that have no effect on cenote.
UNNECESSARY = ("expandable_segments", "expandable_segments_reserve", "expandable_segments_reserve_by_class",
               "large_segment_size_mb", "max_non_split_rounding_mb", "max_split_size_mb", "release_lock_on_cudamalloc",
               "release_lock_on_hipmalloc", "roundup_power2_divisions")

# And those that would do something, which cenote does not do.
UNSERVED = {"graph_capture_record_stream_reuse": "a graph of several streams may hold more memory",
            "throw_on_cudamalloc_oom": "what passes the limit is refused after what is free was given back, not before"}

STRICT = """cenote.install: no adapter for torch {version} could be made: {why}; CENOTE=fallback accepts an allocator that can do less, CENOTE=off \
leaves PyTorch its own"""


class Status(NamedTuple):
    """The result of `status`."""

    allocator: Optional[str]  # torch.cuda.get_allocator_backend(): "cenote", "pluggable", "native"; None while torch is not imported
    adapter: Optional[str]  # path of the library between PyTorch and libcenote
    torch: Optional[str]  # version of torch
    note: str  # if cenote was asked for and is not the allocator: why; else empty


_adapter: Optional[str] = None
_library: Optional[ctypes.CDLL] = None  # of that path, once it serves PyTorch
_note = ""


def install() -> None:
    """Makes cenote the allocator of PyTorch in this process and, by CENOTE=on, in those that it starts.

    Comes before the first use of a GPU; RuntimeError after it. A second call changes nothing.
    """
    global _adapter, _library, _note
    import torch  # with CENOTE=on this import may call install() itself
    if _adapter:
        return
    if not torch.version.cuda:
        _note = f"torch {torch.__version__} is built without CUDA"
        return
    check_settings(torch)
    first_use.look(say)
    ctypes.CDLL(places.library(), ctypes.RTLD_GLOBAL)  # the adapter finds it by its soname
    made = adapter_for(torch)
    if isinstance(made, str):
        _note = made
        _library = fall_back(torch, made)
        _adapter = places.pluggable_library()
        bindings.stands_in()
    else:
        hook_up(made[1])
        _adapter, _library = made
    if not environment.is_on(environment.CENOTE, os.environ):
        os.environ[environment.CENOTE] = "on"
    begin_features(torch, _library)


def adapter_for(torch: ModuleType) -> "tuple[str, ctypes.CDLL] | str":
    """The path of the adapter, and the adapter; or why there is none."""
    try:
        return adapter.loaded(adapter.describe(torch), say)
    except NotMade as why:
        return str(why)
    except Exception as why:
        return f"{type(why).__name__}: {why}"


def hook_up(library: ctypes.CDLL) -> None:
    why = ctypes.create_string_buffer(ROOM)
    library.cenote_torch_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if library.cenote_torch_install(why, ROOM):
        raise RuntimeError(f"cenote.install: {why.value.decode(errors='replace')}")
    adapter.active = library
    library.cenote_torch_lost.restype = ctypes.c_char_p
    lost = library.cenote_torch_lost().decode()
    if lost:
        say(f"cenote: this PyTorch calls methods of its allocator otherwise than cenote has them, and its own defaults answer there: {lost}")
    atexit.register(library.cenote_torch_python_ends)  # ctypes releases Python's lock for the call, which waits for threads that ask for the lock


def begin_features(torch: ModuleType, library: ctypes.CDLL) -> None:
    """The allocator is installed, and stays. One of these that cannot begin is off, says so, and leaves nothing behind."""
    if adapter.active is not None:
        features.is_whole("abi")
        memory_saver.watch(torch)
        vllm_sleep.watch(torch)
        features.begin("memory-info", lambda: trim_before_mem_get_info(torch))
        if environment.is_on(environment.HOST, os.environ):
            features.begin("pinned", lambda: install_host(library))
        features.begin("ran-out", lambda: ran_out.watch(library))
    features.begin("synchronize", lambda: tell_of_synchronizations(torch, library))
    step_counter.watch(torch)
    features.begin("moment", lambda: moment.watch(torch, library))
    if environment.is_on(environment.LABELS, os.environ):
        hooks.label_if_possible(torch)


def install_host(library: ctypes.CDLL) -> None:
    why = ctypes.create_string_buffer(ROOM)
    library.cenote_torch_install_host.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    if library.cenote_torch_install_host(places.host_library().encode(), why, ROOM):
        raise RuntimeError(f"{environment.HOST}=on: {why.value.decode(errors='replace')}")


def trim_before_mem_get_info(torch: ModuleType) -> None:
    """torch.cuda.mem_get_info() asks the driver and not the allocator, which may have deferred the trim of an empty_cache(). So read a counter of the
    allocator first: that makes it trim."""
    def trimming(inside: Any) -> Any:
        def mem_get_info(device: Any = None) -> Any:
            if torch.cuda.is_initialized() and torch.cuda.get_allocator_backend() == "cenote":
                torch.cuda.memory_reserved(device)
            return inside(device)
        return mem_get_info
    for name in ("torch.cuda.mem_get_info", "torch.cuda.memory.mem_get_info"):
        patches.replace("memory-info", name, trimming)


def tell_of_synchronizations(torch: ModuleType, library: ctypes.CDLL) -> None:
    """With announced:0 cenote must not wait for a device as a whole. If the program does, by torch.cuda.synchronize() or
    torch.accelerator.synchronize(), memory comes back of streams that ended without a word."""
    def telling(inside: Any) -> Any:
        def synchronize() -> None:
            library.cenote_torch_sync_begin()
            inside()
            library.cenote_torch_sync_end()
        return synchronize

    def telling_of(inside: Any) -> Any:
        def synchronize_device(index: int) -> None:
            library.cenote_torch_sync_begin()
            inside(index)
            accelerator = torch.accelerator.current_accelerator()
            if accelerator and accelerator.type == "cuda" and torch.cuda.is_initialized():
                with torch.cuda.device(index):  # the context that was waited for
                    library.cenote_torch_sync_end()
        return synchronize_device
    patches.replace("synchronize", "torch._C._cuda_synchronize", telling)
    patches.replace("synchronize", "torch._C._accelerator_synchronizeDevice", telling_of)


def retire(stream: Any) -> None:
    library, why = _library, ctypes.create_string_buffer(ROOM)
    if library is None:
        raise RuntimeError("cenote.retire: cenote is not PyTorch's allocator, or has no adapter (cenote.status)")
    handle = getattr(stream, "cuda_stream", stream)
    if library.cenote_torch_retire(ctypes.c_ulonglong(handle), why, ctypes.c_size_t(ROOM)):
        raise RuntimeError(f"cenote.retire: {why.value.decode(errors='replace')}")


def fall_back(torch: ModuleType, why: str) -> ctypes.CDLL:
    """Installs cenote without the adapter, if the user accepts that."""
    if not switch.accepts_fallback(os.environ.get(environment.CENOTE, "")):
        raise RuntimeError(STRICT.format(version=torch.__version__, why=why))
    library = fallback.begin(torch)
    say(fallback.line(torch, library, why))
    return library


def check_settings(torch: ModuleType) -> None:
    """Says which settings have no effect. PyTorch's own parser refuses malformed ones."""
    settings = {}
    for name in reversed(environment.ALLOCATOR_VARIABLES):
        settings.update({key: name for key, value in environment.split_settings(os.environ.get(name, ""))
                         if value != "False"})  # expandable_segments:False asks for memory that is no pages; no other asks for anything then
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        where = settings.get("backend", "its settings")
        raise RuntimeError(f"cenote.install: PyTorch's allocator is {backend!r} already; leave `backend` out of {where}")
    needless = [key for key in settings if key in UNNECESSARY]
    if needless:
        say(f"cenote: {', '.join(needless)} in {settings[needless[0]]}: not needed here, without effect, and can be left out")
    for key, cost in UNSERVED.items():
        if key in settings:
            say(f"cenote: {key} in {settings[key]}: has no effect here: {cost}")


def status() -> Status:
    """Which allocator PyTorch uses in this process. Imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return Status(None, None, None, _note)
    has = torch.cuda.get_allocator_backend()
    changed = "" if adapter.active is None or has == "cenote" else f"the program has changed PyTorch's allocator to {has} since"
    return Status(has, _adapter, torch.__version__, _note or changed)
