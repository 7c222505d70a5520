/*
 * async.c: provider async: segments of the driver's own stream-ordered
 * pool (cuMemAllocFromPoolAsync), where pages do not work.
 *
 * A driver's pool grows by 32 MiB, and what is left over of that serves no other pool. So an arena takes memory of
 * cuMemAlloc until it has as much, and then segments of at least that size. cuMemFree takes both back, and after each
 * trim the driver's pool keeps nothing.
 *
 *     the driver's pool: none ---> open, from the first need on ---> destroyed with the pool
 *
 * In a capture such a segment would become a node of the graph, and one on the default stream would end the captures of
 * blocking streams. So private groups of an async pool are plain (capture.c), and while captures are not announced all
 * segments are of cuMemAlloc: the stream may be in one.
 *
 * LOCKING: as async.h says.
 */
#include "pool/provider/async.h"

#define ASYNC_LEAST (32ull << 20)   /* what a driver's pool grows by */
#define ASYNC_MOST  (64ull << 20)   /* for an arena that has a lot: fewer borders at which something is left over */
#define ASYNC_SHARE 8               /* between the two, this part of what the arena has */
#define ASYNC_UNIT  (2ull << 20)    /* the unit of drivers */

/* Is the next segment of the arena one of the driver's pool, if it is large enough? LOCKING: none. */
bool async_serves(const cenote_pool *pool, const struct arena *a)
{
    return pool->config.provider == CENOTE_ASYNC && !a->is_plain && !key_is_unnamed(a->stream) &&
           touch_captures_are_announced();
}

/*
 * The driver's pool is made with the first memory of it, inside the device: cuMemPoolCreate ends captures that a thread
 * outside meets. LOCKING: the turn.
 */
static CUresult async_open(cenote_pool *pool)
{
    const struct device *d = pool->config.device;
    CUmemPoolProps props = {0};
    if (pool->config.driver_pool)
        return CUDA_SUCCESS;
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = d->ordinal;
#if CUDA_VERSION >= 12080
    props.usage = d->has_decompression ? FOR_DECOMPRESSION : 0;
#endif
    CUresult result = d->driver->cuMemPoolCreate(&pool->config.driver_pool, &props);
    pool->config.driver_pool = result ? NULL : pool->config.driver_pool;
    return result;
}

/* It would be lost: a refusal is asked for once more. */
void async_close(cenote_pool *pool)
{
    const struct driver *t = pool->config.device->driver;
    if (pool->config.driver_pool && t->cuMemPoolDestroy(pool->config.driver_pool))
        t->cuMemPoolDestroy(pool->config.driver_pool);
    pool->config.driver_pool = NULL;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* Bytes of the arena's segments that are not of the driver's pool. LOCKING: the pool's lock. */
static uint64_t small_segments(const cenote_pool *pool, const struct arena *a)
{
    uint64_t small = 0;
    for (uint32_t number = a->heap.regions; number; number = region_of(&pool->store.pages, number)->next) {
        uint64_t bytes = region_of(&pool->store.pages, number)->bytes;
        small += bytes < ASYNC_LEAST ? bytes : 0;
    }
    return small;
}

/*
 * The usual size of a segment for a block of `size` bytes; `plain`: that of cuMemAlloc. Room for a number of such
 * blocks that leaves little over: a rest that is too small for another block is lost to a program of few sizes.
 * LOCKING: the turn, not the pool's lock.
 */
uint64_t async_habit(cenote_pool *pool, const struct arena *a, uint64_t size, uint64_t plain)
{
    lock_take(&pool->lock);
    uint64_t small = small_segments(pool, a), least = round_up(a->heap.used / ASYNC_SHARE, ASYNC_UNIT);
    lock_give(&pool->lock);
    if (plain < ASYNC_LEAST && small + plain <= ASYNC_LEAST)
        return plain;
    least = least < ASYNC_LEAST ? ASYNC_LEAST : least > ASYNC_MOST ? ASYNC_MOST : least;
    return least % size <= ASYNC_LEAST / 8 ? least : round_up((least / size + 1) * size, ASYNC_UNIT);
}

CUresult async_take(cenote_pool *pool, const struct arena *a, uint64_t bytes, CUdeviceptr *at)
{
    const struct driver *t = pool->config.device->driver;
    if (bytes < ASYNC_LEAST)
        return t->cuMemAlloc(at, bytes);
    CUresult result = async_open(pool);
    return result ? result : t->cuMemAllocFromPoolAsync(at, bytes, pool->config.driver_pool, a->handle);
}

/* The driver's pool keeps nothing. LOCKING: the turn; no capture is open. */
void async_trim(cenote_pool *pool)
{
    if (pool->config.driver_pool)
        pool->config.device->driver->cuMemPoolTrimTo(pool->config.driver_pool, 0);
}

/* A device may use the memory, or may no more. */
CUresult async_set_access(cenote_pool *pool, CUmemAccessDesc who)
{
    const struct driver *t = pool->config.device->driver;
    CUresult result = t->cuMemPoolSetAccess ? async_open(pool) : CUDA_ERROR_NOT_SUPPORTED;
    return result ? result : t->cuMemPoolSetAccess(pool->config.driver_pool, &who, 1);
}
