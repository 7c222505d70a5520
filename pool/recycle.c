/*
 * recycle.c: regions in which no block lies give their addresses back, and the pool keeps their pages.
 *
 * An arena whose ranges are in flight takes further addresses and maps its pages there, too (rule 16). What it leaves behind are aliases, and
 * free pages that nothing needs at their old place. Before a pool takes more addresses than its bound, and where the device has none left,
 * the mappings of a region go, the one first that was used longest ago. It gives no memory back to the driver, as trim.c does: pages that end
 * up mapped nowhere are spares, which the next fill takes first.
 *
 *     leave: no block, all complete                    each slot: unmap, unlink                  trim_region
 *   -------------------------------> pages leaving, ----------------------------> empty -----------------> the driver has its addresses
 *                                    slots in transit       | refused: the rest stays as it was
 *
 * LOCKING: the turn, not the pool's lock. While a capture is open nothing is unmapped (rule 5).
 */
#include "base/check.h"
#include "stats/account/count.h"

/* Is the device done with all that was used there? *last: the latest free. LOCKING: the pool's lock. */
static bool is_unused(const cenote_pool *pool, const struct region *r, tick *last)
{
    *last = 0;
    if (r->fixed || region_is_segment(r) || heap_region_has_block(arena_heap(arena_of(pool, r->arena), r->heap), r))
        return false;
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        const struct page *p = r->page[slot] ? page_of(&pool->store.pages, r->page[slot]) : NULL;
        bool done = fence_has_passed(&pool->store.pages.fences, r->freed[slot], r->arena);
        if (!done || r->pins[slot] || bit_is_set(r->transit, slot) || (p && p->fixed))
            return false;
        *last = r->freed[slot] > *last ? r->freed[slot] : *last;
    }
    return true;
}

/* The unused region that was used longest ago, or NULL. LOCKING: the pool's lock. */
static struct region *find_oldest(const cenote_pool *pool)
{
    struct region *oldest = NULL;
    tick before = UINT64_MAX, last;
    for (uint32_t number = 1; number < pool->store.pages.regions.used; number++) {
        struct region *r = region_of(&pool->store.pages, number);
        if (!r || !is_unused(pool, r, &last) || last >= before)
            continue;
        before = last;
        oldest = r;
    }
    return oldest;
}

/* From here on no search finds anything in the region, and no other place takes the pages that are free. LOCKING: the pool's lock. */
static void leave(cenote_pool *pool, struct region *r)
{
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        uint32_t page = r->page[slot];
        if (page && !page_of(&pool->store.pages, page)->owner.region && !page_of(&pool->store.pages, page)->leaving)
            pages_leave(&pool->store.pages, page);
        if (page)
            bit_set(r->transit, slot);
    }
}

/* The mapping at the slot goes, if it may; then the page is free for all again, as a spare if it was its last one. */
static bool empty_slot(cenote_pool *pool, struct region *r, uint32_t slot, bool go)
{
    uint32_t page = r->page[slot];
    bool gone = go && trim_slot(pool, r, slot);
    lock_take(&pool->lock);
    bit_clear(r->transit, slot);
    struct page *p = page_of(&pool->store.pages, page);
    if (p->leaving)
        pages_stay(&pool->store.pages, page);
    else if (!p->maps) /* it was mapped at an earlier slot of the region, too */
        pages_add_spare(&pool->store.pages, page);
    lock_give(&pool->lock);
    return gone;
}

/* The addresses of a region that nothing uses go back to the driver. False: there is none, a capture is open, or the driver refuses. */
bool recycle_oldest(cenote_pool *pool)
{
    if (atomic_load(&pool->config.device->captures))
        return false;
    lock_take(&pool->lock);
    pool_settle(pool);
    struct region *r = find_oldest(pool);
    if (r)
        leave(pool, r);
    lock_give(&pool->lock);
    if (!r)
        return false;
    bool going = true;
    for (uint32_t slot = 0; slot < r->slots; slot++)
        if (r->page[slot])
            going = empty_slot(pool, r, slot, going);
    return trim_region(pool, r->number);
}
