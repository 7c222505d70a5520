/*
 * pending.c: freed blocks that other streams may still be using (rule 2).
 *
 * At the free of a block that was used on other streams an event is recorded on each of them; when all are done the block goes back to
 * its arena. Only streams that cannot have been destroyed meanwhile are touched: the default ones and those declared immortal. For all
 * others, and where an event cannot be had (the driver says no, a capture is open), a fence over the whole context takes its place, or, with
 * announced:0, an event on that stream as soon as it can be touched (lane_events.c). So nothing is handed out too early, and no dead handle is given
 * to the driver.
 *
 *       cenote_use        cenote_free              pending_record             pending_poll: all its uses are done
 *     -----------> live -------------> detached -----------------> pending ----------------------------------> in its arena
 *                            (our lock)        (driver, no lock)
 *
 * A use of a freed block waits in the lane of its stream. The uses stand there as their frees came to the lane: frees of threads that free at one
 * time may have changed places. An event that is done answers for every use of the lane that was freed no later; an event that is not done ends the
 * look at the lane. So a stream that stalls holds back nothing but what it uses itself. A block counts its uses that are not done.
 *
 * LOCKING: lanes and uses are guarded by the pool's lock. One thread at a time walks the lanes (`polling`), so that it may let go of the
 * lock for each question while other threads append.
 */
#include "pool/arenas/pending.h"

#include "base/check.h"
#include "pool/arenas/locate.h"
#include "pool/arenas/place.h"
#include "pool/clock/events.h"
#include "pool/clock/peer_uses.h"
#include "pool/life/turn.h"
#include "pool/life/watch.h"
#include "stats/account/count.h"

#define USES_AT_ONCE 500u  /* in one hold of the lock; chosen, as PORTION of look.c */
#define LOOKS_MAX 8u       /* lanes that a look in passing finds not done before it gives up; the next look begins with others */

/* One more use is looked at: now and then threads that wait for the pool's lock have it. LOCKING: the pool's lock, but not in a pause. */
static void count_one(cenote_pool *pool, uint32_t *uses)
{
    if (++*uses % lock_portion(USES_AT_ONCE) == 0)
        lock_pass(&pool->lock);
}

/* ------------------------------------------------------------------------------------------------------------- lanes with a use in them */

/* They are looked at in turn. */
static void put_last(cenote_pool *pool, uint32_t number)
{
    lane_of(pool, number)->next = 0;
    *(pool->pending.last ? &lane_of(pool, pool->pending.last)->next : &pool->pending.first) = number;
    pool->pending.last = number;
}

static void take_first(cenote_pool *pool)
{
    pool->pending.first = lane_of(pool, pool->pending.first)->next;
    if (!pool->pending.first)
        pool->pending.last = 0;
}

static void append(cenote_pool *pool, uint32_t use, uint32_t number)
{
    struct lane *lane = lane_of(pool, number);
    use_of(pool, use)->next_in_lane = 0;
    use_of(pool, use)->waits = true;
    if (use_of(pool, use)->event)
        use_got_event(pool, use_of(pool, use));
    *(lane->last ? &use_of(pool, lane->last)->next_in_lane : &lane->first) = use;
    lane->last = use;
    if (!lane->is_listed) {
        put_last(pool, number);
        lane_hold(pool, number);
    }
    lane->is_listed = true;
}

/* ------------------------------------------------------------------------------------------------------------------- use, and the free */

/* Under which a further use of a block is found, in the shape of an address. `first`: that of the block. */
static uint64_t further_use(uint32_t first, uint32_t lane)
{
    _Static_assert(USES_MAX <= 1u << 24 && LANES_MAX <= 1u << 24, "both numbers and the nine bits fit a word");
    return ((uint64_t)first << 25 | lane) << 9;
}

/*
 * The block's use on that lane; 0: there is none. *last: the last of those that are walked, behind which further ones stand; 0: there are fewer than
 * USES_WALKED.
 */
