"""The simulated driver by ctypes, for the cases of all libraries: streams, fills that the device is behind with, contents.

The device's clock stands still (manual_clock), so work on a stream is not done before something waits for it.
"""
import contextlib
import ctypes

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, f"CUDA error {result}"


def use_device(number=0):
    """Its primary context is current from now on."""
    context = ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    check(driver.cuCtxSetCurrent(context))


@contextlib.contextmanager
def other_device(number=1):
    before = ctypes.c_void_p()
    check(driver.cuCtxGetCurrent(ctypes.byref(before)))
    use_device(number)
    try:
        yield
    finally:
        check(driver.cuCtxSetCurrent(before))


@contextlib.contextmanager
def captured(on):
    """A capture of a stream, which is whole at its end."""
    graph = ctypes.c_void_p()
    check(driver.cuStreamBeginCapture_v2(ctypes.c_void_p(on), 0))
    try:
        yield
    finally:
        check(driver.cuStreamEndCapture(ctypes.c_void_p(on), ctypes.byref(graph)))
        check(driver.cuGraphDestroy(graph))


def stream(flags=1):
    made = ctypes.c_void_p()
    check(driver.cuStreamCreate(ctypes.byref(made), flags))
    return made.value


def end_stream(handle):
    check(driver.cuStreamDestroy_v2(ctypes.c_void_p(handle)))


def fill(address, value, size, on):
    check(driver.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(size), ctypes.c_void_p(on)))


def fill_late(address, value, size, on):
    """The same, a second later by the device's clock: after what is put on other streams next."""
    check(driver.sim_launch_wait(ctypes.c_void_p(on), ctypes.c_uint64(10**9)))
    fill(address, value, size, on)


def is_done(on):
    """Whether the device is done with the work of a stream."""
    result = driver.cuStreamQuery(ctypes.c_void_p(on))
    assert result in (0, 600), result
    return result == 0


def wait():
    check(driver.cuCtxSynchronize())


def content(address, size):
    """The different bytes that lie there, once the device is done."""
    wait()
    found = ctypes.create_string_buffer(size)
    check(driver.cuMemcpyDtoH_v2(found, ctypes.c_uint64(address), ctypes.c_size_t(size)))
    return set(found.raw)


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
