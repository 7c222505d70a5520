/*
 * pools.c: stream-ordered allocation (cuMemAllocAsync): memory kept in pools.
 *
 * A plain model of our own. A pool takes chunks of physical memory and cuts allocations out of them, the lowest place that fits. A free
 * takes effect when the work before it on its stream is done; before that only an allocation of the same size on the same stream gets the
 * place. Whenever a thread waits for the device, chunks wholly free go back while the pool holds more than its release threshold.
 *
 * In a capture an allocation is the graph's and comes from no pool: graph/async.c decides.
 *
 * A pool of the host's memory, or of memory that the driver manages, takes its chunks from the host, as cuMemAllocHost and cuMemAllocManaged do.
 * Which pool a device or another place has: pool_places.c.
 *
 * Access to a place that was freed but whose chunk is still held is not detected, as on a real device.
 */
#include <sys/mman.h>

#include "sim/machine/numbers.h"
#include "sim/memory/memory.h"

#define POOLS_MAX 4096
#define STEP 512
#define CHUNK (32u << 20)       /* least that a pool grows by */
#define HOST_CHUNK (2u << 20)   /* a multiple of it on the host */
#define REUSE_SEARCH 64         /* pending frees looked at for one that fits exactly */

struct pool {
    int           device;       /* or HOST_AREA, or NO_AREA */
    enum residence residence;   /* of its memory */
    bool          closing;      /* destroyed by the program, has allocations */
    bool          slack;        /* something was freed since chunks were given back last */
    uint64_t      threshold;
    uint64_t      most;         /* 0: no limit */
    uint64_t      reserved, reserved_high;
    uint64_t      used, used_high;
    struct access access;
    uint32_t      live;         /* allocations, also those whose free has not come */
    uint32_t      pending;      /* list of freed allocations whose moment has not come, newest first */
    bool          decompresses; /* it was made for hardware decompression */
    int           reuse[3];     /* CU_MEMPOOL_ATTR_REUSE_*: kept, without effect */
    struct ranges free;
    struct ranges chunks;
};

static CUresult free_now(uint32_t allocation);

static struct slots pools;
static const struct allocation_end pool_end = {.free = free_now};

static struct pool *pool_at(uint32_t number)
{
    return slots_at(&pools, number);
}

int pool_device(uint32_t number)
{
    return pool_at(number)->device;
}

bool pool_decompresses(uint32_t number)
{
    return pool_at(number)->decompresses;
}

bool pool_is_of(uint32_t number, int area, enum residence residence)
{
    return pool_at(number)->device == area && pool_at(number)->residence == residence;
}

uint32_t pool_open(int area, enum residence residence, uint64_t most, bool decompresses)
{
    uint32_t number = slots_take(&pools);
    if (!number)
        return 0;
    struct pool *p = pool_at(number);
    p->device = area;
    p->residence = residence;
    p->most = most;
    p->decompresses = decompresses;
    p->access = (struct access){.readers = 1u << area, .writers = 1u << area};
    for (int i = 0; i < 3; i++)
        p->reuse[i] = 1;
    ranges_clear(&p->free);
    ranges_clear(&p->chunks);
    return number;
}

/* The chunks on the device are gone with the page table. */
static void forget_chunks(struct pool *p)
{
    const struct range *chunk = ranges_at_or_after(&p->chunks, 0);
    for (; chunk && p->residence != ON_DEVICE; chunk = ranges_at_or_after(&p->chunks, chunk->start + 1))
        munmap((void *)chunk->start, chunk->size);
    ranges_clear(&p->free);
    ranges_clear(&p->chunks);
}

void pools_reset(void)
{
    if (!pools.items)
        slots_open(&pools, sizeof(struct pool), POOLS_MAX, SLOTS_OLDEST_FIRST);
    for (uint32_t i = 1; i < pools.used; i++)
        forget_chunks(pool_at(i));
    slots_clear(&pools);
}

CUmemoryPool pool_handle(uint32_t number)
{
    return slots_handle(&pools, number);
}

const struct access *pool_access(uint32_t number)
{
    return &pool_at(number)->access;
}

static bool allows(const struct pool *p, int device, bool write)
{
    return (write ? p->access.writers : p->access.readers) >> device & 1;
}

uint32_t pool_find(CUmemoryPool handle, const char *call)
{
    uint32_t number = slots_number(&pools, handle);
    if (number && !pool_at(number)->closing)
        return number;
    model_violation("%s: %p was destroyed or never created", call, (void *)handle);
    return 0;
}

