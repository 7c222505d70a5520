/*
 * retire.c: a stream is about to end (cenote_stream_retire). It gets no work any more: its lane ends
 * (clock/lane_ends.c), and the arenas that are found by it are other streams' (idle.c).
 *
 * LOCKING: none held, and not inside. The thread holds the lane (lane_hold), so that the lane stays while the driver
 * records the event; it takes the pool's lock for each look at the books, and never the turn.
 */
#include "pool/calls/retire.h"

#include "pool/arenas/arenas.h"
#include "pool/arenas/idle.h"
#include "pool/calls/streams.h"
#include "pool/life/pool.h"

#define RETIRED_AT_A_TIME 32    /* arenas of one stream, between two looks whether another thread wants the lock */

/*
 * The lane of that key, of whichever device the stream is. It is held, and this thread a user of the pool. 0: there is
 * none. An error: the pool has ended while the driver was asked for the key. LOCKING: none.
 */
static int hold_lane(cenote_pool *pool, uint64_t key, uint32_t *lane)
{
    int error = pool_take_lock(pool);
    *lane = error ? 0 : lane_find_anywhere(&pool->clock, key);
    if (error)
        return error;
    if (*lane)
        lane_hold(&pool->clock, *lane);
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
            uint32_t first = lane_of(&pool->clock, lane)->first_arena;
            more = first != 0;
            if (more)
                idle_end(pool, arena_of(pool, first));
        }
        lock_give(&pool->lock);
    }
}

static int refuse_captured(CUstream stream)
{
    return error_set(CENOTE_BUSY, 0, "stream %p is being captured: end the capture before the stream", (void *)stream);
}

/* The lane is held. LOCKING: none, not inside. */
static int end_held(cenote_pool *pool, uint32_t lane, CUstream stream)
{
    CUresult result = lane_ends_record(&pool->clock, lane, stream);
    if (result == CUDA_ERROR_NOT_READY)
        return refuse_captured(stream);
    if (result)
        return pool_driver_error_of_any(
            pool, result, "recording the end of a stream (call cenote_stream_retire again before the stream ends)");
    end_arenas(pool, lane);
    return CENOTE_OK;
}

/* 0: there is nothing to drop. LOCKING: none. */
static void drop_lane(cenote_pool *pool, uint32_t lane)
{
    if (!lane)
        return;
    lock_take(&pool->lock);
    lane_drop(&pool->clock, lane);
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

/* What is found by the key of the lane's stream is found no more. LOCKING: the pool's lock. */
static void forget_arenas(cenote_pool *pool, const struct lane *lane)
{
    uint32_t first;
    while ((first = lane->first_arena))
        arenas_forget(pool, arena_of(pool, first));
}

/*
 * In another capture the handle may be that of another stream: what the first one has freed is not the next one's to
 * take without a wait. It comes back as what it is, memory of the lane. LOCKING: the pool's lock.
 */
static void forget_the_order(cenote_pool *pool, struct lane *lane, uint64_t capture)
{
    if (capture && lane->capture == capture)
        return;
    lane->capture = capture;
    forget_arenas(pool, lane);
}

/*
 * A call names a captured stream, which cannot be asked for its id. Where captures are not announced, the lane that it
 * has or gets remembers the capture, and how old the stream is at least (device_newest_stream). LOCKING: none, not
 * inside.
 */
void retire_meet_captured(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint64_t capture = 0;
    /* it was declared immortal in a capture */
    bool known = touch_captures_are_announced() || key_is_alive(&pool->clock.immortals, stream, key);
    if (!known) {
        capture = device_capture_of(pool->config.device, stream);
        if (pool_take_lock(pool)) /* the call will be told so */
            return;
        uint32_t lane = lane_find_anywhere(&pool->clock, key);
        if ((known = lane))
            forget_the_order(pool, lane_of(&pool->clock, lane), capture);
        lock_give(&pool->lock);
    }
    lanes_expect_captured(known ? 0 : device_newest_stream(pool->config.device, stream), capture);
}

/*
 * The handle is that of a younger stream: what had it in captures has ended without a word. What that freed and used
 * waits as what others leave that end so; this stream is not taken for it.
 */
void retire_another(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint32_t lane = 0;
    if (!key_is_id(key) || hold_lane(pool, key_while_captured(stream), &lane) || !lane)
        return;
    lock_take(&pool->lock);
    struct lane *captured = lane_of(&pool->clock, lane);
    if (captured->newest && key > captured->newest && !captured->ended) {
        lane_forget_key(&pool->clock, captured);
        forget_arenas(pool, captured);
    }
    lane_drop(&pool->clock, lane);
    pool->life.users--;
    lock_give(&pool->lock);
}

/*
 * Was the stream with that id the one that had the handle when it was captured? Where captures are announced nothing
 * depends on it, for a fence covers both. LOCKING: none.
 */
static bool is_of(const cenote_pool *pool, uint32_t lane, uint64_t key)
{
    return touch_captures_are_announced() || key <= lane_of(&pool->clock, lane)->newest;
}

/* What the stream left in captures. LOCKING: as end_key. */
static int end_captured(cenote_pool *pool, uint64_t key, CUstream stream)
{
    uint32_t lane;
    int error = hold_lane(pool, key_while_captured(stream), &lane);
    if (lane && is_of(pool, lane, key))
        error = end_held(pool, lane, stream);
    drop_lane(pool, lane);
    return error;
}

/*
 * Blocks of the stream stay valid; its arena goes to the next
 * new stream once it is empty and the device is done with it.
 */
int cenote_stream_retire(cenote_pool *pool, cenote_stream stream)
{
    uint64_t key = 0;
    int error = pool_usable(pool);
    if (error || (error = stream_key(pool, stream, &key)))
        return error;
    if (stream_is_immortal(pool, stream, key))
        return error_set(CENOTE_INVALID, 0,
                         key == KEY_LEGACY ? "stream %p is the default stream of the device, which does not end"
                                           : "stream %p was declared immortal",
                         (void *)stream);
    if (key_is_captured(key))
        return refuse_captured(stream);
    error = end_key(pool, key, stream);
    return error ? error : end_captured(pool, key, stream);
}
