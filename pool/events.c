/*
 * events.c: fences where they meet the driver: recorded, and queried without waiting. What fences mean is in fence.c; wait.c waits.
 *
 * A fence is an event on each stream that may be touched (cover.c). If the program has promised to announce its captures, it is one event over
 * the whole context (rule 1), by cuCtxRecordEvent; a driver that lacks that (before CUDA 12.5) has no fences then.
 * While a capture is open on the device nothing is recorded or queried (rule 5): it would end the capture.
 *
 * LOCKING: the turn, for what is recorded and queried; the pool's lock only around its books.
 */
#include "base/check.h"
#include "pool/pool.h"

/* An event without timing: a spare one, or new. NULL if there is none to be had. LOCKING: not the pool's lock; inside device_enter. */
CUevent event_take(cenote_pool *pool)
{
    CUevent event = NULL;
    lock_take(&pool->lock);
    bool make = !pool->events.count && pool->events.made < EVENTS_MAX;
    if (pool->events.count)
        event = pool->events.spare[--pool->events.count];
    pool->events.made += make;
    lock_give(&pool->lock);
    if (!make || pool->config.device->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
        return event;
    lock_take(&pool->lock);
    pool->events.made--;
    lock_give(&pool->lock);
    return NULL;
}

/* Spare again. There is room for as many as event_take ever makes. LOCKING: the pool's lock. */
void event_give(cenote_pool *pool, CUevent event)
{
    if (event) {
        CHECK(pool->events.count < EVENTS_MAX);
        pool->events.spare[pool->events.count++] = event;
    }
}

static void give_back(cenote_pool *pool, CUevent event)
{
    lock_take(&pool->lock);
    event_give(pool, event);
    lock_give(&pool->lock);
}

static CUresult record_whole(cenote_pool *pool, CUevent *last)
{
    *last = event_take(pool);
    CUresult result = *last ? pool->config.device->driver->cuCtxRecordEvent(device_context(pool->config.device), *last) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result && *last)
        give_back(pool, *last);
    *last = result ? NULL : *last;
    return result;
}

/* One event for each mark that may be touched now. *last: that of the last one; NULL: there is none. An error is sticky. */
static CUresult record_on_streams(cenote_pool *pool, CUevent *last)
{
    CUresult result = CUDA_SUCCESS;
    *last = NULL;
    for (uint32_t i = 0; i < pool->cover.count && !driver_result_is_sticky(result); i++) {
        struct mark *mark = &pool->cover.marks[i];
        CUevent event = event_take(pool);
        if (!event)
            break; /* what streams freed that have none is held */
        result = touch_record(pool->config.device, mark->stream, event);
        lock_take(&pool->lock);
        mark->recorded = !result && (!*last || fences_add(&pool->store.pages.fences, *last));
        if (mark->recorded)
            *last = event;
        else
            event_give(pool, event);
        lock_give(&pool->lock);
    }
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* The fence is with the driver, or the next one has to cover what it would have. */
static void end_fence(cenote_pool *pool, CUresult result, CUevent last, bool whole)
{
    struct fences *f = &pool->store.pages.fences;
    lock_take(&pool->lock);
    if (!result && cover_end(pool, f->begun, whole)) {
        if (last)
            fences_end(f, last, whole);
        else
            fences_pass(f);
        cover_advance(pool);
    } else {
        for (; last; last = fences_take_back(f))
            event_give(pool, last);
        fences_end(f, NULL, false);
    }
    lock_give(&pool->lock);
}

/* Records a fence if none yet covers `needed`. A driver that refuses costs nothing: the next fence covers it. LOCKING: the turn. */
CUresult events_fence(cenote_pool *pool, tick needed)
{
    bool whole = touch_captures_are_announced();
    bool owed = pool->cover.first_held && (whole ? !pool->store.pages.fences.count : cover_is_owed(pool));
    CUevent last = NULL;
    lock_take(&pool->lock);
    if (owed)
        needed = fences_stamp(&pool->store.pages.fences);
    bool begun = (!whole || pool->config.device->driver->cuCtxRecordEvent) && pool->store.pages.fences.begun < needed &&
                 fences_begin(&pool->store.pages.fences);
    if (begun && !whole)
        cover_begin(pool);
    lock_give(&pool->lock);
    if (!begun)
        return CUDA_SUCCESS;
    CUresult result = whole ? record_whole(pool, &last) : record_on_streams(pool, &last);
    end_fence(pool, result, last, whole);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

static bool oldest_fence(cenote_pool *pool, struct fence *oldest)
{
    lock_take(&pool->lock);
    bool due = fences_oldest(&pool->store.pages.fences, oldest);
    lock_give(&pool->lock);
    return due;
}

/* An event of the oldest fence is done; with the last one the fence is. LOCKING: the pool's lock. */
static void retire_event(cenote_pool *pool, const struct fence *oldest)
{
    struct fences *f = &pool->store.pages.fences;
    if (oldest->more) {
        event_give(pool, fences_step(f, oldest->covers));
        return;
    }
    event_give(pool, fences_mark_done(f, oldest->covers));
    if (pool->cover.first_held)
        cover_advance(pool);
}

/* As events_poll, but returns the answer of the driver: success, not ready, or a refusal to tell. */
CUresult events_query(cenote_pool *pool, tick needed)
{
    struct fence oldest;
    if (pool_is_capturing(pool))
        return CUDA_SUCCESS;
    CUresult result = events_fence(pool, needed);
    while (!driver_result_is_sticky(result) && oldest_fence(pool, &oldest)) {
        result = pool->config.device->driver->cuEventQuery(oldest.event);
        if (!result && !oldest.more)
            result = peer_fences_ask(pool, oldest.covers);
        if (result)
            break;
        lock_take(&pool->lock);
        retire_event(pool, &oldest);
        lock_give(&pool->lock);
    }
    return result;
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
    struct fence oldest;
    fences_all_done(&pool->store.pages.fences, covers);
    while (fences_oldest(&pool->store.pages.fences, &oldest) && oldest.covers <= covers)
        retire_event(pool, &oldest);
    cover_end(pool, covers, true);
    cover_advance(pool);
}

/* Spare events go back to the driver. LOCKING: the turn; the pool is closed for calls. */
void events_close(cenote_pool *pool)
{
    struct events *e = &pool->events;
    if (atomic_load(&pool->config.device->was_reset))
        e->count = 0; /* they have ended with their context */
    while (e->count)
        pool->config.device->driver->cuEventDestroy(e->spare[--e->count]);
}
