/*
 * watch.c: tells the program where memory and blocks come and go (cenote_pool_watch): a library remembers what lies
 * under an address, a tool follows the blocks.
 *
 * This is not where anything is decided: each notice is a line beside the step that it is about. After MAPPED and
 * before UNMAPPING an address keeps its physical memory, also while blocks come and go on it: a harvested page keeps
 * its old mapping.
 *
 *     fill            UNMAPPING of what is replaced, unmap, map, MAPPED, publish          attempt.c
 *     page leaves     UNMAPPING, unmap; MAPPED again if the driver refused                trim.c
 *     segment         taken, MAPPED, publish; UNMAPPING, given back                       grow.c; provider.c
 *     pending block   FREED, then it joins its arena                                      pending.c
 *     block           handed out, ALLOCATED, or longer, EXTENDED; the call returns        alloc.c, extend.c
 *                     `watching` taken, ended, ENDED, `watching` given                    alloc.c, reset_group.c
 *
 * A thread that ends a block holds `watching` from before, so that no other one is told of the next block there first.
 *
 * LOCKING: `watching` guards functions and arguments and is held while one runs, so that notices come one at a time and
 * none comes after a function was taken away. Notices of mappings come with the turn. Never the pool's lock.
 */
#include "pool/life/watch.h"

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"

#define CHANGES \
    (CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED | CENOTE_ALLOCATED | CENOTE_EXTENDED | CENOTE_ENDED)

/* LOCKING: `watching`. */
static void tell(cenote_pool *pool, const cenote_notice *notice)
{
    struct callback c;
    callback_begin(&c, pool, NULL);
    for (int i = 0; i < WATCHERS_MAX; i++)
        if (pool->watch.of[i].changes & (uint32_t)notice->change)
            pool->watch.of[i].fn(pool, notice, pool->watch.of[i].arg);
    callback_end();
}

void watch_tell(cenote_pool *pool, enum cenote_change change, uint64_t at, uint64_t bytes)
{
    if (!watch_hears(pool, change))
        return;
    lock_take(&pool->watching); /* its rank says that the pool's lock is free */
    tell(pool, &(cenote_notice){.change = change, .address = (void *)(uintptr_t)at, .bytes = bytes});
    lock_give(&pool->watching);
}

/* ----------------------------------------------------------------------------------------------------------- blocks */

void watch_tell_block(cenote_pool *pool, enum cenote_change change, void *block, uint64_t bytes, CUstream stream)
{
    lock_take(&pool->watching);
    tell(pool, &(cenote_notice){.change = change, .address = block, .bytes = bytes, .stream = stream});
    lock_give(&pool->watching);
}

void watch_tell_ended(cenote_pool *pool, uint64_t at, uint64_t bytes)
{
    tell(pool, &(cenote_notice){.change = CENOTE_ENDED, .address = (void *)(uintptr_t)at, .bytes = bytes});
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

/* Its place, or a free one. NULL: there is none. LOCKING: `watching`. */
static struct watcher *place_of(struct watch *w, cenote_watch_fn function, const void *arg)
{
    struct watcher *place = NULL;
    for (int i = WATCHERS_MAX - 1; i >= 0; i--)
        if (!w->of[i].changes)
            place = &w->of[i];
    for (int i = 0; i < WATCHERS_MAX; i++)
        if (w->of[i].changes && w->of[i].fn == function && w->of[i].arg == arg)
            place = &w->of[i];
    return place;
}

int watch_set(cenote_pool *pool, uint32_t changes, cenote_watch_fn function, void *arg)
{
    uint32_t all = 0;
    lock_take(&pool->watching);
    struct watcher *place = place_of(&pool->watch, function, arg);
    if (place)
        *place = (struct watcher){function, arg, changes};
    for (int i = 0; i < WATCHERS_MAX; i++)
        all |= pool->watch.of[i].changes;
    lock_take(&pool->lock); /* a block that is made in one hold of it is told of, or was there before */
    atomic_store_explicit(&pool->watch.changes, all, memory_order_relaxed);
    lock_give(&pool->lock);
    lock_give(&pool->watching);
    if (!place && changes)
        return error_set(CENOTE_INVALID, 0, "%d watch functions are set: take one away first", WATCHERS_MAX);
    return CENOTE_OK;
}

/*
 * The pool has ended. A thread that has freed the last block may still tell of it; no function runs any more when this
 * returns. LOCKING: none.
 */
void watch_end(cenote_pool *pool)
{
    lock_take(&pool->watching);
    atomic_store_explicit(&pool->watch.changes, 0, memory_order_relaxed);
    for (int i = 0; i < WATCHERS_MAX; i++)
        pool->watch.of[i].changes = 0;
    lock_give(&pool->watching);
}

/* The turn: no mapping is half told. */
int cenote_pool_watch(cenote_pool *pool, uint32_t changes, cenote_watch_fn function, void *arg)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!function || changes & ~(uint32_t)CHANGES)
        return error_set(CENOTE_INVALID, 0, "a watch function hears of some of enum cenote_change, %#x, not of %#x%s",
                         (unsigned)CHANGES, changes, function ? "" : "; the function is NULL");
    if ((error = turn_take(pool)))
        return error;
    error = watch_set(pool, changes, function, arg);
    lock_give(&pool->turn);
    return error;
}
