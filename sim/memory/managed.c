/*
 * managed.c: memory that host and device both use (cuMemAllocManaged), and pitched memory.
 *
 * A simplification: managed memory is memory of the host that the device reads and writes in place. It never moves, so advice and
 * prefetches are checked and have no effect, and it does not count against a device: what a real device would hold of it at a moment
 * depends on page faults that kernels would have made.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define PITCH_STEP 512

/* Waits for the device, as cuMemFree does for all memory but that of pools. */
static CUresult free_managed(uint32_t number)
{
    if (!clock_go_to(context_at(allocation_at(number)->context)->all_done))
        return MODEL_AGAIN;
    host_close(number);
    return CUDA_SUCCESS;
}

static const struct allocation_end managed_end = {.free = free_managed, .close = host_close};

CUresult managed_alloc(CUdeviceptr *at, size_t size, unsigned flags)
{
    if (!at || !size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (size > model.devices[HOST_AREA].capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory;
    CUresult result = host_take(&memory, size, ALLOCATION_MANAGED, &managed_end, flags);
    if (!result)
        *at = (CUdeviceptr)memory;
    return result;
}

static bool is_managed(uint64_t at, size_t size)
{
    const struct allocation *a = allocation_holding(at);
    return a && a->residence == MANAGED && size && size <= a->at + a->size - at;
}

static bool is_place(const CUmemLocation *location)
{
    int area;
    return location_area(location, &area);
}

static CUmemLocation place_of(CUdevice device)
{
    CUmemLocation place = {.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE};
    place.id = device == CU_DEVICE_CPU ? 0 : device;
    return place;
}

CUresult managed_prefetch(CUdeviceptr at, size_t size, CUmemLocation location, unsigned flags, CUstream stream)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (flags || !is_managed(at, size))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemPrefetchAsync: 0x%llx, %zu bytes: not managed memory", at, size);
    if (!is_place(&location))
        return CUDA_ERROR_INVALID_DEVICE;
    return s->capture ? capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuMemPrefetchAsync") : CUDA_SUCCESS;
}

CUresult managed_prefetch_1(CUdeviceptr at, size_t size, CUdevice device, CUstream stream)
{
    return managed_prefetch(at, size, place_of(device), 0, stream);
}

CUresult managed_advise(CUdeviceptr at, size_t size, CUmem_advise advice, CUmemLocation location)
{
    if (!is_managed(at, size))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAdvise: 0x%llx, %zu bytes: not managed memory", at, size);
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    bool placed = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice >= CU_MEM_ADVISE_SET_ACCESSED_BY;
    return placed && !is_place(&location) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult managed_advise_1(CUdeviceptr at, size_t size, CUmem_advise advice, CUdevice device)
{
    return managed_advise(at, size, advice, place_of(device));
}

/* Rows are laid so that each begins well for every element size. */
CUresult pitch_alloc(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!at || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (width > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    size_t step = (width + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
    if (height > model.shape.capacity / step)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = plain_alloc(at, step * height);
    if (!result)
        *pitch = step;
    return result;
}
