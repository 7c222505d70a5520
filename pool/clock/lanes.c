/*
 * lanes.c: the streams that a pool knows, and which of them may be touched.
 *
 * Each stream that has memory of the pool, or uses some, is a lane. A lane knows how far its stream has got: each event
 * on the stream moves its `progress`, at which its arenas point (fence.h). A block that another stream used waits until
 * that one's lane is done with it (uses.c).
 *
 * If the program announces its captures, a fence is one event over the whole context, and lanes only list. While a pool
 * with the option announced:0 is open (driver/touch.c), a fence is an event on each stream that lives as long as the
 * program, and on the default stream. All other handles may be dead, and no dead handle is given to the driver. The
 * lane of such a stream gets events of its own (lane_events.c) when the handle is known to be alive: a call names it,
 * the calling thread's own default stream is it, or the driver has no stream ids, because the program has to say there
 * that a stream ends. Until then memory that the stream freed stays with its arena, and blocks that it used wait.
 *
 * A captured stream has a lane of its own, found by the handle, because its id cannot be asked for. Once a call names
 * the stream outside of a capture, the id says whether it is the same one: handles of streams that ended are given
 * again, but a stream that came later has a greater id than any had when the lane was made (driver/age.c). If it is the
 * same one, an event on the stream is one for that lane as well.
 *
 * What a private group leaves may be written by replays on any stream. It stays with its arena until a fence without
 * gaps that began after the end of the group is done (`unreplayed`), and the default stream of the thread that ended
 * the group.
 *
 * What happens when a stream is retired is said in lane_ends.c.
 *
 * LOCKING: the pool's lock, unless a function says otherwise.
 */
#include "base/check.h"
#include "pool/clock/room.h"

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

/* ----------------------------------------------------------------------------------------------------- finding them */

