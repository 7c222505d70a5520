/*
 * reset.c: what an end of the context, mostly by a reset of the device, does to pools that were in it. Not how it is seen: driver/device.c.
 *
 *     a block: live ---> freed as ever: that is bookkeeping
 *                +-----> the driver gives its address again: calls with the address are about the block that lies there now
 *                +-----> cenote_pool_destroy: it ends with its pool
 *
 * Segments end with the context, and the driver gives their addresses again, to pools of other devices, too. What comes to lie there takes their
 * place in the map of addresses (addresses.c), so that no address is taken for one of a pool that has lost it. The program cannot free what lay there
 * any more, and need not: a pool of a context that has ended can be destroyed with live blocks. Pages belong to no context: they go back to the
 * driver then, and so does the driver's own pool. Nothing is asked of the driver for segments.
 *
 * LOCKING: the pool's lock is taken here.
 */
#include "base/check.h"
#include "pool/pool.h"

/* The context in which the region's pool is, if it has ended. NULL: it has not, or the region is on its way. LOCKING: none but the turn. */
static struct device *lost_device_of(const struct region *r, cenote_pool **pool)
{
    struct device *d = NULL;
    if (!(*pool = atomic_load(&r->pool)))
        return NULL;
    lock_take(&(*pool)->lock);
    if ((*pool)->life.open && atomic_load(&r->pool) == *pool)
        d = (*pool)->config.device;
    lock_give(&(*pool)->lock);
    return d && device_was_reset(d) ? d : NULL;
}

/* A source of the program gives memory there: no pool has it, or only one that has lost it. LOCKING: the turn. */
bool reset_addresses_are_free(uint64_t at, uint64_t bytes)
{
    const struct region *r;
    cenote_pool *pool;
    for (uint64_t from = at; from < at + bytes && (r = addresses_first_in(from, at + bytes - from)); from = region_end(r))
        if (!lost_device_of(r, &pool) || region_end(r) <= from)
            return false;
    return true;
}

/* The pool of the device hands nothing out any more. */
static void lose(cenote_pool *pool, const struct device *d)
{
    lock_take(&pool->lock);
    if (pool->config.device == d && !pool->life.lost)
        pool->life.lost = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    lock_give(&pool->lock);
}

/* What they have of cached memory is another pool's from now on. `replaced`: of addresses_add. LOCKING: the turn. */
void reset_regions_are_replaced(struct region *replaced)
{
    for (struct region *r = replaced; r && !atomic_load(&r->is_in_map); r = atomic_load(&r->shares_granule)) {
        cenote_pool *pool;
        const struct device *d = lost_device_of(r, &pool);
        if (d)
            lose(pool, d);
    }
}

/* ------------------------------------------------------------------------------------------------------------------- the end of a pool */

/* If a live block begins there. LOCKING: the pool's lock, let go of meanwhile. */
static void end_block(cenote_pool *pool, struct region *r, uint64_t at)
{
    struct block_ref w = {.region = r};
    if (!r || pool_locate(pool, at, &w) != FOUND_LIVE)
        return;
    uint32_t uses = pool_end_block(pool, &w);
    if (!uses)
        return;
    lock_give(&pool->lock);
    pending_record(pool, uses);
    lock_take(&pool->lock);
}

static void end_items(cenote_pool *pool, uint32_t slab)
{
    const struct slab *s = slab_of(&pool->store.slabs, slab);
    for (uint32_t item = 0; item < s->items; item++)
        if (!bit_is_set(s->free, item))
            end_block(pool, region_of(&pool->store.pages, s->region), s->at + (uint64_t)item * s->item_bytes);
}

/* LOCKING: the pool's lock. */
static void end_pins(cenote_pool *pool, struct region *r, struct look *look)
{
    for (uint32_t slot = 0; slot < r->slots; look_goes_on(look, 1), slot += region_span(r, slot)) {
        if (r->page[slot])
            page_of(&pool->store.pages, r->page[slot])->pins -= r->pins[slot];
        pool->groups.pins -= r->pins[slot];
        r->pins[slot] = 0;
    }
}

/*
 * The context has ended. Blocks and pins are over, as if the program had ended them, and no more are handed out. LOCKING: none; the pool is
 * `ending`.
 */
void reset_end_blocks(cenote_pool *pool)
{
    struct look look;
    lose(pool, pool->config.device);
    look_begin_held(&look, pool);
    for (uint32_t number = 1; number < pool->store.blocks.used; look_goes_on(&look, 1), number++) {
        const struct block *b = block_of(&pool->store.blocks, number);
        if (b->state == BLOCK_LIVE)
            end_block(pool, region_of(&pool->store.pages, b->region), b->at);
    }
    for (uint32_t number = 1; number < pool->store.slabs.used; look_goes_on(&look, SLAB_ITEMS_MAX), number++)
        end_items(pool, number);
    for (uint32_t number = 1; pool->groups.pins && number < pool->store.pages.regions.used; number++)
        if (region_of(&pool->store.pages, number))
            end_pins(pool, region_of(&pool->store.pages, number), &look);
    look_end(&look);
}
