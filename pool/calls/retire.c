/*
 * retire.c: a stream is about to end (cenote_stream_retire). It gets no work any more, so unless captures are announced an event at that moment
 * covers all that it used and all that its blocks will free: it is recorded now, while the stream lives, and asked after with the fences. Then the
 * arenas of the stream are other streams' (idle.c).
 *
 *     a lane: known ---end_lane---> ended, its event is due ---lane_events_query---> ended and done
 *
 * LOCKING: none held, and not inside. The thread holds the lane (lane_hold), so that the lane stays while the driver records the event; it takes the
 * pool's lock for each look at the books, and never the turn.
 */
#include "pool/calls/retire.h"

#include "pool/arenas/arenas.h"
#include "pool/arenas/idle.h"
#include "pool/clock/lane_events.h"
#include "pool/clock/peer_uses.h"
#include "pool/life/pool.h"

#define RETIRED_AT_A_TIME 32    /* arenas of one stream, between two looks whether another thread wants the lock */

/*
 * The lane of that key, of whichever device the stream is. It is held, and this thread a user of the pool. 0: there is none. An error: the pool has
 * ended while the driver was asked for the key. LOCKING: none.
 */
static int hold_lane(cenote_pool *pool, uint64_t key, uint32_t *lane)
{
    int error = pool_take_lock(pool);
    *lane = error ? 0 : lane_find_anywhere(pool, key);
    if (error)
        return error;
    if (*lane)
        lane_hold(pool, *lane);
    pool->life.users += *lane != 0;
    lock_give(&pool->lock);
    return CENOTE_OK;
}

/* LOCKING: none. */
static void end_arenas(cenote_pool *pool, uint32_t lane)
{
    bool more = true;
    while (more) {
        lock_take(&pool->lock);
        for (uint32_t i = 0; i < lock_portion(RETIRED_AT_A_TIME) && more; i++) {
            uint32_t first = lane_of(pool, lane)->first_arena;
            more = first != 0;
            if (more)
                idle_end(pool, arena_of(pool, first));
        }
        lock_give(&pool->lock);
    }
}

/* *end: an event behind all that the stream was given, on its own device. LOCKING: none. */
static CUresult record_end(cenote_pool *pool, uint32_t number, CUstream stream, CUevent *end)
{
    struct device *d = pool->config.device;
    CUresult result = device_enter(d, pool->config.generation);
    *end = NULL;
    if (!result && lane_of(pool, number)->other) {
        result = peer_uses_end(lane_of(pool, number), stream, false, end);
    } else if (!result) {
        result = event_take(pool, end);
        if (!result)
            result = touch_record_end(d, stream, *end);
    }
    device_leave(d);
    return result;
}

static int refuse_captured(CUstream stream)
{
    return error_set(CENOTE_BUSY, 0, "stream %p is being captured: end the capture before the stream", (void *)stream);
}