static uint32_t find_use(const cenote_pool *pool, uint32_t first, uint32_t lane, uint32_t *last)
{
    uint32_t use = first, walked = 0;
    for (*last = 0; use && walked < lock_portion(USES_WALKED); use = use_of(pool, use)->next, walked++) {
        if (use_of(pool, use)->lane == lane)
            return use;
        *last = use;
    }
    *last = walked == lock_portion(USES_WALKED) ? *last : 0;
    return *last ? index_find(&pool->pending.by_lane, further_use(first, lane)) : 0;
}

/* Notes the stream once for each block. False: no host memory. LOCKING: the pool's lock. */
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key, struct device *other)
{
    uint32_t first = *w->uses, last;
    if (!table_reserve(&pool->pending.uses, 1) || !index_reserve(&pool->pending.by_lane, 1))
        return false;
    uint32_t lane = lane_for(pool, stream, key, other);
    if (!lane)
        return false;
    if (w->arena->horizon.lane == lane || find_use(pool, first, lane, &last))
        return true;
    lane_hold(pool, lane);
    uint32_t use = table_take(&pool->pending.uses);
    struct use *u = use_of(pool, use);
    *u = (struct use){.at = w->start, .region = w->region->number, .lane = lane};
    u->next = last ? use_of(pool, last)->next : first;
    *(last ? &use_of(pool, last)->next : w->uses) = use;
    use_of(pool, *w->uses)->left = first ? use_of(pool, first)->left + 1 : 1;
    if (last)
        index_add(&pool->pending.by_lane, further_use(first, lane), use);
    return true;
}

static void set_pending(cenote_pool *pool, const struct block_ref *w, bool pending)
{
    w->arena->pending += pending ? count_rounded(w->requested) : -count_rounded(w->requested);
    if (!w->slab)
        block_of(&pool->store.blocks, w->block)->state = pending ? BLOCK_PENDING : BLOCK_LIVE;
    else if (pending)
        bit_set(slab_of(&pool->store.slabs, w->slab)->pending, w->item);
    else
        bit_clear(slab_of(&pool->store.slabs, w->slab)->pending, w->item);
}

/*
 * The block is freed but not free. Its uses, for pending_record; the first of them stands for the block. Until that has counted the block, this
 * thread is a user of the pool. LOCKING: the pool's lock.
 */
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed)
{
    set_pending(pool, w, true);
    use_of(pool, *w->uses)->freed = freed;
    pool->life.users++;
    return *w->uses;
}

/*
 * An event behind what the stream was given so far, or NULL. LOCKING: inside, without the pool's lock. A thread that frees holds no lock; one
 * that walks the lanes may have the turn.
 */
static CUevent record(cenote_pool *pool, const struct lane *lane)
{
    CUevent event;
    if (pool_is_capturing(pool) || !lane_may_be_touched(pool, lane) || event_take(pool, &event))
        return NULL;
    if (!lane_record(pool, lane, event))
        return event;
    lock_take(&pool->lock);
    event_give(pool, event);
    lock_give(&pool->lock);
    return NULL;
}

/*
 * Records an event for each use, where that can be done at once, and puts the uses into their lanes. They belong to us alone until then. A
 * free waits for nothing (rule 12): while a capture is being announced it is as if it were open.
 */
void pending_record(cenote_pool *pool, uint32_t uses)
{
    CUresult result;
    bool inside = device_try_enter(pool->config.device, pool->config.generation, &result), entered = inside && !result && !pool->life.lost;
    for (uint32_t use = uses; use; use = use_of(pool, use)->next) {
        use_of(pool, use)->freed = use_of(pool, uses)->freed;
        use_of(pool, use)->first = uses;
    }
    for (uint32_t use = uses; use && entered; use = use_of(pool, use)->next) {
        struct use *u = use_of(pool, use);
        const struct lane *lane = lane_of(pool, u->lane);
        if (lane->other)
            peer_uses_record(pool, u);
        else
            u->event = record(pool, lane);
    }
    if (inside)
        device_leave(pool->config.device);

    uint32_t appended = 0;
    lock_take(&pool->lock);
    atomic_fetch_add(&pool->pending.count, 1); /* before the first pause: it goes down when the last use is done */
    for (uint32_t use = uses, next; use; use = next) {
        const struct use *u = use_of(pool, use);
        next = u->next;
        append(pool, use, u->lane);
        if (!u->event && !lane_of(pool, u->lane)->other && pool->pending.fence_wanted < u->freed)
            pool->pending.fence_wanted = u->freed;
        count_one(pool, &appended);
    }
    pool->life.users--;
    lock_give(&pool->lock);
}

