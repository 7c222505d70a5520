/*
 * events.c: fences where they meet the driver: recorded, and queried without waiting. What fences mean is in fence.c; wait.c waits.
 *
 * A fence covers the whole context (rule 1), so it is recorded by cuCtxRecordEvent. A driver that lacks it (before CUDA 12.5) has none.
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

/* Records a fence if none yet covers `needed`. A driver that refuses costs nothing: the next fence covers it. */
static CUresult record_fence(cenote_pool *pool, tick needed)
{
    const struct driver *t = pool->config.device->driver;
    lock_take(&pool->lock);
    bool begun = t->cuCtxRecordEvent && pool->store.pages.fences.begun < needed && fences_begin(&pool->store.pages.fences);
    lock_give(&pool->lock);
    if (!begun)
        return CUDA_SUCCESS;

    CUevent event = event_take(pool);
    CUresult result = event ? t->cuCtxRecordEvent(device_context(pool->config.device), event) : CUDA_SUCCESS;
    lock_take(&pool->lock);
    fences_end(&pool->store.pages.fences, result ? NULL : event);
    if (result)
        event_give(pool, event);
    lock_give(&pool->lock);
    return result;
}

static bool oldest_fence(cenote_pool *pool, struct fence *oldest)
{
    lock_take(&pool->lock);
    bool due = fences_oldest(&pool->store.pages.fences, oldest);
    lock_give(&pool->lock);
    return due;
}

/* As events_poll, but returns the answer of the driver: success, not ready, or a refusal to tell. */
CUresult events_query(cenote_pool *pool, tick needed)
{
    struct fence oldest;
    if (pool_is_capturing(pool))
        return CUDA_SUCCESS;
    CUresult result = record_fence(pool, needed);
    while (!driver_result_is_sticky(result) && oldest_fence(pool, &oldest)) {
        result = pool->config.device->driver->cuEventQuery(oldest.event);
        if (result)
            break;
        lock_take(&pool->lock);
        event_give(pool, fences_mark_done(&pool->store.pages.fences, oldest.covers));
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
        event_give(pool, fences_mark_done(&pool->store.pages.fences, oldest.covers));
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
