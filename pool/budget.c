/*
 * budget.c: may free pages move, or are new ones created instead? And does the pool waste memory, or fray?
 *
 * A page that moves takes driver time now. A page that is created instead takes driver time, too, again when it is given back, and memory in between.
 * So a budget for moving is twice the driver time that the pool's new pages have taken so far, a tenth of a second, and a sixth of harvest_budget
 * of the time since the pool was opened. Within one budget pages always move. Each further budget is spent only at one more percent of waste: of
 * memory that the pool would hold beyond what was ever live at one time. Beyond the sixth no page moves: so in the long run moving takes
 * harvest_budget of the time, and twelve times what creating pages takes. Between two budgets the waste rises evenly.
 *
 *     moving has taken    up to 1 budget    2 budgets    3 budgets ...    6 budgets    more
 *     waste               0                 1 %          2 %              5 %          any
 *
 * All times are measured: on a card on which moving is dear the budget is used up sooner, and the pool puts up with a little more waste.
 *
 * Pages that were created in place of pages of other sizes count as moved.
 *
 * It does not choose the pages (pick.c), and says nothing under shortage: then pages always move (shortage.c).
 *
 * LOCKING: the pool's lock and the turn.
 */
#include "base/check.h"
#include "pool/pool.h"

#define GRACE_NS     100000000u    /* chosen: no user notices it at program start */
#define PAGE_COSTS   2             /* creating a page and giving it back take about as long, by all prices known */
#define BUDGETS_MAX  6             /* chosen, as the next: by recorded programs and programs of random sizes under the prices of two cards */
#define SLACK_SHARE  8             /* chosen, as the next: no recorded program comes near; a smaller pool is no matter */
#define SLACK_PAGES  16ull          /* middle ones */
#define FRAY_SHARE   56            /* chosen: docs/design.md, section 11 */
#define REGIONS_A_LOOK 256         /* chosen: some ten microseconds */
#define WASTE_STEP   0.01          /* what a further budget is worth, as a part of what was live */

/*
 * A fill has run: how long the creating, the unmapping of what was there, and the mapping took. Old mappings are there because pages moved; what was
 * mapped is booked by page. If pages in place of others of other sizes counted as new, each exchange would pay for the next one, and a program
 * with phases of two sizes would never come to rest.
 */
void budget_book_fill(cenote_pool *pool, uint64_t creating_ns, uint64_t unmapping_ns, uint64_t mapping_ns)
{
    const struct fill *f = &pool->remap.fill;
    CHECK(f->count); /* the place lacked pages */
    uint64_t of_created = creating_ns + mapping_ns * f->creates / f->count;
    uint64_t moved = pool->remap.exchanged < f->create_bytes ? pool->remap.exchanged : f->create_bytes;
    uint64_t of_new = f->create_bytes ? (uint64_t)((double)of_created * (1 - (double)moved / (double)f->create_bytes)) : 0;
    pool->remap.creating_ns += of_new;
    pool->remap.moving_ns += creating_ns + unmapping_ns + mapping_ns - of_new;
    pool->remap.exchanged -= moved;
}

/* Segments went back to make room for another, which is what moving is where pages cannot move. */
void budget_book_segments(cenote_pool *pool, uint64_t ns)
{
    pool->remap.moving_ns += ns;
}

/*
 * The most that was ever live, or would be with a request for `bytes` more. The request may fail, so the pool remembers only what has been live; the
 * program may reset the peak of the counters, and what the pool remembers stays.
 */
uint64_t budget_need(cenote_pool *pool, uint64_t bytes)
{
    uint64_t live = pool->account.stats.allocated.current + bytes, peak = pool->account.stats.allocated.peak;
    uint64_t *need = &pool->remap.need;
    *need = *need > peak ? *need : peak;
    return *need > live ? *need : live;
}

/* The peaks of the counters are about to be reset. LOCKING: the pool's lock. */
void budget_remember(cenote_pool *pool)
{
    budget_need(pool, 0);
}

