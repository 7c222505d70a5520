/*
 * lanes.c: the streams that a pool knows, and which of them may be touched.
 *
 * Each stream that has memory of the pool, or uses some, is a lane. A lane knows how far its stream has got: each event on the stream moves its
 * `progress`, at which its arenas point (fence.h). A block that another stream used waits until that one's lane is done with it (pending.c).
 *
 * If the program announces its captures, a fence is one event over the whole context, and lanes only list. While a pool with the option
 * announced:0 is open (driver/touch.c), a fence is an event on each stream that lives as long as the program, and on the default stream. All other
 * handles may be dead, and no dead handle is given to the driver. The lane of such a stream gets events of its own (lane_events.c) when the handle
 * is known to be alive: a call names it, the calling thread's own default stream is it, or the driver has no stream ids, because the program
 * has to say there that a stream ends. Until then memory that the stream freed stays with its arena, and blocks that it used wait.
 *
 * A captured stream has a lane of its own, found by the handle, because its id cannot be asked for. Once a call names the stream outside of a
 * capture, the id says whether it is the same one: handles of streams that ended are given again, but a stream that came later has a greater id than
 * any had when the lane was made (driver/age.c). If it is the same one, an event on the stream is one for that lane as well.
 *
 * What a private group leaves may be written by replays on any stream. It stays with its arena until a fence without gaps that began after the end
 * of the group is done (`unreplayed`), and the default stream of the thread that ended the group.
 *
 * What happens when a stream is retired is said in lane_ends.c.
 *
 * LOCKING: the pool's lock, unless a function says otherwise.
 */
#include "pool/clock/lanes.h"

#include "base/check.h"
#include "pool/pool.h"

/* The stream that the API call of this thread names: it is alive until the call returns. */
static _Thread_local struct lanes_call call;

/* Returns what the call named in which this one is made, for lanes_call_ends. */
struct lanes_call lanes_call_names(uint64_t key, CUstream stream)
{
    struct lanes_call outer = call;
    call = (struct lanes_call){key, stream, true};
    return outer;
}

void lanes_call_ends(struct lanes_call outer)
{
    call = outer;
}

/* ------------------------------------------------------------------------------------------------------------------------ finding them */

