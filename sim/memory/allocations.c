/*
 * allocations.c: what has an address and an end: memory of cuMemAlloc, of pools, pinned host memory. And cuMemAlloc itself.
 *
 * Like a real driver, cuMemAlloc takes physical memory in chunks of the granularity: allocations of a chunk's size and more have chunks of
 * their own, smaller ones share chunks in steps of 512 bytes.
 */
#include "sim/graph/graph.h"
#include "sim/memory/memory.h"
#include "sim/machine/numbers.h"
#include "sim/order/stream.h"

#define ALLOCATIONS_MOST (1u << 22)
#define STEP 512
#define SMALL_MOST (1u << 20)   /* larger allocations get chunks of their own */

static struct slots allocations;
static struct ranges by_address;
static uint32_t last_id;

void allocations_reset(void)
{
    if (!allocations.items)
        slots_open(&allocations, sizeof(struct allocation), ALLOCATIONS_MOST, SLOTS_NEWEST_FIRST);
    for (uint32_t i = 1; i < allocations.used; i++)
        if (slots_is_live(&allocations, i) && (allocation_at(i)->kind == ALLOCATION_HOST || allocation_at(i)->kind == ALLOCATION_MANAGED))
            host_drop(i);
    slots_clear(&allocations);
    ranges_clear(&by_address);
}

uint64_t allocations_registered(uint64_t *bytes)
{
    uint64_t count = 0;
    for (uint32_t i = 1; i < allocations.used; i++) {
        bool counts = slots_is_live(&allocations, i) && allocation_at(i)->kind == ALLOCATION_REGISTERED;
        count += counts;
        *bytes += counts ? allocation_at(i)->size : 0;
    }
    return count;
}

struct allocation *allocation_at(uint32_t number)
{
    return slots_at(&allocations, number);
}

struct allocation *allocation_holding(uint64_t at)
{
    const struct range *r = ranges_holding(&by_address, at);
    return r ? allocation_at(r->value) : NULL;
}

uint32_t allocation_starting(uint64_t at)
{
    const struct range *r = ranges_holding(&by_address, at);
    return r && r->start == at ? r->value : 0;
}

bool allocation_overlaps(uint64_t at, uint64_t size)
{
    const struct range *later = ranges_at_or_after(&by_address, at);
    return ranges_holding(&by_address, at) || (later && later->start - at < size);
}

uint64_t allocation_name(uint32_t number)
{
    return (uint64_t)allocation_at(number)->id << 32 | number;
}

uint32_t allocation_named(uint64_t name)
{
    uint32_t number = (uint32_t)name;
    return slots_is_live(&allocations, number) && allocation_name(number) == name ? number : 0;
}

uint32_t allocation_add(enum allocation_kind kind, uint64_t at, uint64_t size)
{
    uint32_t number = slots_take(&allocations);
    if (!number)
        return 0;
    if (!ranges_add(&by_address, at, size, number)) {
        slots_give(&allocations, number);
        return 0;
    }
    uint32_t context = context_current();
    *allocation_at(number) = (struct allocation){.kind = kind, .context = context, .at = at, .size = size, .id = ++last_id};
    allocation_at(number)->device = context ? context_at(context)->device : 0;
    model.books.allocations += kind != ALLOCATION_REGISTERED;
    return number;
}

void allocation_remove(uint32_t number)
{
    const struct allocation *a = allocation_at(number);
    model.books.allocations -= a->kind != ALLOCATION_REGISTERED && !a->freed;
    ranges_remove(&by_address, a->at);
    slots_give(&allocations, number);
}

static CUresult take_small(int device, uint64_t bytes, uint64_t *at)
{
    struct ranges *small = &model.devices[device].small;
    if (ranges_take(small, bytes, STEP, at))
        return CUDA_SUCCESS;
    uint64_t chunk, size = round_up(SMALL_MOST, model.shape.granularity);
    CUresult result = virtual_own_map(MAPPED_FOR_PLAIN, device, 0, size, &chunk);
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

static void give_memory(enum allocation_kind kind, int device, uint64_t at, uint64_t bytes)
{
    if (kind == ALLOCATION_SMALL)
        give_small(device, at, bytes);
    else
        virtual_own_unmap(virtual_mapping(at)->at);
}

CUresult allocation_alloc(CUdeviceptr *at, size_t size)
{
    if (!at || !size)
        return CUDA_ERROR_INVALID_VALUE;
    int device = context_at(context_current())->device;
    if (size > model.shape.capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t start, bytes = round_up(size, STEP);
    enum allocation_kind kind = bytes <= SMALL_MOST ? ALLOCATION_SMALL : ALLOCATION_LARGE;
    CUresult result = kind == ALLOCATION_SMALL ? take_small(device, bytes, &start)
                                               : virtual_own_map(MAPPED_FOR_PLAIN, device, 0, bytes, &start);
    if (result)
        return result;
    if (!allocation_add(kind, start, bytes)) {
        give_memory(kind, device, start, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *at = start;
    return CUDA_SUCCESS;
}

void allocation_end(uint32_t number)
{
    struct allocation a = *allocation_at(number);
    if (a.kind == ALLOCATION_HOST || a.kind == ALLOCATION_REGISTERED || a.kind == ALLOCATION_MANAGED) {
        host_drop(number);
        allocation_remove(number);
        return;
    }
    if (a.kind == ALLOCATION_OPENED)
        ipc_closed(number);
    allocation_remove(number);
    give_memory(a.kind, a.device, a.at, a.size);
}

void allocations_close_all(uint32_t context)
{
    for (uint32_t i = 1; i < allocations.used; i++)
        if (slots_is_live(&allocations, i) && allocation_at(i)->context == context && allocation_at(i)->kind != ALLOCATION_POOL)
            allocation_end(i);
}

/* Waits for the device, as real drivers do for memory of cuMemAlloc; not for memory of pools. */
CUresult allocation_free(CUdeviceptr at)
{
    if (!at)
        return CUDA_SUCCESS;
    uint32_t number = allocation_starting(at);
    const struct allocation *a = number ? allocation_at(number) : NULL;
    if (!a || a->freed || a->kind >= ALLOCATION_HOST)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree: 0x%llx is not the start of an allocation", at);
    if (a->kind == ALLOCATION_POOL) {
        pool_give_now(number);
        return CUDA_SUCCESS;
    }
    if (a->kind == ALLOCATION_GRAPH) {
        return graph_memory_free_now(a->pool) ? CUDA_SUCCESS : MODEL_AGAIN;
    }
    if (!clock_go_to(context_at(a->context)->all_done))
        return MODEL_AGAIN;
    const struct mapping *m = virtual_mapping(at); /* managed memory has none */
    if (m && shared_is_open_elsewhere(physical_at(m->physical), at - m->at))
        model_violation("cuMemFree: 0x%llx is open in another process: cuIpcCloseMemHandle comes first", at);
    allocation_end(number);
    return CUDA_SUCCESS;
}
