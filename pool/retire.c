/*
 * retire.c: a stream is about to end (cenote_stream_retire). What covers all that it was given is recorded now, while it lives; then its arenas
 * are other streams'. Which streams fences cover is said in cover.c, which stream has which arena in idle.c.
 */
#include "pool/pool.h"

#define RETIRED_AT_A_TIME 32    /* arenas of one stream, between two looks whether another thread wants the lock */

/* Unless captures are announced: a fence now covers all that blocks of the stream will free. LOCKING: none, not inside. */
static void leave_fence(cenote_pool *pool, uint64_t key)
{
    if (touch_captures_are_announced() || stream_is_unnamed(key) || turn_begin(pool))
        return;
    lock_take(&pool->lock);
    bool wanted = cover_wants(pool, key);
    lock_give(&pool->lock);
    if (wanted) {
        events_fence(pool, UINT64_MAX);
        lock_take(&pool->lock);
        cover_ended(pool, key);
        lock_give(&pool->lock);
    }
    turn_end(pool);
}

/* Blocks of the stream stay valid; its arena goes to the next new stream once it is empty and the device is done with it. */
int cenote_stream_retire(cenote_pool *pool, cenote_stream stream)
{
    uint64_t key = 0, where;
    uint32_t first = 0;
    int error = pool_usable(pool);
    if (error || (error = stream_key(pool, stream, &key)))
        return error;
    if (!stream_is_unnamed(key) && stream_is_immortal(pool, stream))
        return error_set(CENOTE_INVALID, 0, "stream %p was declared immortal", (void *)stream);
    cover_call_names(key, stream);
    leave_fence(pool, key);
    pending_retire(pool, key);
    cover_call_ends();
    do {
        lock_take(&pool->lock);
        for (int i = 0; i < RETIRED_AT_A_TIME && (first = stream_first(pool, key, &where)); i++)
            idle_end(pool, arena_of(pool, first));
        lock_give(&pool->lock);
    } while (first);
    return CENOTE_OK;
}
