/*
 * uses.c: freed blocks that other streams may still be using (rule 2). Not the blocks: arenas/pending.c knows where
 * they are, and gives them back.
 *
 * At the free of a block that was used on other streams an event is recorded on each of them; when all are done the
 * block is. Only streams that cannot have been destroyed meanwhile are touched: the default ones and those declared
 * immortal. For all others, and where an event cannot be had (the driver says no, a capture is open), a fence over the
 * whole context takes its place, or, with announced:0, an event on that stream as soon as it can be touched
 * (lane_events.c). So nothing is handed out too early, and no dead handle is given to the driver.
 *
 *     a use: uses_enter ---> live ---uses_record---> in its lane ---uses_take_done---> done ---uses_end---> gone
 *
 * A use of a freed block waits in the lane of its stream. The uses stand there as their frees came to the lane: frees
 * of threads that free at one time may have changed places. An event that is done answers for every use of the lane
 * that was freed no later; an event that is not done ends the look at the lane. So a stream that stalls holds back
 * nothing but what it uses itself. A block counts its uses that are not done.
 *
 * LOCKING: the pool's lock guards lanes and uses. One thread at a time walks the lanes (`polling`), so that it may let
 * go of the lock for each question while other threads append.
 */
#include "pool/clock/room.h"

#define USES_AT_ONCE 500u  /* in one hold of the lock; chosen, as PORTION of look.c */

/*
 * One more use is looked at: now and then threads that wait for the pool's lock have it. LOCKING: the pool's lock, but
 * not in a pause.
 */
static void count_one(struct clock *c, uint32_t *uses)
{
    if (++*uses % lock_portion(USES_AT_ONCE) == 0)
        lock_pass(c->lock);
}

/* ----------------------------------------------------------------------------------------- lanes with a use in them */

/* They are looked at in turn. */
static void put_last(struct clock *c, uint32_t number)
{
    lane_of(c, number)->next = 0;
    *(c->uses.last ? &lane_of(c, c->uses.last)->next : &c->uses.first) = number;
    c->uses.last = number;
}

static void take_first(struct clock *c)
{
    c->uses.first = lane_of(c, c->uses.first)->next;
    if (!c->uses.first)
        c->uses.last = 0;
}

static void append(struct clock *c, uint32_t use, uint32_t number)
{
    struct lane *lane = lane_of(c, number);
    use_of(c, use)->next_in_lane = 0;
    use_of(c, use)->waits = true;
    if (use_of(c, use)->event)
        use_got_event(c, use_of(c, use));
    *(lane->last ? &use_of(c, lane->last)->next_in_lane : &lane->first) = use;
    lane->last = use;
    if (!lane->is_listed) {
        put_last(c, number);
        lane_hold(c, number);
    }
    lane->is_listed = true;
}

/* ---------------------------------------------------------------------------------------------------- use, and free */

/* Under which a further use of a block is found, in the shape of an address. `first`: that of the block. */
static uint64_t further_use(uint32_t first, uint32_t lane)
{
    _Static_assert(USES_MAX <= 1u << 24 && LANES_MAX <= 1u << 24, "both numbers and the nine bits fit a word");
    return ((uint64_t)first << 25 | lane) << 9;
}

/*
 * The block's use on that lane; 0: there is none. *last: the last of those that are walked, behind which further ones
 * stand; 0: there are fewer than USES_WALKED.
 */
static uint32_t find_use(const struct clock *c, uint32_t first, uint32_t lane, uint32_t *last)
{
    uint32_t use = first, walked = 0;
    for (*last = 0; use && walked < lock_portion(USES_WALKED); use = use_of(c, use)->next, walked++) {
        if (use_of(c, use)->lane == lane)
            return use;
        *last = use;
    }
    *last = walked == lock_portion(USES_WALKED) ? *last : 0;
    return *last ? index_find(&c->uses.by_lane, further_use(first, lane)) : 0;
}

/*
 * Notes the stream once for each block. *uses: the first use of the block, 0: none; `block`: where it is, and the lane
 * of its own stream. False: no host memory. LOCKING: the pool's lock.
 */
