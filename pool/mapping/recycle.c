/*
 * recycle.c: regions in which no block lies give their addresses back, and the pool keeps their pages.
 *
 * An arena whose ranges are in flight takes further addresses and maps its pages there, too (rule 12). What it leaves
 * behind are aliases, and free pages that nothing needs at their old place. Before a pool takes more addresses than its
 * bound, and where the device has none left, the mappings of a region go, the one first that was used longest ago. It
 * gives no memory back to the driver, as trim.c does: pages that end up mapped nowhere are spares, which the next fill
 * takes first.
 *
 *    leave: no block, all complete     each slot: unmap, unlink         trim_region
 *   ------------------------------> pages leaving, ------------> empty -------------> the driver has its addresses
 *                                  slots in transit | refused: the rest stays as it was
 *
 * LOCKING: the turn, not the pool's lock. While a capture is open nothing is unmapped (rule 5).
 */
#include "pool/mapping/recycle.h"

#include "base/check.h"
#include "pool/arenas/look.h"
#include "pool/mapping/trim.h"

#define SLOTS_A_UNIT 4u     /* of work, see look.c */

/* LOCKING: the pool's lock. */
static bool has_block(const cenote_pool *pool, const struct region *r)
{
    return heap_region_has_block(arena_heap(arena_of(pool, r->arena), r->heap), r);
}

/* Is the device done with what was used there, and may the mapping go? LOCKING: the pool's lock. */
static bool slot_is_unused(const cenote_pool *pool, const struct region *r, uint32_t slot)
{
    const struct page *p = r->page[slot] ? page_of(&pool->store.pages, r->page[slot]) : NULL;
    bool done = fence_has_passed(&pool->clock.fences, r->freed[slot], r->arena);
    return done && !r->pins[slot] && !bit_is_set(r->transit, slot) && !(p && (p->fixed || p->wakefulness));
}

/* Of all its slots. *last: the latest free. LOCKING: the pool's lock, but not in a pause. */
static bool is_unused(struct look *look, const struct region *r, tick *last)
{
    bool unused = !r->fixed && !region_is_segment(r) && !has_block(look->pool, r);
    *last = 0;
    for (uint32_t slot = 0; unused && slot < r->slots; slot++) {
        unused = slot_is_unused(look->pool, r, slot);
        *last = r->freed[slot] > *last ? r->freed[slot] : *last;
        look_goes_on(look, slot % SLOTS_A_UNIT == 0);
    }
    return unused;
}

/* The unused region that was used longest ago, or NULL. LOCKING: as is_unused. */
static struct region *find_oldest(struct look *look)
{
    const struct pages *s = &look->pool->store.pages;
    struct region *oldest = NULL;
    tick before = UINT64_MAX, last;
    for (uint32_t number = 1; number < s->regions.used; number++) {
        struct region *r = region_of(s, number);
        if (!r || !is_unused(look, r, &last) || last >= before)
            continue;
        before = last;
        oldest = r;
    }
    return oldest;
}

/*
 * From here on no search finds anything in the first *slots of the region, and no other place takes the pages that are
 * free. False: a block came meanwhile, and the rest stays as it is. LOCKING: as is_unused.
 */
static bool leave(struct look *look, struct region *r, uint32_t *slots)
{
    struct pages *s = &look->pool->store.pages;
    for (*slots = 0; *slots < r->slots; ++*slots) {
        uint32_t page = r->page[*slots];
        if (has_block(look->pool, r) || !slot_is_unused(look->pool, r, *slots))
            return false;
        if (page && !page_of(s, page)->owner.region && !page_of(s, page)->leaving)
            pages_leave(s, page);
        if (page)
            bit_set(r->transit, *slots);
        look_goes_on(look, 1);
    }
    return true;
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

/*
 * The addresses of a region that nothing uses go back to the driver.
 * False: there is none, a capture is open, or the driver refuses.
 */
bool recycle_oldest(cenote_pool *pool)
{
    if (pool_is_capturing(pool))
        return false;
    struct look look;
    uint32_t slots = 0;
    look_begin_held(&look, pool);
    struct region *r = find_oldest(&look);
    bool going = r && leave(&look, r, &slots);
    look_end(&look);
    if (!r)
        return false;
    for (uint32_t slot = 0; slot < slots; slot++)
        if (r->page[slot])
            going = empty_slot(pool, r, slot, going);
    return trim_region(pool, r->number);
}
