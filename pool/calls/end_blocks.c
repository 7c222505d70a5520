/*
 * end_blocks.c: a pool ends although blocks of it are live, because its context has ended, and they with it: see
 * reset.c. Each is freed as the program would free it, but found by its number, as its address may be another's. So all
 * that comes after goes as with any pool.
 *
 * LOCKING: the pool's lock, taken here.
 */
#include "pool/calls/end_blocks.h"

#include "pool/arenas/locate.h"
#include "pool/arenas/look.h"
#include "pool/calls/alloc.h"
#include "pool/life/watch.h"
#include "pool/mapping/reset.h"

/*
 * If a live block begins there: a number that is in use no more says what
 * was there once. LOCKING: the pool's lock, let go of meanwhile.
 */
static void end_block(cenote_pool *pool, struct region *r, uint64_t at)
{
    struct block_ref w = {.region = r};
    if (!r || at < r->base || at >= region_end(r) || locate_at(pool, at, &w) != FOUND_LIVE)
        return;
    uint32_t uses = alloc_end_block(pool, &w);
    if (!uses && !watch_hears(pool, CENOTE_ENDED))
        return;
    lock_give(&pool->lock);
    watch_tell(pool, CENOTE_ENDED, w.start, w.requested); /* no other block comes to lie there: the pool ends */
    if (uses)
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
 * The context has ended. Blocks and pins are over, as if the program had ended
 * them, and no more are handed out. LOCKING: none; the pool is `ending`.
 */
void end_blocks(cenote_pool *pool)
{
    struct look look;
    reset_is_seen(pool, pool->config.generation);
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
