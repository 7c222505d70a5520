/*
 * arenas.c: which arena a stream has: found by (group, key of the stream), remembered, forgotten. Each allocation looks
 * here first. Not idle.c, which gives an arena to a stream that has none.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/arenas/arenas.h"

#include "base/check.h"

#define PROBES 16   /* in the index of arenas */

/* Arenas are found through a hash of (group, stream); `probe` tells apart keys that share one. */
static uint64_t arena_key(uint32_t group, uint64_t key, uint32_t probe)
{
    uint64_t hash = (key + 1 + ((uint64_t)group << 40) + ((uint64_t)probe << 57)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    return (hash << 9) | (1ull << 63);
}

static struct arena *find_arena(const cenote_pool *pool, uint32_t group, uint64_t key, uint32_t *free_probe)
{
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        uint32_t number = index_find(&pool->streams.by_key, arena_key(group, key, probe));
        *free_probe = probe;
        if (!number)
            return NULL;
        struct arena *a = arena_of(pool, number);
        if (a->stream == key && a->group == group)
            return a;
    }
    return NULL;
}

/*
 * The arenas of a stream that are found by it, of whichever group,
 * hang at its lane: they end with the stream (retire.c).
 */
static void join_stream(cenote_pool *pool, struct arena *a)
{
    struct lane *lane = lane_of(&pool->clock, a->horizon.lane);
    a->is_known = true;
    a->before_of_lane = 0;
    a->next_of_lane = lane->first_arena;
    if (lane->first_arena)
        arena_of(pool, lane->first_arena)->before_of_lane = a->number;
    lane->first_arena = a->number;
}

static void leave_stream(cenote_pool *pool, struct arena *a)
{
    struct lane *lane = lane_of(&pool->clock, a->horizon.lane);
    *(a->before_of_lane ? &arena_of(pool, a->before_of_lane)->next_of_lane : &lane->first_arena) = a->next_of_lane;
    if (a->next_of_lane)
        arena_of(pool, a->next_of_lane)->before_of_lane = a->before_of_lane;
    a->is_known = false;
}

/* The arena is found under its key no more. Its blocks stay valid: they know their arena themselves. */
void arenas_forget(cenote_pool *pool, struct arena *a)
{
    if (!a->is_known)
        return;
    leave_stream(pool, a);
    if (pool->streams.last_arena == a)
        pool->streams.last_arena = NULL;
    for (uint32_t probe = 0; probe < PROBES; probe++)
        if (index_find(&pool->streams.by_key, arena_key(a->group, a->stream, probe)) == a->number)
            index_remove(&pool->streams.by_key, arena_key(a->group, a->stream, probe));
}

/* The arena of (group, key), or NULL: there is none yet. LOCKING: the pool's lock. */
struct arena *arenas_find(cenote_pool *pool, uint32_t group, uint64_t key)
{
    uint32_t probe;
    struct arena *a = pool->streams.last_arena;
    if (a && a->stream == key && a->group == group && a->number && !a->retired)
        return a;
    a = find_arena(pool, group, key, &probe);
    if (a)
        pool->streams.last_arena = a;
    return a;
}

/* From now on the arena is found by its group and stream. There is room in the index. */
void arenas_enter(cenote_pool *pool, struct arena *a)
{
    uint32_t probe;
    join_stream(pool, a);
    const struct arena *other = find_arena(pool, a->group, a->stream, &probe);
    CHECK(!other); /* invariant 32 */
    if (!index_find(&pool->streams.by_key, arena_key(a->group, a->stream, probe)))
        index_add(&pool->streams.by_key, arena_key(a->group, a->stream, probe), a->number);
}

/* Invariant 32: no second arena has its group and stream. */
bool arenas_has_one(const cenote_pool *pool, const struct arena *a)
{
    uint32_t probe;
    return !a->is_known || find_arena(pool, a->group, a->stream, &probe) == a;
}
