/*
 * guard.c: provider guard, for debugging: each block has memory of its own, which ends where nothing is mapped, and
 * which goes when the block is freed. Work of the device that runs over the end of a block, or uses it after its free,
 * meets an address that is not mapped, and the driver reports it.
 *
 *     reserved   |  mapped: a segment of one block                | never mapped |
 *                |  free, never used            [ block, to the end ]            |
 *
 *     taken ---> in use ---> freed ---> unmapped ---> kept ---> addresses go back
 *                                        |             GUARD_KEPT later
 *                                        device done: by the next allocation or trim
 *
 * Not found: what happens before a block, in the bytes that its size was rounded up by (to 512), and use after the free
 * that the device comes to before the memory was unmapped.
 *
 * LOCKING: the turn, not the pool's lock.
 */
#include "pool/provider/guard.h"

#include "base/check.h"
#include "pool/life/prove.h"
#include "pool/pool.h"

static uint64_t gap(const cenote_pool *pool) { return pool->config.device->granularity; }

static void give_addresses(cenote_pool *pool, struct guard_kept *kept)
{
    const struct device *d = pool->config.device;
    uint64_t bytes = kept->bytes + gap(pool);
    if (kept->bytes && region_unreserve(d, kept->base, bytes) && region_unreserve(d, kept->base, bytes))
        return; /* refused twice: the next thread that forgets addresses asks again */
    kept->bytes = 0;
}

/*
 * Gives back what the last take was in the middle of, step by step.
 * What the driver refuses is asked for again by the next one.
 */
static CUresult undo(cenote_pool *pool)
{
    const struct driver *t = pool->config.device->driver;
    struct guard_taken *g = &pool->guard.taken;
    CUresult result = g->is_mapped ? t->cuMemUnmap(g->base, g->bytes) : CUDA_SUCCESS;
    g->is_mapped = g->is_mapped && result;
    if (!result && g->has_handle)
        g->has_handle = (result = t->cuMemRelease(g->handle)) != CUDA_SUCCESS;
    if (!result && g->base && !(result = region_unreserve(pool->config.device, g->base, g->bytes + gap(pool))))
        g->base = 0;
    return result;
}

/* All addresses that were kept: the pool goes, or there are no others. */
void guard_forget(cenote_pool *pool)
{
    if (undo(pool))
        undo(pool);
    for (int i = 0; i < GUARD_KEPT; i++)
        give_addresses(pool, &pool->guard.kept[i]);
}

static CUresult reserve(cenote_pool *pool)
{
    struct guard_taken *g = &pool->guard.taken;
    CUresult result = region_reserve(pool->config.device, g->bytes + gap(pool), gap(pool), &g->base);
    if (result)
        g->base = 0;
    return result;
}

/* Addresses, physical memory at their beginning. `taken` knows how far it got. */
static CUresult take(cenote_pool *pool, uint64_t bytes)
{
    const struct driver *t = pool->config.device->driver;
    struct guard_taken *g = &pool->guard.taken;
    CUmemAllocationProp prop = pool_page_prop(pool);
    g->bytes = bytes;
    CUresult result = reserve(pool);
    if (result && !driver_result_is_sticky(result)) {
        guard_forget(pool);
        result = reserve(pool);
    }
    if (!result)
        g->has_handle = !(result = t->cuMemCreate(&g->handle, bytes, &prop, 0));
    if (!result)
        g->is_mapped = !(result = t->cuMemMap(g->base, bytes, 0, g->handle, 0));
    return result ? result : t->cuMemSetAccess(g->base, bytes, pool->access.list, pool->access.count);
}

CUresult guard_take(cenote_pool *pool, uint64_t bytes, CUdeviceptr *at)
{
    struct guard_taken *g = &pool->guard.taken;
    CUresult result = undo(pool); /* nothing, mostly */
    if (result || (result = take(pool, bytes))) {
        undo(pool);
        return result;
    }
    *at = g->base;
    g->base = 0;
    g->is_mapped = false;
    undo(pool); /* mapped memory needs no handle */
    return CUDA_SUCCESS;
}

/* The memory goes, the addresses stay a while. False: the driver will not have it. */
bool guard_give(cenote_pool *pool, uint64_t at, uint64_t bytes)
{
    if (pool->config.device->driver->cuMemUnmap(at, bytes))
        return false;
    struct guard_kept *kept = &pool->guard.kept[pool->guard.next++ % GUARD_KEPT];
    give_addresses(pool, kept);
    *kept = (struct guard_kept){at, bytes};
    return true;
}