static CUresult take_chunk(const struct pool *p, uint64_t *bytes, uint64_t *at)
{
    if (p->residence == ON_DEVICE) {
        CUresult result = virtual_own_map(MAPPED_FOR_POOL, p->device, &p->access, *bytes, at);
        if (!result)
            *bytes = virtual_mapping(*at)->size;
        return result;
    }
    *bytes = round_up(*bytes, HOST_CHUNK);
    void *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (uint64_t)memory;
    return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void give_chunk(const struct pool *p, uint64_t at, uint64_t bytes)
{
    if (p->residence == ON_DEVICE)
        virtual_own_unmap(at);
    else
        munmap((void *)at, bytes);
}

/* Gives chunks wholly free back until at most `keep` bytes are held. */
static void trim(struct pool *p, uint64_t keep)
{
    const struct range *chunk = ranges_at_or_after(&p->chunks, 0);
    while (chunk && p->reserved > keep) {
        uint64_t at = chunk->start, size = chunk->size;
        if (ranges_take_at(&p->free, at, size)) {
            give_chunk(p, at, size);
            ranges_remove(&p->chunks, at);
            p->reserved -= size;
        }
        chunk = ranges_at_or_after(&p->chunks, at + 1);
    }
}

static void close_if_done(uint32_t number)
{
    struct pool *p = pool_at(number);
    if (!p->closing || p->live)
        return;
    trim(p, 0);
    ranges_clear(&p->free);
    ranges_clear(&p->chunks);
    slots_give(&pools, number);
}

void pools_synchronized(void)
{
    for (uint32_t i = 1; i < pools.used; i++) {
        struct pool *p = pool_at(i);
        if (!p->slack || p->reserved <= p->threshold)
            continue;
        p->slack = false;
        trim(p, p->threshold);
    }
}

static CUresult add_chunk(uint32_t number, uint64_t bytes)
{
    struct pool *p = pool_at(number);
    uint64_t at;
    if (p->most && p->reserved + bytes > p->most)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = take_chunk(p, &bytes, &at);
    if (result)
        return result;
    if (!ranges_add(&p->chunks, at, bytes, 0) || !ranges_give(&p->free, at, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->reserved += bytes;
    if (p->reserved_high < p->reserved)
        p->reserved_high = p->reserved;
    return CUDA_SUCCESS;
}

/* A larger chunk, a chunk that just fits, the same once unused chunks are gone, and once all work is done. */
static CUresult grow(uint32_t number, uint64_t bytes)
{
    struct pool *p = pool_at(number);
    if (bytes < CHUNK && !add_chunk(number, CHUNK))
        return CUDA_SUCCESS;
    if (!add_chunk(number, bytes))
        return CUDA_SUCCESS;
    trim(p, 0);
    if (!add_chunk(number, bytes))
        return CUDA_SUCCESS;
    if (!p->pending)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!clock_go_to(context_at(context_current())->all_done))
        return MODEL_AGAIN;
    trim(p, 0);
    return add_chunk(number, bytes);
}

static void unlink_pending(struct pool *p, const struct allocation *a)
{
    if (a->before)
        allocation_at(a->before)->next = a->next;
    else
        p->pending = a->next;
    if (a->next)
        allocation_at(a->next)->before = a->before;
}

static void link_pending(struct pool *p, uint32_t number)
{
    struct allocation *a = allocation_at(number);
    a->before = 0;
    a->next = p->pending;
    if (a->next)
        allocation_at(a->next)->before = number;
    p->pending = number;
}

/* A free that has not come, of this size on this stream: what comes later on the stream may have the place now. */
static uint32_t take_pending(struct pool *p, uint64_t bytes, const struct stream *s)
{
    uint32_t number = p->pending;
    for (int i = 0; number && i < REUSE_SEARCH; i++) {
        struct allocation *a = allocation_at(number);
        if (a->size == bytes && a->freed_on == stream_unique(s)) {
            uint64_t at = a->at;
            unlink_pending(p, a);
            allocation_remove(number);
            p->used -= bytes;
            p->live--;
            return allocation_add(ALLOCATION_POOL, &pool_end, at, bytes);
        }
        number = a->next;
    }
    return 0;
}

static CUresult take_free(uint32_t number, uint64_t bytes, uint32_t *allocation)
{
    struct pool *p = pool_at(number);
    uint64_t at;
    if (!ranges_take(&p->free, bytes, STEP, &at)) {
        CUresult result = grow(number, bytes);
        if (result)
            return result;
        if (!ranges_take(&p->free, bytes, STEP, &at))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *allocation = allocation_add(ALLOCATION_POOL, &pool_end, at, bytes);
    if (!*allocation)
        ranges_give(&p->free, at, bytes);
    return *allocation ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_take(CUdeviceptr *at, size_t size, uint32_t number, struct stream *s)
{
    struct pool *p = pool_at(number);
    if (size > model.devices[p->residence == ON_DEVICE ? p->device : HOST_AREA].capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = round_up(size, STEP);
    uint32_t allocation = take_pending(p, bytes, s);
    CUresult result = allocation ? CUDA_SUCCESS : take_free(number, bytes, &allocation);
    if (result)
        return result;
    struct allocation *a = allocation_at(allocation);
    a->pool = number;
    a->residence = p->residence;
    if (p->device < HOST_AREA)
        a->device = p->device;
    p->live++;
    p->used += bytes;
    if (p->used_high < p->used)
        p->used_high = p->used;
    *at = a->at;
    return CUDA_SUCCESS;
}

static void finish(uint32_t allocation)
{
    const struct allocation a = *allocation_at(allocation);
    struct pool *p = pool_at(a.pool);
    if (a.freed)
        unlink_pending(p, &a);
    allocation_remove(allocation);
    ranges_give(&p->free, a.at, a.size);
    p->used -= a.size;
    p->live--;
    p->slack = true;
    close_if_done(a.pool);
}

/* The moment of a free has come in stream order. */
static void finish_free(const struct work *w)
{
    uint32_t allocation = allocation_named(w->number);
    if (allocation)
        finish(allocation);
}

static const struct work_kind work_give = {.node = CU_GRAPH_NODE_TYPE_EMPTY, .even_if_lost = true, .run = finish_free};

/* By cuMemFree: outside of the order of streams. */
static CUresult free_now(uint32_t allocation)
{
    finish(allocation);
    return CUDA_SUCCESS;
}

/* Of cuMemAlloc, whose moment has come: the program has promised that all uses are done with. */
static void finish_plain(const struct work *w)
{
    uint32_t allocation = allocation_named(w->number);
    if (allocation)
        plain_leave(allocation);
}

static const struct work_kind work_give_plain = {.node = CU_GRAPH_NODE_TYPE_EMPTY, .even_if_lost = true, .run = finish_plain};

static CUresult give_plain(uint32_t number, struct stream *s)
{
    struct work work = {.kind = &work_give_plain, .name = "cuMemFreeAsync", .number = allocation_name(number)};
    allocation_at(number)->freed = true;
    model.books.allocations--;
    return work_put(s, &work);
}

CUresult pool_give(CUdeviceptr at, struct stream *s)
{
    uint32_t number = allocation_starting(at);
    struct allocation *a = number ? allocation_at(number) : NULL;
    if (a && a->kind == ALLOCATION_PLAIN && !a->freed)
        return give_plain(number, s);
    if (!a || a->kind != ALLOCATION_POOL || a->freed)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync: 0x%llx is not the start of such an allocation", at);
    struct work work = {.kind = &work_give, .name = "cuMemFreeAsync", .number = allocation_name(number)};
    a->freed = true;
    a->freed_on = stream_unique(s);
    model.books.allocations--;
    link_pending(pool_at(a->pool), number);
    return work_put(s, &work);
}

void pool_close(uint32_t number)
{
    pool_at(number)->closing = true;
    close_if_done(number);
}

void pools_empty(int device)
{
    for (uint32_t i = allocation_next(0); i; i = allocation_next(i))
        if (allocation_at(i)->kind == ALLOCATION_POOL && pool_is_of(allocation_at(i)->pool, device, ON_DEVICE))
            finish(i);
    for (uint32_t number = 1; number < pools.used; number++)
        if (slots_is_live(&pools, number) && pool_is_of(number, device, ON_DEVICE))
            trim(pool_at(number), 0);
}

CUresult pool_trim(CUmemoryPool pool, size_t keep)
{
    uint32_t number = pool_find(pool, "cuMemPoolTrimTo");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    clock_look();
    trim(pool_at(number), keep);
    return CUDA_SUCCESS;
}

CUresult pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *who, size_t count)
{
    uint32_t number = pool_find(pool, "cuMemPoolSetAccess");
    if (!number || !who)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *p = pool_at(number);
    for (size_t i = 0; i < count; i++) {
        int area;
        if (!location_area(&who[i].location, &area))
            return CUDA_ERROR_INVALID_DEVICE;
        if (area == p->device && who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        uint32_t bit = 1u << area;
        p->access.readers = who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ? p->access.readers | bit : p->access.readers & ~bit;
        p->access.writers = who[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? p->access.writers | bit : p->access.writers & ~bit;
    }
    return CUDA_SUCCESS;
}

CUresult pool_get_access(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    int area;
    uint32_t number = pool_find(pool, "cuMemPoolGetAccess");
    if (!number || !flags || !location || !location_area(location, &area))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = allows(pool_at(number), area, true)  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : allows(pool_at(number), area, false) ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    uint32_t number = pool_find(pool, "cuMemPoolSetAttribute");
    if (!number || !value)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *p = pool_at(number);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        p->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE; /* they can only be reset */
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            p->used_high = p->used;
        else
            p->reserved_high = p->reserved;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    uint32_t number = pool_find(pool, "cuMemPoolGetAttribute");
    if (!number || !value)
        return CUDA_ERROR_INVALID_VALUE;
    clock_look();
    const struct pool *p = pool_at(number);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = p->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = p->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = p->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = p->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = p->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = p->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