/* Under which a lane is found: a hash in the shape of an address. `probe` tells apart those that share one. */
static uint64_t lane_hash(uint64_t key, uint32_t probe)
{
    uint64_t hash = (key + 1 + ((uint64_t)probe << 57)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    return (hash << 9) | (1ull << 63);
}

/* Also behind gaps: of two lanes of one key the first may have gone. 0: there is none, and *free is a probe for it. */
static uint32_t find(const cenote_pool *pool, uint64_t key, const struct device *other, uint32_t *free)
{
    *free = pool->lanes.probes + 1;
    for (uint32_t probe = pool->lanes.probes + 1; probe--;) {
        uint32_t number = index_find(&pool->lanes.by_key, lane_hash(key, probe));
        if (!number)
            *free = probe;
        else if (lane_of(pool, number)->key == key && lane_of(pool, number)->other == other && !lane_is_over(lane_of(pool, number)))
            return number;
    }
    return 0;
}

/* The lane of a stream of this device (`other` NULL) or of another one; 0: there is none. */
uint32_t lane_find(const cenote_pool *pool, uint64_t key, const struct device *other)
{
    uint32_t free;
    return find(pool, key, other, &free);
}

/* The same of whichever device. */
uint32_t lane_find_anywhere(const cenote_pool *pool, uint64_t key)
{
    uint32_t lane = lane_find(pool, key, NULL);
    for (int ordinal = 0; ordinal < DEVICES_MAX && !lane; ordinal++)
        lane = pool->config.others[ordinal] ? lane_find(pool, key, pool->config.others[ordinal]) : 0;
    return lane;
}

/* Of the stream that this thread has named last while it was captured, for its lane if that is new. */
static _Thread_local uint64_t newest, capture;

void lanes_expect_captured(uint64_t newest_stream, uint64_t of_capture)
{
    newest = newest_stream;
    capture = of_capture;
}

/*
 * The lane under which the stream, which answers that id now, was known by its handle when it was captured. 0: there is none, or it is not known that
 * the stream was there already.
 */
uint32_t lane_when_captured(const cenote_pool *pool, uint64_t key, CUstream stream, const struct device *other)
{
    uint32_t number = key_is_id(key) ? lane_find(pool, key_while_captured(stream), other) : 0;
    return number && key <= lane_of(pool, number)->newest ? number : 0;
}

/* The same, made if there is none. The caller names it with lane_hold at once. 0: no host memory. */
uint32_t lane_for(cenote_pool *pool, CUstream stream, uint64_t key, struct device *other)
{
    uint32_t probe;
    uint32_t number = find(pool, key, other, &probe);
    if (number || !index_reserve(&pool->lanes.by_key, 1) || !(number = table_take(&pool->lanes.table)))
        return number;
    index_add(&pool->lanes.by_key, lane_hash(key, probe), number);
    pool->lanes.probes = probe > pool->lanes.probes ? probe : pool->lanes.probes;
    *lane_of(pool, number) = (struct lane){.key = key, .probe = probe, .stream = stream, .other = other,
                                           .generation = other ? atomic_load(&other->generation) : 0,
                                           .born = pool->store.pages.fences.now};
    if (key_is_captured(key)) {
        lane_of(pool, number)->newest = newest;
        lane_of(pool, number)->capture = capture;
        atomic_fetch_add(&pool->lanes.captured, 1);
    }
    return number;
}

void lane_hold(cenote_pool *pool, uint32_t lane)
{
    lane_of(pool, lane)->users++;
}

/* It is found by its key no more. */
static void remove_key(cenote_pool *pool, const struct lane *lane)
{
    index_remove(&pool->lanes.by_key, lane_hash(lane->key, lane->probe));
    if (key_is_captured(lane->key))
        atomic_fetch_sub(&pool->lanes.captured, 1);
}

/* With the last user the lane goes. */
void lane_drop(cenote_pool *pool, uint32_t number)
{
    struct lane *lane = lane_of(pool, number);
    CHECK(lane->users);
    if (--lane->users)
        return;
    CHECK(!lane->first_arena && !lane->first && !lane->due_count && !lane->replayed);
    if (!lane->ended)
        remove_key(pool, lane);
    table_give(&pool->lanes.table, number);
}

/* Invariant 26. The arena has freed nothing after `freed`, but for what is pending. */
bool lane_is_of(const cenote_pool *pool, const struct horizon *h, tick freed)
{
    return h->lane && h->stream == &lane_of(pool, h->lane)->progress && (freed <= h->stream->freed || freed <= h->known);
}

/* ------------------------------------------------------------------------------------------------------------ what private groups leave */

/* The private group of the arena has ended. Replays may write to what it leaves until a fence without gaps is done that covers `now`. */
void lane_release(cenote_pool *pool, struct horizon *h, tick now)
{
    h->released = pool->store.pages.fences.released = h->stream->freed = now;
    if (h->known >= now)
        h->known = now - 1;
}

/*
 * A thread destroys a private group: it may have replayed graphs on its own default stream. If captures are announced, a fence covers that: the one
 * that is recorded when the first pool without the promise opens, if no other comes before.
 */
void lanes_note_replays(cenote_pool *pool)
{
    if (touch_captures_are_announced())
        return;
    uint32_t number = lane_for(pool, CU_STREAM_PER_THREAD, key_of_thread(), NULL); /* without asking */
    struct lane *lane = number ? lane_of(pool, number) : NULL;
    if (!lane)
        return;
    lane->born = 0;
    if (!lane->replayed) {
        lane_hold(pool, number);
        pool->store.pages.fences.replaying++;
    }
    lane->replayed = pool->store.pages.fences.now;
}

/* --------------------------------------------------------------------------------------------------------------------------- their arenas */

/*
 * The arena comes to the stream, and has freed nothing after `freed`. If the device is done with that, the arena counts as done up to now; otherwise
 * it was this stream's before, and an event on the stream covers that, too. What was said of a stream that has ended holds for what it was given,
 * not for what comes.
 */
void lane_join(cenote_pool *pool, struct horizon *h, uint32_t number, tick freed)
{
    struct lane *lane = lane_of(pool, number);
    struct fences *f = &pool->store.pages.fences;
    CHECK(!h->lane);
    if (h->known == LANE_DONE || horizon_has_passed(f, freed, h)) {
        h->known = f->now;
    } else {
        lane->born = 0;
        lane->progress.freed = lane->progress.freed < freed ? freed : lane->progress.freed;
    }
    h->lane = number;
    h->stream = &lane->progress;
    lane->users++;
}

void lane_leave(cenote_pool *pool, struct horizon *h)
{
    CHECK(lane_is_of(pool, h, 0));
    h->known = horizon_of(&pool->store.pages.fences, h);
    lane_drop(pool, h->lane);
    h->lane = 0;
    h->stream = NULL;
}

/* ---------------------------------------------------------------------------------------------------------------------- which may be touched */

/* Does the call of this thread name its stream? By its id alone, if the lane is what is known of it from captures: see lane_when_captured. */
static bool is_named(const struct lane *lane)
{
    return call.names && (call.key == lane->key ||
                          (call.stream == lane->stream && key_is_id(call.key) && call.key <= lane->newest));
}

/* May the driver be given its handle? Where captures are announced, only of a stream that cannot have ended. LOCKING: none. */
bool lane_may_be_touched(cenote_pool *pool, const struct lane *lane)
{
    if (lane->ended || key_is_unnamed(lane->key))
        return false;
    return key_is_alive(&pool->immortals, lane->stream, lane->key) ||
           (!touch_captures_are_announced() && (is_named(lane) || key_is_handle(lane->key)));
}

/* Records the event behind what the stream was given so far, which may be touched. LOCKING: none; inside, or visiting the other device. */
CUresult lane_record(const cenote_pool *pool, const struct lane *lane, CUevent event)
{
    struct device *d = lane->other ? lane->other : pool->config.device;
    return touch_captures_are_announced() ? d->driver->cuEventRecord(event, lane->stream) : touch_record(d, lane->stream, event);
}

/* Has no event on its stream yet covered something that waits for one? */
bool lane_is_owed(const cenote_pool *pool, uint32_t number)
{
    const struct lane *lane = number ? lane_of(pool, number) : NULL;
    if (!lane || lane->ended)
        return false;
    tick whole = pool->store.pages.fences.whole, covered = lane->asked < whole ? whole : lane->asked;
    return lane->progress.freed > covered || lane->replayed > covered ||
           (lane->first && use_of(pool, use_to_cover(pool, lane, lane->first))->freed > covered);
}

/* Is an event owed that a fence had no way to record? A call that names the stream can. */
bool lane_is_wanted(const cenote_pool *pool, uint32_t lane)
{
    return !touch_captures_are_announced() && lane && lane_of(pool, lane)->asked < pool->store.pages.fences.wanted && lane_is_owed(pool, lane);
}

static void mark_stream(cenote_pool *pool, CUstream stream, uint32_t lane)
{
    struct lanes *l = &pool->lanes;
    CHECK(l->count < MARKS_MAX);
    l->marks[l->count++] = (struct mark){stream, lane, lane_is_owed(pool, lane)};
    if (lane)
        lane_hold(pool, lane);
}

/*
 * Lists the streams on which a fence that begins now wants an event: the default stream, and those that live as long as the program, which may have
 * put any of them to use behind the ones that freed. The lanes are held until lanes_unmark: their last arenas may go to other streams meanwhile.
 * LOCKING: the turn, too.
 */
void lanes_mark(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    CUstream stream;
    CHECK(!pool->lanes.count);
    mark_stream(pool, NULL, lane_find(pool, KEY_LEGACY, NULL));
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX && (stream = atomic_load(&d->touch.stream[i].handle)); i++)
        mark_stream(pool, stream, lane_find(pool, atomic_load(&d->touch.stream[i].key), NULL));
}

