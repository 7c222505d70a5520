/*
 * provider.c: where an arena's segments come from, and where addresses and segments go back to.
 *
 *     vmm        regions: reserved addresses, filled with pages by fill.c as blocks need them
 *     async      segments of the driver's stream-ordered pool, see async.c
 *     plain      segments of cuMemAlloc
 *     guard      segments of one block each, see guard.c
 *     source     segments of a function of the program, for groups that have one; they may lie anywhere
 *
 * A plain group has segments of cuMemAlloc in a pool of any provider but guard.
 *
 * A segment is memory that comes and goes as a whole; the heap packs blocks into it like into any region. Before an
 * arena takes another segment, attempt.c gives free ones back (within the harvest budget): that is what harvesting is
 * where pages cannot move.
 *
 * LOCKING: the turn, not the pool's lock. The turn is let go of around the program's own functions.
 */
#include "pool/provider/provider.h"

#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "pool/provider/async.h"

/* The program's own, if the group of the arena has one. NULL: the memory comes from the pool's provider. */
const cenote_source *provider_source(const cenote_pool *pool, const struct arena *a)
{
    return a->group && group_of(pool, a->group)->has_source ? &group_of(pool, a->group)->source : NULL;
}

bool provider_moves_pages(const cenote_pool *pool, const struct arena *a)
{
    return pool->config.provider == CENOTE_VMM && !a->is_plain && !provider_source(pool, a);
}

/* Its memory is segments of cuMemAlloc, or will be. */
bool provider_is_plain(const cenote_pool *pool, const struct arena *a)
{
    return (pool->config.provider == CENOTE_PLAIN || a->is_plain) && !provider_source(pool, a);
}

bool provider_guards(const cenote_pool *pool, const struct arena *a)
{
    return pool->config.provider == CENOTE_GUARD && !provider_source(pool, a);
}

/* Bytes of physical memory the limit still allows. LOCKING: the pool's lock. */
uint64_t provider_allowance(const cenote_pool *pool)
{
    uint64_t held = pool->store.pages.reserved + pool->limits.promised;
    if (!pool->limits.bytes)
        return UINT64_MAX;
    return pool->limits.bytes > held ? pool->limits.bytes - held : 0;
}

/* ------------------------------------------------------------------------------------------------- joining the heap */

/* No thread can have seen it, or none needs it any more. Its addresses are out of the map by now. */
void provider_close_region(struct region *r)
{
    region_close(r);
    addresses_free_region(r);
}

/* --------------------------------------------------------------------------------------------------------- segments */

/* LOCKING: the turn, let go of while a function of the program runs. */
CUresult provider_take(cenote_pool *pool, struct arena *a, uint64_t bytes, CUdeviceptr *at)
{
    const cenote_source *source = provider_source(pool, a);
    if (source) {
        struct callback c;
        turn_leave(pool);
        callback_begin(&c, pool, source);
        *at = (CUdeviceptr)(uintptr_t)source->take(bytes, a->handle, source->arg);
        callback_end();
        turn_resume(pool);
        return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (provider_guards(pool, a))
        return guard_take(pool, bytes, at);
    return async_serves(pool, a) ? async_take(pool, a, bytes, at) : pool->config.device->driver->cuMemAlloc(at, bytes);
}

/*
 * cuMemFree takes back the async pool's memory too. It is complete, so that no stream has to be named, and the arena's
 * may be gone. False: the driver will not have it.
 */
bool provider_give_segment(cenote_pool *pool, struct arena *a, bool is_sourced, uint64_t at, uint64_t bytes)
{
    if (pool->config.provider == CENOTE_GUARD && !is_sourced)
        return guard_give(pool, at, bytes);
    if (!is_sourced) /* a reset has taken it already, and the address may be another's */
        return pool_is_over(pool) || pool->config.device->driver->cuMemFree(at) == CUDA_SUCCESS;
    const cenote_source source = *provider_source(pool, a); /* without the turn arena and group may be forgotten */
    lock_take(&pool->lock);
    CUstream handle = a->handle; /* another stream may take the arena over */
    lock_give(&pool->lock);
    turn_leave(pool);
    struct callback c;
    callback_begin(&c, pool, a);
    source.give((void *)(uintptr_t)at, bytes, handle, source.arg);
    callback_end();
    turn_resume(pool);
    return true;
}

/*
 * What a region that has left its heap stands on goes back to where it came from. The addresses leave the map first:
 * they may be given out again at once. If they are another region's already, that one has what is there. False: neither
 * the source nor the driver takes it; nothing changed.
 */
bool provider_give_back(cenote_pool *pool, struct region *r)
{
    struct region *replaced;
    bool is_here = addresses_remove(r), segment = region_is_segment(r);
    if (!is_here)
        return true;
    if (segment)
        watch_tell(pool, CENOTE_UNMAPPING, r->base, r->bytes);
    bool gone = segment ? provider_give_segment(pool, arena_of(pool, r->arena), r->is_sourced, r->base, r->bytes) :
                          region_unreserve(pool->config.device, r->base, r->bytes) == CUDA_SUCCESS;
    if (!gone && segment)
        watch_tell(pool, CENOTE_MAPPED, r->base, r->bytes);
    if (!gone)
        /* its entries are still there: nothing has to be mapped for it, and nothing else has come to lie there */
        addresses_add(r, &replaced);
    return gone;
}

/* The pool goes, and everything has gone back. */
void provider_close(cenote_pool *pool)
{
    guard_forget(pool);
    async_close(pool);
}
