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

/* An event after the uses so far of the lane's stream, or NULL. LOCKING: inside; visiting. */
static CUevent record(cenote_pool *pool, const struct lane *lane)
{
    const struct driver *t = lane->other->driver;
    CUevent event;
    if (t->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))
        return NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    bool announced = touch_captures_are_announced();
    if (announced ? stream_is_alive(pool, lane->stream, lane->key) : lane_may_be_touched(pool, lane))
        result = announced ? t->cuEventRecord(event, lane->stream) : touch_record(lane->other, lane->stream, event);
    else if (announced && t->cuCtxRecordEvent)
        result = t->cuCtxRecordEvent(device_context(lane->other), event);
    if (!result)
        return event;
    destroy(t, event);
    return NULL;
}

/*
 * The event of the use, made if it has none and one can be had; NULL: it cannot. Another thread may end the stream meanwhile and give the use
 * one (peer_uses_end), which stays. LOCKING: not the pool's lock; inside; visiting.
 */
static CUevent event_of(cenote_pool *pool, const struct lane *lane, struct use *u)
{
    lock_take(&pool->lock);
    CUevent event = u->event, more = NULL;
    lock_give(&pool->lock);
    if (event || !(more = record(pool, lane)))
        return event;
    lock_take(&pool->lock);
    event = u->event ? u->event : more;
    u->event = event;
    lock_give(&pool->lock);
    if (event != more)
        destroy(lane->other->driver, more);
    return event;
}

/* At the free. LOCKING: inside. */
void peer_uses_record(cenote_pool *pool, struct use *u)
{
    const struct lane *lane = lane_of(pool, u->lane);
    if (device_visit(lane->other))
        return;
    if (!atomic_load(&lane->other->captures))
        event_of(pool, lane, u);
    device_visit_end(lane->other);
}

/* A context that is lost does no work any more. LOCKING: inside; visiting. */
static bool ask(cenote_pool *pool, struct lane *lane, struct use *u)
{
    CUevent event = event_of(pool, lane, u);
    CUresult result = event ? lane->other->driver->cuEventQuery(event) : CUDA_ERROR_NOT_SUPPORTED;
    lane->is_mute = result != CUDA_ERROR_NOT_READY;
    return result == CUDA_SUCCESS || driver_result_is_sticky(result);
}

/* LOCKING: as event_of. */
static void end_event(cenote_pool *pool, const struct lane *lane, struct use *u)
{
    lock_take(&pool->lock);
    CUevent event = u->event;
    u->event = NULL;
    lock_give(&pool->lock);
    if (event)
        destroy(lane->other->driver, event);
}

/*
 * Asks the driver with the lock let go. Its event has ended when the answer is true. LOCKING: the pool's lock; `polling`; inside.
 */
bool peer_uses_is_done(cenote_pool *pool, struct use *u)
{
    struct lane *lane = lane_of(pool, u->lane);
    struct device *other = lane->other;
    lane->is_mute = true;
    if (atomic_load(&other->was_reset)) { /* with its events */
        u->event = NULL;
        return true;
    }
    bool waited = u->freed <= pool->pending.done_on_peers[other->ordinal], done = false;
    lock_give(&pool->lock);
    CUresult visited = device_visit(other);
    lane->is_mute = visited != CUDA_ERROR_NOT_READY; /* its gate is shut for a moment */
    if (!visited) {
        done = waited || (!atomic_load(&other->captures) && ask(pool, lane, u));
        if (done)
            end_event(pool, lane, u);
        device_visit_end(other);
    }
    lock_take(&pool->lock);
    return done && !u->event; /* peer_uses_end may have given it another: then the next look ends that */
}

/* The other devices that freed blocks wait for, one bit each. LOCKING: the pool's lock. */
static uint64_t waited_for(const cenote_pool *pool)
{
    uint64_t devices = 0;
    for (uint32_t number = pool->pending.first; number; number = lane_of(pool, number)->next)
        if (lane_of(pool, number)->other)
            devices |= 1ull << lane_of(pool, number)->other->ordinal;
    return devices;
}

/* Not while a capture is open there. A context that is lost does no work any more. LOCKING: none; not inside. */
bool peer_uses_wait_for(struct device *other)
{
    CUresult result = device_enter(other);
    bool entered = !result, whole = false;
    if (entered)
        result = device_wait(other, &whole);
    device_leave(other);
    return entered && ((!result && whole) || driver_result_is_sticky(result));
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

/* A use of the lane that has no event, from `use` on; 0: there is none. LOCKING: the pool's lock. */
static uint32_t without_event(const cenote_pool *pool, uint32_t lane, uint32_t use)
{
    while (use < pool->pending.uses.used && (use_of(pool, use)->lane != lane || use_of(pool, use)->event))
        use++;
    return use < pool->pending.uses.used ? use : 0;
}

/* The stream is about to end: each use that it is noted for has an event from now on, also those of blocks that are not freed. LOCKING: inside. */
CUresult peer_uses_end(cenote_pool *pool, uint32_t lane, CUstream stream)
{
    struct device *other = lane_of(pool, lane)->other;
    CUresult result = device_visit(other);
    if (result)
        return result;
    lock_take(&pool->lock);
    for (uint32_t use = 1; (use = without_event(pool, lane, use)); use++) {
        CUevent event;
        lock_give(&pool->lock);
        result = other->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (!result && (result = touch_record(other, stream, event)))
            destroy(other->driver, event);
        lock_take(&pool->lock);
        if (result)
            break;
        if (use_of(pool, use)->lane == lane && !use_of(pool, use)->event) {
            use_of(pool, use)->event = event;
            continue;
        }
        lock_give(&pool->lock); /* the use has ended meanwhile */
        destroy(other->driver, event);
        lock_take(&pool->lock);
    }
    lock_give(&pool->lock);
    device_visit_end(other);
    return result;
}
