/*
 * budget.c: may free pages move, or are new ones created instead?
 *
 * A page that moves takes driver time now. A page that is created instead takes memory, and driver time again when it
 * is given back. So moving may take GRACE_NS of driver time, and harvest_budget of the time since the pool was opened.
 * The more of that is spent, the more memory may the pool hold beyond what was ever live at one time, evenly up to
 * WASTE_MOST. Once all is spent no page moves.
 *
 *     of what moving may take is spent     none     a half     all       more
 *     waste                                0        2.5 %      5 %       any
 *
 * All times are measured: on a card on which moving is dear it is
 * spent sooner, and the pool puts up with a little more waste.
 *
 * It does not choose the pages (pick.c), and says nothing under shortage: then pages always move (shortage.c).
 *
 * LOCKING: the pool's lock and the turn.
 */
#include "pool/mapping/budget.h"

#include "base/check.h"

#define GRACE_NS   1e9    /* chosen, as the next: by recorded programs under the prices of three cards */
#define WASTE_MOST 0.05

/* A fill has run: how long the unmapping of what was there and the mapping took. Pages that it created did not move. */
void budget_book_fill(cenote_pool *pool, uint64_t unmapping_ns, uint64_t mapping_ns)
{
    const struct fill *f = &pool->remap.fill;
    CHECK(f->count); /* the place lacked pages */
    budget_book_move(pool, unmapping_ns + mapping_ns * (f->count - f->creates) / f->count);
}

/* Or pages of one size, or segments, went back to make room for others. */
void budget_book_move(cenote_pool *pool, uint64_t ns)
{
    pool->remap.moving_ns += ns;
}

/*
 * The most that was ever live, or would be with a request for `bytes` more. The request may fail, so the pool remembers
 * only what has been live; the program may reset the peak of the counters, and what the pool remembers stays.
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
    double share = pool->config.options.harvest_budget, spent = (double)pool->remap.moving_ns;
    double may = share > 0 ? GRACE_NS + share * (double)(now - pool->config.opened_ns) : 0;
    uint64_t need = budget_need(pool, bytes), reserved = pool->store.pages.reserved;
    if (share < 0 || !spent)
        return 0;
    if (spent >= may)
        return UINT64_MAX;
    uint64_t most = need + (uint64_t)(spent / may * WASTE_MOST * (double)need);
    return most > reserved ? most - reserved : 0;
}

/*
 * Bytes that the pool may grow by, for a request of `bytes`, before
 * it holds more than was ever live, or is live and pending.
 */
uint64_t budget_room(cenote_pool *pool, uint64_t bytes)
{
    uint64_t pending = pool->account.stats.active.current - pool->account.stats.allocated.current;
    uint64_t need = budget_need(pool, bytes) + pending, reserved = pool->store.pages.reserved;
    return need > reserved ? need - reserved : 0;
}
