"""cenote as the memory resource of cuda.core (docs/python-libraries.md):

    from cuda.core import Device
    import cenote.cuda_core
    device = Device()
    device.memory_resource = cenote.cuda_core.MemoryResource(device)

A buffer is taken for the stream that the call names, and freed in the order of the stream that closes it, or of the last set_deallocation_stream.
Memory of graphs is not served: GraphMemoryResource is cuda.core's own. Imports cuda.core; the package `cenote` does not import this. No state.
"""
from typing import Any, Optional, Union

import cuda.core.graph  # type: ignore[import-not-found, unused-ignore]
from cuda.core._utils.cuda_utils import CUDAError  # type: ignore[import-not-found, unused-ignore]  # its public modules have no name for it

from cenote.native import blocks
from cenote.native.bindings import Error, Level

__all__ = ["MemoryResource"]


def _handle(stream: Any) -> int:
    """Of a Stream or a GraphBuilder, which has a stream."""
    found = getattr(stream, "stream", stream)
    return int(found.handle)


class MemoryResource(cuda.core.MemoryResource):  # type: ignore[misc, unused-ignore]
    """Memory of cenote's pool for Python libraries, on one device. Any number of these may be made: they share it."""

    def __init__(self, device: Union[int, Any, None] = None) -> None:
        """A number or a cuda.core.Device; None is the current one."""
        self._device_id = int(cuda.core.Device(device).device_id if device is None or isinstance(device, int) else device.device_id)

    def allocate(self, size: int, *, stream: Any) -> Any:
        if isinstance(stream, cuda.core.graph.GraphBuilder):  # each replay would write to a buffer that is free by then
            raise CUDAError("CUDA_ERROR_NOT_SUPPORTED: a graph's own memory is cuda.core.GraphMemoryResource's. Or take the buffer before the graph "
                            "is built, and keep it as long as the graph runs")
        try:
            block = blocks.take(self._device_id, size, _handle(stream))
        except Error as error:
            if blocks.is_shortage(error):
                raise CUDAError(f"CUDA_ERROR_OUT_OF_MEMORY: {error}") from error
            raise
        return cuda.core.Buffer.from_handle(block, size, self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Optional[Any] = None) -> None:
        if stream is None:
            blocks.give(int(ptr))
        else:
            blocks.give_on(int(ptr), _handle(stream), self._device_id)

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._device_id

    def stats(self) -> "dict[str, int | Level]":
        return blocks.stats(self._device_id)

    def trim(self) -> None:
        """Waits for the device, and gives free memory back to the driver. Not while a graph is built."""
        blocks.trim(self._device_id)
