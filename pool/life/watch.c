/*
 * watch.c: tells the program where memory comes and goes, so that
 * it can remember what lies under an address (cenote_pool_watch).
 *
 * This is not where anything is decided: each notice is a line beside the driver's call that it is about. After MAPPED
 * and before UNMAPPING an address keeps its physical memory, also while blocks come and go on it: a harvested page
 * keeps its old mapping.
 *
 *     fill            UNMAPPING of what is replaced, unmap, map, MAPPED, publish          attempt.c
 *     page leaves     UNMAPPING, unmap; MAPPED again if the driver refused                trim.c
 *     segment         taken, MAPPED, publish; UNMAPPING, given back                       grow.c; provider.c
 *     pending block   FREED, then it joins its arena                                      pending.c
 *
 * LOCKING: `watching` guards function and argument and is held while the function runs, so that notices come one at a
 * time and none comes after the function was taken away. Notices of mappings come with the turn. Never the pool's lock.
 */
#include "pool/life/watch.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"

void watch_tell(cenote_pool *pool, enum cenote_change change, uint64_t at, uint64_t bytes)
{
    if (!atomic_load_explicit(&pool->watch.fn, memory_order_relaxed))
        return;
    lock_take(&pool->watching); /* its rank says that the pool's lock is free */
    cenote_watch_fn function = atomic_load_explicit(&pool->watch.fn, memory_order_relaxed);
    if (function) {
        struct callback c;
        callback_begin(&c, pool, NULL);
        function(pool, change, (void *)(uintptr_t)at, bytes, pool->watch.arg);
        callback_end();
    }
    lock_give(&pool->watching);
}

/* ----------------------------------------------------------------------------------------------------------- a fill */

/* With aliases:off pages leave the slots they lie at: each has a notice of its own. */
static void tell_homes(cenote_pool *pool, enum cenote_change change, bool failed)
{
    const struct fill *f = &pool->remap.fill;
    for (uint32_t i = 0; f->leaves && i < f->count; i++) {
        const struct fill_entry *e = &f->entries[i];
        if (e->home && !(failed && e->left))
            watch_tell(pool, change, region_slot_at(e->home, e->home_slot), region_page_bytes(e->home, e->home_slot));
    }
}

static bool is_replaced(const struct fill_entry *e) { return e->old != 0; }
static bool is_left(const struct fill_entry *e) { return e->old && !e->unmapped; }
static bool is_mapped(const struct fill_entry *e) { return e->mapped; }

/* One notice for each run of neighbouring slots. */
static void tell_runs(cenote_pool *pool, enum cenote_change change, bool (*concerns)(const struct fill_entry *))
{
    const struct fill *f = &pool->remap.fill;
    for (uint32_t i = 0, next; i < f->count; i = next) {
        next = i + 1;
        if (!concerns(&f->entries[i]))
            continue;
        uint32_t end = f->entries[i].slot + region_span(f->region, f->entries[i].slot);
        for (; next < f->count && f->entries[next].slot == end && concerns(&f->entries[next]); next++)
            end += region_span(f->region, end);
        watch_tell(pool, change, region_slot_at(f->region, f->entries[i].slot),
                   (uint64_t)(end - f->entries[i].slot) << f->region->shift);
    }
}

/* Before fill_unmap, and after fill_map. What it could not unmap is there as before. LOCKING: the turn. */
void watch_fill_begins(cenote_pool *pool)
{
    if (pool->remap.fill.unmaps)
        tell_runs(pool, CENOTE_UNMAPPING, is_replaced);
    tell_homes(pool, CENOTE_UNMAPPING, false);
}

void watch_fill_ends(cenote_pool *pool, CUresult result)
{
    tell_runs(pool, CENOTE_MAPPED, result ? is_left : is_mapped);
    if (result)
        tell_homes(pool, CENOTE_MAPPED, true);
}

/* ---------------------------------------------------------------------------------------------------------- the API */

/* The turn: no mapping is half told. */
int cenote_pool_watch(cenote_pool *pool, cenote_watch_fn function, void *arg)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if ((error = turn_take(pool)))
        return error;
    lock_take(&pool->watching);
    atomic_store_explicit(&pool->watch.fn, function, memory_order_relaxed);
    pool->watch.arg = arg;
    lock_give(&pool->watching);
    lock_give(&pool->turn);
    return CENOTE_OK;
}
