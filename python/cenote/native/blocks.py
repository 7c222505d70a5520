"""Blocks for Python libraries that use CUDA streams by themselves: CuPy, Numba, cuda.core. No library is imported here.

They share one pool for each device, beside the default one, which PyTorch uses. cenote does not see what such a library does with its streams, so the
pool has two options that CENOTE_CONF does not change: announced:0, as captures of streams come without notice, and order:0, as a block may be
used on a stream that is not ordered behind the one it was taken for. A pool is never destroyed. A stream is a handle (CUstream); 0 and 1 are the
legacy default stream, 2 the calling thread's: of the device that is current.

The only state is the pools. LOCKING: _opening, around the opening of a pool.
"""
import ctypes
import threading
from functools import cache
from typing import Optional, Union

from cenote.native import bindings
from cenote.native.bindings import Level, LevelStruct

OPTIONS = b"announced:0,order:0"
ROOM = 1024  # for cenote_options, which the library knows: members beyond its own are zero
SHARE_BYTES = 64  # sizeof(cenote_share), which never changes

DEFAULT_STREAMS = (0, 1, 2)  # these handles do not say of which device the stream is
CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: of the legacy default stream, while a stream is captured that is ordered with it

_function = cache(bindings.function)
_opening = threading.Lock()
_pools: dict[int, int] = {}  # by device


def pool(device: int) -> int:
    """The pool of a device for Python libraries, opened at the first call."""
    found = _pools.get(device)
    if found is not None:
        return found
    with _opening:
        if device not in _pools:
            _pools[device] = _open(device)
        return _pools[device]


def _open(device: int) -> int:
    options, opened = ctypes.create_string_buffer(ROOM), ctypes.c_void_p()
    bindings.call("cenote_options_default", options, ROOM)
    bindings.call("cenote_options_parse", options, OPTIONS, ROOM)
    bindings.call("cenote_pool_create", device, options, ctypes.byref(opened), ROOM)
    assert opened.value
    for other, its in _pools.items():  # so that copies between devices work, as with memory of cuMemAlloc. Devices may be out of reach
        _function("cenote_pool_grant")(opened.value, other)
        _function("cenote_pool_grant")(its, device)
    return opened.value


def take(device: int, size: int, stream: int) -> int:
    """The address of a block for use on `stream`. bindings.Error; is_shortage if the device is full."""
    if size < 0:
        raise bindings.Error(f"a block has no {size} bytes")
    block = ctypes.c_void_p()
    arguments = pool(device), size, stream, ctypes.byref(block)
    error = _function("cenote_alloc")(*arguments)
    if error:
        first = bindings.error(error)
        if not is_shortage(first) or not settle(device, stream):
            raise first
        bindings.check(_function("cenote_alloc")(*arguments))
    return block.value or 0


def is_shortage(error: bindings.Error) -> bool:
    return error.name in ("OUT_OF_MEMORY", "OUT_OF_ADDRESSES")


def give(block: int) -> None:
    """Frees a block in the order of its stream."""
    bindings.check(_function("cenote_free")(block))


def give_on(block: int, stream: int, device: int) -> None:
    """Frees a block of `device` that `stream` used last. If no stream has that handle any more, in the order of the block's own."""
    there = _device_of_default(stream)
    if block and there not in (None, device):
        _function("cenote_use_on_device")(block, there, stream)
        give(block)
    elif block and _function("cenote_free_on")(block, stream):
        give(block)


def use(block: int, stream: int) -> None:
    """The block, in which the address may lie, is also used on `stream`: when it is freed it waits for that."""
    there = _device_of_default(stream)
    if there is None:
        bindings.check(_function("cenote_use")(block, stream))
    else:
        bindings.check(_function("cenote_use_on_device")(block, there, stream))


def _device_of_default(stream: int) -> Optional[int]:
    """The current device, if the handle is that of a default stream. None: it is not, or none is current, or no pool has let another device in."""
    if len(_pools) < 2 or stream not in DEFAULT_STREAMS:
        return None
    number = ctypes.c_int()
    return None if _driver().cuCtxGetDevice(ctypes.byref(number)) else number.value


def share(address: int) -> bytes:
    """The name of the block at an address, for other processes."""
    name = ctypes.create_string_buffer(SHARE_BYTES)
    bindings.call("cenote_export", address, name)
    return name.raw


def open_share(name: bytes, device: int) -> int:
    """Where the block of another process is, for kernels of `device`, until close_share."""
    address = ctypes.c_void_p()
    bindings.call("cenote_import", ctypes.create_string_buffer(name, SHARE_BYTES), len(name), device, ctypes.byref(address))
    return address.value or 0


def close_share(address: int) -> None:
    bindings.call("cenote_import_close", address)


def stats(device: int = 0) -> dict[str, Union[int, Level]]:
    """Every counter of the pool, as cenote.stats() has those of the default one. Levels are named tuples of current, peak, total_in and total_out."""
    found = bindings.stats_struct()()
    bindings.call("cenote_pool_stats", pool(device), ctypes.byref(found), ctypes.sizeof(found))
    values = {name: getattr(found, name) for name, *_ in found._fields_}
    return {name: bindings.level(value) if isinstance(value, LevelStruct) else value for name, value in values.items()}


def held_bytes(device: int) -> int:
    """What blocks use."""
    found = stats(device)["allocated"]
    assert isinstance(found, Level)
    return found.current


def free_bytes(device: int) -> int:
    """What the pool holds and no block uses."""
    found = stats(device)["reserved"]
    assert isinstance(found, Level)
    return max(found.current - held_bytes(device), 0)


def settle(device: int, stream: int = 0) -> bool:
    """Waits until the device is done with all its work, and tells the pool so: what streams freed that were destroyed since is free then, and cenote
    cannot find that out by itself. False, and nothing happened, if `stream` is captured, or one that is ordered with the legacy default stream. Of
    other captures the driver does not tell: the wait ends them, and the answer is False, too."""
    number, context, sync, driver = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), _driver()
    if driver.cuDeviceGet(ctypes.byref(number), device) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number):
        return False
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return False
        try:
            if _is_captured(stream) or _is_captured(0):
                return False
            begun = not _function("cenote_pool_sync_begin")(pool(device), ctypes.byref(sync))
            return not driver.cuCtxSynchronize() and (not begun or not _function("cenote_pool_sync_end")(pool(device), sync))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(number)


def _is_captured(stream: int) -> bool:
    """Ends no capture."""
    status = ctypes.c_int()
    return _driver().cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status)) == CAPTURE_IMPLICIT or status.value != 0


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def trim(device: int = 0) -> None:
    """Waits for the device (see settle), and gives all memory of the pool that no block uses back to the driver."""
    settle(device)
    bindings.call("cenote_pool_trim", pool(device), 0, 0)