/* -------------------------------------------------------------------------------------------------------------------------- the look */

/* An event that was recorded while a capture began and ended says nothing: a fence takes its place. */
static bool ask(cenote_pool *pool, struct lane *lane, struct use *u)
{
    lock_give(&pool->lock);
    CUresult result = pool->config.device->driver->cuEventQuery(u->event);
    lock_take(&pool->lock);
    lane->is_mute = result != CUDA_ERROR_NOT_READY;
    if (result == CUDA_ERROR_CAPTURED_EVENT) {
        event_drop(pool, u->event);
        u->event = NULL;
        pool->pending.fence_wanted = pool->pending.fence_wanted < u->freed ? u->freed : pool->pending.fence_wanted;
    }
    return result == CUDA_SUCCESS;
}

/*
 * With announced:0 fences on many streams would make the block wait for all of them: the last use of the lane has an event as soon as the stream can
 * be touched, and it covers all before it. 0: it cannot. LOCKING: as for use_is_done; the lock is let go of meanwhile.
 */
static uint32_t make_covering(cenote_pool *pool, const struct lane *lane, uint32_t use)
{
    uint32_t last = use_to_cover(pool, lane, use);
    if (touch_captures_are_announced() || lane->ended || !key_is_alive(&pool->immortals, lane->stream, lane->key))
        return 0;
    lock_give(&pool->lock);
    CUevent event = record(pool, lane);
    lock_take(&pool->lock);
    use_of(pool, last)->event = event;
    if (event)
        use_got_event(pool, use_of(pool, last));
    return event ? last : 0;
}

/*
 * Is the stream done with the use, which is the first of its lane? Asks the driver with the lock let go. LOCKING: the pool's lock; `polling`;
 * inside.
 */
static bool use_is_done(cenote_pool *pool, uint32_t use)
{
    struct use *u = use_of(pool, use);
    struct lane *lane = lane_of(pool, u->lane);
    if (lane->other)
        return peer_uses_is_done(pool, use);
    lane->is_mute = true;
    if (u->freed <= lane->uses_done || u->freed <= lane->progress.done || u->freed <= pool->store.pages.fences.whole)
        return true;
    if (pool_is_capturing(pool) || pool->life.lost)
        return false;
    uint32_t covering = use_covering(pool, use);
    covering = covering ? covering : make_covering(pool, lane, use);
    if (!covering || !ask(pool, lane, use_of(pool, covering)))
        return false;
    uses_are_done(pool, lane, covering);
    return true;
}

/* All uses of a block are done: it goes back to its arena. LOCKING: as for use_is_done. */
static void release(cenote_pool *pool, uint32_t first)
{
    struct block_ref w = {.region = region_of(&pool->store.pages, use_of(pool, first)->region)};
    uint64_t at = use_of(pool, first)->at;
    tick freed = use_of(pool, first)->freed;
    enum lookup found = locate_at(pool, at, &w);
    CHECK(found == FOUND_PENDING);
    (void)found;
    for (uint32_t use = first, next, count = 0; use; use = next) {
        struct use *u = use_of(pool, use);
        next = u->next;
        if (count >= lock_portion(USES_WALKED))
            index_remove(&pool->pending.by_lane, further_use(first, u->lane));
        lane_drop(pool, u->lane);
        u->lane = 0;
        if (use != first) /* until the end no other block has its number */
            table_give(&pool->pending.uses, use);
        count_one(pool, &count);
    }
    table_give(&pool->pending.uses, first);
    set_pending(pool, &w, false);
    *w.uses = 0;
    atomic_fetch_sub(&pool->pending.count, 1);
    place_give(pool, &w, freed);
}

/* Says that the block is free, with the lock let go: it can be had again only once it was released. LOCKING: as for use_is_done. */
static void tell_freed(cenote_pool *pool, const struct use *block)
{
    struct block_ref w = {.region = region_of(&pool->store.pages, block->region)};
    if (!atomic_load_explicit(&pool->watch.fn, memory_order_relaxed))
        return;
    locate_at(pool, block->at, &w);
    lock_give(&pool->lock);
    watch_tell(pool, CENOTE_FREED, w.start, w.requested);
    lock_take(&pool->lock);
}

