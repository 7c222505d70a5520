/*
 * count.h: how the counters of include/cenote/counters.def move. Only arithmetic: where each one moves is said by its caller.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_STATS_ACCOUNT_COUNT_H
#define CENOTE_STATS_ACCOUNT_COUNT_H

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
    uint64_t cached = pool->store.pages.reserved + pool->store.pages.asleep - pool->account.stats.allocated.current;
    if (cached > pool->account.stats.cached.peak)
        pool->account.stats.cached.peak = cached;
}

static inline uint64_t count_rounded(uint64_t requested) { return (requested + BLOCK_BYTES - 1) & ~(uint64_t)(BLOCK_BYTES - 1); }

_Static_assert(64 - __builtin_clzll(BYTES_MAX >> 9) < SIZE_ROWS - CLASS_COUNT, "every size has a row");

/* The row of its size: of its class in a slab, else one for each doubling. */
static inline struct row *count_row_of_size(cenote_pool *pool, uint64_t requested, bool in_slab)
{
    uint32_t row = in_slab ? class_of(requested) : CLASS_COUNT + 64 - (uint32_t)__builtin_clzll((count_rounded(requested) - 1) >> 9 | 1);
    return &pool->account.by_size[row];
}

static inline struct row *count_row_of_tag(const cenote_pool *pool, uint64_t mark)
{
    return TABLE_AT(struct row, &pool->account.by_tag, mark_tag(mark));
}

static inline void count_alloc(cenote_pool *pool, struct arena *a, const struct request *q)
{
    cenote_stats *s = &pool->account.stats;
    uint64_t rounded = count_rounded(q->bytes), epoch = pool->account.epoch;
    row_in(&a->row, epoch, rounded);
    a->taken++;
    row_in(count_row_of_size(pool, q->bytes, q->class != CLASS_NONE), epoch, rounded);
    if (a->group)
        row_in(&group_of(pool, a->group)->row, epoch, rounded);
    if (pool->account.is_labelled) {
        row_in(count_row_of_tag(pool, q->mark), epoch, rounded);
        row_in(&pool->account.by_kind[mark_kind(q->mark)], epoch, rounded);
        row_in(&pool->account.by_phase[mark_phase(q->mark)], epoch, rounded);
    }
    level_in(&s->requested, q->bytes);
    pool->account.epoch += s->allocated.current + rounded > s->allocated.peak;
    level_in(&s->allocated, rounded);
    if (s->allocated.current > pool->steps.peak)
        pool->steps.peak = s->allocated.current;
    if (s->allocated.current > pool->board.peak_allocated)
        pool->board.peak_allocated = s->allocated.current;
    level_in(&s->active, rounded);
    level_in(&s->blocks, 1);
}

static inline void level_to(cenote_level *level, uint64_t before, uint64_t now)
{
    if (now >= before)
        level_in(level, now - before);
    else
        level_out(level, before - now);
}

/* A live block is of another size now, at its place. */
static inline void count_resized(cenote_pool *pool, const struct block_ref *w, uint64_t now)
{
    cenote_stats *s = &pool->account.stats;
    uint64_t before = count_rounded(w->requested), after = count_rounded(now), epoch = pool->account.epoch, mark = *w->mark;
    row_to(&w->arena->row, epoch, before, after);
    row_out(count_row_of_size(pool, w->requested, w->slab != 0), epoch, before);
    row_in(count_row_of_size(pool, now, w->slab != 0), epoch, after);
    if (w->arena->group)
        row_to(&group_of(pool, w->arena->group)->row, epoch, before, after);
    if (pool->account.is_labelled) {
        row_to(count_row_of_tag(pool, mark), epoch, before, after);
        row_to(&pool->account.by_kind[mark_kind(mark)], epoch, before, after);
        row_to(&pool->account.by_phase[mark_phase(mark)], epoch, before, after);
    }
    level_to(&s->requested, w->requested, now);
    pool->account.epoch += s->allocated.current + after - before > s->allocated.peak;
    level_to(&s->allocated, before, after);
    if (s->allocated.current > pool->steps.peak)
        pool->steps.peak = s->allocated.current;
    level_to(&s->active, before, after);
}

/* The caller let go of it. It stays active while it waits for other streams. */
static inline void count_free(cenote_pool *pool, const struct block_ref *w)
{
    cenote_stats *s = &pool->account.stats;
    uint64_t rounded = count_rounded(w->requested), epoch = pool->account.epoch, mark = *w->mark;
    row_out(&w->arena->row, epoch, rounded);
    row_out(count_row_of_size(pool, w->requested, w->slab != 0), epoch, rounded);
    if (w->arena->group)
        row_out(&group_of(pool, w->arena->group)->row, epoch, rounded);
    if (pool->account.is_labelled) {
        row_out(count_row_of_tag(pool, mark), epoch, rounded);
        row_out(&pool->account.by_kind[mark_kind(mark)], epoch, rounded);
        row_out(&pool->account.by_phase[mark_phase(mark)], epoch, rounded);
    }
    level_out(&s->requested, w->requested);
    level_out(&s->allocated, rounded);
    level_out(&s->blocks, 1);
    count_cached(pool);
}

static inline void count_inactive(cenote_pool *pool, uint64_t requested)
{
    level_out(&pool->account.stats.active, count_rounded(requested));
}

/* Physical memory came or went: pages.reserved has changed. */
static inline void count_reserved(cenote_pool *pool)
{
    cenote_level *level = &pool->account.stats.reserved;
    uint64_t now = pool->store.pages.reserved;
    if (now > pool->account.reserved_peak)
        pool->account.reserved_peak = now;
    if (now > level->current)
        level_in(level, now - level->current);
    else
        level_out(level, level->current - now);
    if (now > pool->board.peak_reserved)
        pool->board.peak_reserved = now;
    pool->account.stats.asleep = pool->store.pages.asleep;
    count_cached(pool);
}

#endif
