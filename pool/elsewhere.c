/*
 * elsewhere.c: blocks that streams of other devices use. The fences of a pool say nothing about those, so each such use is asked after in
 * the other device's own context.
 *
 * At the free an event is recorded there: on the stream itself where it cannot have been destroyed, otherwise after all work of that
 * context. Where that cannot be had now (a capture is open there, the driver refuses or is too old) it is tried again whenever the block is looked
 * at, and waiting for the other device as a whole makes it good: shortages and trims that wait do so. Nothing is handed out too early,
 * nothing is lost, and no dead handle is given to the driver.
 *
 * LOCKING: other devices are visited, never entered, by a thread that is inside its own (docs/locks.md). A pending use belongs to the
 * thread that is `polling`.
 */
#include "base/check.h"
#include "pool/pool.h"

/* An event after the use, or NULL. LOCKING: inside; visiting. */
static CUevent record(cenote_pool *pool, const struct use *u)
{
    const struct driver *t = u->other->driver;
    CUevent event;
    if (t->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))
        return NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (stream_is_alive(pool, u->stream, u->key))
        result = t->cuEventRecord(event, u->stream);
    else if (t->cuCtxRecordEvent)
        result = t->cuCtxRecordEvent(device_context(u->other), event);
    if (!result)
        return event;
    if (t->cuEventDestroy(event))
        t->cuEventDestroy(event); /* it would be lost: a refusal is asked for once more */
    return NULL;
}

/* At the free. LOCKING: inside. */
void elsewhere_record(cenote_pool *pool, struct use *u)
{
    if (!device_visit(u->other))
        return;
    if (!atomic_load(&u->other->captures))
        u->event = record(pool, u);
    device_visit_end(u->other);
}

/* A context that is lost does no work any more. LOCKING: inside; visiting. */
static bool ask(cenote_pool *pool, struct use *u)
{
    if (!u->event)
        u->event = record(pool, u);
    CUresult result = u->event ? u->other->driver->cuEventQuery(u->event) : CUDA_ERROR_NOT_READY;
    return result == CUDA_SUCCESS || driver_result_is_sticky(result);
}

/* Asks the driver with the lock let go. LOCKING: the pool's lock; `polling`; inside. */
bool elsewhere_is_done(cenote_pool *pool, struct use *u)
{
    if (u->done)
        return true;
    if (atomic_load(&u->other->was_reset)) { /* with its events */
        u->event = NULL;
        return u->done = true;
    }
    bool done = u->freed <= pool->done_elsewhere[u->other->ordinal];
    lock_give(&pool->lock);
    if (device_visit(u->other)) {
        if (!done && !atomic_load(&u->other->captures))
            done = ask(pool, u);
        if (done && u->event && u->other->driver->cuEventDestroy(u->event))
            u->other->driver->cuEventDestroy(u->event);
        u->done = done;
        device_visit_end(u->other);
    }
    lock_take(&pool->lock);
    if (u->done)
        u->event = NULL;
    return u->done;
}

/* The other devices that freed blocks wait for, one bit each. LOCKING: the pool's lock. */
static uint64_t waited_for(const cenote_pool *pool)
{
    uint64_t devices = 0;
    for (uint32_t block = pool->pending_first; block; block = use_of(pool, block)->next_pending)
        for (uint32_t use = block; use; use = use_of(pool, use)->next)
            if (use_of(pool, use)->other)
                devices |= 1ull << use_of(pool, use)->other->ordinal;
    return devices;
}

/* Not while a capture is open there. A context that is lost does no work any more. LOCKING: none; not inside. */
static bool wait_for(struct device *other)
{
    CUresult result = device_enter(other);
    bool entered = !result;
    if (entered)
        result = device_wait(other);
    device_leave(other);
    return entered && (!result || driver_result_is_sticky(result));
}

/*
 * Waits on the host until other devices are done with the blocks freed so far. False: there was nothing to wait for, or it was not
 * possible. LOCKING: none held, not inside.
 */
bool elsewhere_wait(cenote_pool *pool)
{
    bool waited = false;
    if (!pool->pending_count)
        return false;
    lock_take(&pool->lock);
    uint64_t devices = waited_for(pool);
    tick now = pool->pages.fences.now; /* what is freed later may be used by work that comes later */
    lock_give(&pool->lock);
    for (; devices; devices &= devices - 1) {
        int ordinal = __builtin_ctzll(devices);
        if (!wait_for(pool->others[ordinal]))
            continue;
        lock_take(&pool->lock);
        if (pool->done_elsewhere[ordinal] < now)
            pool->done_elsewhere[ordinal] = now;
        lock_give(&pool->lock);
        waited = true;
    }
    return waited;
}
