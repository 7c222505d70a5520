/* guest.c: a library of the program's own that is linked to the driver and calls it. */
#include <cuda.h>

extern CUresult guest_alloc(CUdeviceptr *at, size_t size);
extern CUresult guest_free(CUdeviceptr at);

__attribute__((visibility("default"))) CUresult guest_alloc(CUdeviceptr *at, size_t size)
{
    return cuMemAlloc(at, size);
}

__attribute__((visibility("default"))) CUresult guest_free(CUdeviceptr at)
{
    return cuMemFree(at);
}
