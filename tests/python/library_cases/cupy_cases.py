"""cenote.cupy under stand-ins of what it calls: CuPy's wheel brings a static CUDA runtime, which refuses the simulated GPU. The rest is CuPy's own,
as its errors are. See run.py."""
import gc
import pickle
import types

import card
import cupy
from card import MIB


class Allocation:
    """As PythonFunctionAllocatorMemory: freed when the last reference to it goes."""

    def __init__(self, functions, size, ptr):
        self.functions, self.size, self.ptr = functions, size, ptr

    def __del__(self):
        self.functions.free_function(self.ptr, device)


class Functions:
    """As cupy.cuda.PythonFunctionAllocator, of its documentation."""

    def __init__(self, malloc_function, free_function):
        self.malloc_function, self.free_function = malloc_function, free_function

    def malloc(self, size):
        return types.SimpleNamespace(mem=Allocation(self, size, self.malloc_function(size, device)))


current, device, refused = 0, 0, Functions
refused, cupy.cuda.PythonFunctionAllocator = cupy.cuda.PythonFunctionAllocator, Functions
asks_for_the_stream, cupy.cuda.get_current_stream = cupy.cuda.get_current_stream, lambda: types.SimpleNamespace(ptr=current)
import cenote.cupy  # noqa: E402  (takes what stands there now)

SIZE = 8 * MIB
card.use_device()
here, there = card.stream(), card.stream(0)


def on(stream):
    global current
    current = stream


def take(size=SIZE, stream=None):
    on(here if stream is None else stream)
    return types.SimpleNamespace(data=cenote.cupy.allocator(size))


def at(array):
    return array.data.mem.ptr


def live():
    return cenote.cupy.stats()["allocated"].current


def case_the_wheel_does_not_come_as_far_as_an_allocation():
    """If this fails, the stand-ins can go."""
    for call in (asks_for_the_stream, lambda: refused(cenote.cupy._malloc, cenote.cupy._free).malloc(512)):
        assert "cudaErrorNotSupported" in str(card.raised(cupy.cuda.runtime.CUDARuntimeError, call))


def case_what_is_installed_is_ours():
    cenote.cupy.install()
    assert cupy.cuda.get_allocator() is cenote.cupy.allocator
    before = live()
    array = take()
    assert live() - before == SIZE
    del array
    assert live() == before


def case_an_array_for_each_default_stream():
    for stream in (0, 1, 2):
        array = take(MIB, stream)
        card.fill(at(array), 3, MIB, stream)
        assert card.content(at(array), MIB) == {3}


def case_a_freed_array_serves_its_own_stream_at_once():
    card.wait()
    array = take()
    card.fill_late(at(array), 1, SIZE, here)
    was = at(array)
    del array
    array = take()
    assert at(array) == was and not card.is_done(here)
    card.fill(was, 2, SIZE, here)
    assert card.content(was, SIZE) == {2}


def case_an_array_waits_for_the_stream_that_is_current_at_its_end():
    array = take()
    card.fill_late(at(array), 1, SIZE, there)
    on(there)
    del array
    array = take()
    card.fill(at(array), 2, SIZE, here)
    assert not card.is_done(there)
    assert card.content(at(array), SIZE) == {2}


def case_an_array_waits_for_the_streams_that_the_program_names():
    other = types.SimpleNamespace(ptr=there)
    array = take()
    cenote.cupy.use(array, other)
    card.fill_late(at(array), 1, SIZE, there)
    del array
    array = take()
    card.fill(at(array), 2, SIZE, here)
    assert not card.is_done(there)
    assert card.content(at(array), SIZE) == {2}


def case_a_stream_that_ended_before_its_array():
    brief = card.stream()
    array = take(MIB, brief)
    card.end_stream(brief)
    on(here)
    before = live()
    del array
    assert live() == before - MIB


def case_memory_that_streams_left_is_found_when_memory_is_short():
    for _ in range(4):
        brief = card.stream()
        array = take(400 * MIB, brief)
        card.fill_late(at(array), 1, MIB, brief)
        del array
        card.end_stream(brief)


def case_no_memory_left_is_the_library_s_error_with_our_message():
    error = card.raised(cupy.cuda.memory.OutOfMemoryError, lambda: take(1 << 40))
    assert isinstance(error, MemoryError) and "Tried to allocate 1024.00 GiB" in str(error) and "Advice:" in str(error)


def case_arrays_in_cycles_are_found_when_memory_is_short():
    """As by CuPy's own pool: Python's collector has not come by yet."""
    gc.disable()
    try:
        for _ in range(4):
            ring = [take(200 * MIB)]
            ring.append(ring)
    finally:
        gc.enable()
        del ring
        gc.collect()


def case_a_pool_of_cupy_s_gives_back_what_it_keeps_when_memory_is_short():
    """A pool takes this error alone for a shortage of the function below it."""
    error = card.raised(cupy.cuda.runtime.CUDARuntimeError, lambda: take(1 << 40))
    assert "cudaErrorMemoryAllocation" in str(cupy.cuda.runtime.CUDARuntimeError(error.status))
    assert type(pickle.loads(pickle.dumps(error))) is cupy.cuda.memory.OutOfMemoryError


def case_a_shortage_ends_no_capture_of_the_current_stream():
    for flags in (0, 1):  # ordered with the default stream, and not
        stream, kept = card.stream(flags), take(MIB)
        with card.captured(stream):
            card.fill(at(kept), 1, MIB, stream)
            card.raised(MemoryError, lambda: take(1 << 40, stream))
            if not flags:
                card.raised(MemoryError, lambda: take(1 << 40, 0))  # by any thread
        del kept


def case_an_array_waits_for_the_default_stream_of_the_device_that_is_current_at_its_end():
    cenote.cupy.stats(1)  # a pool lets the devices of others in
    for stream in (0, 1, 2):
        for named in (False, True):
            array = take(SIZE, stream)
            with card.other_device():
                card.fill_late(at(array), 1, SIZE, stream)
                if named:
                    cenote.cupy.use(array)
                else:
                    del array
            if named:
                del array
            array = take(SIZE, stream)
            card.fill(at(array), 2, SIZE, stream)
            with card.other_device():
                assert not card.is_done(stream)
                card.wait()
            assert card.content(at(array), SIZE) == {2}
            del array


def case_an_array_of_no_bytes():
    take(0)


def case_a_trim_gives_memory_back():
    take(64 * MIB)
    cenote.cupy.trim()
    assert cenote.cupy.stats()["reserved"].current <= live() + 8 * MIB


def case_another_device():
    global device
    device = 1
    try:
        array = take(MIB, 0)
        assert cenote.cupy.stats(1)["allocated"].current == MIB
        del array
        assert cenote.cupy.stats(1)["allocated"].current == 0
    finally:
        device = 0
