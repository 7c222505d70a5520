"""cenote.numba under the real numba-cuda, which takes it from NUMBA_CUDA_MEMORY_MANAGER. Kernels compute nothing here, so fills and copies stand for
them. See run.py."""
import gc
import os
import pickle
import subprocess
import sys

import card
import numpy
from card import MIB
from numba import cuda
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.driver import CudaAPIError

import cenote.numba

SIZE = 8 * MIB
manager = cuda.current_context().memory_manager


def bytes_of(size=SIZE):
    return cuda.device_array(size, dtype=numpy.uint8)


def at(array):
    return int(array.device_ctypes_pointer.value)


def fill(array, value, stream):
    card.fill(at(array), value, array.nbytes, int(stream.handle))


def fill_late(array, value, stream):
    card.fill_late(at(array), value, array.nbytes, int(stream.handle))


def live():
    return cenote.numba.stats()["allocated"].current


def settled():
    gc.collect()
    manager.deallocations.clear()
    return live()


def case_arrays_are_ours():
    before = settled()
    array = bytes_of()
    assert isinstance(manager, cenote.numba.Manager) and live() - before == SIZE
    del array
    assert settled() == before


def case_a_copy_comes_back():
    there = cuda.to_device(numpy.arange(MIB, dtype=numpy.int32))
    assert (there.copy_to_host() == numpy.arange(MIB)).all()
    part = there[1000:2000]
    del there
    gc.collect()
    assert settled() and (part.copy_to_host() == numpy.arange(1000, 2000)).all()


def case_any_stream_may_use_memory_at_once():
    """Freed while the device is behind, and taken again: no work of before is left to do on it, on whatever stream it was."""
    one, other = cuda.stream(), cuda.external_stream(card.stream())
    for first, second in ((one, other), (other, one), (other, cuda.default_stream())):
        array = None
        settled()
        cenote.numba.trim()  # so that the next block can only lie where this one does
        array = bytes_of()
        fill_late(array, 1, first)
        was = at(array)
        del array
        settled()
        array = bytes_of()
        assert at(array) == was
        fill(array, 2, second)
        assert card.content(was, SIZE) == {2}


def case_frees_wait_together():
    """Numba's list lets eleven gather, or a fifth of the memory; one wait serves them all."""
    settled()
    before, stream = live(), cuda.stream()
    arrays = [bytes_of(MIB) for _ in range(10)]
    fill_late(arrays[0], 1, stream)
    arrays.clear()
    gc.collect()
    assert live() - before == 10 * MIB and not card.is_done(int(stream.handle))
    assert settled() == before and card.is_done(int(stream.handle))


def case_cleanup_that_is_deferred():
    before = settled()
    with cuda.defer_cleanup():
        for _ in range(30):
            bytes_of(MIB)
        gc.collect()
        assert live() - before == 30 * MIB
    assert settled() == before


def case_no_memory_left_is_the_library_s_error_with_our_message():
    error = card.raised(CudaAPIError, lambda: bytes_of(1 << 40))
    assert error.code == 2 and "Tried to allocate 1024.00 GiB" in error.msg and "Advice:" in error.msg


def case_what_is_pending_is_freed_before_memory_runs_out():
    for _ in range(6):
        bytes_of(100 * MIB)
    bytes_of(400 * MIB)


def case_memory_info():
    settled()
    cenote.numba.trim()
    before = cuda.current_context().get_memory_info()
    array = bytes_of(64 * MIB)
    held = cuda.current_context().get_memory_info()
    assert (before.free - held.free, held.total) == (64 * MIB, before.total)
    del array
    settled()
    assert cuda.current_context().get_memory_info().free == before.free


def case_an_array_in_another_process():
    """The other process has Numba's own memory manager."""
    array = cuda.to_device(numpy.full(SIZE, 7, dtype=numpy.uint8))
    handle = array[MIB:2 * MIB].get_ipc_handle()
    reader = ("import pickle, site, sys; site.addsitedir(sys.argv[1]); handle = pickle.load(sys.stdin.buffer); array = handle.open(); "
              "print(set(array.copy_to_host().tolist()), array.shape); del array; handle.close()")
    card.wait()
    done = subprocess.run([sys.executable, "-c", reader, sys.argv[1]], input=pickle.dumps(handle), capture_output=True, timeout=200,
                          env={**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "default"})
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{7} (1048576,)\n", b"")
    card.raised(ValueError, handle.open)


def case_pinned_memory_stays_numba_s():
    before = live()
    assert cuda.pinned_array(MIB, dtype=numpy.uint8).nbytes == MIB and cuda.mapped_array(MIB, dtype=numpy.uint8).nbytes == MIB
    assert live() == before


def case_an_array_of_no_bytes():
    assert bytes_of(0).size == 0


def case_a_context_that_numba_did_not_make():
    """Its device is the driver's number, not Numba's object."""
    number = driver.binding.CUdevice(0)
    context = driver.Context(number, driver.driver.cuDevicePrimaryCtxRetain(number))
    context.push()
    try:
        memory = context.memory_manager.memalloc(MIB)
        assert memory.size == MIB and context.memory_manager.get_ipc_handle(memory).size == MIB
        assert context.get_memory_info().total == cuda.current_context().get_memory_info().total
        del memory
        context.memory_manager.deallocations.clear()
    finally:
        context.pop()
        driver.driver.cuDevicePrimaryCtxRelease(number)


def case_two_devices():
    with cuda.gpus[1]:
        away = cuda.to_device(numpy.full(MIB, 5, dtype=numpy.uint8))
        card.wait()
    near = bytes_of(MIB)
    near.copy_to_device(away)
    assert card.content(at(near), MIB) == {5}
    assert cenote.numba.stats(1)["allocated"].current == MIB
    del away
    gc.collect()
    cenote.numba.trim(1)
    assert cenote.numba.stats(1)["allocated"].current == 0
