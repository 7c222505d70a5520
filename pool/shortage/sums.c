/*
 * sums.c: what is added up before a request climbs and before it waits (rule 12), so that neither is done in vain.
 *
 * Both sums err on the side of hope: they say no only where no wait, no move and no trim can make room. Where a place
 * for the block would be is no part of the answer.
 *
 *     reserved   | live | pending | crumbs: beside them on their pages
 *                | free pages | free pages that stay where they are |
 *
 * What stays where it is (pinned, or of a private arena) is of use to
 * its own arena, and to a request that its group may lend it to.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/shortage/sums.h"

#include "base/check.h"
#include "pool/arenas/last_freed.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"

/* Bytes of live blocks that do not sleep, at least. LOCKING: the pool's lock. */
static uint64_t awake(const cenote_pool *pool)
{
    uint64_t live = pool->account.stats.allocated.current, asleep = pool->store.pages.asleep;
    return live > asleep ? live - asleep : 0;
}

/* Bytes of live blocks that lie on the card for certain: what a program's own source gave may be any memory. */
uint64_t sums_live(const cenote_pool *pool)
{
    uint64_t live = awake(pool);
    for (uint32_t number = 1; pool->groups.has_sources && number < pool->groups.table.used; number++) {
        const cenote_group *g = group_of(pool, number);
        if (g->number && g->has_source)
            live -= live < g->row.current ? live : g->row.current;
    }
    return live;
}

/*
 * Too much is live: then only the program can make room. Blocks count
 * with their own bytes, so that what is called hopeless is.
 */
bool sums_are_hopeless(const cenote_pool *pool, const struct arena *a, uint64_t bytes, uint64_t live_elsewhere)
{
    uint64_t asked = count_rounded(bytes);
    if (pool->limits.bytes && asked + awake(pool) > pool->limits.bytes)
        return true;
    return !provider_source(pool, a) && asked + sums_live(pool) + live_elsewhere > pool->config.device->capacity;
}

/*
 * Rule 4: a replay writes to what a capture drew. A retired arena has
 * the order of another stream, whose handle this one may have.
 */
bool sums_may_lend(const cenote_pool *pool, const struct arena *from, const struct arena *to)
{
    const cenote_group *g = from->number && from->group ? group_of(pool, from->group) : NULL;
    return g && !to->group && !g->destroyed && g->flags & CENOTE_GROUP_LEND && !from->captured && !from->retired &&
           from->stream == to->stream;
}

/* Bytes of free pages that the arena may come to have, in flight or not; *free: of all free pages. */
static uint64_t free_for(cenote_pool *pool, const struct arena *a, uint64_t *free)
{
    struct pages *s = &pool->store.pages;
    uint64_t useful = *free = 0;
    for (int segments = 0; segments < 2; segments++)
        for (uint32_t number = s->listed[segments]; number; number = region_of(s, number)->next_listed) {
            const struct region *r = region_of(s, number);
            uint64_t stays, done, here = pages_free(s, r, &stays, &done);
            bool is_open = r->arena == a->number || sums_may_lend(pool, arena_of(pool, r->arena), a);
            *free += here;
            useful += is_open ? here : here - stays;
        }
    *free += s->spare_bytes;
    return useful + s->spare_bytes;
}

/*
 * Bytes that the pool lacks for the request once the device is done with all that was freed, and everything that can
 * move has moved: they have to come from outside of it.
 */
uint64_t sums_missing(cenote_pool *pool, const struct arena *a, uint64_t bytes)
{
    const cenote_stats *stats = &pool->account.stats;
    uint64_t free, allocated = stats->allocated.current, pending = stats->active.current - allocated;
    bool moves = pool->config.provider == CENOTE_VMM,
         segments = !moves || pool->groups.has_sources || pool->groups.has_plain;
    last_freed_settle(pool);
    uint64_t useful = free_for(pool, a, &free);
    uint64_t owned = pool->store.pages.reserved - free + pool->store.pages.asleep; /* blocks that sleep are active */
    uint64_t crumbs = owned > stats->active.current ? owned - stats->active.current : 0;
    /* the request, and each pending block, may share the page at each of its ends with others */
    uint64_t shared = (moves ? 2 * (1 + (uint64_t)pool->clock.uses.blocks) : 0)
                      << pool->store.pages.shifts[GRADE_LARGE];
    uint64_t usable = (segments && pending) || shared > crumbs ? crumbs : shared;
    uint64_t asked = count_rounded(bytes), most = useful + pending + usable;
    return asked > most ? asked - most : 0;
}
