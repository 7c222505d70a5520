/*
 * lanes.c: the streams that a pool knows, and which of them may be touched.
 *
 * Each stream that has memory of the pool, or uses some, is a lane. A lane knows how far its stream has got: each event on the stream moves its
 * `done`, and `stream_done` of its arenas (core/fence.h). A block that another stream used waits until that one's lane is done with it (pending.c).
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
 * of the group is done (`released`), and the default stream of the thread that ended the group.
 *
 * What happens when a stream is retired is said in retire.c.
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
    uint32_t number = stream_key_is_id(key) ? lane_find(pool, stream_key_while_captured(stream), other) : 0;
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
    if (stream_key_is_captured(key)) {
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
    if (stream_key_is_captured(lane->key))
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

/* The device is done with what the stream of the arena was given up to there. What a private group has left stays behind the group's end. */
static void advance_arena(cenote_pool *pool, const struct arena *a, tick covers)
{
    fences_advance_stream(&pool->store.pages.fences, a->number, a->released && a->released <= covers ? a->released - 1 : covers);
}

/*
 * From now on fences are on streams: each arena knows how far its own stream has got, and each lane when memory of its stream was freed to last. A
 * lane may have got somewhere already, while there was no host memory for this.
 */
static void begin_on_streams(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    f->stream_done = memory_map(STREAM_DONE_BYTES);
    for (uint32_t number = 1; f->stream_done && number < pool->store.arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        if (!a->number)
            continue;
        lane_note_free(pool, a, a->last_free_tick);
        advance_arena(pool, a, lane_of(pool, a->lane)->done);
    }
}

/* The same, if that was not so before. False: no host memory. */
bool lanes_begin(cenote_pool *pool)
{
    if (!pool->store.pages.fences.stream_done)
        begin_on_streams(pool);
    return pool->store.pages.fences.stream_done != NULL;
}

/* Invariant 26. */
bool lane_knows_last_free(const cenote_pool *pool, const struct arena *a)
{
    return !pool->store.pages.fences.stream_done || a->last_free_tick <= lane_of(pool, a->lane)->last_free_tick;
}

/* ------------------------------------------------------------------------------------------------------------ what private groups leave */

static void unlink_released(cenote_pool *pool, struct arena *a)
{
    struct lanes *l = &pool->lanes;
    if (!a->released)
        return;
    *(a->before_released ? &arena_of(pool, a->before_released)->next_released : &l->first_released) = a->next_released;
    *(a->next_released ? &arena_of(pool, a->next_released)->before_released : &l->last_released) = a->before_released;
    a->released = 0;
}

/* The private group of the arena has ended. Replays may write to what it leaves until a fence without gaps is done that covers `now`. */
void lane_release(cenote_pool *pool, struct arena *a, tick now)
{
    struct lanes *l = &pool->lanes;
    struct fences *f = &pool->store.pages.fences;
    CHECK(!a->released);
    a->released = now;
    lane_note_free(pool, a, now);
    a->next_released = 0;
    a->before_released = l->last_released;
    *(l->last_released ? &arena_of(pool, l->last_released)->next_released : &l->first_released) = a->number;
    l->last_released = a->number;
    if (f->stream_done && f->stream_done[a->number] >= now) /* its stream has ended, which says nothing of the replays */
        f->stream_done[a->number] = now - 1;
}

/* Arenas that no replay writes to any more: how far their own streams have got decides, as everywhere. */
void lanes_look_at_released(cenote_pool *pool)
{
    struct lanes *l = &pool->lanes;
    struct fences *f = &pool->store.pages.fences;
    struct arena *a;
    while (l->first_released && (a = arena_of(pool, l->first_released))->released <= (l->replayed ? f->whole : f->all)) {
        unlink_released(pool, a);
        if (f->stream_done)
            fences_advance_stream(f, a->number, lane_of(pool, a->lane)->done);
    }
}

/*
 * A thread destroys a private group: it may have replayed graphs on its own default stream. If captures are announced, a fence covers that: the one
 * that is recorded when the first pool without the promise opens, if no other comes before.
 */
void lanes_note_replays(cenote_pool *pool)
{
    if (touch_captures_are_announced())
        return;
    uint32_t number = lane_for(pool, CU_STREAM_PER_THREAD, stream_key_of_thread(), NULL); /* without asking */
    struct lane *lane = number ? lane_of(pool, number) : NULL;
    if (!lane)
        return;
    lane->born = 0;
    if (!lane->replayed) {
        lane_hold(pool, number);
        pool->lanes.replayed++;
    }
    lane->replayed = pool->store.pages.fences.now;
}

/* --------------------------------------------------------------------------------------------------------------------------- their arenas */

/*
 * The arena comes to the stream. If the device is done with all that it ever freed, it counts as done up to now; otherwise it was this stream's
 * before, and an event on the stream covers that, too. What was said of a stream that has ended holds for what it was given, not for what comes.
 */
void lane_join(cenote_pool *pool, struct arena *a, uint32_t number)
{
    struct lane *lane = lane_of(pool, number);
    struct fences *f = &pool->store.pages.fences;
    CHECK(!a->lane);
    if (f->stream_done && (f->stream_done[a->number] == LANE_DONE || fence_has_passed(f, a->last_free_tick, a->number)))
        f->stream_done[a->number] = f->now;
    else
        lane->born = 0;
    a->lane = number;
    lane_note_free(pool, a, a->last_free_tick);
    a->is_known = true;
    a->before_of_lane = 0;
    a->next_of_lane = lane->first_arena;
    *(lane->first_arena ? &arena_of(pool, lane->first_arena)->before_of_lane : &lane->last_arena) = a->number;
    lane->first_arena = a->number;
    lane->users++;
}

