/*
 * peer_uses.c: blocks that streams of other devices use. The fences of a pool say nothing about those, so each such use
 * is asked after in the other device's own context.
 *
 * At the free an event is recorded there: on the stream itself where it cannot have been destroyed, otherwise, if
 * captures are announced, after all work of that context. If that cannot be had now (a capture is open there, the
 * driver refuses or is too old), it is tried again whenever the block is looked at. If captures are announced,
 * shortages and trims that wait also wait for the other device as a whole, and so no block is lost. With announced:0 a
 * block whose stream may be dead waits until a call names the stream or retires it, or until the program says that it
 * has waited for that device (synced.c). Nothing is handed out too early, and no dead handle is given to the driver. A
 * stream that is retired leaves an event behind all that it was given, with its lane (lane_events.c): that ends all
 * uses of the lane.
 *
 * LOCKING: other devices are visited, never entered, by a thread that is inside its own (docs/locks.md). A pending use
 * belongs to the thread that is `polling`; another may give it an event, under the pool's lock (peer_uses_name).
 */
#include "base/check.h"
#include "pool/clock/room.h"

/* An event after the uses so far of the lane's stream; NULL after an error. LOCKING: inside; visiting. */
static CUresult record(struct clock *c, const struct lane *lane, CUevent *event)
{
    const struct driver *t = lane->other->driver;
    CUresult result = t->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    if (result) {
        *event = NULL;
        return result;
    }
    result = CUDA_ERROR_NOT_SUPPORTED;
    if (lane_may_be_touched(c, lane))
        result = lane_record(c, lane, *event);
    else if (touch_captures_are_announced() && t->cuCtxRecordEvent)
        result = t->cuCtxRecordEvent(device_context(lane->other), *event);
    if (result) {
        event_end_on(lane->other, *event);
        *event = NULL;
    }
    return result;
}

/*
 * The event of the use, made if it has none; an error: one cannot be had. Another thread may name the stream meanwhile
 * and give the use one (peer_uses_name), which stays. LOCKING: not the pool's lock; inside; visiting.
 */
static CUresult event_of(struct clock *c, const struct lane *lane, struct use *u, CUevent *event)
{
    CUevent more;
    lock_take(c->lock);
    *event = u->event;
    lock_give(c->lock);
    CUresult result = *event ? CUDA_SUCCESS : record(c, lane, &more);
    if (*event || result)
        return result;
    lock_take(c->lock);
    *event = u->event = u->event ? u->event : more;
    use_got_event(c, u);
    lock_give(c->lock);
    if (*event != more)
        event_end_on(lane->other, more);
    return CUDA_SUCCESS;
}

/* At the free. LOCKING: inside. */
void peer_uses_record(struct clock *c, struct use *u)
{
    const struct lane *lane = lane_of(c, u->lane);
    CUevent event;
    if (device_visit(lane->other, lane->generation))
        return;
    if (!device_is_captured(lane->other))
        event_of(c, lane, u, &event);
    device_visit_end(lane->other);
}

/* LOCKING: as event_of. */
static void end_event(struct clock *c, const struct lane *lane, struct use *u)
{
    lock_take(c->lock);
    CUevent event = u->event;
    u->event = NULL;
    lock_give(c->lock);
    if (event)
        event_end_on(lane->other, event);
}

/*
 * An event that was recorded while a capture began and ended says nothing: the next look records another. A context
 * that is lost does no work any more. LOCKING: inside; visiting.
 */
static bool ask(struct clock *c, struct lane *lane, struct use *u)
{
    CUevent event;
    CUresult result = event_of(c, lane, u, &event);
    if (!result)
        result = lane->other->driver->cuEventQuery(event);
    lane->is_mute = !event || result != CUDA_ERROR_NOT_READY;
    if (result == CUDA_ERROR_CAPTURED_EVENT) {
        end_event(c, lane, u);
        lock_take(c->lock);
        event_drop(c, NULL);
        lock_give(c->lock);
    }
    return result == CUDA_SUCCESS || driver_result_is_sticky(result);
}

/*
 * Is the use done, which is the first of its lane? Asks the driver with the lock let go. Its event has ended when the
 * answer is true. LOCKING: the pool's lock; `polling`; inside.
 */
