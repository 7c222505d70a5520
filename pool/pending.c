/*
 * pending.c: freed blocks that other streams may still be using (rule 2).
 *
 * At the free of a block that was used on other streams an event is recorded on each of them; when all are done the block goes back to
 * its arena. Only streams that cannot have been destroyed meanwhile are touched: the default ones and those declared immortal. For all
 * others, and where an event cannot be had (the driver says no, a capture is open), a fence of the whole context takes its place if captures
 * are announced. Otherwise the use waits for a call that names its stream, or for the end of the capture, and the event is recorded then. So
 * nothing is handed out too early, and no dead handle is given to the driver. A stream that is retired leaves an event behind, in its line.
 *
 *       cenote_use        cenote_free              pending_record             pending_poll: all its uses are done
 *     -----------> live -------------> detached -----------------> pending ----------------------------------> in its arena
 *                            (our lock)        (driver, no lock)
 *
 * Each stream has a line. A use of a freed block waits in the line of its stream, in the order of the frees, so that one question to the
 * driver answers for all behind it, and a stream that stalls holds back nothing but what it uses itself. Uses without an event wait in a
 * line of their own for fences. A block counts its uses that are not done.
 *
 * LOCKING: lines and uses are guarded by the pool's lock. One thread at a time walks the lines (`polling`), so that it may let go of the
 * lock for each question while other threads append.
 */
#include "base/check.h"
#include "stats/account/count.h"

#define FENCE_LINE 1u       /* of uses that have no event and wait for a fence over the whole context */
#define LOOKS_MAX 8u       /* lines that a look in passing finds not done before it gives up; the next look begins with others */

/* ---------------------------------------------------------------------------------------------------------------------------- lines */

/* Room for the line that every pool has. False: no host memory. */
bool pending_open(cenote_pool *pool)
{
    uint32_t line = table_take(&pool->pending.lines);
    CHECK(!line || line == FENCE_LINE);
    if (line)
        line_of(pool, line)->users = 1; /* it stays */
    return line != 0;
}

/* Under which a stream's line is found: a hash in the shape of an address. `probe` tells apart those that share one. */
static uint64_t line_key(uint64_t key, uint64_t probe)
{
    uint64_t hash = (key + 1 + (probe << 57)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    return (hash << 9) | (1ull << 63);
}

/* The line of the stream, made if there is none; 0: no host memory. */
static uint32_t line_for(cenote_pool *pool, CUstream stream, uint64_t key, struct device *other)
{
    uint32_t number;
    uint64_t probe = 0;
    while ((number = index_find(&pool->pending.line_by_key, line_key(key, probe)))) {
        const struct line *line = line_of(pool, number);
        if (line->key == key && line->other == other)
            return number;
        probe++;
    }
    if (!index_reserve(&pool->pending.line_by_key, 1) || !(number = table_take(&pool->pending.lines)))
        return 0;
    index_add(&pool->pending.line_by_key, line_key(key, probe), number);
    *line_of(pool, number) = (struct line){.key = key, .probe = probe, .stream = stream, .other = other};
    return number;
}

static void forget_line(cenote_pool *pool, uint32_t number)
{
    const struct line *line = line_of(pool, number);
    if (!line->ended)
        index_remove(&pool->pending.line_by_key, line_key(line->key, line->probe));
    event_give(pool, line->end);
    table_give(&pool->pending.lines, number);
}

/* Lines with a use in them are looked at in turn. */
static void put_last(cenote_pool *pool, uint32_t number)
{
    line_of(pool, number)->next = 0;
    *(pool->pending.last ? &line_of(pool, pool->pending.last)->next : &pool->pending.first) = number;
    pool->pending.last = number;
}

static void take_first(cenote_pool *pool)
{
    pool->pending.first = line_of(pool, pool->pending.first)->next;
    if (!pool->pending.first)
        pool->pending.last = 0;
}

static void append(cenote_pool *pool, uint32_t use, uint32_t number)
{
    struct line *line = line_of(pool, number);
    use_of(pool, use)->next_in_line = 0;
    use_of(pool, use)->waits = true;
    *(line->last ? &use_of(pool, line->last)->next_in_line : &line->first) = use;
    line->last = use;
    if (!line->is_listed)
        put_last(pool, number);
    line->is_listed = true;
}

/* ------------------------------------------------------------------------------------------------------------------- use, and the free */

/* Notes the stream once for each block. False: no host memory. LOCKING: the pool's lock. */
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key, struct device *other)
{
    if (w->arena->stream == key)
        return true;
    for (uint32_t use = *w->uses; use; use = use_of(pool, use)->next)
        if (line_of(pool, use_of(pool, use)->line)->key == key)
            return true;
    if (!table_reserve(&pool->pending.uses, 1))
        return false;
    uint32_t line = line_for(pool, stream, key, other);
    if (!line)
        return false;
    uint32_t use = table_take(&pool->pending.uses);
    line_of(pool, line)->users++;
    *use_of(pool, use) = (struct use){.next = *w->uses, .at = w->start, .line = line};
    *w->uses = use;
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

/* The block is freed but not free. Its uses, for pending_record; the first of them stands for the block. LOCKING: the pool's lock. */
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed)
{
    uint32_t first = *w->uses;
    set_pending(pool, w, true);
    use_of(pool, first)->left = 0;
    for (uint32_t use = first; use; use = use_of(pool, use)->next) {
        use_of(pool, use)->freed = freed;
        use_of(pool, use)->first = first;
        use_of(pool, first)->left++;
    }
    return first;
}

