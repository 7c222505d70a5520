/*
 * wait.c: waits, for what the device has to do first. Fences are recorded and queried in events.c.
 *
 * If captures are announced, a fence is an event over the whole context (rule 1). A driver that cannot record one
 * (before CUDA 12.5) has no fences then: there only waiting for the context says that the device is done, which the
 * ladder of shortage.c and a trim do when they must.
 *
 * A wait for fences, lanes or pending blocks names no event. It asks the driver after all that may help, lets other
 * threads have the turn, and asks again (rule 12): so no event of the pool is used outside the turn, and what never
 * comes holds back nothing that does. Only where the pool has no event to ask after, it waits for the whole context, or
 * for the whole of another device, with the gate open: by device_wait, for an event over it or in cuCtxSynchronize.
 *
 * While an announced capture is open on the device no fence is recorded,
 * queried or waited for (rule 5): it would end the capture.
 *
 * LOCKING: the turn, let go of in waits; the pool's lock only around looks.
 */
#include "pool/shortage/wait.h"

#include <sched.h>
#include <time.h>

#include "base/check.h"
#include "pool/life/turn.h"

#define NAPS_SHORT  64          /* chosen: looks that only let other threads run, some 100 us in all */
#define NAP_NS      10000u      /* by so much each nap is longer than the last */
#define NAP_MAX_NS 1000000u
#define TRIES       8           /* chosen: captures of a moment in a row, one in each look */

static struct sight sight_of(cenote_pool *pool)
{
    lock_take(&pool->lock);
    struct sight sight = {pool->clock.fences.moved, pool->account.stats.active.total_out};
    lock_give(&pool->lock);
    return sight;
}

/* Has memory come back, or can more be moved, since `seen`? That is of now afterwards. */
bool wait_came(cenote_pool *pool, struct sight *seen)
{
    struct sight now = sight_of(pool);
    bool came = now.moved != seen->moved || now.inactive != seen->inactive;
    *seen = now;
    return came;
}

/*
 * Until all is done that the device, and those with access, have been given by now: for what was freed, or for `live`
 * blocks, too. *all: that is so, but for streams that must not be touched. Otherwise a capture has begun. LOCKING: the
 * turn, let go of meanwhile.
 */
CUresult wait_for_device(cenote_pool *pool, bool live, bool *all)
{
    lock_take(&pool->lock);
    tick now = pool->clock.fences.now;
    lock_give(&pool->lock);
    bool whole;
    CUresult result = turn_let_go(pool, device_wait, &whole);
    bool granted = !result && pool->clock.grants.devices, waited = true;
    if (granted) {
        turn_leave(pool);
        waited = peer_fences_wait(&pool->clock, live);
        result = turn_resume(pool);
    }
    lock_take(&pool->lock);
    if (!result && waited && whole)
        events_all_done(&pool->clock, now);
    lock_give(&pool->lock);
    *all = !result && waited;
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; /* a capture has begun */
}

/*
 * A moment in which other threads may have the turn and the device, a longer
 * one the longer it takes. The program's own clock knows no sleep.
 */
static void nap(cenote_pool *pool, uint32_t looks)
{
    uint64_t ns = looks < NAPS_SHORT || pool->config.options.clock ? 0 : (looks - NAPS_SHORT + 1) * NAP_NS;
    turn_pause(pool);
    if (ns)
        nanosleep(&(struct timespec){.tv_nsec = (long)(ns < NAP_MAX_NS ? ns : NAP_MAX_NS)}, NULL);
    else
        sched_yield();
    turn_go_on(pool);
}

static uint64_t dropped_events(cenote_pool *pool)
{
    lock_take(&pool->lock);
    uint64_t dropped = pool->clock.events.dropped;
    lock_give(&pool->lock);
    return dropped;
}

/*
 * Asks the driver after all that may have come back, and says what can still be waited for of all that was freed up to
 * `limit`. If an event turns out to say nothing, it looks again, because the next look records another. LOCKING: the
 * turn.
 */
enum awaited wait_look(cenote_pool *pool, tick limit, CUresult *result)
{
    CUresult said = CUDA_SUCCESS;
    bool again = true;
    CHECK(pool->life.open); /* 31: a thread with the turn was told that it has not ended */
    for (int tries = 0; tries < TRIES && again; tries++) {
        uint64_t before = dropped_events(pool);
        said = events_query(&pool->clock, UINT64_MAX);
        *result = driver_result_is_sticky(said) ? said : CUDA_SUCCESS;
        if (*result)
            return AWAIT_NOTHING;
        pending_poll(pool);
        again = dropped_events(pool) != before;
    }
    return clock_awaits(&pool->clock, limit, said);
}

/* Waits for what is awaited, or a moment of it. False: that is not possible. LOCKING: the turn, let go of meanwhile. */
bool wait_for_rest(cenote_pool *pool, enum awaited awaited, uint32_t looks, CUresult *result)
{
    bool waited = awaited != AWAIT_NOTHING, all;
    *result = CUDA_SUCCESS;
    if (awaited == AWAIT_EVENTS)
        nap(pool, looks);
    if (awaited == AWAIT_CONTEXT)
        *result = wait_for_device(pool, false, &all);
    if (awaited == AWAIT_PEER) {
        turn_leave(pool);
        waited = peer_uses_wait(&pool->clock);
        *result = turn_resume(pool);
    }
    return waited && !*result;
}

/* A wait is over that took so many looks. */
void wait_count(cenote_pool *pool, uint32_t looks)
{
    lock_take(&pool->lock);
    pool->account.stats.waits += looks != 0;
    lock_give(&pool->lock);
}

/*
 * Waits until the device is done with more than before, or a pending block has come back: then there is something to
 * look at. It asks again and again and waits for no single event, because any of them may be the one that comes, and
 * another may wait for this very thread. False: of what was freed up to `limit` nothing is left that can be waited for,
 * or it failed. The turn is let go of meanwhile; the caller must plan anew. LOCKING: the turn.
 */
bool wait_for_progress(cenote_pool *pool, tick limit, CUresult *result)
{
    struct sight seen = sight_of(pool);
    for (uint32_t looks = 0;; looks++) {
        enum awaited awaited = wait_look(pool, limit, result);
        if (wait_came(pool, &seen)) {
            wait_count(pool, looks);
            return true;
        }
        if (*result || !wait_for_rest(pool, awaited, looks, result))
            return false;
    }
}

/*
 * Waits until the device is done with all that was freed so far, as far as that can be waited for now. What other
 * threads free meanwhile is not waited for. LOCKING: as wait_for_progress.
 */
CUresult wait_for_all(cenote_pool *pool)
{
    CUresult result = CUDA_SUCCESS;
    uint32_t looks = 0;
    lock_take(&pool->lock);
    tick limit = pool->clock.fences.now;
    lock_give(&pool->lock);
    for (bool more = true; more; looks += more) {
        enum awaited awaited = wait_look(pool, limit, &result);
        more = !result && wait_for_rest(pool, awaited, looks, &result);
    }
    wait_count(pool, looks);
    return result;
}