/* Bytes that the pool may grow by, for a request of `bytes`, rather than have pages move. */
uint64_t budget_growth(cenote_pool *pool, uint64_t bytes, uint64_t now)
{
    double share = pool->config.options.harvest_budget / BUDGETS_MAX, spent = (double)pool->remap.moving_ns;
    double start = share > 0 ? GRACE_NS + PAGE_COSTS * (double)pool->remap.creating_ns : 0;
    double budget = start + share * (double)(now - pool->config.opened_ns);
    uint64_t need = budget_need(pool, bytes), reserved = pool->store.pages.reserved;
    if (share < 0 || spent <= budget)
        return 0;
    if (spent > BUDGETS_MAX * budget)
        return UINT64_MAX;
    uint64_t most = need + (uint64_t)((spent / budget - 1) * WASTE_STEP * (double)need);
    return most > reserved ? most - reserved : 0;
}

/* Bytes that the pool may grow by, for a request of `bytes`, before it holds more than was ever live, or is live and pending. */
uint64_t budget_room(cenote_pool *pool, uint64_t bytes)
{
    uint64_t pending = pool->account.stats.active.current - pool->account.stats.allocated.current;
    uint64_t need = budget_need(pool, bytes) + pending, reserved = pool->store.pages.reserved;
    return need > reserved ? need - reserved : 0;
}

/*
 * Bytes of pages that blocks hold: live bytes, and what lies beside them on the same pages. Free pages, in flight or not, are no part of it. One call
 * counts REGIONS_A_LOOK regions, and the next goes on there, so that an allocation of a pool of thousands of streams takes no longer than others.
 * False: not all are counted yet.
 */
static bool held_by_blocks(cenote_pool *pool, uint64_t *held)
{
    const struct pages *s = &pool->store.pages;
    struct remap *m = &pool->remap;
    uint64_t stays, rest = s->reserved - s->spare_bytes;
    for (uint32_t most = m->counted + lock_portion(REGIONS_A_LOOK); m->counted < most && m->counted < s->regions.used; m->counted++) {
        const struct region *r = region_of(s, m->counted);
        m->counted_free += r && r->is_listed ? pages_free(s, r, &stays) : 0;
    }
    if (m->counted < s->regions.used)
        return false;
    *held = rest > m->counted_free ? rest - m->counted_free : 0; /* the pool may have changed while they were counted */
    return true;
}

/*
 * Do blocks hold an eighth more, and some pages, than was ever live at one time? Then small blocks outlive large ones beside them and hold a page
 * each. From here on more of them go to heaps of their own (arena.c), and any hole serves any block (attempt.c). A program whose blocks fit together
 * keeps its layout. What went apart holds little, so the pool would soon be below that again: it has to fall to half of it.
 *
 * And does the pool fray: do blocks hold more than a 56th of that need beside what is live or pending now? A page under the end of a block is held
 * whole. The further the device is behind, the more free ranges there are that end so, for a slot whose page moved in flight takes no other yet.
 * Smaller pages lose less there (units.c). Only a pool that makes middle pages is asked: in a larger one small pages gain less than they cost.
 *
 * LOCKING: the pool's lock.
 */
void budget_look(cenote_pool *pool)
{
    uint64_t need = budget_need(pool, 0), pending = pool->account.stats.active.current - pool->account.stats.allocated.current;
    uint64_t slack = need / SLACK_SHARE + (SLACK_PAGES << pool->store.pages.shifts[GRADE_MIDDLE]);
    uint64_t most = need + pending + (pool->remap.wastes ? slack / 2 : slack);
    uint64_t held = pool->store.pages.reserved;
    bool is_middle = units_are_middle(pool, need);
    if ((held > most || is_middle) && !held_by_blocks(pool, &held))
        return;
    pool->remap.wastes = held > most;
    pool->remap.frays = is_middle && held > pool->account.stats.active.current + need / FRAY_SHARE;
    pool->remap.counted = 0;
    pool->remap.counted_free = 0;
}
