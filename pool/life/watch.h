/*
 * watch.h: tells the program where memory and blocks come and go (cenote_pool_watch); see watch.c.
 * LOCKING: not the pool's lock, unless a function says otherwise.
 */
#ifndef CENOTE_POOL_LIFE_WATCH_H
#define CENOTE_POOL_LIFE_WATCH_H

#include "pool/pool.h"

/* Does a function hear of it? */
static inline bool watch_hears(const cenote_pool *pool, enum cenote_change change)
{
    uint32_t changes = atomic_load_explicit(&pool->watch.changes, memory_order_relaxed);
    return __builtin_expect(changes & (uint32_t)change, 0);
}

int  watch_set(cenote_pool *pool, uint32_t changes, cenote_watch_fn function, void *arg);
void watch_end(cenote_pool *pool);
void watch_tell(cenote_pool *pool, enum cenote_change change, uint64_t at, uint64_t bytes);
void watch_tell_block(cenote_pool *pool, enum cenote_change change, void *block, uint64_t bytes, CUstream stream);
void watch_tell_ended(cenote_pool *pool, uint64_t at, uint64_t bytes); /* LOCKING: `watching`, which it gives */
void watch_fill_begins(cenote_pool *pool);
void watch_fill_ends(cenote_pool *pool, CUresult result);

#endif
