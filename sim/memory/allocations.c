/*
 * allocations.c: the book of what has an address and an end: memory of cuMemAlloc, of pools, of graphs, pinned host memory.
 *
 * This file does not know where the memory is from. The file that enters an allocation says how it ends, by cuMemFree or with its context (struct
 * allocation_end).
 *
 * LOCKING: the model's lock.
 */
#include "sim/memory/memory.h"

#define ALLOCATIONS_MAX (1u << 22)

static struct slots allocations;
static struct ranges by_address;
static uint32_t last_id;

void allocations_reset(void)
{
    if (!allocations.items)
        slots_open(&allocations, sizeof(struct allocation), ALLOCATIONS_MAX, SLOTS_NEWEST_FIRST);
    slots_clear(&allocations);
    ranges_clear(&by_address);
}

uint32_t allocation_next(uint32_t number)
{
    while (++number < allocations.used)
        if (slots_is_live(&allocations, number))
            return number;
    return 0;
}

uint64_t allocations_registered(uint64_t *bytes)
{
    uint64_t count = 0;
    for (uint32_t i = allocation_next(0); i; i = allocation_next(i)) {
        bool counts = allocation_at(i)->kind == ALLOCATION_REGISTERED;
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

uint32_t allocation_add(enum allocation_kind kind, const struct allocation_end *end, uint64_t at, uint64_t size)
{
    uint32_t number = slots_take(&allocations);
    if (!number)
        return 0;
    if (!ranges_add(&by_address, at, size, number)) {
        slots_give(&allocations, number);
        return 0;
    }
    uint32_t context = context_current();
    *allocation_at(number) = (struct allocation){.kind = kind, .end = end, .context = context, .at = at, .size = size, .id = ++last_id};
    bool host = kind == ALLOCATION_HOST || kind == ALLOCATION_REGISTERED;
    allocation_at(number)->residence = host ? ON_HOST : kind == ALLOCATION_MANAGED ? MANAGED : ON_DEVICE;
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

void allocations_close_all(uint32_t context)
{
    for (uint32_t i = allocation_next(0); i; i = allocation_next(i))
        if (allocation_at(i)->context == context && allocation_at(i)->end->close)
            allocation_at(i)->end->close(i);
}

CUresult allocation_free(CUdeviceptr at)
{
    if (!at)
        return CUDA_SUCCESS;
    uint32_t number = allocation_starting(at);
    const struct allocation *a = number ? allocation_at(number) : NULL;
    if (!a || a->freed || !a->end->free)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree: 0x%llx is not the start of an allocation", at);
    return a->end->free(number);
}
