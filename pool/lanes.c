/*
 * lanes.c: the streams that a pool knows, and which of them a fence can have an event on.
 *
 * Each stream that has memory of the pool, or uses some, is a lane. A lane knows how far its stream has got: each event on the stream moves its
 * `done`, and `own` of its arenas (core/fence.h). A block that another stream used waits until that one's lane is done with it (pending.c).
 *
 * If the program announces its captures, a fence is one event over the whole context, and lanes only list. While a pool with the option
 * announced:0 is open (driver/touch.c), a fence is an event on each stream that lives as long as the program, on the default stream, and, if
 * something waits for it there, on the calling thread's own default stream and the stream that the call under way names. On a driver without
 * stream ids also on each stream that was not retired, because the program has to say there that one ends. All other handles may be dead, and no
 * dead handle is given to the driver. So memory that such a stream freed stays with its arena, and blocks that it used wait, until a call names
 * it (lane_is_owed) or it is retired.
 *
 * What happens when a stream is retired is said in retire.c.
 *
 * LOCKING: the pool's lock, unless a function says otherwise.
 */
#include "base/check.h"
#include "pool/pool.h"

/* The stream that the API call of this thread names: it is alive until the call returns. */
static _Thread_local struct {
    uint64_t key;
    CUstream stream;
    bool     names;
} call;

void lanes_call_names(uint64_t key, CUstream stream)
{
    call.key = key;
    call.stream = stream;
    call.names = true;
}

void lanes_call_ends(void)
{
    call.names = false;
}

/* ------------------------------------------------------------------------------------------------------------------------ finding them */

/* Under which a lane is found: a hash in the shape of an address. `probe` tells apart those that share one. */
static uint64_t lane_hash(uint64_t key, uint64_t probe)
{
    uint64_t hash = (key + 1 + (probe << 57)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    return (hash << 9) | (1ull << 63);
}

static uint32_t find(const cenote_pool *pool, uint64_t key, const struct device *other, uint64_t *probe)
{
    uint32_t number;
    for (*probe = 0; (number = index_find(&pool->lanes.by_key, lane_hash(key, *probe))); ++*probe)
        if (lane_of(pool, number)->key == key && lane_of(pool, number)->other == other)
            break;
    return number;
}

/* The lane of a stream of this device (`other` NULL) or of another one; 0: there is none. */
uint32_t lane_find(const cenote_pool *pool, uint64_t key, const struct device *other)
{
    uint64_t probe;
    return find(pool, key, other, &probe);
}

/* The same, made if there is none. The caller names it with lane_hold at once. 0: no host memory. */
uint32_t lane_for(cenote_pool *pool, CUstream stream, uint64_t key, struct device *other)
{
    uint64_t probe;
    uint32_t number = find(pool, key, other, &probe);
    if (number || !index_reserve(&pool->lanes.by_key, 1) || !(number = table_take(&pool->lanes.table)))
        return number;
    index_add(&pool->lanes.by_key, lane_hash(key, probe), number);
    *lane_of(pool, number) = (struct lane){.key = key, .probe = probe, .stream = stream, .other = other};
    return number;
}

void lane_hold(cenote_pool *pool, uint32_t lane)
{
    lane_of(pool, lane)->users++;
}

/* With the last user the lane goes. */
void lane_drop(cenote_pool *pool, uint32_t number)
{
    struct lane *lane = lane_of(pool, number);
    CHECK(lane->users);
    if (--lane->users)
        return;
    CHECK(!lane->first_arena && !lane->first && !lane->end);
    if (!lane->ended)
        index_remove(&pool->lanes.by_key, lane_hash(lane->key, lane->probe));
    table_give(&pool->lanes.table, number);
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
    if (f->own && (f->own[a->number] == LANE_DONE || fence_has_passed(f, a->freed_last, a->number)))
        f->own[a->number] = f->now;
    a->lane = number;
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
    if (!a->lane)
        return;
    unlink_arena(pool, lane_of(pool, a->lane), a);
    lane_drop(pool, a->lane);
    a->lane = 0;
    a->is_known = false;
}

/* ---------------------------------------------------------------------------------------------------------------------- which may be touched */

/* May the driver be given its handle? LOCKING: none. */
bool lane_may_be_touched(cenote_pool *pool, const struct lane *lane)
{
    if (lane->ended || stream_is_unnamed(lane->key))
        return false;
    return stream_is_alive(pool, lane->stream, lane->key) || (call.names && call.key == lane->key) ||
           lane->key >> STREAM_KIND_SHIFT == STREAM_KIND_HANDLE;
}

/* Has no event on its stream yet covered something that waits for one? */
bool lane_is_owed(const cenote_pool *pool, uint32_t number)
{
    const struct lane *lane = number ? lane_of(pool, number) : NULL;
    if (!lane || lane->ended)
        return false;
    for (uint32_t a = lane->first_arena; a; a = arena_of(pool, a)->next_of_lane)
        if (arena_of(pool, a)->freed_last > lane->asked)
            return true;
    return lane->first && use_of(pool, lane->last)->freed > lane->asked;
}

static bool is_marked(const struct lanes *l, CUstream stream)
{
    uint32_t i = 0;
    while (i < l->count && l->marks[i].stream != stream)
        i++;
    return i < l->count;
}

static void mark_stream(cenote_pool *pool, CUstream stream, uint32_t lane)
{
    struct lanes *l = &pool->lanes;
    if (l->count < MARKS_MAX)
        l->marks[l->count++] = (struct mark){stream, lane, lane_is_owed(pool, lane)};
}

/* A stream that wants an event only if something waits for it. */
static void mark_owed(cenote_pool *pool, CUstream stream, uint32_t lane)
{
    if (lane_is_owed(pool, lane) && lane_may_be_touched(pool, lane_of(pool, lane)) && !is_marked(&pool->lanes, stream))
        mark_stream(pool, stream, lane);
}

/*
 * Lists the streams on which a fence that begins now wants an event. Those that live as long as the program are always among them: a program may
 * have put them to use behind the ones that freed.
 */
void lanes_mark(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    uint32_t lane = lane_find(pool, STREAM_KEY_LEGACY, NULL);
    CUstream stream;
    uint64_t key;
    pool->lanes.count = 0;
    if (lane || atomic_load(&d->touch.behind_default))
        mark_stream(pool, NULL, lane);
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX && (stream = atomic_load(&d->touch.stream[i].handle)); i++)
        mark_stream(pool, stream, lane_find(pool, atomic_load(&d->touch.stream[i].key), NULL));
    if (!stream_key(pool, CU_STREAM_PER_THREAD, &key)) /* known without asking */
        mark_owed(pool, CU_STREAM_PER_THREAD, lane_find(pool, key, NULL));
    if (call.names)
        mark_owed(pool, call.stream, lane_find(pool, call.key, NULL));
    for (lane = 1; !d->driver->cuStreamGetId && lane < pool->lanes.table.used; lane++)
        if (lane_of(pool, lane)->users && !lane_of(pool, lane)->other)
            mark_owed(pool, lane_of(pool, lane)->stream, lane);
}