/* The first uses of the lane that are done leave it. LOCKING: as for use_is_done. */
static void advance(cenote_pool *pool, struct lane *lane, uint32_t *uses)
{
    while (lane->first && use_is_done(pool, lane->first)) {
        struct use *u = use_of(pool, lane->first), *block = use_of(pool, u->first);
        lane->first = u->next_in_lane;
        if (!lane->first)
            lane->last = 0;
        event_give(pool, u->event);
        u->event = NULL;
        u->waits = false;
        if (--block->left == 0) {
            tell_freed(pool, block);
            release(pool, u->first);
        }
        count_one(pool, uses);
    }
}

/* Each lane once, until `looks` of them were not done. LOCKING: the pool's lock and `polling`, taken by poll. */
static void walk(cenote_pool *pool, uint32_t looks)
{
    uint32_t last = pool->pending.last, uses = 0;
    for (bool more = last != 0; more && looks;) {
        uint32_t number = pool->pending.first;
        struct lane *lane = lane_of(pool, number);
        more = number != last;
        advance(pool, lane, &uses);
        take_first(pool); /* it was the first all the time: other threads append */
        if (lane->first) {
            put_last(pool, number);
            looks--;
            continue;
        }
        lane->is_listed = false;
        lane_drop(pool, number);
    }
}

/* LOCKING: inside, without the pool's lock; with the turn or without. */
static void poll(cenote_pool *pool, uint32_t looks)
{
    lock_take(&pool->lock);
    if (!pool->pending.polling) {
        pool->pending.polling = true;
        walk(pool, looks);
        pool->pending.polling = false;
    }
    lock_give(&pool->lock);
}

/*
 * Gives back the blocks whose streams are done. If another thread is polling, this does nothing, and that thread may leave out lanes. LOCKING: the
 * turn, and so inside; not the pool's lock.
 */
void pending_poll(cenote_pool *pool)
{
    CHECK(lock_is_mine(&pool->turn));
    poll(pool, UINT32_MAX);
}

/*
 * What an allocation does for pending blocks now and then: sees to it that a fence covers those that need one, if the turn is free, and
 * gives back those that are done. LOCKING: none; not inside.
 */
void pending_poll_some(cenote_pool *pool)
{
    bool entered = device_enter(pool->config.device, pool->config.generation) == CUDA_SUCCESS;
    if (entered && turn_try(pool)) {
        lock_take(&pool->lock);
        tick wanted = pool->pending.fence_wanted;
        pool->pending.allocs_since_poll = 0;
        lock_give(&pool->lock);
        events_poll(pool, wanted);
        lock_give(&pool->turn);
    }
    if (entered)
        poll(pool, lock_portion(LOOKS_MAX));
    device_leave(pool->config.device);
}

/* That of the lane, or PENDING_NOTHING. LOCKING: the pool's lock. */
static enum pending_wait waits_for(const cenote_pool *pool, uint32_t number, tick limit)
{
    const struct lane *lane = lane_of(pool, number);
    if (use_of(pool, lane->first)->freed > limit)
        return PENDING_NOTHING;
    if (!lane->other)
        return lane->is_mute ? PENDING_NOTHING : PENDING_EVENT;
    if (device_is_captured(lane->other))
        return PENDING_NOTHING;
    return lane->is_mute && !lane->end_is_near ? PENDING_DEVICE : PENDING_EVENT_OF_PEER;
}

/*
 * What do blocks freed up to `limit` wait for that can be waited for? Of several the one that is the least to wait for. Fences are no part of
 * the answer. LOCKING: the pool's lock, after pending_poll.
 */
enum pending_wait pending_waits_for(const cenote_pool *pool, tick limit)
{
    enum pending_wait least = PENDING_NOTHING;
    for (uint32_t number = pool->pending.first; number && least != PENDING_EVENT; number = lane_of(pool, number)->next) {
        enum pending_wait wait = waits_for(pool, number, limit);
        least = wait > least ? wait : least;
    }
    return least;
}
