/*
 * free_many.c: several blocks are freed in one hold of the pool's lock.
 *
 * Most of what a free costs is the lock and the way to it. A block that other streams use, a mistake, and blocks of a
 * pool that is watched are left to cenote_free.
 *
 * LOCKING: none held; the pool's lock, for up to MANY_IN_A_HOLD blocks.
 */
#include "pool/arenas/locate.h"
#include "pool/calls/alloc.h"
#include "pool/life/pool.h"
#include "pool/life/watch.h"

/* As many of the blocks, from the first on, as are of one pool and of no other stream, in one hold of its lock. */
static size_t free_some(void *const *blocks, size_t count)
{
    struct block_ref w = {0};
    size_t done = 0;
    cenote_pool *pool = blocks[0] && !pool_refuses() ? locate_lock(blocks[0], &w) : NULL;
    if (!pool)
        return 0;
    bool goes_on = !watch_hears(pool, CENOTE_ENDED);
    while (goes_on && locate_at(pool, (uint64_t)(uintptr_t)blocks[done], &w) == FOUND_LIVE && !*w.uses) {
        (void)alloc_end_block(pool, &w);
        done++;
        goes_on = done < count && done < MANY_IN_A_HOLD && locate_in(pool, (uint64_t)(uintptr_t)blocks[done], &w);
    }
    struct sleep_copy *gone = pages_take_copies(&pool->store.pages);
    lock_give(&pool->lock);
    if (__builtin_expect(gone != NULL, 0))
        pages_unmap_copies(gone);
    return done;
}

int cenote_free_many(void *const *blocks, size_t count)
{
    int error, result = CENOTE_OK;
    if (!blocks && count)
        return error_set(CENOTE_INVALID, 0, "there are no blocks: the first argument is NULL");
    for (size_t i = 0; i < count;) {
        size_t done = free_some(blocks + i, count - i);
        i += done;
        if (!done && (error = cenote_free(blocks[i++])))
            result = error;
    }
    return result;
}