bool uses_enter(struct clock *c, uint32_t *uses, const struct use *block, CUstream stream, uint64_t key,
                struct device *other)
{
    uint32_t first = *uses, last;
    if (!table_reserve(&c->uses.table, 1) || !index_reserve(&c->uses.by_lane, 1))
        return false;
    uint32_t lane = lane_for(c, stream, key, other);
    if (!lane)
        return false;
    if (block->lane == lane || find_use(c, first, lane, &last))
        return true;
    lane_hold(c, lane);
    uint32_t use = table_take(&c->uses.table);
    struct use *u = use_of(c, use);
    *u = (struct use){.at = block->at, .region = block->region, .lane = lane};
    u->next = last ? use_of(c, last)->next : first;
    *(last ? &use_of(c, last)->next : uses) = use;
    use_of(c, *uses)->left = first ? use_of(c, first)->left + 1 : 1;
    if (last)
        index_add(&c->uses.by_lane, further_use(first, lane), use);
    return true;
}

/*
 * An event behind what the stream was given so far, or NULL. LOCKING: inside, without the pool's lock. A thread that
 * frees holds no lock; one that walks the lanes may have the turn.
 */
static CUevent record(struct clock *c, const struct lane *lane)
{
    CUevent event;
    if (clock_is_captured(c) || !lane_may_be_touched(c, lane) || event_take(c, &event))
        return NULL;
    if (!lane_record(c, lane, event))
        return event;
    lock_take(c->lock);
    event_give(c, event);
    lock_give(c->lock);
    return NULL;
}

/*
 * The block was freed: records an event for each use, where that can be done at once, and puts the uses into their
 * lanes. They belong to this thread alone until then. A free waits for nothing (rule 12): while a capture is being
 * announced it is as if it were open. LOCKING: not the pool's lock, which it has taken when it returns.
 */
void uses_record(struct clock *c, uint32_t uses)
{
    CUresult result;
    bool inside = device_try_enter(c->device, c->generation, &result), entered = inside && !result && !*c->lost;
    for (uint32_t use = uses; use; use = use_of(c, use)->next) {
        use_of(c, use)->freed = use_of(c, uses)->freed;
        use_of(c, use)->first = uses;
    }
    for (uint32_t use = uses; use && entered; use = use_of(c, use)->next) {
        struct use *u = use_of(c, use);
        const struct lane *lane = lane_of(c, u->lane);
        if (lane->other)
            peer_uses_record(c, u);
        else
            u->event = record(c, lane);
    }
    if (inside)
        device_leave(c->device);

    uint32_t appended = 0;
    lock_take(c->lock);
    atomic_fetch_add(&c->uses.blocks, 1); /* before the first pause: it goes down when the last use is done */
    for (uint32_t use = uses, next; use; use = next) {
        const struct use *u = use_of(c, use);
        next = u->next;
        append(c, use, u->lane);
        if (!u->event && !lane_of(c, u->lane)->other && c->uses.fence_wanted < u->freed)
            c->uses.fence_wanted = u->freed;
        count_one(c, &appended);
    }
}

/* --------------------------------------------------------------------------------------------------------- the look */

/* An event that was recorded while a capture began and ended says nothing: a fence takes its place. */
static bool ask(struct clock *c, struct lane *lane, struct use *u)
{
    lock_give(c->lock);
    CUresult result = c->device->driver->cuEventQuery(u->event);
    lock_take(c->lock);
    lane->is_mute = result != CUDA_ERROR_NOT_READY;
    if (result == CUDA_ERROR_CAPTURED_EVENT) {
        event_drop(c, u->event);
        u->event = NULL;
        c->uses.fence_wanted = c->uses.fence_wanted < u->freed ? u->freed : c->uses.fence_wanted;
    }
    return result == CUDA_SUCCESS;
}

/*
 * With announced:0 fences on many streams would make the block wait for all of them: the last use of the lane has an
 * event as soon as the stream can be touched, and it covers all before it. 0: it cannot. LOCKING: as for use_is_done;
 * the lock is let go of meanwhile.
 */
static uint32_t make_covering(struct clock *c, const struct lane *lane, uint32_t use)
{
    uint32_t last = use_to_cover(c, lane, use);
    if (touch_captures_are_announced() || lane->ended || !key_is_alive(&c->immortals, lane->stream, lane->key))
        return 0;
    lock_give(c->lock);
    CUevent event = record(c, lane);
    lock_take(c->lock);
    use_of(c, last)->event = event;
    if (event)
        use_got_event(c, use_of(c, last));
    return event ? last : 0;
}

/*
 * Is the stream done with the use, which is the first of its lane? Asks the driver with the lock let go. LOCKING: the
 * pool's lock; `polling`; inside.
 */
