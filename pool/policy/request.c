/*
 * request.c: trims that the program asks for, and those that come with its steps.
 *
 * LOCKING: the caller holds none.
 */
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/mapping/trim.h"
#include "pool/pool.h"
#include "pool/shortage/wait.h"
#include "stats/account/record.h"
#include "stats/account/steps.h"

#define WITH_STEPS (1u << 31)     /* beside the flags of cenote_pool_trim: the program did not ask for just this trim */

/* What the device is done with by now, or with the flag after a wait for all of it. LOCKING: the turn. */
static CUresult look(cenote_pool *pool, unsigned flags)
{
    CUresult result = events_poll(&pool->clock, UINT64_MAX);
    if (!result && flags & CENOTE_TRIM_WAIT)
        result = wait_for_all(pool);
    if (!result)
        pending_poll(pool);
    return result;
}

/* LOCKING: the turn. */
static CUresult trim_now(cenote_pool *pool, uint64_t keep, tick latest, unsigned flags)
{
    CUresult result = look(pool, flags);
    if (result)
        return result;
    uint64_t before = pool_now(pool), released = pool->account.stats.pages_released; /* changes with the turn alone */
    trim_once(pool, keep, latest);
    if (flags & (CENOTE_TRIM_PERIODIC | CENOTE_TRIM_DEFERRED | WITH_STEPS))
        churn_given(pool, released, pool_now(pool) - before);
    return CUDA_SUCCESS;
}

/* What stays because a periodic trim has its budget. LOCKING: the turn. */
static uint64_t periodic_keep_bytes(const cenote_pool *pool)
{
    uint64_t allowance = churn_allowance(pool), reserved = pool->store.pages.reserved;
    return reserved > allowance ? reserved - allowance : 0;
}

static int trim(cenote_pool *pool, uint64_t keep, tick latest, unsigned flags)
{
    if (pool->life.lost)
        return pool_driver_error(pool, pool->life.lost, "an earlier call");
    if (!device_context(pool->config.device))
        return CENOTE_OK; /* no thread has been there: there is nothing to give back */
    int error = turn_begin(pool);
    if (error)
        return error;
    if (flags & WITH_STEPS)
        keep = periodic_keep_bytes(pool);
    if (flags & CENOTE_TRIM_PERIODIC) {
        tick idle = churn_trim_came(pool);
        if (churn_forbids(pool)) {
            latest = idle;
            flags &= ~CENOTE_TRIM_WAIT; /* what goes has been free for steps */
        }
    } else if (flags & CENOTE_TRIM_DEFERRED) {
        latest = atomic_exchange(&pool->policy.churn.deferred, 0);
    } else if (latest == UINT64_MAX && flags & CENOTE_TRIM_WAIT && !keep) {
        atomic_store(&pool->policy.churn.deferred, 0); /* all of it goes */
    }
    CUresult result = trim_now(pool, keep, latest, flags);
    if (!result)
        decay_go(pool, DECAY_BATCH);
    turn_end(pool);
    return result ? pool_driver_error(pool, result, "waiting for the device") : CENOTE_OK;
}

int cenote_pool_trim(cenote_pool *pool, uint64_t keep_bytes, unsigned flags)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if (flags & ~(CENOTE_TRIM_WAIT | CENOTE_TRIM_PERIODIC | CENOTE_TRIM_DEFERRED) ||
        (flags & CENOTE_TRIM_PERIODIC && flags & CENOTE_TRIM_DEFERRED))
        return error_set(
            CENOTE_INVALID, 0,
            "flags %#x: CENOTE_TRIM_WAIT with one of CENOTE_TRIM_PERIODIC and CENOTE_TRIM_DEFERRED are known", flags);
    if (flags & CENOTE_TRIM_DEFERRED && (!atomic_load(&pool->policy.churn.deferred) || pool_is_capturing(pool)))
        return CENOTE_OK;
    if (flags & CENOTE_TRIM_WAIT)
        share_sweep(); /* what other processes shared and this one does not need any more */
    return trim(pool, keep_bytes, UINT64_MAX, flags);
}

static int group_is_gone(const cenote_group *group)
{
    return error_set(CENOTE_INVALID, 0, "group \"%s\" was destroyed: no call may name it any more", group->name);
}

int cenote_group_trim(cenote_group *group, unsigned flags)
{
    if (!group)
        return error_set(CENOTE_INVALID, 0, "the group is NULL: cenote_group_create gives one");
    cenote_pool *pool = group->pool;
    int error = pool_usable(pool);
    if (error)
        return error;
    if (group->destroyed)
        return group_is_gone(group);
    if (flags & ~CENOTE_TRIM_WAIT)
        return error_set(CENOTE_INVALID, 0, "flags %#x: of one group only CENOTE_TRIM_WAIT is known", flags);
    if (pool->life.lost)
        return pool_driver_error(pool, pool->life.lost, "an earlier call");
    if (!device_context(pool->config.device) || (error = turn_begin(pool)))
        return error;
    CUresult result = CUDA_SUCCESS;
    bool is_gone = group->destroyed;
    if (!is_gone && !(result = look(pool, flags)))
        trim_group(pool, group);
    turn_end(pool);
    if (is_gone)
        return group_is_gone(group);
    return result ? pool_driver_error(pool, result, "waiting for the device") : CENOTE_OK;
}

/*
 * Every `trim_every` steps: what was last used before the previous
 * of these trims goes. What the next step needs again stays.
 */
int cenote_pool_step(cenote_pool *pool)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    uint64_t now = pool_now(pool); /* the clock may be the program's: not under the lock */
    if ((error = pool_take_lock(pool)))
        return error;
    steps_note(pool, now);
    record_step(pool);
    bool due = pool->config.options.trim_every && pool->steps.count % pool->config.options.trim_every == 0;
    tick latest = pool->policy.last_trim;
    if (due)
        pool->policy.last_trim = pool->clock.fences.now;
    lock_give(&pool->lock);
    if (atomic_load(&pool->board.wished))
        pool->config.hooks->wished(pool);
    if (due)
        return trim(pool, 0, latest, WITH_STEPS);
    decay_tend(pool, DECAY_BATCH);
    return CENOTE_OK;
}
