/*
 * cover.c: which streams a fence covers, while a pool with the option announced:0 is open (driver/touch.c). Without one, nothing here acts.
 *
 * A fence of streams has an event on each stream that lives as long as the program and on the default stream, and, if something was freed there
 * since, on the calling thread's own default stream and the stream that the call under way names. On a driver without stream ids also on each
 * stream that was not retired, because the program has to say there that one ends. All other handles may be dead, and no dead handle is given to
 * the driver.
 *
 * What an arena freed on a stream that is not among those, or that is being captured, is held: neither its pages nor its addresses go
 * elsewhere, and its own stream has them as before. The next fence that can have an event on that stream covers it. A call that names such
 * a stream while something of it is held sees to a fence (cover_wants). What a stream freed since then is held for good, if the stream ends
 * without cenote_stream_retire.
 *
 * A stream that is retired gets no work any more: an event at that moment covers whatever its blocks free later.
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

void cover_call_names(uint64_t key, CUstream stream)
{
    call.key = key;
    call.stream = stream;
    call.names = true;
}

void cover_call_ends(void)
{
    call.names = false;
}

/* May the driver be given this handle? LOCKING: none. */
bool cover_may_touch(cenote_pool *pool, CUstream stream, uint64_t key, bool retired)
{
    if (stream_is_alive(pool, stream, key) || (call.names && call.key == key))
        return !stream_is_unnamed(key);
    return !retired && key >> STREAM_KIND_SHIFT == STREAM_KIND_HANDLE;
}

/* ---------------------------------------------------------------------------------------------------------------------- the streams */

static CUstream stream_of(const struct arena *a)
{
    return a->stream == STREAM_KEY_LEGACY ? NULL : a->handle;
}

static struct mark *find_mark(struct cover *c, CUstream stream)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->marks[i].stream == stream)
            return &c->marks[i];
    return NULL;
}

static void add_mark(struct cover *c, CUstream stream)
{
    if (c->count < MARKS_MAX && !find_mark(c, stream))
        c->marks[c->count++] = (struct mark){stream, false};
}

static void add_arena(cenote_pool *pool, const struct arena *a)
{
    if (!a->ended && cover_may_touch(pool, a->handle, a->stream, a->retired))
        add_mark(&pool->cover, stream_of(a));
}

static void add_held(cenote_pool *pool)
{
    for (uint32_t a = pool->cover.first_held; a; a = arena_of(pool, a)->next_held)
        if (!arena_of(pool, a)->covered_by)
            add_arena(pool, arena_of(pool, a));
}

/* Can an event be had now on a stream whose memory is held? Asks the driver. LOCKING: the turn, not the pool's lock. */
bool cover_is_owed(cenote_pool *pool)
{
    lock_take(&pool->lock);
    pool->cover.count = 0;
    add_held(pool);
    lock_give(&pool->lock);
    uint32_t i = 0;
    while (i < pool->cover.count && touch_is_captured(pool->config.device, pool->cover.marks[i].stream))
        i++;
    return i < pool->cover.count;
}

/* Is something held that a fence covers which is not done yet? */
bool cover_is_in_flight(const cenote_pool *pool)
{
    uint32_t number = pool->cover.first_held;
    if (touch_captures_are_announced())
        return number != 0 && pool->store.pages.fences.count;
    while (number && !arena_of(pool, number)->covered_by)
        number = arena_of(pool, number)->next_held;
    return number != 0;
}

/* Also the streams of which nothing is known to have been freed: a program may have put them to use behind those that did. */
static void add_known(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    struct cover *c = &pool->cover;
    CUstream stream;
    uint64_t where;
    if (atomic_load(&d->touch.behind_default) || stream_first(pool, STREAM_KEY_LEGACY, &where))
        add_mark(c, NULL);
    for (uint32_t i = 0; i < TOUCH_STREAMS_MAX && (stream = atomic_load(&d->touch.stream[i])); i++)
        add_mark(c, stream);
}

/* Lists the streams on which the fence that begins now wants an event. LOCKING: the turn, too. */
void cover_begin(cenote_pool *pool)
{
    struct cover *c = &pool->cover;
    c->count = 0;
    if (c->first_dirty)
        add_known(pool);
    for (uint32_t a = c->first_dirty; a; a = arena_of(pool, a)->next_dirty)
        add_arena(pool, arena_of(pool, a));
    add_held(pool);
}

