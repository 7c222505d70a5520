/*
 * pending.c: freed blocks that other streams may still be using (rule 2).
 *
 * At the free of a block that was used on other streams an event is recorded on each of them; when all are done the block goes back to
 * its arena. Only streams that cannot have been destroyed meanwhile are touched: the default ones and those declared immortal. For all
 * others, and where an event cannot be had (the driver says no, a capture is open), a fence of the whole context takes its place, so that
 * nothing is handed out too early, nothing is lost, and no dead handle is given to the driver.
 *
 *       cenote_use        cenote_free              pending_record             pending_poll: all events done
 *     -----------> live -------------> detached -----------------> pending ----------------------------------> in its arena
 *                            (our lock)        (driver, no lock)
 *
 * LOCKING: the list is guarded by the pool's lock. Only one thread at a time walks it (`polling`), so that it may let go of the lock
 * between two entries while others append.
 */
#include "base/check.h"
#include "pool/count.h"

#define NOT_READY_MOST 8    /* entries a poll finds still in use before it gives up */

static void set_pending(cenote_pool *pool, const struct where *w, bool pending)
{
    w->arena->pending += pending ? count_rounded(w->requested) : -count_rounded(w->requested);
    if (!w->slab)
        block_of(&pool->blocks, w->block)->state = pending ? BLOCK_PENDING : BLOCK_LIVE;
    else if (pending)
        bit_set(slab_of(&pool->slabs, w->slab)->pending, w->item);
    else
        bit_clear(slab_of(&pool->slabs, w->slab)->pending, w->item);
}

/* The block is freed but not free. Its uses, for pending_record. LOCKING: the pool's lock. */
uint32_t pending_detach(cenote_pool *pool, const struct where *w, tick freed)
{
    set_pending(pool, w, true);
    for (uint32_t use = *w->uses; use; use = use_of(pool, use)->next)
        use_of(pool, use)->freed = freed;
    return *w->uses;
}

static CUevent record(cenote_pool *pool, const struct use *u)
{
    if (atomic_load(&pool->device->captures) || !stream_is_alive(pool, u->stream, u->key))
        return NULL;
    CUevent event = event_take(pool);
    if (!event || pool->device->driver->cuEventRecord(event, u->stream) == CUDA_SUCCESS)
        return event;
    lock_take(&pool->lock);
    event_give(pool, event);
    lock_give(&pool->lock);
    return NULL;
}

/*
 * Records an event for each use, where that can be done at once, and appends the block to the list. The uses belong to us alone until then. A free
 * waits for nothing (rule 15): while a capture is being announced it is as if it were open.
 */
void pending_record(cenote_pool *pool, uint32_t uses)
{
    CUresult result;
    bool inside = device_try_enter(pool->device, &result), entered = inside && !result && !pool->lost;
    for (uint32_t use = uses; use; use = use_of(pool, use)->next) {
        struct use *u = use_of(pool, use);
        if (entered && u->other)
            elsewhere_record(pool, u);
        else if (entered)
            u->event = record(pool, u);
        u->needs_fence = !u->event && !u->other;
    }
    if (inside)
        device_leave(pool->device);

    lock_take(&pool->lock);
    use_of(pool, uses)->next_pending = 0;
    if (pool->pending_last)
        use_of(pool, pool->pending_last)->next_pending = uses;
    else
        pool->pending_first = uses;
    pool->pending_last = uses;
    if (pool->pending_newest < use_of(pool, uses)->freed)
        pool->pending_newest = use_of(pool, uses)->freed;
    atomic_fetch_add(&pool->pending_count, 1);
    lock_give(&pool->lock);
}

/* Is the stream done? `waited`: the own device is. Asks the driver with the lock let go. LOCKING: the pool's lock; `polling`; inside. */
static bool use_is_done(cenote_pool *pool, struct use *u, bool waited)
{
    if (u->other)
        return elsewhere_is_done(pool, u);
    if (waited || fence_is_done(&pool->pages.fences, u->freed))
        return true;
    if (u->needs_fence || atomic_load(&pool->device->captures) || pool->lost)
        return false;
    CUevent event = u->event;
    lock_give(&pool->lock);
    bool done = pool->device->driver->cuEventQuery(event) == CUDA_SUCCESS;
    lock_take(&pool->lock);
    return done;
}

