/*
 * synced.c: the program has waited for a whole context, and says so (rule 5).
 *
 * With announced:0 cenote waits for the streams that it knows to live. What a stream freed or used after its last
 * event, and that ended without a word, is covered by nothing that cenote may ask the driver: each question about a
 * whole context invalidates the captures of that context. The program may wait for its context all the same, at its own
 * risk, and what is known then costs no capture.
 *
 *     cenote_pool_sync_begin                                                cenote_pool_sync_end
 *     all that was freed so far ---the program's cuCtxSynchronize---> the device is done with that
 *
 * This is no wait, and it moves no memory: it moves how far the device has got, and the next allocation or trim looks.
 *
 * LOCKING: none held, not inside. The turn, because fences are changed; the pool's lock around the books.
 */
#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"

/*
 * Makes the number of one pool none of another, nor of a later pool that has the structure: multiples of this constant
 * lie far apart, those of a million pools by more ticks than a program has.
 */
static uint64_t mark_of(const cenote_pool *pool)
{
    return pool->config.serial * 0x9e3779b97f4a7c15ull;
}

int cenote_pool_sync_begin(cenote_pool *pool, uint64_t *sync)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    if (!sync)
        return error_set(CENOTE_INVALID, 0,
                         "nowhere to put the number for cenote_pool_sync_end: the last argument is NULL");
    if ((error = pool_take_lock(pool)))
        return error;
    *sync = pool->clock.fences.now + mark_of(pool);
    lock_give(&pool->lock);
    return CENOTE_OK;
}

/*
 * Is its primary context current? If cenote has not needed that one
 * yet, it is looked at if the current context is of the device.
 */
static bool is_current(struct device *other, CUcontext current)
{
    CUdevice device;
    if (device_context(other))
        return current == device_context(other);
    return !other->driver->cuCtxGetDevice(&device) && device == other->handle && peer_fences_have_context(other) &&
           !device_prepare(other) && current == device_context(other);
}

/*
 * The device whose primary context is current, if the pool has to do with it;
 * NULL: another device, or the pool's own on which it has done nothing.
 * LOCKING: none, not inside.
 */
static int find_synced(cenote_pool *pool, struct device **synced)
{
    struct device *d = pool->config.device;
    /* if another thread makes the context meanwhile, what was freed before the wait knew none */
    CUcontext own = device_context(d), current = NULL;
    CUdevice device = -1;
    CHECK(lock_none_above(0));
    CUresult result = d->driver->cuCtxGetCurrent(&current);
    *synced = own && current == own ? d : NULL;
    for (int ordinal = 0; current && ordinal < DEVICES_MAX && !*synced; ordinal++) {
        struct device *other = atomic_load(&pool->config.others[ordinal]);
        *synced = other && is_current(other, current) ? other : NULL;
    }
    if (!result && current && !*synced)
        result = d->driver->cuCtxGetDevice(&device);
    if (result)
        return pool_driver_error_of_any(pool, result, "asking for the current context");
    if (!current || (device == d->handle && own))
        return error_set(
            CENOTE_INVALID, 0,
            "the context that is current is not the primary one of device %d: wait for that one, and have it current",
            d->ordinal);
    return CENOTE_OK;
}

/* False: that number is not of this pool. LOCKING: the turn. */
static bool note(cenote_pool *pool, const struct device *synced, uint64_t sync)
{
    lock_take(&pool->lock);
    bool valid = clock_synced(&pool->clock, synced, sync - mark_of(pool));
    lock_give(&pool->lock);
    return valid;
}

int cenote_pool_sync_end(cenote_pool *pool, uint64_t sync)
{
    struct device *synced = NULL;
    int error = pool_usable(pool);
    if (error || (error = find_synced(pool, &synced)) || !synced)
        return error;
    bool own = synced == pool->config.device;
    if ((error = own ? turn_begin(pool) : turn_take(pool)))
        return error;
    bool valid = note(pool, synced, sync);
    own ? turn_end(pool) : lock_give(&pool->turn);
    return valid ? CENOTE_OK
                 : error_set(CENOTE_INVALID, 0, "the number is not one that cenote_pool_sync_begin gave for this pool");
}