/* An event behind what the stream was given so far, or NULL. LOCKING: none of the pool's; inside. */
static CUevent record(cenote_pool *pool, const struct line *line)
{
    struct device *d = pool->config.device;
    bool announced = touch_captures_are_announced();
    if (atomic_load(&d->captures) || !(announced ? stream_is_alive(pool, line->stream, line->key) :
                                       cover_may_touch(pool, line->stream, line->key, line->ended)))
        return NULL;
    CUevent event = event_take(pool);
    if (!event || !(announced ? d->driver->cuEventRecord(event, line->stream) : touch_record(d, line->stream, event)))
        return event;
    lock_take(&pool->lock);
    event_give(pool, event);
    lock_give(&pool->lock);
    return NULL;
}

/*
 * Records an event for each use, where that can be done at once, and puts the uses into their lines. They belong to us alone until then. A
 * free waits for nothing (rule 15): while a capture is being announced it is as if it were open.
 */
void pending_record(cenote_pool *pool, uint32_t uses)
{
    CUresult result;
    bool inside = device_try_enter(pool->config.device, &result), entered = inside && !result && !pool->life.lost;
    for (uint32_t use = uses; use && entered; use = use_of(pool, use)->next) {
        struct use *u = use_of(pool, use);
        const struct line *line = line_of(pool, u->line);
        if (line->other)
            peer_uses_record(pool, u);
        else
            u->event = record(pool, line);
    }
    if (inside)
        device_leave(pool->config.device);

    lock_take(&pool->lock);
    for (uint32_t use = uses; use; use = use_of(pool, use)->next) {
        const struct use *u = use_of(pool, use);
        bool by_fence = !u->event && !line_of(pool, u->line)->other && touch_captures_are_announced();
        append(pool, use, by_fence ? FENCE_LINE : u->line);
        if (by_fence && pool->pending.fence_wanted < u->freed)
            pool->pending.fence_wanted = u->freed;
    }
    atomic_fetch_add(&pool->pending.count, 1);
    lock_give(&pool->lock);
}

/* The line of a stream of this device, or of another one; 0: none. LOCKING: the pool's lock. */
static uint32_t find_line(const cenote_pool *pool, uint64_t key, const struct device *other)
{
    uint32_t number;
    for (uint64_t probe = 0; (number = index_find(&pool->pending.line_by_key, line_key(key, probe))); probe++)
        if (line_of(pool, number)->key == key && line_of(pool, number)->other == other)
            break;
    return number;
}

/* Does a freed block wait for a call that names this stream? LOCKING: the pool's lock. */
bool pending_is_owed(const cenote_pool *pool, uint64_t key, struct device *other)
{
    uint32_t line = atomic_load(&pool->pending.count) ? find_line(pool, key, other) : 0;
    return line && line_of(pool, line)->first && !use_of(pool, line_of(pool, line)->first)->event && !touch_captures_are_announced();
}

