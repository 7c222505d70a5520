/*
 * plain.c: memory of cuMemAlloc, and of the driver's own.
 *
 * Like a real driver, it takes physical memory in chunks of the granularity: allocations of a chunk's size and more have chunks of their
 * own, smaller ones share chunks in steps of 512 bytes.
 *
 * LOCKING: the model's lock.
 */
#include "sim/machine/numbers.h"
#include "sim/memory/memory.h"

#define STEP 512
#define SMALL_MAX (1u << 20)   /* larger allocations get chunks of their own */

static CUresult take_small(int device, uint64_t bytes, uint64_t *at)
{
    struct ranges *small = &model.devices[device].small;
    if (ranges_take(small, bytes, STEP, at))
        return CUDA_SUCCESS;
    uint64_t chunk, size = round_up(SMALL_MAX, model.shape.granularity);
    CUresult result = virtual_own_map(MAPPED_FOR_PLAIN, device, NULL, size, &chunk);
    if (result)
        return result;
    if (!ranges_give(small, chunk, size)) {
        virtual_own_unmap(chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return ranges_take(small, bytes, STEP, at) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Gives the chunk back with its last allocation. */
static void give_small(int device, uint64_t at, uint64_t bytes)
{
    struct ranges *small = &model.devices[device].small;
    ranges_give(small, at, bytes);
    const struct mapping *chunk = virtual_mapping(at);
    uint64_t start = chunk->at;
    if (ranges_take_at(small, start, chunk->size))
        virtual_own_unmap(start);
}

static bool is_small(uint64_t bytes)
{
    return bytes <= SMALL_MAX;
}

static void give_memory(int device, uint64_t at, uint64_t bytes)
{
    if (is_small(bytes))
        give_small(device, at, bytes);
    else
        virtual_own_unmap(virtual_mapping(at)->at);
}

void plain_leave(uint32_t number)
{
    const struct allocation a = *allocation_at(number);
    allocation_remove(number);
    give_memory(a.device, a.at, a.size);
}

/* Waits for the device, as real drivers do; not for memory of pools. */
static CUresult free_plain(uint32_t number)
{
    const struct allocation *a = allocation_at(number);
    if (!clock_go_to(context_at(a->context)->all_done))
        return MODEL_AGAIN;
    const struct mapping *m = virtual_mapping(a->at);
    if (shared_is_open_elsewhere(physical_at(m->physical), a->at - m->at))
        model_violation("cuMemFree: 0x%llx is open in another process: cuIpcCloseMemHandle comes first", (unsigned long long)a->at);
    plain_leave(number);
    return CUDA_SUCCESS;
}

CUresult plain_enter(enum allocation_kind kind, const struct allocation_end *end, uint64_t size, uint32_t *number)
{
    int device = context_at(context_current())->device;
    if (size > model.shape.capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t start, bytes = round_up(size, STEP);
    CUresult result = is_small(bytes) ? take_small(device, bytes, &start) : virtual_own_map(MAPPED_FOR_PLAIN, device, NULL, bytes, &start);
    if (result)
        return result;
    *number = allocation_add(kind, end, start, bytes);
    if (!*number) {
        give_memory(device, start, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult plain_alloc(CUdeviceptr *at, size_t size)
{
    static const struct allocation_end plain_end = {.free = free_plain, .close = plain_leave};
    uint32_t number;
    if (!at || !size)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = plain_enter(ALLOCATION_PLAIN, &plain_end, size, &number);
    if (!result)
        *at = allocation_at(number)->at;
    return result;
}
