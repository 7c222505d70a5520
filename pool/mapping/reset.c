/*
 * reset.c: what an end of the context, mostly by a reset of the device,
 * does to pools that were in it. Not how it is seen: driver/device.c.
 *
 *     a block: live ---> freed as ever: that is bookkeeping
 *                +-----> the driver gives its address again: calls with it are about the block that lies there now
 *                +-----> cenote_pool_destroy: it ends with its pool (end_blocks.c)
 *
 * Segments end with the context, and the driver gives their addresses again, to pools of other devices, too. What comes
 * to lie there takes their place in the map of addresses (addresses.c), so that no address is taken for one of a pool
 * that has lost it. The program cannot free what lay there any more, and need not: a pool of a context that has ended
 * can be destroyed with live blocks. Pages belong to no context: they go back to the driver then, and so does the
 * driver's own pool. Nothing is asked of the driver for segments.
 *
 * LOCKING: the pool's lock is taken here.
 */
#include "pool/mapping/reset.h"

#include "base/check.h"

/*
 * The context in which the region's pool is, by its generation, if it has ended.
 * 0: it has not, or the region is on its way. LOCKING: none but the turn.
 */
static uint64_t ended_context_of(const struct region *r, cenote_pool **pool)
{
    struct device *d = NULL;
    uint64_t generation = 0;
    if (!(*pool = atomic_load(&r->pool)))
        return 0;
    lock_take(&(*pool)->lock);
    if ((*pool)->life.open && atomic_load(&r->pool) == *pool) {
        d = (*pool)->config.device;
        generation = (*pool)->config.generation;
    }
    lock_give(&(*pool)->lock);
    return d && !device_lives(d, generation) ? generation : 0;
}

/* A source of the program gives memory there: no pool has it, or only one that has lost it. LOCKING: the turn. */
bool reset_addresses_are_free(uint64_t at, uint64_t bytes)
{
    const struct region *r;
    cenote_pool *pool;
    for (uint64_t from = at; from < at + bytes && (r = addresses_first_in(from, at + bytes - from));
         from = region_end(r))
        if (!ended_context_of(r, &pool) || region_end(r) <= from)
            return false;
    return true;
}

/* A pool in that context, which has ended, hands nothing out any more. LOCKING: none but the turn. */
void reset_is_seen(cenote_pool *pool, uint64_t generation)
{
    lock_take(&pool->lock);
    if (pool->config.generation == generation && !pool->life.lost)
        pool->life.lost = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    lock_give(&pool->lock);
}

/* What they have of cached memory is another pool's from now on. `replaced`: of addresses_add. LOCKING: the turn. */
void reset_regions_are_replaced(struct region *replaced)
{
    for (struct region *r = replaced; r && !atomic_load(&r->is_in_map); r = atomic_load(&r->shares_granule)) {
        cenote_pool *pool;
        uint64_t generation = ended_context_of(r, &pool);
        if (generation)
            reset_is_seen(pool, generation);
    }
}