/*
 * The stream is about to end, and the call under way names it. An event now covers all uses that it is noted for. Another stream of the same key
 * gets another line. LOCKING: none, not inside.
 */
void pending_retire(cenote_pool *pool, uint64_t key)
{
    if (touch_captures_are_announced())
        return;
    lock_take(&pool->lock);
    uint32_t number = find_line(pool, key, NULL);
    struct line *line = number ? line_of(pool, number) : NULL;
    if (line)
        line->users++; /* it stays */
    lock_give(&pool->lock);
    if (!line)
        return;
    CUevent end = device_enter(pool->config.device) ? NULL : record(pool, line);
    device_leave(pool->config.device);
    lock_take(&pool->lock);
    event_give(pool, line->end);
    if (!line->ended)
        index_remove(&pool->pending.line_by_key, line_key(line->key, line->probe));
    line->end = end;
    line->ended = true;
    if (!--line->users && !line->is_listed)
        forget_line(pool, number);
    lock_give(&pool->lock);
}

/* -------------------------------------------------------------------------------------------------------------------------- the look */

/* The first use of its line from this one on that has an event: that event covers all before it. 0: none has. */
static uint32_t covering_use(cenote_pool *pool, uint32_t use)
{
    while (use && !use_of(pool, use)->event)
        use = use_of(pool, use)->next_in_line;
    return use;
}

/* Without the promise to announce captures a use that has no event gets one when that can be had. LOCKING: as for use_is_done. */
static void record_late(cenote_pool *pool, struct line *line)
{
    uint32_t last = line->last;
    lock_give(&pool->lock);
    CUevent event = record(pool, line);
    lock_take(&pool->lock);
    use_of(pool, last)->event = event;
}

static bool ask(cenote_pool *pool, struct line *line, CUevent event)
{
    lock_give(&pool->lock);
    CUresult result = pool->config.device->driver->cuEventQuery(event);
    lock_take(&pool->lock);
    line->is_mute = result != CUDA_ERROR_NOT_READY;
    return result == CUDA_SUCCESS;
}

/* Is the stream done with the first use in its own line? LOCKING: as for use_is_done. */
static bool first_is_done(cenote_pool *pool, struct line *line)
{
    uint32_t covering = covering_use(pool, line->first);
    if (!covering && line->end)
        return ask(pool, line, line->end);
    if (!covering && !touch_captures_are_announced()) {
        record_late(pool, line);
        covering = covering_use(pool, line->first);
    }
    if (!covering || !ask(pool, line, use_of(pool, covering)->event))
        return false;
    line->done_up_to = covering;
    return true;
}

/*
 * Is the stream done with the use, which is the first of its line or of those that wait for fences? Asks the driver with the lock let go.
 * LOCKING: the pool's lock; `polling`; inside.
 */
static bool use_is_done(cenote_pool *pool, uint32_t use)
{
    struct use *u = use_of(pool, use);
    struct line *line = line_of(pool, u->line);
    if (line->other)
        return peer_uses_is_done(pool, u);
    line->is_mute = true;
    if (line->done_up_to || u->freed <= pool->store.pages.fences.whole)
        return true;
    if (atomic_load(&pool->config.device->captures) || pool->life.lost)
        return false;
    return line->first == use && first_is_done(pool, line);
}

/* All uses of a block are done: it goes back to its arena. LOCKING: the pool's lock; `polling`. */
static void release(cenote_pool *pool, uint32_t use)
{
    struct block_ref w = {0};
    uint64_t at = use_of(pool, use)->at;
    tick freed = use_of(pool, use)->freed;
    w.region = addresses_find_for_certain(at);
    enum lookup found = pool_locate(pool, at, &w);
    CHECK(found == FOUND_PENDING);
    (void)found;
    set_pending(pool, &w, false);
    while (use) {
        struct use *u = use_of(pool, use);
        struct line *line = line_of(pool, u->line);
        uint32_t next = u->next;
        if (!--line->users && !line->is_listed)
            forget_line(pool, u->line);
        table_give(&pool->pending.uses, use);
        use = next;
    }
    *w.uses = 0;
    atomic_fetch_sub(&pool->pending.count, 1);
    pool_give(pool, &w, freed);
}