static bool use_is_done(struct clock *c, uint32_t use)
{
    struct use *u = use_of(c, use);
    struct lane *lane = lane_of(c, u->lane);
    if (lane->other)
        return peer_uses_is_done(c, use);
    lane->is_mute = true;
    if (u->freed <= lane->uses_done || u->freed <= lane->progress.done || u->freed <= c->fences.whole)
        return true;
    if (clock_is_captured(c) || *c->lost)
        return false;
    uint32_t covering = use_covering(c, use);
    covering = covering ? covering : make_covering(c, lane, use);
    if (!covering || !ask(c, lane, use_of(c, covering)))
        return false;
    uses_are_done(c, lane, covering);
    return true;
}

/*
 * A walk through the lanes, each once, until so many of them were not done. False: another thread walks, and may leave
 * out lanes. LOCKING: the pool's lock.
 */
bool uses_begin_walk(struct clock *c, struct uses_walk *walk, uint32_t looks)
{
    *walk = (struct uses_walk){.last = c->uses.last, .looks = looks};
    bool begins = !c->uses.polling;
    c->uses.polling = true;
    return begins;
}

/*
 * The first use of the lane is done, and leaves it. The first use of its block, if that was the last one; else 0.
 * LOCKING: as for use_is_done.
 */
static uint32_t leave_lane(struct clock *c, struct lane *lane)
{
    struct use *u = use_of(c, lane->first);
    lane->first = u->next_in_lane;
    if (!lane->first)
        lane->last = 0;
    event_give(c, u->event);
    u->event = NULL;
    u->waits = false;
    return --use_of(c, u->first)->left == 0 ? u->first : 0;
}

/*
 * The first use of a block that is done: all its uses have left their lanes. The caller ends them (uses_end) and asks
 * again. 0: the walk has ended. LOCKING: as for use_is_done.
 */
uint32_t uses_take_done(struct clock *c, struct uses_walk *walk)
{
    count_one(c, &walk->count); /* the block before this one */
    while (walk->last && walk->looks) {
        uint32_t number = c->uses.first, done = 0;
        struct lane *lane = lane_of(c, number);
        while (!done && lane->first && use_is_done(c, lane->first)) {
            done = leave_lane(c, lane);
            if (!done) /* the caller has a block first that waits no more */
                count_one(c, &walk->count);
        }
        if (done)
            return done;
        if (number == walk->last)
            walk->last = 0;
        take_first(c); /* it was the first all the time: other threads append */
        if (lane->first) {
            put_last(c, number);
            walk->looks--;
            continue;
        }
        lane->is_listed = false;
        lane_drop(c, number);
    }
    c->uses.polling = false;
    return 0;
}

/* All uses of a block go. LOCKING: the pool's lock; `polling`. */
void uses_end(struct clock *c, uint32_t first)
{
    for (uint32_t use = first, next, count = 0; use; use = next) {
        struct use *u = use_of(c, use);
        next = u->next;
        if (count >= lock_portion(USES_WALKED))
            index_remove(&c->uses.by_lane, further_use(first, u->lane));
        lane_drop(c, u->lane);
        u->lane = 0;
        if (use != first) /* until the end no other block has its number */
            table_give(&c->uses.table, use);
        count_one(c, &count);
    }
    table_give(&c->uses.table, first);
    atomic_fetch_sub(&c->uses.blocks, 1); /* after the last pause: until then the pool does not end */
}

/* That of the lane, or USES_NOTHING. LOCKING: the pool's lock. */
static enum uses_wait waits_for(const struct clock *c, uint32_t number, tick limit)
{
    const struct lane *lane = lane_of(c, number);
    if (use_of(c, lane->first)->freed > limit)
        return USES_NOTHING;
    if (!lane->other)
        return lane->is_mute ? USES_NOTHING : USES_EVENT;
    if (device_is_captured(lane->other))
        return USES_NOTHING;
    return lane->is_mute && !lane->end_is_near ? USES_DEVICE : USES_EVENT_OF_PEER;
}

/*
 * What do blocks freed up to `limit` wait for that can be waited for? Of several the one that is the least to wait for.
 * Fences are no part of the answer. LOCKING: the pool's lock, after a walk.
 */
enum uses_wait uses_wait_for(const struct clock *c, tick limit)
{
    enum uses_wait least = USES_NOTHING;
    for (uint32_t number = c->uses.first; number && least != USES_EVENT; number = lane_of(c, number)->next) {
        enum uses_wait wait = waits_for(c, number, limit);
        least = wait > least ? wait : least;
    }
    return least;
}
