/*
 * decay.c: pages that nothing has lived on for decay_ms go back to the driver, a few at a time.
 *
 * A pool's pages know ticks, not times. So the time is cut into epochs, DECAY_EPOCHS to a decay_ms, and at the first
 * look in each the current tick is kept. What was freed before an epoch has been free for decay_ms when the epoch is
 * that old; trim.c takes it from there, as at any other trim.
 *
 *          epoch     epoch     epoch     epoch  ...   epoch     now
 *     -------|---------|---------|---------|-----------|---------|---->
 *      ripe  <------------------ decay_ms -------------------->
 *
 * Each of these looks: a step, a trim, an allocation that has called the driver anyway, the background thread. None of
 * them waits, for the device or for the turn, and each gives back so much at most, and looks again soon if there is
 * more. Nothing happens during a capture. What functions of the program would have to take back (cenote_source) stays
 * until a trim that is asked for.
 *
 * LOCKING: the turn, unless a function says otherwise.
 */
#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/mapping/trim.h"
#include "pool/pool.h"

static uint64_t period(const cenote_pool *pool)
{
    return (uint64_t)pool->config.options.decay_ms * 1000000;
}

/* In ns: how long after a look there is something new to see. */
uint64_t decay_epoch(const cenote_pool *pool)
{
    uint64_t epoch = period(pool) / DECAY_EPOCHS, least = 1000000;
    return epoch > least ? epoch : least;
}

/* Begins an epoch if one is due, and finds which has ripened. LOCKING: the turn. */
static bool begin_epoch(cenote_pool *pool, uint64_t now)
{
    struct decay *d = &pool->policy.decay;
    bool begins = now - d->epochs[d->newest].ns >= decay_epoch(pool);
    if (begins) {
        d->newest = (d->newest + 1) % (DECAY_EPOCHS + 1);
        d->epochs[d->newest].ns = now;
        lock_take(&pool->lock);
        d->epochs[d->newest].freed = pool->clock.fences.now;
        lock_give(&pool->lock);
    }
    for (int i = 0; i <= DECAY_EPOCHS; i++)
        if (d->epochs[i].ns + period(pool) <= now && d->ripe < d->epochs[i].freed)
            d->ripe = d->epochs[i].freed;
    return begins;
}

/* Up to so many bytes of what is ripe and complete go. How many did. LOCKING: the turn, after events_poll. */
static uint64_t give_ripe(cenote_pool *pool, uint64_t bytes)
{
    uint64_t reserved = pool->store.pages.reserved, released = pool->account.stats.pages_released,
             before = pool_now(pool);
    uint64_t gone = trim_without_sources(pool, reserved > bytes ? reserved - bytes : 0, pool->policy.decay.ripe);
    churn_given(pool, released, pool_now(pool) - before);
    lock_take(&pool->lock);
    pool->account.stats.trimmed += gone;
    pool->account.stats.decayed += gone;
    lock_give(&pool->lock);
    return gone;
}

/* What is due is done, up to `most` pages of it. True: there is more. LOCKING: the turn. */
bool decay_go(cenote_pool *pool, uint64_t most)
{
    struct decay *d = &pool->policy.decay;
    if (!pool->config.options.decay_ms || pool->life.lost || pool_is_capturing(pool))
        return false;
    uint64_t now = pool_now(pool);
    if (now < atomic_load(&d->due))
        return false;
    bool begins = begin_epoch(pool, now);
    /* by the time it is ripe the device should be done with it */
    CUresult result = events_poll(&pool->clock, d->epochs[d->newest].freed);
    if (result) {
        pool_driver_error(pool, result, "looking after free pages");
        return false;
    }
    pending_poll(pool);
    if (begins)
        trim_flush(pool);
    uint64_t allowance = churn_allowance(pool), bytes = most * pages_largest(&pool->store.pages);
    bytes = bytes < allowance ? bytes : allowance;
    bool more = d->ripe && bytes && give_ripe(pool, bytes) >= bytes;
    atomic_store(&d->due, more ? now : d->epochs[d->newest].ns + decay_epoch(pool));
    return more;
}

/* The same for a thread that has not the turn, unless another has it. LOCKING: none; not inside. */
bool decay_tend(cenote_pool *pool, uint64_t most)
{
    if (!pool->config.options.decay_ms || !device_context(pool->config.device) || pool_is_capturing(pool) ||
        pool_now(pool) < atomic_load(&pool->policy.decay.due))
        return false;
    bool more = false, entered = device_enter(pool->config.device, pool->config.generation) == CUDA_SUCCESS;
    if (entered && turn_try(pool)) {
        more = decay_go(pool, most);
        lock_give(&pool->turn);
    }
    device_leave(pool->config.device);
    return more;
}