/* Says that the block is free, with the lock let go: it can be had again only once it was released. LOCKING: as for use_is_done. */
static void tell_freed(cenote_pool *pool, uint64_t at)
{
    struct block_ref w = {0};
    if (!atomic_load_explicit(&pool->watch.fn, memory_order_relaxed))
        return;
    w.region = addresses_find_for_certain(at);
    pool_locate(pool, at, &w);
    lock_give(&pool->lock);
    watch_tell(pool, CENOTE_FREED, at, w.requested);
    lock_take(&pool->lock);
}

/* The uses at the head of the line that are done leave it. LOCKING: as for use_is_done. */
static void advance(cenote_pool *pool, struct line *line)
{
    while (line->first && use_is_done(pool, line->first)) {
        struct use *u = use_of(pool, line->first), *block = use_of(pool, u->first);
        if (line->done_up_to == line->first)
            line->done_up_to = 0;
        line->first = u->next_in_line;
        if (!line->first)
            line->last = 0;
        event_give(pool, u->event);
        u->event = NULL;
        u->waits = false;
        if (--block->left)
            continue;
        tell_freed(pool, block->at);
        release(pool, u->first);
    }
}

/* Each line once, until `looks` of them were not done. LOCKING: the pool's lock and `polling`, taken by poll. */
static void walk(cenote_pool *pool, uint32_t looks)
{
    uint32_t last = pool->pending.last;
    for (bool more = last != 0; more && looks;) {
        uint32_t number = pool->pending.first;
        struct line *line = line_of(pool, number);
        more = number != last;
        advance(pool, line);
        take_first(pool); /* it was the first all the time: other threads append */
        if (line->first) {
            put_last(pool, number);
            looks--;
            continue;
        }
        line->is_listed = false;
        if (!line->users)
            forget_line(pool, number);
    }
}

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

/* Gives back the blocks whose streams are done. LOCKING: none of the pool's; inside device_enter. */
void pending_poll(cenote_pool *pool)
{
    poll(pool, UINT32_MAX);
}

/*
 * What an allocation does for pending blocks now and then: sees to it that a fence covers those that need one, if the turn is free, and
 * gives back those that are done. LOCKING: none; not inside.
 */
void pending_poll_if_due(cenote_pool *pool)
{
    bool entered = device_enter(pool->config.device) == CUDA_SUCCESS;
    if (entered && lock_try(&pool->turn)) {
        lock_take(&pool->lock);
        tick wanted = pool->pending.fence_wanted;
        pool->pending.allocs_since_poll = 0;
        lock_give(&pool->lock);
        events_poll(pool, wanted);
        lock_give(&pool->turn);
    }
    if (entered)
        poll(pool, LOOKS_MAX);
    device_leave(pool->config.device);
}

/* That of the line, or PENDING_NOTHING. LOCKING: the pool's lock. */
static enum pending_wait waits_for(const cenote_pool *pool, uint32_t number, tick limit)
{
    const struct line *line = line_of(pool, number);
    if (number == FENCE_LINE || use_of(pool, line->first)->freed > limit)
        return PENDING_NOTHING;
    if (!line->other)
        return line->is_mute ? PENDING_NOTHING : PENDING_EVENT;
    return atomic_load(&line->other->captures) ? PENDING_NOTHING : line->is_mute ? PENDING_DEVICE : PENDING_EVENT_OF_PEER;
}

/*
 * What do blocks freed up to `limit` wait for that can be waited for? Of several the one that is the least to wait for. Fences are no part of
 * the answer. LOCKING: the pool's lock, after pending_poll.
 */
enum pending_wait pending_waits_for(const cenote_pool *pool, tick limit)
{
    enum pending_wait least = PENDING_NOTHING;
    for (uint32_t number = pool->pending.first; number && least != PENDING_EVENT; number = line_of(pool, number)->next) {
        enum pending_wait wait = waits_for(pool, number, limit);
        least = wait > least ? wait : least;
    }
    return least;
}
