/*
 * lane_ends.c: a stream is about to end. It gets no work any more, so unless captures are announced an event at that
 * moment covers all that it used and all that its blocks will free: it is recorded now, while the stream lives, and
 * asked after with the fences (lane_events.c).
 *
 *     a lane: known ---lane_ends_record---> ended, its event is due ---lane_events_query---> ended and done
 *
 * LOCKING: none held, and not inside. The thread holds the lane (lane_hold), so that the lane stays while the driver
 * records the event; it takes the pool's lock for each look at the books, and never the turn.
 */
#include "pool/clock/room.h"

/* *end: an event behind all that the stream was given, on its own device. LOCKING: none. */
static CUresult record_end(struct clock *c, uint32_t number, CUstream stream, CUevent *end)
{
    struct device *d = c->device;
    if (lane_of(c, number)->other)
        return peer_uses_end(lane_of(c, number), stream, end);
    CUresult result = device_enter(d, c->generation);
    if (!result)
        result = event_take(c, end);
    if (!result)
        result = touch_record_end(d, stream, *end);
    device_leave(d);
    return result;
}

/* There is an event, and another thread was quicker to end the stream. LOCKING: none. */
static void give_end(struct clock *c, const struct lane *lane, CUevent end)
{
    if (end && lane->other) {
        if (!lane_is_over(lane))
            event_end_on(lane->other, end);
        return;
    }
    lock_take(c->lock);
    event_give(c, end);
    lock_give(c->lock);
}

/*
 * The lane, which is held, ends. An error: there is no event, and the lane is as before; CUDA_ERROR_NOT_READY: the
 * stream is captured. The first pool with announced:0 may be opened meanwhile: then an event is wanted after all.
 * LOCKING: none, not inside.
 */
CUresult lane_ends_record(struct clock *c, uint32_t number, CUstream stream)
{
    CUevent end = NULL;
    CUresult result = CUDA_SUCCESS;
    bool is_named = !key_is_unnamed(lane_of(c, number)->key), again;
    do {
        bool wants_event = is_named && !touch_captures_are_announced();
        result = wants_event ? record_end(c, number, stream, &end) : CUDA_SUCCESS;
        lock_take(c->lock);
        again = is_named && !wants_event && !touch_captures_are_announced();
        bool ends = !result && !again && !lane_of(c, number)->ended; /* else another thread was quicker */
        if (ends)
            lane_forget_key(c, lane_of(c, number));
        if (ends && end)
            lane_events_end(c, number, end);
        lock_give(c->lock);
        if (!ends)
            give_end(c, lane_of(c, number), end);
    } while (again);
    /* a thread that is inside may have looked before, and give the driver the handle */
    if (!c->device->driver->cuStreamGetId)
        device_let_leave(c->device->card); /* those that visit another device are inside here, too */
    return result;
}
