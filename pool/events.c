/*
 * events.c: fences where they meet the driver: recorded, and queried without waiting. What fences mean is in fence.c; wait.c waits.
 *
 * If the program has promised to announce its captures, a fence is one event over the whole context (rule 1), by cuCtxRecordEvent; a driver that
 * lacks that (before CUDA 12.5) has no fences then. Otherwise it is an event on each stream that may be touched (lanes.c).
 * While a capture is open on the device nothing is recorded or queried (rule 5): it would end the capture.
 *
 * LOCKING: the turn, for what is recorded and queried; the pool's lock only around its books.
 */
#include "base/check.h"
#include "pool/pool.h"

static CUresult record_whole(cenote_pool *pool)
{
    CUevent event;
    CUresult result = event_take(pool, &event);
    if (!result)
        result = pool->config.device->driver->cuCtxRecordEvent(device_context(pool->config.device), event);
    lock_take(&pool->lock);
    if (event && (result || !fences_add(&pool->store.pages.fences, event, 0)))
        event_give(pool, event);
    fences_end(&pool->store.pages.fences, FENCE_WHOLE);
    lock_give(&pool->lock);
    return result;
}

/* What of its streams a fence lacks makes it weaker. LOCKING: the turn. */
static CUresult record_mark(cenote_pool *pool, const struct mark *mark, enum fence_kind *kind)
{
    struct fences *f = &pool->store.pages.fences;
    CUevent event;
    CUresult result = event_take(pool, &event);
    if (!result)
        result = touch_record(pool->config.device, mark->stream, event);
    lock_take(&pool->lock);
    bool added = !result && fences_add(f, event, mark->lane);
    if (added && mark->lane)
        lane_asked(pool, mark->lane, f->begun);
    if (event && !added)
        event_give(pool, event);
    lock_give(&pool->lock);
    enum fence_kind weaker = added ? FENCE_OF_ALL : result == CUDA_ERROR_NOT_READY ? FENCE_OF_MOST : FENCE_OF_SOME;
    *kind = *kind < weaker ? weaker : *kind;
    return result;
}

