/*
 * check.c: do the invariants of a pool hold? docs/invariants.md has them by number.
 *
 * Regions, pages, arenas and mappings change only with the turn, which is held from start to end: what is summed up over those is exact, unless a
 * page that sleeps has gone with its last block. Blocks and slabs come and go meanwhile, for the pool's lock is held for a portion at a time
 * (look.c): of a busy pool some things are not judged, slots in which a pause fell, and what does not fit a portion but has to add up at one moment.
 *
 * LOCKING: the turn, so that nothing is half done; the pool's lock, but not in a pause.
 */
#include "pool/arenas/arenas.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "stats/report/rows.h"

#define PIECES_AT_ONCE 100u
#define SLOTS_AT_ONCE  64u          /* a multiple of 64 */
#define SLABS_AT_ONCE  64u
#define TRIES          3            /* for what has to be looked at without a pause */

/* A page is looked at with all slots that map it. */
static uint32_t work_of(const struct pages *pages, const struct region *r, uint32_t from, uint32_t to)
{
    uint32_t work = 2 + (to - from) / 2;
    for (uint32_t slot = from; (slot = bits_next(r->home, slot, to, true)) < to; slot++)
        work += page_of(pages, r->page[slot])->maps - 1;
    return work;
}

static const char *check_pages(struct look *look)
{
    struct pages *pages = &look->pool->store.pages;
    const char *broken = NULL;
    uint64_t bytes = 0;
    uint32_t sleepers = pages->sleepers;
    for (uint32_t number = 1; number < pages->regions.used && !broken; number++) {
        struct region *r = region_of(pages, number);
        for (uint32_t from = 0, to; r && from < r->slots && !broken; from = to) {
            to = r->slots - from < SLOTS_AT_ONCE ? r->slots : from + SLOTS_AT_ONCE;
            broken = pages_broken_slots(pages, r, from, to, &bytes);
            look_goes_on(look, work_of(pages, r, from, to));
        }
        look_goes_on(look, 1);
    }
    return broken || pages->sleepers != sleepers ? broken : pages_broken_sum(pages, bytes);
}

/* The newest region comes last, for its top may rise between two portions. */
static const char *check_heap(struct look *look, struct heap *h)
{
    const char *broken = NULL;
    uint64_t bytes = 0, used = 0;
    for (uint32_t number = h->regions; number && !broken; number = region_of(h->pages, number)->next) {
        const struct region *r = region_of(h->pages, number);
        struct heap_walk w = {0};
        broken = heap_broken_region(h, r);
        while (!broken && heap_check(h, r, &w, lock_portion(PIECES_AT_ONCE), &broken))
            w.in_doubt |= !look_goes_on(look, PIECES_AT_ONCE / 2);
        bytes += r->bytes;
        used += number == h->regions ? 0 : r->top - r->base;
        look_goes_on(look, PIECES_AT_ONCE / 4 + r->slots / 64);
    }
    if (broken)
        return broken;
    used += h->regions ? region_of(h->pages, h->regions)->top - region_of(h->pages, h->regions)->base : 0;
    return bytes != h->bytes || used != h->used ? "22: a heap counts its addresses" : NULL;
}

static const char *check_slabs(struct look *look, const struct slabs *s)
{
    const char *broken = NULL;
    bool is_same = false;
    for (int tries = 0; tries < TRIES && !is_same; tries++) {
        struct slabs_walk w = {0};
        is_same = true;
        while (is_same && slabs_check(s, &w, lock_portion(SLABS_AT_ONCE), &broken))
            is_same = look_goes_on(look, SLABS_AT_ONCE);
    }
    return broken;
}

static const char *check_rows(struct look *look)
{
    const char *broken = NULL;
    for (int tries = 0; tries < TRIES && !broken; tries++) {
        look_pause(look);
        broken = rows_broken_rule(look);
    }
    return broken;
}

/* Invariant 17: the accounting identities of docs/invariants.md. LOCKING: the pool's lock. */
static const char *broken_identity(const cenote_pool *pool)
{
    const cenote_stats *s = &pool->account.stats;
    if (!fences_are_valid(&pool->clock.fences))
        return "15: fences are in order";
    if (s->reserved.current != pool->store.pages.reserved)
        return "17: reserved counts what the pages say";
    if (s->requested.current > s->allocated.current || s->allocated.current > s->active.current)
        return "17: requested <= allocated <= active";
    return s->active.current > s->reserved.current + pool->store.pages.asleep ? "17: active <= reserved, and what sleeps" : NULL;
}

static const char *broken_rule(struct look *look)
{
    const cenote_pool *pool = look->pool;
    const char *broken = check_pages(look);
    for (uint32_t number = 1; number < pool->store.arenas.used && !broken; number++) {
        struct arena *a = arena_of(pool, number);
        broken = a->number && !lane_is_of(&pool->clock, &a->horizon, a->last_return_tick) ?
                     "26: a lane knows when memory of its stream was freed to last" :
                 a->number && !arenas_has_one(pool, a) ? "32: a group has one live arena for each stream" : NULL;
        for (uint32_t heap = 0; a->number && heap < arena_heaps(a) && !broken; heap++)
            broken = check_heap(look, arena_heap(a, heap));
        if (!broken && a->number)
            broken = check_slabs(look, &a->slabs);
        look_goes_on(look, 1);
    }
    if (!broken)
        broken = check_rows(look);
    return broken ? broken : broken_identity(pool);
}

int cenote_pool_check(cenote_pool *pool)
{
    struct look look;
    int error = pool_usable(pool);
    if (error)
        return error;
    if ((error = turn_take(pool)))
        return error;
    const char *broken = NULL;
    if (!(error = look_begin(&look, pool))) {
        broken = broken_rule(&look);
        look_end(&look);
    }
    lock_give(&pool->turn);
    return error ? error : broken ? error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "invariant %s", broken) : CENOTE_OK;
}