static int refuse_end(cenote_pool *pool, CUstream stream, CUresult result)
{
    if (result == CUDA_ERROR_NOT_READY)
        return refuse_captured(stream);
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
 * An error: there is no event, and the lane is as before. The first pool with announced:0 may be opened meanwhile: then an event is wanted after
 * all. LOCKING: none, not inside.
 */
static int end_lane(cenote_pool *pool, uint32_t number, CUstream stream)
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

/* The lane is held. LOCKING: none, not inside. */
static int end_held(cenote_pool *pool, uint32_t lane, CUstream stream)
{
    int error = end_lane(pool, lane, stream);
    if (!error)
        end_arenas(pool, lane);
    return error;
}

/* 0: there is nothing to drop. LOCKING: none. */
static void drop_lane(cenote_pool *pool, uint32_t lane)
{
    if (!lane)
        return;
    lock_take(&pool->lock);
    lane_drop(pool, lane);
    pool->life.users--;
    lock_give(&pool->lock);
}

/* LOCKING: none, not inside. */
static int end_key(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint32_t lane;
    int error = hold_lane(pool, key, &lane);
    if (lane)
        error = end_held(pool, lane, stream);
    drop_lane(pool, lane);
    return error;
}

/*
 * Was the stream with that id the one that had the handle when it was captured? Where captures are announced nothing depends on it, for a fence
 * covers both. LOCKING: none.
 */
static bool was_this_captured(cenote_pool *pool, uint32_t lane, uint64_t key)
{
    return touch_captures_are_announced() || key <= lane_of(pool, lane)->newest;
}

/* What is found by the key of the lane's stream is found no more. LOCKING: the pool's lock. */
static void forget_arenas(cenote_pool *pool, const struct lane *lane)
{
    uint32_t first;
    while ((first = lane->first_arena))
        arenas_forget(pool, arena_of(pool, first));
}

/*
 * In another capture the handle may be that of another stream: what the first one has freed is not the next one's to take without a wait. It comes
 * back as what it is, memory of the lane. LOCKING: the pool's lock.
 */
static void forget_the_order(cenote_pool *pool, struct lane *lane, uint64_t capture)
{
    if (capture && lane->capture == capture)
        return;
    lane->capture = capture;
    forget_arenas(pool, lane);
}

/*
 * A call names a captured stream, which cannot be asked for its id. Where captures are not announced, the lane that it has or gets remembers the
 * capture, and how old the stream is at least (device_newest_stream). LOCKING: none, not inside.
 */
void retire_meet_captured(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint64_t capture = 0;
    bool known = touch_captures_are_announced() || stream_is_alive(pool, stream, key); /* as one that was declared immortal in a capture */
    if (!known) {
        capture = device_capture_of(pool->config.device, stream);
        if (pool_take_lock(pool)) /* the call will be told so */
            return;
        uint32_t lane = lane_find_anywhere(pool, key);
        if ((known = lane))
            forget_the_order(pool, lane_of(pool, lane), capture);
        lock_give(&pool->lock);
    }
    lanes_expect_captured(known ? 0 : device_newest_stream(pool->config.device, stream), capture);
}

/*
 * The handle is that of a younger stream: what had it in captures has ended without a word. What that freed and used waits as what others leave that
 * end so; this stream is not taken for it.
 */
void retire_another(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint32_t lane = 0;
    if (!stream_key_is_id(key) || hold_lane(pool, stream_key_while_captured(stream), &lane) || !lane)
        return;
    lock_take(&pool->lock);
    struct lane *captured = lane_of(pool, lane);
    if (captured->newest && key > captured->newest && !captured->ended) {
        lane_forget_key(pool, captured);
        forget_arenas(pool, captured);
    }
    lane_drop(pool, lane);
    pool->life.users--;
    lock_give(&pool->lock);
}

/* What the stream left in captures. LOCKING: as end_key. */
static int end_captured(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint32_t lane;
    int error = hold_lane(pool, stream_key_while_captured(stream), &lane);
    if (lane && was_this_captured(pool, lane, key))
        error = end_held(pool, lane, stream);
    drop_lane(pool, lane);
    return error;
}

/* Blocks of the stream stay valid; its arena goes to the next new stream once it is empty and the device is done with it. */
int cenote_stream_retire(cenote_pool *pool, cenote_stream stream)
{
    uint64_t key = 0;
    int error = pool_usable(pool);
    if (error || (error = stream_key(pool, stream, &key)))
        return error;
    if (stream_is_immortal(pool, stream, key))
        return error_set(CENOTE_INVALID, 0, key == STREAM_KEY_LEGACY ? "stream %p is the default stream of the device, which does not end" :
                         "stream %p was declared immortal", (void *)stream);
    if (stream_key_is_captured(key))
        return refuse_captured(stream);
    error = end_key(pool, key, stream);
    return error ? error : end_captured(pool, key, stream);
}
