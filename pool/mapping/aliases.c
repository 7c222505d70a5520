/*
 * aliases.c: mappings that lie under no live byte go, the oldest first, when the device has too many.
 *
 * A page that moved stays mapped at its old places (aliases), so that those work again without a call. Drivers have a
 * ceiling: on an H100 about 520,000 mappings of a context, and 5,637 of one handle. Beyond it cuMemSetAccess is out of
 * memory, with memory free. The option `mappings` keeps the device below; if the driver answers so all the same, half
 * of these mappings go, and the attempt is made again (rule 13).
 *
 * It gives back neither pages nor addresses: trim.c and recycle.c do. A free page
 * that loses its last mapping is a spare, which the next fill takes first.
 *
 * LOCKING: the turn, not the pool's lock. While a capture is open nothing is unmapped (rule 5).
 */
#include "pool/mapping/aliases.h"

#include "base/check.h"
#include "pool/arenas/look.h"
#include "pool/mapping/trim.h"

#define SLOTS_A_UNIT 4u     /* of work, see look.c */

/*
 * May the mapping go? A free page that has no other becomes a spare,
 * so the device must be done with it. LOCKING: the pool's lock.
 */
bool aliases_may_go(const cenote_pool *pool, const struct region *r, uint32_t slot)
{
    const struct fences *fences = &pool->clock.fences;
    const struct page *p = r->page[slot] ? page_of(&pool->store.pages, r->page[slot]) : NULL;
    if (!p || p->leaving || p->fixed || p->pins || (!p->owner.region && !fence_has_passed(fences, p->freed, p->arena)))
        return false;
    return !bit_is_set(r->busy, slot) && !bit_is_set(r->transit, slot) &&
           fence_has_passed(fences, r->freed[slot], r->arena);
}

/* The tick that about half of the aliases are not younger than; 0: there are none. */
static tick middle_age(cenote_pool *pool)
{
    tick oldest = UINT64_MAX, youngest = 0;
    struct look look;
    look_begin_held(&look, pool);
    for (uint32_t number = 1; number < pool->store.pages.regions.used; number++) {
        const struct region *r = region_of(&pool->store.pages, number);
        for (uint32_t slot = 0; r && !r->fixed && !region_is_segment(r) && slot < r->slots; slot++) {
            look_goes_on(&look, slot % SLOTS_A_UNIT == 0);
            if (!aliases_may_go(pool, r, slot))
                continue;
            oldest = r->freed[slot] < oldest ? r->freed[slot] : oldest;
            youngest = r->freed[slot] > youngest ? r->freed[slot] : youngest;
        }
    }
    look_end(&look);
    return youngest ? oldest + (youngest - oldest) / 2 : 0;
}

/* No arena takes the page while one of its mappings goes. False: it had to stay. */
static bool drop(cenote_pool *pool, struct region *r, uint32_t slot, tick age)
{
    lock_take(&pool->lock);
    bool goes = aliases_may_go(pool, r, slot) && r->freed[slot] <= age;
    uint32_t page = goes ? r->page[slot] : 0;
    bool is_free = goes && !page_of(&pool->store.pages, page)->owner.region;
    if (is_free)
        pages_leave(&pool->store.pages, page);
    lock_give(&pool->lock);
    if (!goes)
        return false;
    bool gone = trim_slot(pool, r, slot);
    lock_take(&pool->lock);
    if (is_free)
        pages_stay(&pool->store.pages, page);
    lock_give(&pool->lock);
    return gone;
}

/* False: it had to stay. */
bool aliases_drop_at(cenote_pool *pool, struct region *r, uint32_t slot)
{
    return drop(pool, r, slot, UINT64_MAX);
}

/* False: there was none that may go. */
bool aliases_drop(cenote_pool *pool)
{
    bool any = false;
    if (pool_is_capturing(pool))
        return false;
    tick age = middle_age(pool);
    /* regions come and go with the turn alone */
    for (uint32_t number = 1; age && number < pool->store.pages.regions.used; number++) {
        struct region *r = region_of(&pool->store.pages, number);
        for (uint32_t slot = 0; r && !r->fixed && !region_is_segment(r) && slot < r->slots; slot++)
            any = drop(pool, r, slot, age) || any;
    }
    return any;
}

/*
 * Memory is short: what the driver would not unmap when a fill failed is tried again. With aliases:off the page there
 * moves nowhere else before that. Nothing during a capture.
 */
void aliases_mend(cenote_pool *pool)
{
    for (uint32_t number = 1; !pool_is_capturing(pool) && number < pool->store.pages.regions.used; number++) {
        struct region *r = region_of(&pool->store.pages, number);
        for (uint32_t slot = 0; r && (slot = bits_next(r->broken, slot, r->slots, true)) < r->slots; slot++)
            drop(pool, r, slot, UINT64_MAX);
    }
}

/*
 * Before `more` slots are mapped. If too many are needed for the cap, the driver decides; it is tried again when there
 * are a sixteenth more, so that not every attempt walks through all slots.
 */
void aliases_make_room(cenote_pool *pool, uint64_t more)
{
    uint64_t cap = pool->config.options.mappings;
    uint64_t above = pool->remap.drop_above > cap ? pool->remap.drop_above : cap;
    if (!cap || atomic_load_explicit(&pool->config.device->card->mappings, memory_order_relaxed) + more <= above)
        return;
    while (atomic_load(&pool->config.device->card->mappings) + more > cap && aliases_drop(pool)) {}
    uint64_t left = atomic_load(&pool->config.device->card->mappings);
    pool->remap.drop_above = left + more > cap ? left + left / 16 : 0;
}
