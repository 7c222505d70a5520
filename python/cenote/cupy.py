"""cenote as the allocator of CuPy (docs/python-libraries.md):

    import cenote.cupy
    cenote.cupy.install()        or, for a part of a program: with cupy.cuda.using_allocator(cenote.cupy.allocator): ...

A block is taken for CuPy's current stream, and freed in the order of the stream that is current then. `use` names another one that works on an array.
CuPy's CFunctionAllocator would call C functions, which cannot ask for the current stream; its PythonFunctionAllocator calls these. Both call with the
interpreter's lock held; libcenote is called without it. Imports cupy; the package `cenote` does not import this. No state.
"""
import gc
from typing import Any

import cupy  # type: ignore[import-not-found, unused-ignore]

from cenote.native import blocks
from cenote.native.bindings import Error, Level

__all__ = ["Shortage", "allocator", "install", "stats", "trim", "use"]
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class Shortage(cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError):  # type: ignore[misc, unused-ignore]
    """No memory, with libcenote's text: the error of CuPy's pools, and of the functions below them, after which a pool gives back what it keeps."""

    def __init__(self, size: int, device: int, text: str) -> None:
        cupy.cuda.memory.OutOfMemoryError.__init__(self, size, blocks.held_bytes(device))
        self.status = OUT_OF_MEMORY
        self.args = (text,)  # CuPy's own says less

    def __reduce__(self) -> Any:
        return cupy.cuda.memory.OutOfMemoryError, (self._size, self._total)


def _current() -> int:
    return int(cupy.cuda.get_current_stream().ptr)


def _malloc(size: int, device: int) -> int:
    stream = _current()
    try:
        return blocks.take(device, size, stream)
    except Error as error:
        if not blocks.is_shortage(error):
            raise
    gc.collect()  # arrays in cycles of references, as CuPy's own pool does
    try:
        return blocks.take(device, size, stream)
    except Error as error:
        if not blocks.is_shortage(error):
            raise
        raise Shortage(size, device, str(error)) from error


def _free(block: int, device: int) -> None:
    try:
        stream = _current()
    except Exception:  # an array outlives CuPy's own modules, at the end of the process
        blocks.give(block)
        return
    blocks.give_on(block, stream, device)


_functions = cupy.cuda.PythonFunctionAllocator(_malloc, _free)


def allocator(size: int) -> Any:
    """For cupy.cuda.set_allocator and cupy.cuda.using_allocator."""
    return _functions.malloc(size)


def install() -> None:
    """From now on CuPy allocates from cenote, on all threads and devices. What it has allocated before stays where it is."""
    cupy.cuda.set_allocator(allocator)


def use(array: Any, stream: Any = None) -> None:
    """The array is also used on this stream (None: the current one): when it is freed its memory waits for the work that is on it then."""
    blocks.use(int(array.data.mem.ptr), _current() if stream is None else int(stream.ptr))


def stats(device: int = 0) -> "dict[str, int | Level]":
    return blocks.stats(device)


def trim(device: int = 0) -> None:
    """Waits for the device, and gives free memory back to the driver. Not while a stream is captured: the wait may end the capture."""
    blocks.trim(device)