static bool all_done(cenote_pool *pool, uint32_t uses, bool waited)
{
    for (uint32_t use = uses; use; use = use_of(pool, use)->next)
        if (!use_is_done(pool, use_of(pool, use), waited))
            return false;
    return true;
}

/* The entry after `before` (0: the first) leaves the list and its block goes back. LOCKING: the pool's lock; `polling`. */
static void release(cenote_pool *pool, uint32_t before)
{
    struct where w = {0};
    uint32_t use = before ? use_of(pool, before)->next_pending : pool->pending_first;
    uint32_t after = use_of(pool, use)->next_pending;
    *(before ? &use_of(pool, before)->next_pending : &pool->pending_first) = after;
    if (!after)
        pool->pending_last = before;
    atomic_fetch_sub(&pool->pending_count, 1);

    uint64_t at = use_of(pool, use)->at;
    tick freed = use_of(pool, use)->freed;
    w.region = addresses_find_for_certain(at);
    enum found found = pool_locate(pool, at, &w);
    CHECK(found == FOUND_PENDING);
    (void)found;
    set_pending(pool, &w, false);
    while (use) {
        struct use *u = use_of(pool, use);
        uint32_t next = u->next;
        if (u->event)
            event_give(pool, u->event);
        table_give(&pool->uses, use);
        use = next;
    }
    *w.uses = 0;
    pool_give(pool, &w, freed);
}

/* Says that the block is free, with the lock let go: it can be had again only once it was released. LOCKING: as for use_is_done. */
static void tell_freed(cenote_pool *pool, uint64_t at)
{
    struct where w = {0};
    if (!atomic_load_explicit(&pool->watch, memory_order_relaxed))
        return;
    w.region = addresses_find_for_certain(at);
    pool_locate(pool, at, &w);
    lock_give(&pool->lock);
    watch_tell(pool, CENOTE_FREED, at, w.requested);
    lock_take(&pool->lock);
}

/* LOCKING: the pool's lock and `polling`, taken by the callers below. */
static void walk(cenote_pool *pool, bool waited)
{
    uint32_t before = 0, not_ready = 0;
    for (uint32_t use = pool->pending_first; use && not_ready < NOT_READY_MOST;) {
        if (all_done(pool, use, waited)) {
            tell_freed(pool, use_of(pool, use)->at);
            release(pool, before);
        } else {
            before = use;
            not_ready++;
        }
        use = before ? use_of(pool, before)->next_pending : pool->pending_first;
    }
}

static void poll(cenote_pool *pool, bool waited)
{
    lock_take(&pool->lock);
    if (!pool->polling) {
        pool->polling = true;
        walk(pool, waited);
        pool->polling = false;
    }
    lock_give(&pool->lock);
}

/* Gives back the blocks whose streams are done. LOCKING: none of the pool's; inside device_enter. */
void pending_poll(cenote_pool *pool)
{
    poll(pool, false);
}

/* The device was waited for: nothing here uses anything any more. What streams of other devices use may stay. */
void pending_release_all(cenote_pool *pool)
{
    poll(pool, true);
}

/*
 * What an allocation does for pending blocks now and then: sees to it that a fence covers them, if nobody has the turn, and
 * gives back those that are done. LOCKING: none; not inside.
 */
void pending_tend(cenote_pool *pool)
{
    bool entered = device_enter(pool->device) == CUDA_SUCCESS;
    if (entered && lock_try(&pool->turn)) {
        lock_take(&pool->lock);
        tick newest = pool->pending_newest;
        pool->untended = 0;
        lock_give(&pool->lock);
        wait_poll(pool, newest);
        lock_give(&pool->turn);
    }
    if (entered)
        pending_poll(pool);
    device_leave(pool->device);
}