/* One event for each mark that may be touched now. A stream without one is covered by a later fence. An error is sticky. */
static CUresult record_marks(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    CUresult result = CUDA_SUCCESS;
    enum fence_kind kind = atomic_load(&pool->config.device->touch.is_full) ? FENCE_OF_MOST : FENCE_OF_ALL;
    for (uint32_t i = 0; i < pool->lanes.count && !driver_result_is_sticky(result); i++)
        result = record_mark(pool, &pool->lanes.marks[i], &kind);
    lock_take(&pool->lock);
    if (f->parts_of_next || kind == FENCE_OF_SOME)
        fences_end(f, kind);
    else
        fences_pass(f, kind);
    lock_give(&pool->lock);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* Begins a fence over the context. What fences on streams have not covered is owed one, too. */
static bool begin_whole(cenote_pool *pool, tick needed)
{
    struct fences *f = &pool->store.pages.fences;
    lock_take(&pool->lock);
    if (f->stream_done && !f->count && f->begun == f->now && f->whole < f->now)
        needed = fences_stamp_nothing(f);
    bool begun = pool->config.device->driver->cuCtxRecordEvent && f->begun < needed && fences_begin(f);
    lock_give(&pool->lock);
    return begun;
}

/* Begins a fence on streams, if something was freed since the last one or a stream that had no event then may have one now. */
static bool begin_on_streams(cenote_pool *pool, tick needed)
{
    struct fences *f = &pool->store.pages.fences;
    lock_take(&pool->lock);
    bool due = f->begun < needed && f->begun != f->now;
    bool was_short = !f->count && f->done < f->begun && f->done < needed; /* the last fence had no event on some */
    lock_give(&pool->lock);
    bool owed = !due && (was_short || lanes_can_help(pool));
    lock_take(&pool->lock);
    if (owed && f->begun == f->now && !f->recording && f->count < FENCES_DUE_MAX)
        fences_stamp_nothing(f);
    bool begun = (due || owed) && fences_begin(f);
    tick wanted = needed < f->begun ? needed : f->begun;
    f->wanted = f->wanted < wanted ? wanted : f->wanted;
    lock_give(&pool->lock);
    return begun;
}

/* On each stream by itself. */
static CUresult fence_on_streams(cenote_pool *pool, tick needed)
{
    struct fences *f = &pool->store.pages.fences;
    lock_take(&pool->lock);
    if (!f->stream_done)
        f->stream_done = memory_map(ARENAS_MAX * sizeof *f->stream_done);
    bool room = f->stream_done != NULL;
    if (room)
        lanes_mark(pool);
    lock_give(&pool->lock);
    CUresult result = room ? lane_events_record(pool) : CUDA_SUCCESS;
    if (room && !result && begin_on_streams(pool, needed))
        result = record_marks(pool);
    lock_take(&pool->lock);
    lanes_unmark(pool);
    lock_give(&pool->lock);
    return result;
}

/* Records a fence if none yet covers `needed`. A driver that refuses costs nothing: the next fence covers it. LOCKING: the turn. */
CUresult events_fence(cenote_pool *pool, tick needed)
{
    CUresult result = CUDA_SUCCESS;
    if (!touch_captures_are_announced()) {
        result = fence_on_streams(pool, needed);
    } else if (begin_whole(pool, needed)) {
        result = record_whole(pool);
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

static bool oldest_event(cenote_pool *pool, struct due *due)
{
    lock_take(&pool->lock);
    bool found = fences_oldest(&pool->store.pages.fences, due);
    lock_give(&pool->lock);
    return found;
}

/* An event is done, and its stream with what it covers. LOCKING: the pool's lock. */
static void retire_event(cenote_pool *pool, const struct due *due)
{
    CUevent event = fences_step(&pool->store.pages.fences, due);
    if (event && due->lane)
        lane_done(pool, due->lane, due->covers);
    event_give(pool, event);
    lanes_look_at_released(pool);
    lanes_end_known(pool);
}

/* The event was recorded while a capture began and ended: it says nothing, and its stream is owed another. LOCKING: the pool's lock. */
static void skip_event(cenote_pool *pool, const struct due *due)
{
    CUevent event = fences_skip(&pool->store.pages.fences, due);
    if (event && due->lane)
        lane_not_asked(pool, due->lane, due->covers);
    event_give(pool, event);
}

/*
 * As events_poll, but returns the answer of the driver: success, not ready, or a refusal to tell. Of lanes and fences the answer that can be
 * waited for.
 */
CUresult events_query(cenote_pool *pool, tick needed)
{
    struct due due;
    if (pool_is_capturing(pool))
        return CUDA_SUCCESS;
    CUresult result = events_fence(pool, needed), ends = CUDA_SUCCESS;
    if (!driver_result_is_sticky(result) && pool->lanes.first_asking)
        result = ends = lane_events_query(pool);
    while (!driver_result_is_sticky(result) && oldest_event(pool, &due)) {
        result = pool->config.device->driver->cuEventQuery(due.event);
        if (!result && due.is_last)
            result = peer_fences_ask(pool, due.covers);
        if (result && result != CUDA_ERROR_CAPTURED_EVENT)
            break;
        lock_take(&pool->lock);
        if (result)
            skip_event(pool, &due);
        else
            retire_event(pool, &due);
        lock_give(&pool->lock);
    }
    return driver_result_is_sticky(result) || (result && ends != CUDA_ERROR_NOT_READY) ? result : ends;
}

/*
 * Records a fence if none covers what was freed up to `needed` (UINT64_MAX: up to now), and retires those that are done. An error is sticky:
 * the context is lost. LOCKING: the turn.
 */
CUresult events_poll(cenote_pool *pool, tick needed)
{
    CUresult result = events_query(pool, needed);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* The device is done with everything freed up to `covers`: fences that cover no more than that are retired. LOCKING: the pool's lock. */
void events_all_done(cenote_pool *pool, tick covers)
{
    struct due due;
    fences_all_done(&pool->store.pages.fences, covers);
    while (fences_oldest(&pool->store.pages.fences, &due) && due.covers <= covers)
        retire_event(pool, &due);
    lanes_look_at_released(pool);
    lanes_end_known(pool);
}

/*
 * The first pool without the promise to announce captures is about to open, and from now on events are recorded on streams. Streams that have ended
 * are covered by a last fence over the context, which is as harmless now as at any time before. LOCKING: none; not inside.
 */
void events_become_careful(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    struct device *d = pool->config.device;
    if (!device_context(d)) /* it has done nothing */
        return;
    bool inside = device_enter(d) == CUDA_SUCCESS;
    lock_take(&pool->turn);
    if (inside && pool->life.open && !pool->life.lost && !pool_is_capturing(pool) && d->driver->cuCtxRecordEvent) {
        lock_take(&pool->lock);
        if (!f->stream_done)
            f->stream_done = memory_map(ARENAS_MAX * sizeof *f->stream_done);
        fences_stamp_nothing(f);
        bool begun = f->stream_done && fences_begin(f);
        pool->lanes.known_from = f->now;
        lock_give(&pool->lock);
        if (begun)
            record_whole(pool);
    }
    turn_end(pool);
}

/* The pool is closed for calls: what is due is not waited for, and all events go back to the driver. LOCKING: the turn. */
void events_close(cenote_pool *pool)
{
    struct due due;
    lock_take(&pool->lock);
    while (fences_oldest(&pool->store.pages.fences, &due))
        retire_event(pool, &due);
    lane_events_close(pool);
    lock_give(&pool->lock);
    event_close(pool);
}
