"""What PyTorch's green contexts ask of NVIDIA's package cuda-bindings, over the driver by ctypes: .venv leaves the package out.

`stand_in()` comes before PyTorch is imported. If the package is there, it is used.
"""

import ctypes
import enum
import importlib.util
import sys
import types


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_INITIALIZED = 3

    @classmethod
    def _missing_(cls, value):
        other = int.__new__(cls, value)
        other._name_, other._value_ = f"CUDA_ERROR_{value}", value
        return other


class CUdevResourceType(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUgreenCtxCreate_flags(enum.IntEnum):
    CU_GREEN_CTX_DEFAULT_STREAM = 1


class CUstream_flags(enum.IntEnum):
    CU_STREAM_NON_BLOCKING = 1


class Processors(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("smCount", "minSmPartitionSize", "smCoscheduledAlignment", "flags")]


class CUdevResource(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("padding", ctypes.c_ubyte * 92), ("sm", Processors), ("rest", ctypes.c_ubyte * 32)]


HANDLE, NUMBER = ctypes.c_void_p, ctypes.c_int

# What each call answers, and the types of what it is given.
CALLS = {
    "cuInit": (None, [ctypes.c_uint]),
    "cuDeviceGet": (NUMBER, [NUMBER]),
    "cuDeviceGetDevResource": (CUdevResource, [NUMBER, NUMBER]),
    "cuDevResourceGenerateDesc": (HANDLE, [ctypes.POINTER(CUdevResource), ctypes.c_uint]),
    "cuGreenCtxCreate": (HANDLE, [HANDLE, NUMBER, ctypes.c_uint]),
    "cuGreenCtxDestroy": (None, [HANDLE]),
    "cuGreenCtxGetDevResource": (CUdevResource, [HANDLE, NUMBER]),
    "cuGreenCtxStreamCreate": (HANDLE, [HANDLE, ctypes.c_uint, NUMBER]),
    "cuStreamDestroy_v2": (None, [HANDLE]),
    "cuCtxFromGreenCtx": (HANDLE, [HANDLE]),
    "cuCtxGetCurrent": (HANDLE, []),
    "cuCtxSetCurrent": (None, [HANDLE]),
    "cuCtxPushCurrent_v2": (None, [HANDLE]),
    "cuCtxPopCurrent_v2": (HANDLE, []),
}


def call(function, answer, types_of):
    """As the package calls it: answers a tuple. The driver wants the place of an answer first, of a resource second."""
    second = answer is CUdevResource

    def run(*given):
        given = [(CUdevResource * len(g))(*g) if isinstance(g, list) else t(g) for g, t in zip(given, types_of)]
        if not answer:
            return (CUresult(function(*given)),)
        place = answer()
        given.insert(1 if second else 0, ctypes.byref(place))
        result = CUresult(function(*given))
        return result, place if second else place.value or 0

    return run


def split_by_count(driver):
    def run(count, whole, flags, least):
        made, groups, rest = ctypes.c_uint(count), (CUdevResource * count)(), CUdevResource()
        result = driver.cuDevSmResourceSplitByCount(groups, ctypes.byref(made), ctypes.byref(whole), ctypes.byref(rest), flags, least)
        return CUresult(result), list(groups), made.value, rest

    return run


def stand_in() -> None:
    if importlib.util.find_spec("cuda"):
        return
    library = ctypes.CDLL("libcuda.so.1")
    package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    bindings.__version__ = "13.0.3"
    bindings.runtime = types.ModuleType("cuda.bindings.runtime")
    bindings.driver = driver = types.ModuleType("cuda.bindings.driver")
    for kind in (CUresult, CUdevResource, CUdevResourceType, CUgreenCtxCreate_flags, CUstream_flags):
        setattr(driver, kind.__name__, kind)
    for name, (answer, given) in CALLS.items():
        setattr(driver, name.removesuffix("_v2"), call(getattr(library, name), answer, given))
    driver.cuDevSmResourceSplitByCount = split_by_count(library)
    package.bindings = bindings
    for module in (package, bindings, bindings.driver, bindings.runtime):
        sys.modules[module.__name__] = module
