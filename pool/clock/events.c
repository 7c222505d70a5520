/*
 * events.c: fences where they meet the driver: recorded, and queried without waiting. What fences mean is in fence.c; wait.c waits.
 *
 * If the program has promised to announce its captures, a fence is one event over the whole context (rule 1), by cuCtxRecordEvent; a driver that
 * lacks that (before CUDA 12.5) has no fences then. Otherwise it is an event on the default stream and on each stream that lives as long as the
 * program (lanes_mark), but on no more than TOUCH_STREAMS_MAX of those; any other stream has events of its lane, which are part of no fence.
 * While an announced capture is open on the device no fence is recorded or queried (rule 5): it would end the capture.
 *
 * LOCKING: the turn, for what is recorded and queried; the pool's lock only around its books.
 */
#include "pool/clock/events.h"

#include "base/check.h"
#include "pool/clock/lane_events.h"
#include "pool/clock/peer_fences.h"
#include "pool/clock/peer_uses.h"
#include "pool/life/turn.h"

/* CUDA_ERROR_OUT_OF_MEMORY: there is no event to be had, or no room for one. LOCKING: the turn. */
static CUresult record_whole(cenote_pool *pool)
{
    CUevent event;
    CUresult result = event_take(pool, &event);
    if (!result)
        result = pool->config.device->driver->cuCtxRecordEvent(device_context(pool->config.device), event);
    lock_take(&pool->lock);
    if (!result && !fences_add(&pool->store.pages.fences, event, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
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
    lock_take(&pool->lock);
    uint32_t room = FENCE_PARTS_MAX - f->part_count;
    lock_give(&pool->lock);
    if (room < pool->lanes.count)
        kind = FENCE_OF_SOME;
    for (uint32_t i = 0; i < pool->lanes.count && i < room && !driver_result_is_sticky(result); i++)
        result = record_mark(pool, &pool->lanes.marks[i], &kind);
    lock_take(&pool->lock);
    fences_end(f, kind);
    lock_give(&pool->lock);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* Begins a fence over the context. What fences on streams have not covered is owed one, too. */
static bool begin_whole(cenote_pool *pool, tick needed)
{
    struct fences *f = &pool->store.pages.fences;
    lock_take(&pool->lock);
    if (!f->count && f->begun == f->now && f->whole < f->now)
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
    bool room = f->part_count < FENCE_PARTS_MAX && f->count < FENCES_DUE_MAX;
    bool due = room && f->begun < needed && f->begun != f->now;
    bool was_short = !f->count && f->done < f->begun && f->done < needed; /* the last fence had no event on some */
    lock_give(&pool->lock);
    bool owed = room && !due && (was_short || lanes_can_help(pool));
    lock_take(&pool->lock);
    CHECK(!f->recording); /* that has the turn */
    if (owed && f->begun == f->now)
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
    lock_take(&pool->lock);
    lanes_mark(pool);
    lock_give(&pool->lock);
    CUresult result = lane_events_record(pool);
    if (!result && begin_on_streams(pool, needed))
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

/* An event is done, and its stream with what it covers. LOCKING: the turn, and the pool's lock. */
static void retire_event(cenote_pool *pool, const struct due *due)
{
    CUevent event = fences_step(&pool->store.pages.fences, due);
    CHECK(event); /* no other thread has the turn */
    if (due->lane)
        lane_done(pool, due->lane, due->covers);
    event_give(pool, event);
    lanes_end_known(pool);
}

/* The event was recorded while a capture began and ended: it says nothing, and its stream is owed another. LOCKING: the turn, too. */
static void skip_event(cenote_pool *pool, const struct due *due)
{
    CUevent event = fences_skip(&pool->store.pages.fences, due);
    CHECK(event); /* no other thread has the turn */
    if (due->lane)
        lane_not_asked(pool, due->lane, due->covers);
    event_drop(pool, event);
}

/* Retires the fences that are done. The driver's answer about the first that is not; if none is due, `result`. LOCKING: the turn. */
static CUresult retire_fences(cenote_pool *pool, CUresult result)
{
    struct due due;
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
    return result;
}

/* Has a lane an event of its own that is due? A thread that retires a stream adds one without the turn. */
static bool a_lane_asks(cenote_pool *pool)
{
    lock_take(&pool->lock);
    bool asks = pool->lanes.first_asking != 0;
    lock_give(&pool->lock);
    return asks;
}

/*
 * As events_poll, but returns the answer of the driver: success, not ready, or a refusal to tell. Of lanes and fences the answer that can be
 * waited for.
 */
CUresult events_query(cenote_pool *pool, tick needed)
{
    if (pool_is_capturing(pool))
        return CUDA_SUCCESS;
    CUresult result = events_fence(pool, needed), ends = CUDA_SUCCESS;
    if (!driver_result_is_sticky(result) && a_lane_asks(pool))
        result = ends = lane_events_query(pool);
    result = retire_fences(pool, result);
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

/* Does memory of private groups wait for a thread's own default stream? LOCKING: none. */
static bool replays_are_awaited(cenote_pool *pool)
{
    lock_take(&pool->lock);
    bool awaited = pool->store.pages.fences.replaying != 0;
    lock_give(&pool->lock);
    return awaited;
}

/*
 * This thread may have replayed graphs on its own default stream, which no other thread can name. The stream has an event from now on, also while an
 * announced capture is open, because that event harms no capture (driver/touch.c). So no later call of the thread is needed. The one exception is a
 * capture of that very stream: its end is such a call. LOCKING: none; not inside.
 */
void events_cover_replays(cenote_pool *pool)
{
    if (touch_captures_are_announced() || !replays_are_awaited(pool) || turn_begin(pool))
        return;
    CUresult result = lane_events_record(pool);
    if (!result)
        events_poll(pool, UINT64_MAX);
    turn_end(pool);
}

/* The device is done with everything freed up to `covers`: fences that cover no more than that are retired. LOCKING: the turn, too. */
void events_all_done(cenote_pool *pool, tick covers)
{
    struct due due;
    fences_all_done(&pool->store.pages.fences, covers);
    while (fences_oldest(&pool->store.pages.fences, &due) && due.covers <= covers)
        retire_event(pool, &due);
    lanes_end_known(pool);
}

/*
 * Records a fence over the context that covers all that was freed so far. Fences that are done make room for it. If still as many are due as there
 * can be, the newest is given up, because this one covers what it would have. CUDA_ERROR_OUT_OF_MEMORY: there is no room, or no memory, for it.
 * LOCKING: the turn.
 */
static CUresult record_last(cenote_pool *pool)
{
    struct fences *f = &pool->store.pages.fences;
    CUresult result = retire_fences(pool, CUDA_SUCCESS);
    if (driver_result_is_sticky(result))
        return result;
    lock_take(&pool->lock);
    if (f->count == FENCES_DUE_MAX)
        event_give(pool, fences_give_up_newest(f));
    tick covers = fences_stamp_nothing(f);
    bool begun = fences_begin(f);
    lock_give(&pool->lock);
    result = begun ? record_whole(pool) : CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&pool->lock);
    if (!result)
        pool->lanes.known_from = covers;
    lock_give(&pool->lock);
    return result;
}

/* The same where the driver has no such event: the context is waited for. LOCKING: the turn, let go of meanwhile. */
static CUresult wait_at_last(cenote_pool *pool)
{
    bool whole;
    lock_take(&pool->lock);
    tick covers = fences_stamp_nothing(&pool->store.pages.fences);
    lock_give(&pool->lock);
    CUresult result = turn_let_go(pool, device_wait_at_last, &whole);
    lock_take(&pool->lock);
    if (!result) {
        pool->lanes.known_from = covers;
        events_all_done(pool, covers);
    }
    lock_give(&pool->lock);
    return result;
}

/* LOCKING: the turn. */
static int cover_what_ended(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    CUresult result = pool_is_capturing(pool) ? CUDA_ERROR_NOT_READY : d->driver->cuCtxRecordEvent ? record_last(pool) : wait_at_last(pool);
    if (!result)
        result = peer_uses_become_careful(pool);
    if (!result || device_is_lost(d, pool->config.generation, result))
        return CENOTE_OK;
    if (result == CUDA_ERROR_NOT_READY)
        return error_set(CENOTE_BUSY, 0, "a capture is open on device %d, or on one that works with its memory, and streams of another pool may have "
                         "ended: the first pool with announced:0 opens before the capture or after it", d->ordinal);
    return error_set(CENOTE_DRIVER, result, "no event on device %d for streams of another pool that may have ended: try again", d->ordinal);
}

/*
 * The first pool without the promise to announce captures is about to open, and from now on events are recorded on streams. Streams that have ended
 * are covered by a last fence over the context, which is as harmless now as at any time before. An error: that cannot be had now, and the pool must
 * not open, for later it could end captures. LOCKING: `careful_lock`; not inside.
 */
int events_become_careful(cenote_pool *pool)
{
    int error = CENOTE_OK;
    struct device *d = pool->config.device;
    if (!device_context(d)) /* it has done nothing */
        return CENOTE_OK;
    CUresult result = device_enter(d, pool->config.generation);
    lock_take(&pool->turn);
    bool works = pool->life.open && !pool->life.lost && !device_is_lost(d, pool->config.generation, result);
    if (works && !result)
        error = cover_what_ended(pool);
    else if (works)
        error = error_set(CENOTE_DRIVER, result, "entering the context of device %d", d->ordinal);
    turn_end(pool);
    return error;
}

/* The pool is closed for calls: what is due is not waited for, and all events go back to the driver. LOCKING: the turn. */
void events_close(cenote_pool *pool)
{
    struct due due;
    lock_take(&pool->lock);
    while (fences_oldest(&pool->store.pages.fences, &due))
        retire_event(pool, &due);
    lock_give(&pool->lock);
    lane_events_close(pool);
    event_close(pool);
}
