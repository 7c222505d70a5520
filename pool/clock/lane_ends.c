/*
 * lane_ends.c: a stream is about to end. It gets no work any more, so unless captures are announced an event at that moment covers all that it used
 * and all that its blocks will free: it is recorded now, while the stream lives, and asked after with the fences (lane_events.c).
 *
 *     a lane: known ---lane_ends_record---> ended, its event is due ---lane_events_query---> ended and done
 *
 * LOCKING: none held, and not inside. The thread holds the lane (lane_hold), so that the lane stays while the driver records the event; it takes the
 * pool's lock for each look at the books, and never the turn.
 */
#include "pool/clock/lane_ends.h"

#include "pool/clock/lane_events.h"
#include "pool/clock/peer_uses.h"
#include "pool/clock/spare_events.h"
#include "pool/clock/streams.h"
#include "pool/life/pool.h"
#include "pool/pool.h"

/* *end: an event behind all that the stream was given, on its own device. LOCKING: none. */
static CUresult record_end(cenote_pool *pool, uint32_t number, CUstream stream, CUevent *end)
{
    struct device *d = pool->config.device;
    if (lane_of(pool, number)->other)
        return peer_uses_end(lane_of(pool, number), stream, end);
    CUresult result = device_enter(d, pool->config.generation);
    if (!result)
        result = event_take(pool, end);
    if (!result)
        result = touch_record_end(d, stream, *end);
    device_leave(d);
    return result;
}

/* The error of a call that cannot be served. */
int lane_ends_refuse_captured(CUstream stream)
{
    return error_set(CENOTE_BUSY, 0, "stream %p is being captured: end the capture before the stream", (void *)stream);
}

static int refuse_end(cenote_pool *pool, CUstream stream, CUresult result)
{
    if (result == CUDA_ERROR_NOT_READY)
        return lane_ends_refuse_captured(stream);
    return pool_driver_error_of_any(pool, result, "recording the end of a stream (call cenote_stream_retire again before the stream ends)");
}

/* There is an event, and another thread was quicker to end the stream. LOCKING: none. */
static void give_end(cenote_pool *pool, const struct lane *lane, CUevent end)
{
    if (end && lane->other) {
        if (!lane_is_over(lane))
            event_end_on(lane->other, end);
        return;
    }
    lock_take(&pool->lock);
    event_give(pool, end);
    lock_give(&pool->lock);
}

/*
 * The lane, which is held, ends. An error: there is no event, and the lane is as before. The first pool with announced:0 may be opened meanwhile:
 * then an event is wanted after all. LOCKING: none, not inside.
 */
int lane_ends_record(cenote_pool *pool, uint32_t number, CUstream stream)
{
    CUevent end = NULL;
    CUresult result = CUDA_SUCCESS;
    bool is_named = !stream_is_unnamed(lane_of(pool, number)->key), again;
    do {
        bool wants_event = is_named && !touch_captures_are_announced();
        result = wants_event ? record_end(pool, number, stream, &end) : CUDA_SUCCESS;
        lock_take(&pool->lock);
        again = is_named && !wants_event && !touch_captures_are_announced();
        bool ends = !result && !again && !lane_of(pool, number)->ended; /* else another thread was quicker */
        if (ends)
            lane_forget_key(pool, lane_of(pool, number));
        if (ends && end)
            lane_events_end(pool, number, end);
        lock_give(&pool->lock);
        if (!ends)
            give_end(pool, lane_of(pool, number), end);
    } while (again);
    if (!pool->config.device->driver->cuStreamGetId) /* a thread that is inside may have looked before, and give the driver the handle */
        device_let_leave(pool->config.device->card); /* those that visit another device are inside here, too */
    return result ? refuse_end(pool, stream, result) : CENOTE_OK;
}

/*
 * Was the stream with that id the one that had the handle when it was captured? Where captures are announced nothing depends on it, for a fence
 * covers both. LOCKING: none.
 */
bool lane_ends_is_of(const cenote_pool *pool, uint32_t lane, uint64_t key)
{
    return touch_captures_are_announced() || key <= lane_of(pool, lane)->newest;
}
