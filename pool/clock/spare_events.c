/*
 * spare_events.c: the pool's own events: made when none is spare, and kept until the pool goes.
 *
 * LOCKING: the pool's lock around the books; a driver call without it.
 */
#include "pool/clock/spare_events.h"

#include "base/check.h"
#include "pool/pool.h"

/*
 * An event without timing: a spare one, or new. CUDA_ERROR_OUT_OF_MEMORY: there is none to be had, and *event is NULL; any other error is sticky: the
 * context is lost. A thread that did not get into the device's context makes none: it would be of another context, and every later record of it would
 * fail. LOCKING: inside, without the pool's lock.
 */
CUresult event_take(cenote_pool *pool, CUevent *event)
{
    *event = NULL;
    lock_take(&pool->lock);
    bool make = !pool->events.count && pool->events.made < EVENTS_MAX;
    if (pool->events.count)
        *event = pool->events.spare[--pool->events.count];
    pool->events.made += make;
    lock_give(&pool->lock);
    CUresult result = make ? device_entered() : CUDA_SUCCESS;
    if (make && !result)
        result = pool->config.device->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    if (!result)
        return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    *event = NULL;
    lock_take(&pool->lock);
    pool->events.made--;
    lock_give(&pool->lock);
    return driver_result_is_sticky(result) ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Spare again. There is room for as many as event_take ever makes. LOCKING: the pool's lock. */
void event_give(cenote_pool *pool, CUevent event)
{
    if (event) {
        CHECK(pool->events.count < EVENTS_MAX);
        pool->events.spare[pool->events.count++] = event;
    }
}

/* The driver knows nothing of it, because it was recorded while a capture began and ended: the next look records another. LOCKING: as event_give. */
void event_drop(cenote_pool *pool, CUevent event)
{
    event_give(pool, event);
    pool->events.dropped++;
}

/* LOCKING: the turn; the pool is closed for calls. */
void event_close(cenote_pool *pool)
{
    struct events *e = &pool->events;
    if (pool_is_over(pool))
        e->count = 0; /* they have ended with their context */
    while (e->count)
        pool->config.device->driver->cuEventDestroy(e->spare[--e->count]);
}

/* An event of another device, which is not kept. A refusal is asked for once more: the event would be lost. LOCKING: none of the pool's. */
void event_end_on(struct device *other, CUevent event)
{
    if (other->driver->cuEventDestroy(event))
        other->driver->cuEventDestroy(event);
}
