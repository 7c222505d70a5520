"""Another library's allocator, made by the C compiler, for MemPool(allocator) and CUDAPluggableAllocator."""

import ctypes
import pathlib
import subprocess

import torch

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

size_t foreign_taken, foreign_given, foreign_bytes, foreign_limit = (size_t)-1, foreign_device = (size_t)-1;
void  *foreign_stream;

static int call(const char *name, void *a, size_t b)
{
    void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    int (*f)(void *, size_t) = (int (*)(void *, size_t))dlsym(runtime, name);
    return f(a, b);
}

void *foreign_take(size_t size, int device, void *stream)
{
    void *at = NULL;
    foreign_device = (size_t)device;
    foreign_stream = stream;
    if (foreign_bytes + size > foreign_limit || call("cudaMalloc", &at, size))
        return NULL;
    foreign_taken++;
    foreign_bytes += size;
    return at;
}

void foreign_give(void *at, size_t size, int device, void *stream)
{
    (void)device, (void)stream;
    foreign_given++;
    foreign_bytes -= size;
    call("cudaFree", at, 0);
}
"""


class Foreign:
    """The library, its counters, and the object that PyTorch takes."""

    def __init__(self, folder: pathlib.Path) -> None:
        source, path = folder / "foreign.c", folder / "foreign.so"
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
        self._library = ctypes.CDLL(str(path))
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "foreign_take", "foreign_give")

    def __getattr__(self, name: str) -> int:
        """One of the counters: taken, given, bytes."""
        return ctypes.c_size_t.in_dll(self._library, f"foreign_{name}").value

    def limit(self, size: int) -> None:
        """Sets how much memory the allocator has."""
        ctypes.c_size_t.in_dll(self._library, "foreign_limit").value = size
