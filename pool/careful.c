/*
 * careful.c: the first pool that does not promise to announce captures is about to open, and what the others do before.
 *
 *     all promise: fences are events over whole contexts ---> one does not: events on streams, of which some have ended
 *
 * Not what a fence is then: clock/. That it is over again is said where such a pool ends (touch_be_careful).
 *
 * LOCKING: `careful_lock`, so that one thread at a time does it; the turn of each pool, one after the other.
 */
#include "pool/careful.h"

#include "pool/life/pools.h"
#include "pool/life/turn.h"

LOCK_OF_PROCESS static struct lock careful_lock = LOCK_INITIALIZER(LOCK_CAREFUL);

/*
 * Threads that asked before whether captures are announced are done
 * with what they do on that. LOCKING: `careful_lock`; not inside.
 */
static void let_calls_end(void)
{
    for (int number = 0; number < DEVICES_MAX + CONTEXTS_MAX; number++) {
        lock_take(&pools_lock);
        struct device *device = device_open_again(number);
        lock_give(&pools_lock);
        if (!device)
            continue;
        device_let_calls_end(device);
        pool_close_device(device);
    }
}

/* Where the driver has no event over a context the context is waited for. LOCKING: the turn, let go of meanwhile. */
static CUresult wait_at_last(cenote_pool *pool)
{
    bool whole;
    lock_take(&pool->lock);
    tick covers = fences_stamp_nothing(&pool->clock.fences);
    lock_give(&pool->lock);
    CUresult result = turn_let_go(pool, device_wait_at_last, &whole);
    if (!result)
        events_waited_at_last(&pool->clock, covers);
    return result;
}

static CUresult become_careful_in(cenote_pool *pool)
{
    bool waits = !pool->config.device->driver->cuCtxRecordEvent && !pool_is_capturing(pool);
    CUresult result = waits ? wait_at_last(pool) : CUDA_SUCCESS;
    return result ? result : events_become_careful(&pool->clock);
}

/* Streams of that pool may have ended. LOCKING: `careful_lock`; not inside. */
static int cover_what_ended(cenote_pool *pool)
{
    struct device *d = pool->config.device;
    if (!device_context(d)) /* it has done nothing */
        return CENOTE_OK;
    CUresult result = device_enter(d, pool->config.generation);
    lock_take(&pool->turn);
    bool works = pool->life.open && !pool->life.lost && !device_is_lost(d, pool->config.generation, result),
         entered = !result;
    if (works && entered)
        result = become_careful_in(pool);
    works = works && !device_is_lost(d, pool->config.generation, result);
    turn_end(pool);
    if (!result || !works)
        return CENOTE_OK;
    if (!entered)
        return error_set(CENOTE_DRIVER, result, "entering the context of device %d", d->ordinal);
    if (result == CUDA_ERROR_NOT_READY)
        return error_set(CENOTE_BUSY, 0,
                         "a capture is open on device %d, or on one that works with its memory, and streams of another "
                         "pool may have ended: the first pool with announced:0 opens before the capture or after it",
                         d->ordinal);
    return error_set(CENOTE_DRIVER, result,
                     "no event on device %d for streams of another pool that may have ended: try again", d->ordinal);
}

/*
 * A pool without the promise to announce captures is about to open. What the other pools have to do before is done when
 * any such pool is open. An error: it cannot be done now. LOCKING: none; not inside.
 */
int careful_begin(void)
{
    int error = CENOTE_OK;
    lock_take(&careful_lock);
    bool begins = touch_captures_are_announced();
    touch_be_careful(true);
    if (begins)
        let_calls_end();
    for (cenote_pool *pool = NULL; begins && (pool = pool_next_on_device(NULL, pool));)
        error = error ? error : cover_what_ended(pool);
    if (error)
        touch_be_careful(false);
    lock_give(&careful_lock);
    return error;
}