/* Can what waits for an event on its stream have one now? Asks the driver. LOCKING: the turn, not the pool's lock; after lanes_mark. */
bool lanes_can_help(cenote_pool *pool)
{
    const struct lanes *l = &pool->lanes;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->marks[i].owed && !touch_is_captured(pool->config.device, l->marks[i].stream))
            return true;
    return false;
}

/* --------------------------------------------------------------------------------------------------------------------------- how far they are */

/* An event on its stream was recorded, for the fence that covers `covers`. */
void lane_asked(cenote_pool *pool, uint32_t lane, tick covers)
{
    lane_hold(pool, lane);
    lane_of(pool, lane)->asked = covers;
}

static void set_done(cenote_pool *pool, struct lane *lane, tick covers)
{
    if (lane->done < covers)
        lane->done = covers;
    for (uint32_t a = lane->first_arena; a; a = arena_of(pool, a)->next_of_lane)
        if (pool->store.pages.fences.own)
            fences_own(&pool->store.pages.fences, a, covers);
}

/* That event is done. */
void lane_done(cenote_pool *pool, uint32_t lane, tick covers)
{
    set_done(pool, lane_of(pool, lane), covers);
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
    for (uint32_t i = 0; f->own && i < f->part_count; i++) {
        uint32_t lane = f->part[(f->first_part + i) % FENCE_PARTS_MAX].lane;
        if (lane && lane_of(pool, lane)->done < limit)
            return true;
    }
    return pool->lanes.first_ending != 0;
}

/* Is the device done with all that was freed up to `limit`? */
bool lanes_are_done(const cenote_pool *pool, tick limit)
{
    const struct fences *f = &pool->store.pages.fences;
    for (uint32_t number = 1; f->own && number < pool->store.arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        if (a->number && !fence_has_passed(f, a->freed_last < limit ? a->freed_last : limit, number))
            return false;
    }
    return fence_is_done(f, limit);
}

/* The stream is about to end: the lane is found by its key no more, and the next stream with this key is another. */
void lane_forget_key(cenote_pool *pool, struct lane *lane)
{
    index_remove(&pool->lanes.by_key, lane_hash(lane->key, lane->probe));
    lane->ended = true;
}

/* An event behind all that its stream was given is with the driver, or NULL. */
void lane_keep_end(cenote_pool *pool, uint32_t number, CUevent end)
{
    struct lane *lane = lane_of(pool, number);
    lane->end = end;
    if (!end)
        return;
    lane->next_ending = pool->lanes.first_ending;
    pool->lanes.first_ending = number;
    lane_hold(pool, number);
}

/* The event is taken out. `done`: the driver said so, and the device is done with whatever the lane will free. */
CUevent lane_take_end(cenote_pool *pool, uint32_t number, bool done)
{
    struct lane *lane = lane_of(pool, number);
    CUevent end = lane->end;
    uint32_t *link = &pool->lanes.first_ending;
    while (*link != number)
        link = &lane_of(pool, *link)->next_ending;
    *link = lane->next_ending;
    lane->end = NULL;
    lane_done(pool, number, done ? LANE_DONE : 0);
    return end;
}