/* The fence has its events. LOCKING: the turn, too. */
void lanes_unmark(cenote_pool *pool)
{
    struct lanes *l = &pool->lanes;
    while (l->count)
        if (l->marks[--l->count].lane)
            lane_drop(pool, l->marks[l->count].lane);
}

/* LOCKING: the turn is enough. */
bool lanes_are_marked(const cenote_pool *pool, CUstream stream)
{
    const struct lanes *l = &pool->lanes;
    uint32_t i = 0;
    while (i < l->count && l->marks[i].stream != stream)
        i++;
    return i < l->count;
}

/* The stream that the call of this thread names, if there is one. LOCKING: none. */
bool lanes_named(uint64_t *key, CUstream *stream)
{
    *key = call.key;
    *stream = call.stream;
    return call.names;
}

/*
 * Can what waits for a fence have a better one now than those that are due? An event on its own stream, or one without gaps. Asks the driver.
 * LOCKING: the turn, not the pool's lock; after lanes_mark.
 */
bool lanes_can_help(cenote_pool *pool)
{
    const struct lanes *l = &pool->lanes;
    lock_take(&pool->lock);
    const struct fences *f = &pool->store.pages.fences;
    bool whole = fences_await_replays(f) && !fences_have_all(f, f->released), helps = false;
    lock_give(&pool->lock);
    whole = whole && !atomic_load(&pool->config.device->touch.is_full);
    for (uint32_t i = 0; i < l->count && !helps; i++) {
        bool captured = (l->marks[i].owed || whole) && touch_is_captured(pool->config.device, l->marks[i].stream);
        helps = l->marks[i].owed && !captured;
        whole = whole && !captured;
    }
    return helps || whole;
}