/* Under which a lane is found: a hash in the shape of an address. `probe` tells apart those that share one. */
static uint64_t lane_hash(uint64_t key, uint32_t probe)
{
    uint64_t hash = (key + 1 + ((uint64_t)probe << 57)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    return (hash << 9) | (1ull << 63);
}

/* Also behind gaps: of two lanes of one key the first may have gone. 0: there is none, and *free is a probe for it. */
static uint32_t find(const struct clock *c, uint64_t key, const struct device *other, uint32_t *free)
{
    *free = c->lanes.probes + 1;
    for (uint32_t probe = c->lanes.probes + 1; probe--;) {
        uint32_t number = index_find(&c->lanes.by_key, lane_hash(key, probe));
        if (!number)
            *free = probe;
        else if (lane_of(c, number)->key == key && lane_of(c, number)->other == other &&
                 !lane_is_over(lane_of(c, number)))
            return number;
    }
    return 0;
}

/* The lane of a stream of this device (`other` NULL) or of another one; 0: there is none. */
uint32_t lane_find(const struct clock *c, uint64_t key, const struct device *other)
{
    uint32_t free;
    return find(c, key, other, &free);
}

/* The same of whichever device. */
uint32_t lane_find_anywhere(const struct clock *c, uint64_t key)
{
    uint32_t lane = lane_find(c, key, NULL);
    for (int ordinal = 0; ordinal < DEVICES_MAX && !lane; ordinal++)
        lane = c->others[ordinal] ? lane_find(c, key, c->others[ordinal]) : 0;
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
 * The lane under which the stream, which answers that id now, was known by its handle when it was captured. 0: there is
 * none, or it is not known that the stream was there already.
 */
uint32_t lane_when_captured(const struct clock *c, uint64_t key, CUstream stream, const struct device *other)
{
    uint32_t number = key_is_id(key) ? lane_find(c, key_while_captured(stream), other) : 0;
    return number && key <= lane_of(c, number)->newest ? number : 0;
}

/* The same, made if there is none. The caller names it with lane_hold at once. 0: no host memory. */
uint32_t lane_for(struct clock *c, CUstream stream, uint64_t key, struct device *other)
{
    uint32_t probe;
    uint32_t number = find(c, key, other, &probe);
    if (number || !index_reserve(&c->lanes.by_key, 1) || !(number = table_take(&c->lanes.table)))
        return number;
    index_add(&c->lanes.by_key, lane_hash(key, probe), number);
    c->lanes.probes = probe > c->lanes.probes ? probe : c->lanes.probes;
    *lane_of(c, number) = (struct lane){.key = key, .probe = probe, .stream = stream, .other = other,
                                           .generation = other ? atomic_load(&other->generation) : 0,
                                           .born = c->fences.now};
    if (key_is_captured(key)) {
        lane_of(c, number)->newest = newest;
        lane_of(c, number)->capture = capture;
        atomic_fetch_add(&c->lanes.captured, 1);
    }
    return number;
}

void lane_hold(struct clock *c, uint32_t lane)
{
    lane_of(c, lane)->users++;
}

/* It is found by its key no more. */
static void remove_key(struct clock *c, const struct lane *lane)
{
    index_remove(&c->lanes.by_key, lane_hash(lane->key, lane->probe));
    if (key_is_captured(lane->key))
        atomic_fetch_sub(&c->lanes.captured, 1);
}

/* With the last user the lane goes. */
void lane_drop(struct clock *c, uint32_t number)
{
    struct lane *lane = lane_of(c, number);
    CHECK(lane->users);
    if (--lane->users)
        return;
    CHECK(!lane->first_arena && !lane->first && !lane->due_count && !lane->replayed);
    if (!lane->ended)
        remove_key(c, lane);
    table_give(&c->lanes.table, number);
}

/* Invariant 26. The arena has freed nothing after `freed`, but for what is pending. */
bool lane_is_of(const struct clock *c, const struct horizon *h, tick freed)
{
    return h->lane && h->stream == &lane_of(c, h->lane)->progress && (freed <= h->stream->freed || freed <= h->known);
}

/* ---------------------------------------------------------------------------------------- what private groups leave */

/*
 * The private group of the arena has ended. Replays may write to what
 * it leaves until a fence without gaps is done that covers `now`.
 */
void lane_release(struct clock *c, struct horizon *h, tick now)
{
    h->released = c->fences.released = h->stream->freed = now;
    if (h->known >= now)
        h->known = now - 1;
}

/*
 * A thread destroys a private group: it may have replayed graphs on its own default stream. If captures are announced,
 * a fence covers that: the one that is recorded when the first pool without the promise opens, if no other comes
 * before.
 */
void lanes_note_replays(struct clock *c)
{
    if (touch_captures_are_announced())
        return;
    uint32_t number = lane_for(c, CU_STREAM_PER_THREAD, key_of_thread(), NULL); /* without asking */
    struct lane *lane = number ? lane_of(c, number) : NULL;
    if (!lane)
        return;
    lane->born = 0;
    if (!lane->replayed) {
        lane_hold(c, number);
        c->fences.replaying++;
    }
    lane->replayed = c->fences.now;
}

/* ----------------------------------------------------------------------------------------------------- their arenas */

/*
 * The arena comes to the stream, and has freed nothing after `freed`. If the device is done with that, the arena counts
 * as done up to now; otherwise it was this stream's before, and an event on the stream covers that, too. What was said
 * of a stream that has ended holds for what it was given, not for what comes.
 */
void lane_join(struct clock *c, struct horizon *h, uint32_t number, tick freed)
{
    struct lane *lane = lane_of(c, number);
    struct fences *f = &c->fences;
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

void lane_leave(struct clock *c, struct horizon *h)
{
    CHECK(lane_is_of(c, h, 0));
    h->known = horizon_of(&c->fences, h);
    lane_drop(c, h->lane);
    h->lane = 0;
    h->stream = NULL;
}

/* --------------------------------------------------------------------------------------------- which may be touched */

/*
 * Does the call of this thread name its stream? By its id alone, if the
 * lane is what is known of it from captures: see lane_when_captured.
 */
static bool is_named(const struct lane *lane)
{
    return call.names && (call.key == lane->key ||
                          (call.stream == lane->stream && key_is_id(call.key) && call.key <= lane->newest));
}

/*
 * May the driver be given its handle? Where captures are announced,
 * only of a stream that cannot have ended. LOCKING: none.
 */
bool lane_may_be_touched(struct clock *c, const struct lane *lane)
{
    if (lane->ended || key_is_unnamed(lane->key))
        return false;
    return key_is_alive(&c->immortals, lane->stream, lane->key) ||
           (!touch_captures_are_announced() && (is_named(lane) || key_is_handle(lane->key)));
}

/*
 * Records the event behind what the stream was given so far, which may
 * be touched. LOCKING: none; inside, or visiting the other device.
 */
CUresult lane_record(const struct clock *c, const struct lane *lane, CUevent event)
{
    struct device *d = lane->other ? lane->other : c->device;
    return touch_captures_are_announced() ? d->driver->cuEventRecord(event, lane->stream)
           : touch_record(d, lane->stream, event);
}

/* Has no event on its stream yet covered something that waits for one? */
bool lane_is_owed(const struct clock *c, uint32_t number)
{
    const struct lane *lane = number ? lane_of(c, number) : NULL;
    if (!lane || lane->ended)
        return false;
    tick whole = c->fences.whole, covered = lane->asked < whole ? whole : lane->asked;
    return lane->progress.freed > covered || lane->replayed > covered ||
           (lane->first && use_of(c, use_to_cover(c, lane, lane->first))->freed > covered);
}

/* Is an event owed that a fence had no way to record? A call that names the stream can. */
bool lane_is_wanted(const struct clock *c, uint32_t lane)
{
    return !touch_captures_are_announced() && lane && lane_of(c, lane)->asked < c->fences.wanted &&
           lane_is_owed(c, lane);
}

static void mark_stream(struct clock *c, CUstream stream, uint32_t lane)
{
    struct lanes *l = &c->lanes;
    CHECK(l->count < MARKS_MAX);
    l->marks[l->count++] = (struct mark){stream, lane, lane_is_owed(c, lane)};
    if (lane)
        lane_hold(c, lane);
}

/*
 * Lists the streams on which a fence that begins now wants an event: the default stream, and those that live as long as
 * the program, which may have put any of them to use behind the ones that freed. The lanes are held until lanes_unmark:
 * their last arenas may go to other streams meanwhile.
 * LOCKING: the turn, too.
 */
void lanes_mark(struct clock *c)
{
    struct device *d = c->device;
    CUstream stream;
    CHECK(!c->lanes.count);
    mark_stream(c, NULL, lane_find(c, KEY_LEGACY, NULL));
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX && (stream = atomic_load(&d->touch.stream[i].handle)); i++)
        mark_stream(c, stream, lane_find(c, atomic_load(&d->touch.stream[i].key), NULL));
}

/* The fence has its events. LOCKING: the turn, too. */
void lanes_unmark(struct clock *c)
{
    struct lanes *l = &c->lanes;
    while (l->count)
        if (l->marks[--l->count].lane)
            lane_drop(c, l->marks[l->count].lane);
}

/* LOCKING: the turn is enough. */
bool lanes_are_marked(const struct clock *c, CUstream stream)
{
    const struct lanes *l = &c->lanes;
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
 * Can what waits for a fence have a better one now than those that are due?
 * An event on its own stream, or one without gaps. Asks the driver.
 * LOCKING: the turn, not the pool's lock; after lanes_mark.
 */
bool lanes_can_help(struct clock *c)
{
    const struct lanes *l = &c->lanes;
    lock_take(c->lock);
    const struct fences *f = &c->fences;
    bool whole = fences_await_replays(f) && !fences_have_all(f, f->released), helps = false;
    lock_give(c->lock);
    whole = whole && !atomic_load(&c->device->touch.is_full);
    for (uint32_t i = 0; i < l->count && !helps; i++) {
        bool captured = (l->marks[i].owed || whole) && touch_is_captured(c->device, l->marks[i].stream);
        helps = l->marks[i].owed && !captured;
        whole = whole && !captured;
    }
    return helps || whole;
}

/* ------------------------------------------------------------------------------------------------- how far they are */

/* An event on its stream was recorded, for the fence that covers `covers`. */
void lane_asked(struct clock *c, uint32_t lane, tick covers)
{
    lane_hold(c, lane);
    lane_of(c, lane)->asked = covers;
}

/* The device is done with what the stream was given up to there. */
void lane_set_done(struct clock *c, uint32_t number, tick covers)
{
    struct lane *lane = lane_of(c, number);
    struct progress *p = &lane->progress;
    struct fences *f = &c->fences;
    if (p->done < covers) {
        f->moved += p->done < p->freed;
        p->done = covers;
    }
    if (!lane->replayed || lane->replayed > p->done)
        return;
    lane->replayed = 0;
    f->replaying--;
    fences_look_at_replays(f);
    lane_drop(c, number);
}

/* That event is done. */
void lane_done(struct clock *c, uint32_t lane, tick covers)
{
    lane_set_done(c, lane, covers);
    lane_drop(c, lane);
}

/* That event says nothing. */
void lane_not_asked(struct clock *c, uint32_t number, tick covers)
{
    struct lane *lane = lane_of(c, number);
    if (lane->asked == covers)
        lane->asked = lane->progress.done < covers ? lane->progress.done : covers;
    lane_drop(c, number);
}

/* Is an event due that may bring what was freed up to `limit`? */
bool lanes_are_in_flight(const struct clock *c, tick limit)
{
    const struct fences *f = &c->fences;
    for (uint32_t i = 0; i < f->part_count; i++) {
        uint32_t lane = f->part[(f->first_part + i) % FENCE_PARTS_MAX].lane;
        if (lane && lane_of(c, lane)->progress.done < limit && lane_of(c, lane)->born < limit)
            return true;
    }
    /* uses_wait_for has those of other devices */
    for (uint32_t lane = c->lanes.first_asking; lane; lane = lane_of(c, lane)->next_asking)
        if (!lane_of(c, lane)->other && lane_of(c, lane)->progress.done < limit && lane_of(c, lane)->born < limit)
            return true;
    return fences_bring(f, limit);
}

/* Is the device done with all that was freed up to `limit`? */
bool lanes_are_done(const struct clock *c, tick limit)
{
    const struct fences *f = &c->fences;
    if (limit <= f->whole)
        return true;
    for (uint32_t number = 1; number < c->lanes.table.used; number++) {
        const struct progress *p = &lane_of(c, number)->progress;
        tick freed = p->freed < limit ? p->freed : limit;
        if (lane_of(c, number)->users && freed > f->whole && freed > p->done)
            return false;
    }
    return fence_is_done(f, limit) && (!fences_await_replays(f) || limit <= f->unreplayed);
}

/* The stream is about to end: the lane is found by its key no more, and the next stream with this key is another. */
void lane_forget_key(struct clock *c, struct lane *lane)
{
    remove_key(c, lane);
    lane->ended = true;
    lane->ended_at = c->fences.now;
}

/* The context was waited for. Streams that ended before the pool was told to keep an event of each end are done. */
void lanes_end_known(struct clock *c)
{
    tick from = c->lanes.known_from;
    if (!from || c->fences.whole < from)
        return;
    c->lanes.known_from = 0;
    for (uint32_t number = 1; number < c->lanes.table.used; number++) {
        const struct lane *lane = lane_of(c, number);
        if (lane->users && lane->ended && lane->ended_at < from && !lane->other)
            lane_set_done(c, number, LANE_DONE);
    }
}
