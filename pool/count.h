/*
 * count.h: how the counters of include/cenote/counters.def move. Only arithmetic: where each one moves is said by its caller.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_COUNT_H
#define CENOTE_POOL_COUNT_H

#include "pool/pool.h"

static inline void level_in(cenote_level *level, uint64_t n)
{
    level->current += n;
    level->total_in += n;
    if (level->current > level->peak)
        level->peak = level->current;
}

static inline void level_out(cenote_level *level, uint64_t n)
{
    level->current -= n;
    level->total_out += n;
}

/* `cached` is what is left of reserved; only its peak has to be watched, whenever it may have risen. */
static inline void count_cached(cenote_pool *pool)
{
    uint64_t cached = pool->pages.reserved - pool->stats.allocated.current;
    if (cached > pool->stats.cached.peak)
        pool->stats.cached.peak = cached;
}

static inline uint64_t count_rounded(uint64_t requested) { return (requested + BLOCK_BYTES - 1) & ~(uint64_t)(BLOCK_BYTES - 1); }

static inline void count_alloc(cenote_pool *pool, uint64_t requested)
{
    cenote_stats *s = &pool->stats;
    level_in(&s->requested, requested);
    level_in(&s->allocated, count_rounded(requested));
    level_in(&s->active, count_rounded(requested));
    level_in(&s->blocks, 1);
}

/* The caller let go of it. It stays active while it waits for other streams. */
static inline void count_free(cenote_pool *pool, uint64_t requested)
{
    cenote_stats *s = &pool->stats;
    level_out(&s->requested, requested);
    level_out(&s->allocated, count_rounded(requested));
    level_out(&s->blocks, 1);
    count_cached(pool);
}

static inline void count_inactive(cenote_pool *pool, uint64_t requested)
{
    level_out(&pool->stats.active, count_rounded(requested));
}

/* Physical memory came or went: pages.reserved has changed. */
static inline void count_reserved(cenote_pool *pool)
{
    cenote_level *level = &pool->stats.reserved;
    uint64_t now = pool->pages.reserved;
    if (now > pool->reserved_peak)
        pool->reserved_peak = now;
    if (now > level->current)
        level_in(level, now - level->current);
    else
        level_out(level, level->current - now);
    count_cached(pool);
}

#endif