bool peer_uses_is_done(struct clock *c, uint32_t use)
{
    struct use *u = use_of(c, use);
    struct lane *lane = lane_of(c, u->lane);
    uint32_t covering = touch_captures_are_announced() ? use : use_covering(c, use);
    struct device *other = lane->other;
    lane->is_mute = true;
    if (lane_is_over(lane)) { /* with its events */
        u->event = NULL;
        return true;
    }
    covering = covering ? covering : use_to_cover(c, lane, use);
    bool waited = u->freed <= c->uses.done_on_peers[other->ordinal] || u->freed <= lane->uses_done ||
                  u->freed <= lane->progress.done;
    bool done = false;
    lock_give(c->lock);
    CUresult visited = device_visit(other, lane->generation);
    lane->is_mute = visited != CUDA_ERROR_NOT_READY; /* its gate is shut for a moment */
    if (!visited) {
        done = waited || (!device_is_captured(other) && ask(c, lane, use_of(c, covering)));
        if (done)
            end_event(c, lane, u);
        device_visit_end(other);
    } else if (driver_result_is_sticky(visited) && !lane_is_over(lane)) { /* the next look sees that one */
        done = true;
        end_event(c, lane, u);
    }
    lock_take(c->lock);
    if (done && !waited)
        uses_are_done(c, lane, covering);
    return done && !u->event; /* peer_uses_name may have given it another: then the next look ends that */
}

/* The other devices that freed blocks wait for, one bit each. LOCKING: the pool's lock. */
static uint64_t waited_for(const struct clock *c)
{
    uint64_t devices = 0;
    for (uint32_t number = c->uses.first; number; number = lane_of(c, number)->next)
        if (lane_of(c, number)->other)
            devices |= 1ull << lane_of(c, number)->other->ordinal;
    return devices;
}

/* Not while a capture is open there. A context that is lost does no work any more. LOCKING: none; not inside. */
bool peer_uses_wait_for(struct device *other, uint64_t generation)
{
    CUresult result = device_enter(other, generation);
    bool entered = !result, whole = false;
    if (entered)
        result = device_wait(other, &whole);
    device_leave(other);
    return entered && ((!result && whole) || driver_result_is_sticky(result));
}

/* The other device is done with all that was freed up to `covers`. LOCKING: the pool's lock. */
void peer_uses_all_done(struct clock *c, int ordinal, tick covers)
{
    if (c->uses.done_on_peers[ordinal] < covers)
        c->uses.done_on_peers[ordinal] = covers;
}

/*
 * Waits on the host until other devices are done with the blocks freed so far. False: there was nothing to wait for, or
 * it was not possible. LOCKING: none held, not inside.
 */
bool peer_uses_wait(struct clock *c)
{
    bool waited = false;
    if (!touch_captures_are_announced())
        return false;
    lock_take(c->lock);
    uint64_t devices = waited_for(c);
    tick now = c->fences.now; /* what is freed later may be used by work that comes later */
    lock_give(c->lock);
    for (; devices; devices &= devices - 1) {
        int ordinal = __builtin_ctzll(devices);
        struct device *other = atomic_load(&c->others[ordinal]);
        if (!peer_uses_wait_for(other, atomic_load(&other->generation)))
            continue;
        lock_take(c->lock);
        peer_uses_all_done(c, ordinal, now);
        lock_give(c->lock);
        waited = true;
    }
    return waited;
}

/* ----------------------------------------------------------------------------------- streams that are named, or end */

/*
 * Records an event behind what the stream was given, or `whole`,
 * its context. LOCKING: inside that device, or visiting it.
 */
static CUresult record_on(struct device *other, CUstream stream, bool whole, CUevent *event)
{
    const struct driver *t = other->driver;
    CHECK(!whole || t->cuCtxRecordEvent);
    CUresult result = t->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    if (result)
        return result;
    result = whole ? t->cuCtxRecordEvent(device_context(other), *event) : touch_record_end(other, stream, *event);
    if (result)
        event_end_on(other, *event);
    return result;
}

