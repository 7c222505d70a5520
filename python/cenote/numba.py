"""cenote as the memory manager of Numba (docs/python-libraries.md):

    NUMBA_CUDA_MEMORY_MANAGER=cenote.numba python program.py        or: numba.cuda.set_memory_manager(cenote.numba.Manager)

Numba names no stream when it allocates, and any stream may use the memory at once. So all blocks are taken on a stream of the manager's own, which
gets no work, and freed ones are kept until the device has been waited for, all of them by one wait: Numba's list of pending deallocations says when.
Imports numba; the package `cenote` does not import this.

The only state is what each manager (one for each context) has to free. Finalizers may run at any moment, also in the middle of a method here: a list
is taken away whole before anything is done with it.
"""
import ctypes
import weakref
from typing import Any

from numba import cuda  # type: ignore[import-not-found, import-untyped, unused-ignore]
from numba.cuda.cudadrv import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]

from cenote.native import blocks, bindings
from cenote.native.bindings import Level

__all__ = ["Manager", "Share", "stats", "trim"]
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_streams: dict[int, Any] = {}  # by device: no work is put there


def _quiet_stream(device: int) -> int:
    if device not in _streams:
        _streams[device] = driver.driver.cuStreamCreate(NON_BLOCKING)
    return int(_streams[device])


def _device(context: Any) -> Any:
    """Numba's object of the context's device: a context that Numba did not make has the driver's device instead."""
    return context.device if hasattr(context.device, "id") else driver.driver.get_device(int(context.device))


class Share(cuda.cudadrv.driver.IpcHandle):  # type: ignore[misc, unused-ignore]
    """Names an array to other processes, which import cenote.numba to open it; cenote need not be their memory manager. `handle` is 64 bytes."""

    _opened = 0

    def open(self, context: Any) -> Any:
        """The memory in this process, for kernels of the context's device, until close()."""
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._opened:
            raise ValueError("IpcHandle is already opened")
        self._opened = blocks.open_share(self.handle, _device(context).id)
        return driver.MemoryPointer(weakref.proxy(context), ctypes.c_void_p(self._opened), self.size)

    open_direct = open_staged = open

    def close(self) -> None:
        """Waits for the device first."""
        if not self._opened:
            raise ValueError("IpcHandle not opened")
        address, self._opened = self._opened, 0
        cuda.synchronize()
        blocks.close_share(address)

    def __reduce__(self) -> Any:
        return Share, (None, self.handle, self.size, self.source_info)


class Manager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc, unused-ignore]
    """Device memory from cenote; pinned, mapped and managed memory as Numba has it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._freed: list[int] = []

    def initialize(self) -> None:
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size: int) -> Any:
        block = self._attempt_allocation(lambda: self._take(size))

        def finalizer() -> None:
            self._freed.append(block)
            self.deallocations.add_item(self._give, block, size)
        return cuda.MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(block), size, finalizer=finalizer)

    def _take(self, size: int) -> int:
        device = _device(self.context).id
        try:
            return blocks.take(device, size, _quiet_stream(device))
        except bindings.Error as error:
            if blocks.is_shortage(error):  # Numba frees what is pending then, and asks again
                raise driver.CudaAPIError(driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY, str(error)) from error
            raise

    def _give(self, block: int) -> None:
        """For Numba's list of pending deallocations: frees this block, and with it all that wait, unless an earlier one has done so."""
        if block not in self._freed:
            return
        freed, self._freed = self._freed, []
        if blocks.settle(_device(self.context).id):
            for each in freed:
                blocks.give(each)
        else:  # a stream is captured: with a later one
            self._freed += freed

    def get_memory_info(self) -> Any:
        """What the pool holds and no block uses counts as free."""
        free, total = driver.driver.cuMemGetInfo()
        return cuda.MemoryInfo(free=free + blocks.free_bytes(_device(self.context).id), total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        return Share(memory, blocks.share(int(memory.device_pointer)), memory.size, _device(self.context).get_device_identity())

    @property
    def interface_version(self) -> int:
        return 1


_numba_memory_manager = Manager  # where Numba looks


def stats(device: int = 0) -> "dict[str, int | Level]":
    return blocks.stats(device)


def trim(device: int = 0) -> None:
    """Waits for the device, and gives free memory back to the driver."""
    cuda.devices.get_context(device).memory_manager.deallocations.clear()
    blocks.trim(device)
