/*
 * wait.c: the turn, and fences where they meet the driver: recorded, queried, waited for. What fences mean is in fence.c.
 *
 * A fence covers the whole context (rule 1), so it is recorded by cuCtxRecordEvent. A driver that lacks it (before CUDA 12.5) has no
 * fences: there only waiting for the context says that the device is done, which the ladder of shortage.c and a trim do when they must.
 *
 * While a capture is open on the device nothing is recorded, queried or waited for (rule 5): it would end the capture.
 */
#include "base/check.h"
#include "pool/count.h"

/*
 * The turn: who takes it here is inside the device, and the only thread that changes mappings of this pool. It is let go of, and the device
 * left, around everything that is not ours: functions of the program, and trims of other pools.
 */
int turn_begin(cenote_pool *pool)
{
    CUresult result = device_enter(pool->device);
    lock_take(&pool->turn);
    int error = pool_usable(pool); /* it may have been destroyed while we waited */
    if (!result && !error)
        return CENOTE_OK;
    turn_end(pool);
    if (error || device_context(pool->device))
        return error ? error : pool_driver_error(pool, result, "entering the context");
    return error_set(CENOTE_DRIVER, result, "the context of device %d could not be made: %s", pool->device->ordinal, driver_result_name(result));
}

void turn_end(cenote_pool *pool)
{
    lock_give(&pool->turn);
    device_leave(pool->device);
}

/*
 * After the program's own function has run. What we are in the middle of has to be finished, so a refusal is asked for once more. After an
 * error the turn is there, but no driver call may be made that needs the context.
 */
CUresult turn_resume(cenote_pool *pool)
{
    CUresult result = device_enter(pool->device);
    if (result) {
        device_leave(pool->device);
        result = device_enter(pool->device);
    }
    lock_take(&pool->turn);
    return result;
}

/* An event without timing: a spare one, or new. NULL if there is none to be had. LOCKING: not the pool's lock; inside device_enter. */
CUevent event_take(cenote_pool *pool)
{
    CUevent event = NULL;
    lock_take(&pool->lock);
    bool make = !pool->event_count && pool->events_made < EVENTS_MOST;
    if (pool->event_count)
        event = pool->events[--pool->event_count];
    pool->events_made += make;
    lock_give(&pool->lock);
    if (!make || pool->device->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
        return event;
    lock_take(&pool->lock);
    pool->events_made--;
    lock_give(&pool->lock);
    return NULL;
}

/* Spare again. There is room for as many as event_take ever makes. LOCKING: the pool's lock. */
void event_give(cenote_pool *pool, CUevent event)
{
    if (event) {
        CHECK(pool->event_count < EVENTS_MOST);
        pool->events[pool->event_count++] = event;
    }
}

static bool is_capturing(const cenote_pool *pool)
{
    return atomic_load(&pool->device->captures) != 0;
}

/* Records a fence if none yet covers `needed`. A driver that refuses costs nothing: the next fence covers it. */
static CUresult record_fence(cenote_pool *pool, tick needed)
{
    const struct driver *t = pool->device->driver;
    lock_take(&pool->lock);
    bool begun = t->cuCtxRecordEvent && pool->pages.fences.begun < needed && fences_begin(&pool->pages.fences);
    lock_give(&pool->lock);
    if (!begun)
        return CUDA_SUCCESS;

    CUevent event = event_take(pool);
    CUresult result = event ? t->cuCtxRecordEvent(device_context(pool->device), event) : CUDA_SUCCESS;
    lock_take(&pool->lock);
    fences_end(&pool->pages.fences, result ? NULL : event);
    if (result)
        event_give(pool, event);
    lock_give(&pool->lock);
    return result;
}

static bool oldest_fence(cenote_pool *pool, struct fence *oldest)
{
    lock_take(&pool->lock);
    bool due = fences_oldest(&pool->pages.fences, oldest);
    lock_give(&pool->lock);
    return due;
}

/*
 * Records a fence if none covers what was freed up to `needed` (UINT64_MAX: up to now), and takes note of those that are done. An error is
 * sticky: the context is lost. LOCKING: the turn.
 */
CUresult wait_poll(cenote_pool *pool, tick needed)
{
    struct fence oldest;
    if (is_capturing(pool))
        return CUDA_SUCCESS;
    CUresult result = record_fence(pool, needed);
    while (!driver_result_is_sticky(result) && oldest_fence(pool, &oldest)) {
        result = pool->device->driver->cuEventQuery(oldest.event);
        if (result)
            break;
        lock_take(&pool->lock);
        event_give(pool, fences_mark_done(&pool->pages.fences, oldest.covers));
        lock_give(&pool->lock);
    }
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* What to wait for: the oldest fence, or the one that covers most; where none could be recorded the context (event NULL). False: nothing. */
static bool find_wait(cenote_pool *pool, bool everything, struct fence *fence)
{
    struct fences *f = &pool->pages.fences;
    lock_take(&pool->lock);
    bool due = everything ? fences_newest(f, fence) : fences_oldest(f, fence);
    if (!due) {
        *fence = (struct fence){NULL, f->now};
        due = !fence_is_done(f, f->now);
    }
    lock_give(&pool->lock);
    return due;
}

/* The device is done with everything freed up to `covers`: fences that cover no more than that are retired. LOCKING: the pool's lock. */
void wait_is_over(cenote_pool *pool, tick covers)
{
    struct fence oldest;
    fences_all_done(&pool->pages.fences, covers);
    while (fences_oldest(&pool->pages.fences, &oldest) && oldest.covers <= covers)
        event_give(pool, fences_mark_done(&pool->pages.fences, oldest.covers));
}

/*
 * Waits on the host, for the oldest fence due or for all that was put on the device so far. False: there was nothing to wait for, it is
 * not allowed now, or it failed. The turn is let go of meanwhile; whoever planned must look again. LOCKING: the turn, after wait_poll.
 */
bool wait_for_device(cenote_pool *pool, bool everything, CUresult *result)
{
    struct fence fence;
    *result = CUDA_SUCCESS;
    if (is_capturing(pool) || !find_wait(pool, everything, &fence))
        return false;

    lock_give(&pool->turn);
    if (fence.event) {
        device_wait_begin(pool->device);
        *result = pool->device->driver->cuEventSynchronize(fence.event);
        device_wait_end(pool->device);
    } else {
        *result = device_wait(pool->device);
    }
    lock_take(&pool->turn);
    bool waited = *result == CUDA_SUCCESS;
    if (*result == CUDA_ERROR_NOT_READY) /* a capture has begun */
        *result = CUDA_SUCCESS;
    if (!waited)
        return false;
    lock_take(&pool->lock);
    pool->stats.waits++;
    wait_is_over(pool, fence.covers);
    lock_give(&pool->lock);
    return true;
}