/* The use has the event from now on, unless it has ended meanwhile, or has one. LOCKING: inside; visiting. */
static void give_event(struct clock *c, struct device *other, uint32_t lane, uint32_t use, tick freed, CUevent event)
{
    lock_take(c->lock);
    struct use *u = use_of(c, use);
    bool takes = u->lane == lane && u->freed == freed && !u->event;
    if (takes) {
        u->event = event;
        use_got_event(c, u);
    }
    lock_give(c->lock);
    if (!takes)
        event_end_on(other, event);
}

/* Do blocks wait for a call that names this stream? LOCKING: the pool's lock. */
bool peer_uses_are_owed(const struct clock *c, uint32_t lane)
{
    return !touch_captures_are_announced() && lane && lane_of(c, lane)->last &&
           !use_of(c, lane_of(c, lane)->last)->event;
}

/*
 * A call names the stream: all that waits for it has an event from now on. The caller has held the lane, which this
 * drops, and is a user of the pool, for the block may be freed meanwhile. LOCKING: none; not inside.
 */
void peer_uses_name(struct clock *c, uint32_t number, CUstream stream)
{
    CUevent event;
    bool entered = device_enter(c->device, c->generation) == CUDA_SUCCESS;
    lock_take(c->lock);
    const struct lane *lane = lane_of(c, number);
    struct device *other = lane->other;
    uint32_t use = lane->last;
    tick freed = use ? use_of(c, use)->freed : 0;
    lock_give(c->lock);
    if (entered && use && other && !device_visit(other, lane->generation)) {
        if (!device_is_captured(other) && !record_on(other, stream, false, &event))
            give_event(c, other, number, use, freed, event);
        device_visit_end(other);
    }
    device_leave(c->device);
    lock_take(c->lock);
    lane_drop(c, number);
    lock_give(c->lock);
}

/*
 * The stream is about to end: *end is an event behind all that it was given. While a capture is being announced there
 * this thread waits, for the stream will not be named again. LOCKING: none; not inside.
 */
CUresult peer_uses_end(const struct lane *lane, CUstream stream, CUevent *end)
{
    CUresult result = device_enter(lane->other, lane->generation);
    if (!result)
        result = record_on(lane->other, stream, false, end);
    device_leave(lane->other);
    *end = result ? NULL : *end;
    return result;
}

/* The stream has ended: *end is an event behind all that its context was given. LOCKING: inside. */
static CUresult end_of_context(const struct lane *lane, CUevent *end)
{
    struct device *other = lane->other;
    CUresult result = device_visit(other, lane->generation);
    if (result)
        return result;
    result = device_is_captured(other) ? CUDA_ERROR_NOT_READY : record_on(other, NULL, true, end);
    device_visit_end(other);
    return result;
}

/* Has the stream ended without an event at its end? LOCKING: the pool's lock. */
static bool lacks_end(const struct lane *lane)
{
    return lane->users && lane->ended && lane->other && lane->progress.done != LANE_DONE && !lane->due_count;
}

/*
 * As events_become_careful, for streams of other devices that have ended.
 * CUDA_ERROR_NOT_READY: a capture is open there, or is being announced.
 * LOCKING: the turn.
 */
CUresult peer_uses_become_careful(struct clock *c)
{
    CUresult result = CUDA_SUCCESS;
    bool is_lane = true;
    for (uint32_t number = 1; !result && is_lane; number++) {
        CUevent end;
        lock_take(c->lock);
        is_lane = number < c->lanes.table.used;
        const struct lane *lane = is_lane ? lane_of(c, number) : NULL;
        bool lacks =
            lane && lane->other && lacks_end(lane) && lane->other->driver->cuCtxRecordEvent && !lane_is_over(lane);
        if (lacks)
            lane_hold(c, number);
        lock_give(c->lock);
        if (!lacks)
            continue;
        result = end_of_context(lane, &end);
        lock_take(c->lock);
        if (!result)
            lane_events_end(c, number, end);
        bool is_lost = driver_result_is_sticky(result) || lane_is_over(lane);
        lane_drop(c, number);
        lock_give(c->lock);
        result = is_lost ? CUDA_SUCCESS : result;
    }
    return result;
}
