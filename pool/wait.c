/*
 * wait.c: the turn, and fences where they meet the driver: recorded, queried, waited for. What fences mean is in fence.c.
 *
 * A fence covers the whole context (rule 1), so it is recorded by cuCtxRecordEvent. A driver that lacks it (before CUDA 12.5) has no
 * fences: there only waiting for the context says that the device is done, which the ladder of shortage.c and a trim do when they must.
 *
 * A wait names no event. It asks the driver after all that may help, lets other threads have the turn, and asks again (rule 16): so no
 * event is used outside the turn, and what never comes holds back nothing that does.
 *
 * While a capture is open on the device nothing is recorded, queried or waited for (rule 5): it would end the capture.
 */
#include <sched.h>
#include <time.h>

#include "base/check.h"
#include "pool/count.h"

#define NAPS_SHORT  64          /* chosen: looks that only let other threads run, some 100 us in all */
#define NAP_NS      10000u      /* by so much each nap is longer than the last */
#define NAP_MOST_NS 1000000u

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

/* As wait_poll, but says what the driver said: success, not ready, or that it refuses to tell. */
static CUresult poll_fences(cenote_pool *pool, tick needed)
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
    return result;
}

/*
 * Records a fence if none covers what was freed up to `needed` (UINT64_MAX: up to now), and takes note of those that are done. An error is
 * sticky: the context is lost. LOCKING: the turn.
 */
CUresult wait_poll(cenote_pool *pool, tick needed)
{
    CUresult result = poll_fences(pool, needed);
    return driver_result_is_sticky(result) ? result : CUDA_SUCCESS;
}

/* The device is done with everything freed up to `covers`: fences that cover no more than that are retired. LOCKING: the pool's lock. */
void wait_is_over(cenote_pool *pool, tick covers)
{
    struct fence oldest;
    fences_all_done(&pool->pages.fences, covers);
    while (fences_oldest(&pool->pages.fences, &oldest) && oldest.covers <= covers)
        event_give(pool, fences_mark_done(&pool->pages.fences, oldest.covers));
}

static struct sight sight_of(cenote_pool *pool)
{
    lock_take(&pool->lock);
    struct sight sight = {pool->pages.fences.done, pool->stats.active.total_out};
    lock_give(&pool->lock);
    return sight;
}

/* Has memory come back, or can more be moved, since `seen`? That is of now afterwards. */
bool wait_came(cenote_pool *pool, struct sight *seen)
{
    struct sight now = sight_of(pool);
    bool came = now.done != seen->done || now.inactive != seen->inactive;
    *seen = now;
    return came;
}

/* What can still be waited for of all that was freed up to `limit`. `said`: what poll_fences did. LOCKING: the turn. */
static enum left what_is_left(cenote_pool *pool, tick limit, CUresult said)
{
    if (is_capturing(pool))
        return LEFT_NOTHING;
    lock_take(&pool->lock);
    limit = limit < pool->pages.fences.now ? limit : pool->pages.fences.now;
    bool in_flight = !fence_is_done(&pool->pages.fences, limit);
    bool told = pool->pages.fences.count && (!said || said == CUDA_ERROR_NOT_READY);
    enum pending_wait pending = pool->polling ? PENDING_EVENT : pending_waits_for(pool, limit);
    lock_give(&pool->lock);
    if (in_flight && !told && pending != PENDING_EVENT) /* the context has not done before that event what it does after it */
        return LEFT_CONTEXT;
    return in_flight || pending >= PENDING_EVENT_ELSEWHERE ? LEFT_EVENTS : pending == PENDING_DEVICE ? LEFT_ELSEWHERE : LEFT_NOTHING;
}

