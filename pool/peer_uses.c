/*
 * peer_uses.c: blocks that streams of other devices use. The fences of a pool say nothing about those, so each such use is asked after in
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

/* A refusal is asked for once more: the event would be lost. */
static void destroy(const struct driver *t, CUevent event)
{
    if (t->cuEventDestroy(event))
        t->cuEventDestroy(event);
}

/* An event after the uses so far of the line's stream, or NULL. LOCKING: inside; visiting. */
static CUevent record(cenote_pool *pool, const struct line *line)
{
    const struct driver *t = line->other->driver;
    CUevent event;
    if (t->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))
        return NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    bool announced = touch_captures_are_announced();
    if (announced ? stream_is_alive(pool, line->stream, line->key) : cover_may_touch(pool, line->stream, line->key, line->ended))
        result = announced ? t->cuEventRecord(event, line->stream) : touch_record(line->other, line->stream, event);
    else if (announced && t->cuCtxRecordEvent)
        result = t->cuCtxRecordEvent(device_context(line->other), event);
    if (!result)
        return event;
    destroy(t, event);
    return NULL;
}

/* At the free. LOCKING: inside. */
void peer_uses_record(cenote_pool *pool, struct use *u)
{
    const struct line *line = line_of(pool, u->line);
    if (device_visit(line->other))
        return;
    if (!atomic_load(&line->other->captures))
        u->event = record(pool, line);
    device_visit_end(line->other);
}

/* A context that is lost does no work any more. LOCKING: inside; visiting. */
static bool ask(cenote_pool *pool, struct line *line, struct use *u)
{
    if (!u->event)
        u->event = record(pool, line);
    CUresult result = u->event ? line->other->driver->cuEventQuery(u->event) : CUDA_ERROR_NOT_SUPPORTED;
    line->is_mute = result != CUDA_ERROR_NOT_READY;
    return result == CUDA_SUCCESS || driver_result_is_sticky(result);
}

/*
 * Asks the driver with the lock let go. Its event has ended when the answer is true. LOCKING: the pool's lock; `polling`; inside.
 */
bool peer_uses_is_done(cenote_pool *pool, struct use *u)
{
    struct line *line = line_of(pool, u->line);
    struct device *other = line->other;
    line->is_mute = true;
    if (atomic_load(&other->was_reset)) { /* with its events */
        u->event = NULL;
        return true;
    }
    bool waited = u->freed <= pool->pending.done_on_peers[other->ordinal], done = false;
    lock_give(&pool->lock);
    CUresult visited = device_visit(other);
    line->is_mute = visited != CUDA_ERROR_NOT_READY; /* its gate is shut for a moment */
    if (!visited) {
        done = waited || (!atomic_load(&other->captures) && ask(pool, line, u));
        if (done && u->event)
            destroy(other->driver, u->event);
        device_visit_end(other);
    }
    lock_take(&pool->lock);
    if (done)
        u->event = NULL;
    return done;
}

/* The other devices that freed blocks wait for, one bit each. LOCKING: the pool's lock. */
static uint64_t waited_for(const cenote_pool *pool)
{
    uint64_t devices = 0;
    for (uint32_t number = pool->pending.first; number; number = line_of(pool, number)->next)
        if (line_of(pool, number)->other)
            devices |= 1ull << line_of(pool, number)->other->ordinal;
    return devices;
}

/* Not while a capture is open there. A context that is lost does no work any more. LOCKING: none; not inside. */
bool peer_uses_wait_for(struct device *other)
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
bool peer_uses_wait(cenote_pool *pool)
{
    bool waited = false;
    if (!pool->pending.count || !touch_captures_are_announced())
        return false;
    lock_take(&pool->lock);
    uint64_t devices = waited_for(pool);
    tick now = pool->store.pages.fences.now; /* what is freed later may be used by work that comes later */
    lock_give(&pool->lock);
    for (; devices; devices &= devices - 1) {
        int ordinal = __builtin_ctzll(devices);
        if (!peer_uses_wait_for(pool->config.others[ordinal]))
            continue;
        lock_take(&pool->lock);
        if (pool->pending.done_on_peers[ordinal] < now)
            pool->pending.done_on_peers[ordinal] = now;
        lock_give(&pool->lock);
        waited = true;
    }
    return waited;
}
