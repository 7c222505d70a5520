/*
 * pool.c: may a call of the API run, on the process and on the pool? What becomes of an error of the driver: the first
 * that says that the context is lost poisons the pool. And what time it is for a pool.
 *
 * LOCKING: as each function says.
 */
#include "pool/life/pool.h"

#include "base/clock.h"
#include "pool/life/callback.h"

int pool_process_usable(void)
{
    if (atomic_load_explicit(&pool_strict_callbacks, memory_order_relaxed) && callback_runs(NULL))
        return error_set(
            CENOTE_INVALID, 0,
            "a watch function or a clock must not call cenote: have it take a note, and call when it has returned");
    if (driver_is_forked())
        return error_set(
            CENOTE_FORKED, 0,
            "device memory belongs to the parent process; CUDA cannot be used after fork(): start workers with spawn");
    return driver_is_exiting() ? error_set(CENOTE_EXITING, 0, "the process is exiting; no driver call is made any more")
           : CENOTE_OK;
}

static int usable_if(const cenote_pool *pool, bool refused)
{
    if (!pool)
        return error_set(CENOTE_INVALID, 0, "the pool is NULL: cenote_pool_default or cenote_pool_create gives one");
    int error = refused ? pool_process_usable() : CENOTE_OK;
    if (error)
        return error;
    if (!pool->life.open)
        return error_set(CENOTE_INVALID, 0, "the pool was destroyed: no call may name it any more");
    return CENOTE_OK;
}

int pool_usable(const cenote_pool *pool)
{
    return usable_if(pool, true);
}

/* As pool_usable, for calls that look at the books alone: they are served while the process exits. */
int pool_answers(const cenote_pool *pool)
{
    return usable_if(pool, pool_refuses());
}

/*
 * The pool's lock for a call of the API, which has looked at the pool before:
 * it may have ended since, and its tables are gone then (invariant 31).
 * LOCKING: none; with CENOTE_OK the pool's lock.
 */
int pool_take_lock(cenote_pool *pool)
{
    lock_take(&pool->lock);
    if (__builtin_expect(pool->life.open, 1))
        return CENOTE_OK;
    lock_give(&pool->lock);
    return pool_answers(pool);
}

/* Reports a failed driver call; the first sticky error poisons the pool. LOCKING: none held but the turn. */
int pool_driver_error(cenote_pool *pool, CUresult result, const char *call)
{
    if (!atomic_load(&pool->config.device->opened)) /* the pool has ended meanwhile, and was the last one there */
        return pool_answers(pool);
    if (!device_is_lost(pool->config.device, pool->config.generation, result))
        return error_set(CENOTE_DRIVER, result, "%s failed on device %d: %s", call, pool->config.device->ordinal,
                         driver_result_name(result));
    lock_take(&pool->lock);
    if (!pool->life.lost)
        pool->life.lost = result;
    lock_give(&pool->lock);
    return error_set(CENOTE_DEVICE_LOST, result, "the context of device %d is lost (%s, seen by %s): %s",
                     pool->config.device->ordinal, driver_result_name(result), call,
                     driver_result_is_sticky(result)
                         ? "restart the process"
                         : "the program has reset the device, or ended the context; "
                           "destroy all pools of the device, and make new ones");
}

/* By a question that harms no capture. LOCKING: none held, not inside. */
static bool own_context_is_lost(const cenote_pool *pool)
{
    struct device *d = pool->config.device;
    size_t left, total;
    CUresult result = device_enter_as_it_is(d, pool->config.generation);
    if (!result && device_context(d))
        result = d->driver->cuMemGetInfo(&left, &total);
    device_leave(d);
    return device_is_lost(d, pool->config.generation, result);
}

/*
 * The same for a call about a stream or a context that may be another device's: if
 * that one's context is lost, the pool is not. LOCKING: none held, not inside.
 */
int pool_driver_error_of_any(cenote_pool *pool, CUresult result, const char *call)
{
    if (!driver_result_is_sticky(result) || !atomic_load(&pool->config.device->opened) || own_context_is_lost(pool))
        return pool_driver_error(pool, result, call);
    return error_set(CENOTE_DRIVER, result,
                     "%s failed: a context is lost (%s), and not that of device %d, whose memory this is about", call,
                     driver_result_name(result), pool->config.device->ordinal);
}

uint64_t pool_now(const cenote_pool *pool)
{
    struct callback c;
    uint64_t (*clock)(void *) = pool->config.options.clock; /* once: the pool may end meanwhile */
    if (!clock)
        return clock_ns();
    callback_begin(&c, pool, NULL);
    uint64_t now = clock(pool->config.options.clock_arg);
    callback_end();
    return now;
}