/* Where the driver has no fences to give. LOCKING: the turn, let go of meanwhile. */
static CUresult wait_for_context(cenote_pool *pool)
{
    lock_take(&pool->lock);
    tick now = pool->pages.fences.now;
    lock_give(&pool->lock);
    lock_give(&pool->turn);
    CUresult result = device_wait(pool->device);
    lock_take(&pool->turn);
    lock_take(&pool->lock);
    if (!result)
        wait_is_over(pool, now);
    lock_give(&pool->lock);
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; /* a capture has begun */
}

/* For a moment other threads may have the turn, and the gate is open. The context and the thread's mode stay. */
void turn_pause(cenote_pool *pool)
{
    lock_give(&pool->turn);
    device_wait_begin(pool->device);
}

/* The turn of the pool, by a thread that paused with this one or another of the same device. */
void turn_go_on(cenote_pool *pool)
{
    device_wait_end(pool->device);
    lock_take(&pool->turn);
}

/* A moment in which other threads may have the turn and the device, a longer one the longer it takes. The program's own clock knows no sleep. */
static void nap(cenote_pool *pool, uint32_t looks)
{
    uint64_t ns = looks < NAPS_SHORT || pool->options.clock ? 0 : (looks - NAPS_SHORT + 1) * NAP_NS;
    turn_pause(pool);
    if (ns)
        nanosleep(&(struct timespec){.tv_nsec = (long)(ns < NAP_MOST_NS ? ns : NAP_MOST_NS)}, NULL);
    else
        sched_yield();
    turn_go_on(pool);
}

/*
 * Asks the driver after all that may have come back, and says what can still be waited for of all that was freed up to `limit`. LOCKING: the
 * turn.
 */
enum left wait_look(cenote_pool *pool, tick limit, CUresult *result)
{
    CUresult said = poll_fences(pool, UINT64_MAX);
    *result = driver_result_is_sticky(said) ? said : CUDA_SUCCESS;
    if (*result)
        return LEFT_NOTHING;
    pending_poll(pool);
    return what_is_left(pool, limit, said);
}

/* Waits for what is left, or a moment of it. False: that is not possible. LOCKING: the turn, let go of meanwhile. */
bool wait_for_left(cenote_pool *pool, enum left left, uint32_t looks, CUresult *result)
{
    bool waited = left != LEFT_NOTHING;
    *result = CUDA_SUCCESS;
    if (left == LEFT_EVENTS)
        nap(pool, looks);
    if (left == LEFT_CONTEXT)
        *result = wait_for_context(pool);
    if (left == LEFT_ELSEWHERE) {
        turn_end(pool);
        waited = elsewhere_wait(pool);
        *result = turn_resume(pool);
    }
    return waited && !*result;
}

/* A wait is over that took so many looks. */
void wait_count(cenote_pool *pool, uint32_t looks)
{
    lock_take(&pool->lock);
    pool->stats.waits += looks != 0;
    lock_give(&pool->lock);
}

/*
 * Waits until the device is done with more than before, or a pending block has come back: then there is something to look at. It asks
 * again and again and waits for no single event, because any of them may be the one that comes, and another may wait for this very thread.
 * False: of what was freed up to `limit` nothing is left that can be waited for, or it failed. The turn is let go of meanwhile; the
 * caller must plan anew. LOCKING: the turn.
 */
bool wait_for_progress(cenote_pool *pool, tick limit, CUresult *result)
{
    struct sight seen = sight_of(pool);
    for (uint32_t looks = 0;; looks++) {
        enum left left = wait_look(pool, limit, result);
        if (wait_came(pool, &seen)) {
            wait_count(pool, looks);
            return true;
        }
        if (*result || !wait_for_left(pool, left, looks, result))
            return false;
    }
}

/* Waits until the device is done with all that was freed so far, as far as that can be waited for now. LOCKING: as wait_for_progress. */
CUresult wait_for_all(cenote_pool *pool)
{
    CUresult result = CUDA_SUCCESS;
    lock_take(&pool->lock);
    tick limit = pool->pages.fences.now;
    lock_give(&pool->lock);
    while (wait_for_progress(pool, limit, &result)) {}
    return result;
}