static void unlink_arena(cenote_pool *pool, struct lane *lane, struct arena *a)
{
    *(a->before_of_lane ? &arena_of(pool, a->before_of_lane)->next_of_lane : &lane->first_arena) = a->next_of_lane;
    *(a->next_of_lane ? &arena_of(pool, a->next_of_lane)->before_of_lane : &lane->last_arena) = a->before_of_lane;
}

/* The arena is no longer found by the stream, but what it freed is still in that stream's order. */
void lane_put_last(cenote_pool *pool, struct arena *a)
{
    struct lane *lane = lane_of(pool, a->lane);
    unlink_arena(pool, lane, a);
    a->is_known = false;
    a->next_of_lane = 0;
    a->before_of_lane = lane->last_arena;
    *(lane->last_arena ? &arena_of(pool, lane->last_arena)->next_of_lane : &lane->first_arena) = a->number;
    lane->last_arena = a->number;
}

void lane_leave(cenote_pool *pool, struct arena *a)
{
    CHECK(a->lane);
    unlink_released(pool, a);
    unlink_arena(pool, lane_of(pool, a->lane), a);
    lane_drop(pool, a->lane);
    a->lane = 0;
    a->is_known = false;
}

/* ---------------------------------------------------------------------------------------------------------------------- which may be touched */

/* Does the call of this thread name its stream? By its id alone, if the lane is what is known of it from captures: see lane_when_captured. */
static bool is_named(const struct lane *lane)
{
    return call.names && (call.key == lane->key ||
                          (call.stream == lane->stream && stream_key_is_id(call.key) && call.key <= lane->newest));
}

/* May the driver be given its handle? LOCKING: none. */
bool lane_may_be_touched(cenote_pool *pool, const struct lane *lane)
{
    if (lane->ended || stream_is_unnamed(lane->key))
        return false;
    return stream_is_alive(pool, lane->stream, lane->key) || is_named(lane) || stream_key_is_handle(lane->key);
}

/* Has no event on its stream yet covered something that waits for one? */
bool lane_is_owed(const cenote_pool *pool, uint32_t number)
{
    const struct lane *lane = number ? lane_of(pool, number) : NULL;
    if (!lane || lane->ended)
        return false;
    tick whole = pool->store.pages.fences.whole, covered = lane->asked < whole ? whole : lane->asked;
    return lane->last_free_tick > covered || lane->replayed > covered ||
           (lane->first && use_of(pool, use_to_cover(pool, lane, lane->first))->freed > covered);
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
    mark_stream(pool, NULL, lane_find(pool, STREAM_KEY_LEGACY, NULL));
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
    bool whole = l->last_released && !fences_have_all(&pool->store.pages.fences, arena_of(pool, l->last_released)->released), helps = false;
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
    struct fences *f = &pool->store.pages.fences;
    if (lane->done < covers)
        lane->done = covers;
    for (uint32_t a = lane->first_arena; a && f->stream_done; a = arena_of(pool, a)->next_of_lane)
        advance_arena(pool, arena_of(pool, a), covers);
    if (!lane->replayed || lane->replayed > lane->done)
        return;
    lane->replayed = 0;
    pool->lanes.replayed--;
    lanes_look_at_released(pool);
    lane_drop(pool, number);
}

/*
 * The program has waited for the whole context: the device is done with all that was freed up to `covers`, on streams that may be dead, too. Fences
 * due find nothing left to say. LOCKING: the turn, too.
 */
void lanes_all_done(cenote_pool *pool, tick covers)
{
    fences_all_done(&pool->store.pages.fences, covers);
    for (uint32_t number = 1; pool->lanes.replayed && number < pool->lanes.table.used; number++) {
        const struct lane *lane = lane_of(pool, number);
        if (lane->users && lane->replayed && lane->replayed <= covers)
            lane_set_done(pool, number, covers);
    }
    lanes_look_at_released(pool);
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
        lane->asked = lane->done < covers ? lane->done : covers;
    lane_drop(pool, number);
}

/* Is an event due that may bring what was freed up to `limit`? */
bool lanes_are_in_flight(const cenote_pool *pool, tick limit)
{
    const struct fences *f = &pool->store.pages.fences;
    for (uint32_t i = 0; f->stream_done && i < f->part_count; i++) {
        uint32_t lane = f->part[(f->first_part + i) % FENCE_PARTS_MAX].lane;
        if (lane && lane_of(pool, lane)->done < limit && lane_of(pool, lane)->born < limit)
            return true;
    }
    for (uint32_t lane = pool->lanes.first_asking; lane; lane = lane_of(pool, lane)->next_asking) /* pending_waits_for has those of other devices */
        if (!lane_of(pool, lane)->other && lane_of(pool, lane)->done < limit && lane_of(pool, lane)->born < limit)
            return true;
    return fences_bring(f, limit, pool->lanes.first_released != 0);
}

/* Is the device done with all that was freed up to `limit`? */
bool lanes_are_done(const cenote_pool *pool, tick limit)
{
    const struct fences *f = &pool->store.pages.fences;
    for (uint32_t number = 1; f->stream_done && number < pool->store.arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        if (a->number && !fence_has_passed(f, a->last_free_tick < limit ? a->last_free_tick : limit, number))
            return false;
    }
    return fence_is_done(f, limit);
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