/* --------------------------------------------------------------------------------------------------------------------------- how far they are */

/* An event on its stream was recorded, for the fence that covers `covers`. */
void lane_asked(cenote_pool *pool, uint32_t lane, tick covers)
{
    lane_hold(pool, lane);
    lane_of(pool, lane)->asked = covers;
}

/* The device is done with what the stream was given up to there. */
void lane_set_done(cenote_pool *pool, uint32_t number, tick covers)
{
    struct lane *lane = lane_of(pool, number);
    struct progress *p = &lane->progress;
    struct fences *f = &pool->store.pages.fences;
    if (p->done < covers) {
        f->moved += p->done < p->freed;
        p->done = covers;
    }
    if (!lane->replayed || lane->replayed > p->done)
        return;
    lane->replayed = 0;
    f->replaying--;
    fences_look_at_replays(f);
    lane_drop(pool, number);
}

/*
 * The program has waited for the whole context: the device is done with all that was freed up to `covers`, on streams that may be dead, too. Fences
 * due find nothing left to say. LOCKING: the turn, too.
 */
void lanes_all_done(cenote_pool *pool, tick covers)
{
    fences_all_done(&pool->store.pages.fences, covers);
    for (uint32_t number = 1; pool->store.pages.fences.replaying && number < pool->lanes.table.used; number++) {
        const struct lane *lane = lane_of(pool, number);
        if (lane->users && lane->replayed && lane->replayed <= covers)
            lane_set_done(pool, number, covers);
    }
    lanes_end_known(pool);
}

/* That event is done. */
void lane_done(cenote_pool *pool, uint32_t lane, tick covers)
{
    lane_set_done(pool, lane, covers);
    lane_drop(pool, lane);
}

/* That event says nothing. */
void lane_not_asked(cenote_pool *pool, uint32_t number, tick covers)
{
    struct lane *lane = lane_of(pool, number);
    if (lane->asked == covers)
        lane->asked = lane->progress.done < covers ? lane->progress.done : covers;
    lane_drop(pool, number);
}

/* Is an event due that may bring what was freed up to `limit`? */
bool lanes_are_in_flight(const cenote_pool *pool, tick limit)
{
    const struct fences *f = &pool->store.pages.fences;
    for (uint32_t i = 0; i < f->part_count; i++) {
        uint32_t lane = f->part[(f->first_part + i) % FENCE_PARTS_MAX].lane;
        if (lane && lane_of(pool, lane)->progress.done < limit && lane_of(pool, lane)->born < limit)
            return true;
    }
    for (uint32_t lane = pool->lanes.first_asking; lane; lane = lane_of(pool, lane)->next_asking) /* pending_waits_for has those of other devices */
        if (!lane_of(pool, lane)->other && lane_of(pool, lane)->progress.done < limit && lane_of(pool, lane)->born < limit)
            return true;
    return fences_bring(f, limit);
}

/* Is the device done with all that was freed up to `limit`? */
bool lanes_are_done(const cenote_pool *pool, tick limit)
{
    const struct fences *f = &pool->store.pages.fences;
    if (limit <= f->whole)
        return true;
    for (uint32_t number = 1; number < pool->lanes.table.used; number++) {
        const struct progress *p = &lane_of(pool, number)->progress;
        tick freed = p->freed < limit ? p->freed : limit;
        if (lane_of(pool, number)->users && freed > f->whole && freed > p->done)
            return false;
    }
    return fence_is_done(f, limit) && (!fences_await_replays(f) || limit <= f->unreplayed);
}

/* The stream is about to end: the lane is found by its key no more, and the next stream with this key is another. */
void lane_forget_key(cenote_pool *pool, struct lane *lane)
{
    remove_key(pool, lane);
    lane->ended = true;
    lane->ended_at = pool->store.pages.fences.now;
}

/* The context was waited for. Streams that ended before the pool was told to keep an event of each end are done. */
void lanes_end_known(cenote_pool *pool)
{
    tick from = pool->lanes.known_from;
    if (!from || pool->store.pages.fences.whole < from)
        return;
    pool->lanes.known_from = 0;
    for (uint32_t number = 1; number < pool->lanes.table.used; number++) {
        const struct lane *lane = lane_of(pool, number);
        if (lane->users && lane->ended && lane->ended_at < from && !lane->other)
            lane_set_done(pool, number, LANE_DONE);
    }
}
