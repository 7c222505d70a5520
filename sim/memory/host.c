/* host.c: pinned host memory: allocated here, or the program's own that was registered. The device may read and write it by its address. */
#include <sys/mman.h>
#include <unistd.h>

#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define HOST_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY)

static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static void unmap(const struct allocation *a)
{
    if (a->kind != ALLOCATION_REGISTERED)
        munmap((void *)a->at, whole_pages(a->size));
}

void host_close(uint32_t number)
{
    unmap(allocation_at(number));
    allocation_remove(number);
}

static const struct allocation_end host_end = {.close = host_close};

void host_reset(void)
{
    for (uint32_t i = allocation_next(0); i; i = allocation_next(i))
        if (allocation_at(i)->kind == ALLOCATION_HOST || allocation_at(i)->kind == ALLOCATION_MANAGED)
            unmap(allocation_at(i));
}

CUresult host_take(void **at, size_t size, enum allocation_kind kind, const struct allocation_end *end, unsigned flags)
{
    void *memory = mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t number = allocation_add(kind, end, (uint64_t)memory, size);
    if (!number) {
        munmap(memory, whole_pages(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation_at(number)->flags = flags;
    *at = memory;
    return CUDA_SUCCESS;
}

CUresult host_alloc_with(void **at, size_t size, unsigned flags)
{
    if (!at || !size || flags & ~(unsigned)HOST_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > model.devices[HOST_AREA].capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return host_take(at, size, ALLOCATION_HOST, &host_end, flags);
}

CUresult host_alloc(void **at, size_t size)
{
    return host_alloc_with(at, size, 0);
}

bool host_is_pinned(uint64_t at, uint64_t bytes)
{
    const struct allocation *a = allocation_holding(at);
    return a && a->residence != ON_DEVICE && bytes <= a->at + a->size - at;
}

static CUresult end(void *at, enum allocation_kind kind, CUresult error, const char *call)
{
    uint32_t number = allocation_starting((uint64_t)at);
    if (!number || allocation_at(number)->kind != kind)
        return model_refuse(error, "%s: %p is not such memory", call, at);
    if (!clock_go_to(context_at(allocation_at(number)->context)->all_done))
        return MODEL_AGAIN;
    host_close(number);
    return CUDA_SUCCESS;
}

CUresult host_free(void *at)
{
    return at ? end(at, ALLOCATION_HOST, CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost") : CUDA_SUCCESS;
}

CUresult host_register(void *at, size_t size, unsigned flags)
{
    if (!at || !size || flags & ~(unsigned)REGISTER_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (virtual_is_device_address((uint64_t)at))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister: %p is a device address", at);
    if (allocation_overlaps((uint64_t)at, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    uint32_t number = allocation_add(ALLOCATION_REGISTERED, &host_end, (uint64_t)at, size);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_at(number)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult host_unregister(void *at)
{
    return end(at, ALLOCATION_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister");
}

CUresult host_device_pointer(CUdeviceptr *device, void *host, unsigned flags)
{
    if (!device || flags || !host_is_pinned((uint64_t)host, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}

CUresult host_flags(unsigned *flags, void *at)
{
    if (!flags || !host_is_pinned((uint64_t)at, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = allocation_holding((uint64_t)at)->flags | CU_MEMHOSTALLOC_DEVICEMAP; /* always so with unified addresses */
    return CUDA_SUCCESS;
}