/* -------------------------------------------------------------------------------------------------------------------- what is covered */

static bool is_covered(cenote_pool *pool, const struct arena *a)
{
    if (a->ended)
        return true;
    const struct mark *mark = cover_may_touch(pool, a->handle, a->stream, a->retired) ? find_mark(&pool->cover, stream_of(a)) : NULL;
    return mark && mark->recorded;
}

static bool make_room(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    if (!f->held)
        f->held = memory_map(ARENAS_MAX * sizeof *f->held);
    return f->held != NULL;
}

static void hold(cenote_pool *pool, struct arena *a, tick covers)
{
    tick *held = &pool->store.pages.fences.held[a->number];
    if (!*held) {
        *held = a->dirty_from;
        a->next_held = pool->cover.first_held;
        pool->cover.first_held = a->number;
    }
    a->missed = covers;
}

/* What the arena freed up to `covers` was covered by the fence, or is held. It stays dirty if it has freed more since that began. */
static void settle(cenote_pool *pool, struct arena *a, tick covers)
{
    if (!is_covered(pool, a))
        hold(pool, a, covers);
    a->is_dirty = a->freed_last > covers;
    a->dirty_from = covers + 1;
}

static void settle_whole(struct arena *a, tick covers)
{
    a->is_dirty = a->freed_last > covers;
    a->dirty_from = a->dirty_from > covers ? a->dirty_from : covers + 1;
}

/*
 * The fence that covers `covers` has been recorded: over the whole context, or on the marks that say so. False: no host memory, and the fence
 * must be given up. LOCKING: the turn, too.
 */
bool cover_end(cenote_pool *pool, tick covers, bool whole)
{
    bool room = whole;
    for (uint32_t number = pool->cover.first_dirty; number && !room; number = arena_of(pool, number)->next_dirty)
        if (!is_covered(pool, arena_of(pool, number)) && !(room = make_room(pool)))
            return false;
    for (uint32_t *link = &pool->cover.first_dirty; *link;) {
        struct arena *a = arena_of(pool, *link);
        if (a->dirty_from <= covers && !whole)
            settle(pool, a, covers);
        else if (whole)
            settle_whole(a, covers);
        if (a->is_dirty)
            link = &a->next_dirty;
        else
            *link = a->next_dirty;
    }
    for (uint32_t number = pool->cover.first_held; number && !whole; number = arena_of(pool, number)->next_held) {
        struct arena *a = arena_of(pool, number);
        if (!a->covered_by && is_covered(pool, a))
            a->covered_by = covers;
    }
    return true;
}

/* From when on what the arena freed is held; 0: nothing is any more. */
static tick held_from(const struct fences *f, const struct arena *a)
{
    tick from = f->held[a->number];
    tick done = a->covered_by && a->covered_by <= f->done ? a->covered_by : 0;
    done = done > f->whole ? done : f->whole;
    return done < from ? from : a->missed > done ? done + 1 : 0;
}

/* Fences are done. */
void cover_advance(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    for (uint32_t *link = &pool->cover.first_held; *link;) {
        struct arena *a = arena_of(pool, *link);
        f->held[a->number] = held_from(f, a);
        if (a->covered_by <= f->done)
            a->covered_by = 0;
        if (f->held[a->number])
            link = &a->next_held;
        else
            *link = a->next_held;
    }
}

/* ------------------------------------------------------------------------------------------------------------------ the end of a stream */

/* The next fence is to have an event on that stream, whatever its arenas freed. False: it has none. */
bool cover_wants(cenote_pool *pool, uint64_t key)
{
    uint64_t where;
    uint32_t first = stream_first(pool, key, &where);
    tick now = first ? fences_stamp(&pool->store.pages.fences) : 0;
    for (uint32_t number = first; number; number = arena_of(pool, number)->next_of_stream)
        cover_note(&pool->cover, arena_of(pool, number), now);
    return first != 0;
}

/* After that fence: it covers whatever blocks of the stream will free. */
void cover_ended(cenote_pool *pool, uint64_t key)
{
    uint64_t where;
    const struct mark *mark = find_mark(&pool->cover, call.stream);
    for (uint32_t number = stream_first(pool, key, &where); number && mark; number = arena_of(pool, number)->next_of_stream)
        arena_of(pool, number)->ended = mark->recorded;
}
