"""What the custom all-reduce of vLLM and SGLang does with the buffers of a CUDA graph, step by step, on two ranks. A program for test_graph_ipc.py.

The functions have the names that vLLM and SGLang use. `get_graph_buffer_ipc_meta` asks where the allocation under each buffer begins, and for a
legacy IPC handle of the allocation. `register_graph_buffers` opens the handles of the other rank; replays then read the buffers of that rank. If
the runtime refuses a call, the program ends with status 1, as after CUDACHECK in vLLM. A copy stands in for the kernel.
"""
import ctypes
import multiprocessing
import os
import sys

import torch

RANKS, WORDS = 2, (300_000, 5_000_000, 20)  # int32 in each buffer
RANGE_START = 11  # CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
ANY_WAY = 4  # cudaMemcpyDefault
LAZY_ENABLE_PEER_ACCESS = 1


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]


driver = ctypes.CDLL("libcuda.so.1")
driver.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]


def runtime():
    """The runtime that PyTorch has loaded. CudaRTLibrary of vLLM finds it in the same way."""
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split(None, 5)[5].strip() for line in maps if "libcudart" in line))


def checked(cuda, name, *arguments):
    error = getattr(cuda, name)(*arguments)
    if error:
        cuda.cudaGetErrorString.restype = ctypes.c_char_p
        print(f"Failed: Cuda error {name} '{cuda.cudaGetErrorString(error).decode()}'", file=sys.stderr, flush=True)
        os._exit(1)


def get_graph_buffer_ipc_meta(cuda, buffers):
    handles, offsets = [], []
    for buffer in buffers:
        base, handle = ctypes.c_uint64(), Handle()
        if driver.cuPointerGetAttribute(ctypes.byref(base), RANGE_START, buffer.data_ptr()):
            raise RuntimeError("failed to get pointer attr")
        checked(cuda, "cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(base.value))
        handles.append(bytes(handle.bytes))
        offsets.append(buffer.data_ptr() - base.value)
    return handles, offsets


def register_graph_buffers(cuda, handles, offsets):
    opened = {}
    for handle in handles:
        if handle not in opened:
            opened[handle] = ctypes.c_void_p()
            whole = Handle.from_buffer_copy(handle)
            checked(cuda, "cudaIpcOpenMemHandle", ctypes.byref(opened[handle]), whole, ctypes.c_uint(LAZY_ENABLE_PEER_ACCESS))
    return [opened[handle].value + offset for handle, offset in zip(handles, offsets)], list(opened.values())


def run(rank, pipe):
    def exchange(mine):
        pipe.send(mine)
        return pipe.recv()

    torch.cuda.set_device(rank)
    prepare(torch)
    cuda = runtime()
    inputs = [torch.empty(words, dtype=torch.int32, device="cuda") for words in WORDS]
    results = [torch.empty_like(each) for each in inputs]
    model, reader = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(model):
        buffers = [torch.empty_like(each).copy_(each) for each in inputs]
    handles, offsets = exchange(get_graph_buffer_ipc_meta(cuda, buffers))
    theirs, opened = register_graph_buffers(cuda, handles, offsets)
    with torch.cuda.graph(reader):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for result, there in zip(results, theirs):
            checked(cuda, "cudaMemcpyAsync", ctypes.c_void_p(result.data_ptr()), ctypes.c_void_p(there), ctypes.c_size_t(result.nbytes),
                    ctypes.c_int(ANY_WAY), stream)
    for step in range(3):
        for number, each in enumerate(inputs):
            each.copy_(torch.full(each.shape, 100 * step + 10 * rank + number, dtype=torch.int32))
        torch.empty(40 << 20, dtype=torch.uint8, device="cuda")  # eager blocks make memory move while the graphs exist
        torch.cuda.empty_cache()
        model.replay()
        torch.cuda.synchronize()
        exchange("written")
        reader.replay()
        torch.cuda.synchronize()
        for number, result in enumerate(results):
            assert (result.cpu() == 100 * step + 10 * (1 - rank) + number).all(), f"rank {rank}, step {step}, buffer {number}"
        exchange("read")
    for each in opened:
        checked(cuda, "cudaIpcCloseMemHandle", each)
    exchange("closed")


def main():
    here, there = multiprocessing.Pipe()
    child = os.fork()
    run(1, there) if not child else run(0, here)
    if not child:
        sys.stdout.flush()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"the other rank ended with {status}", flush=True)
    sys.exit(status)
