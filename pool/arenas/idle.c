/*
 * idle.c: arenas without a block, and which stream gets those next: a
 * new stream gets its arena here. arenas.c finds that of a known one.
 *
 * Streams and groups come and go, and each leaves an arena behind, with addresses and pages. The next stream takes the
 * arena over as it is, so that no driver call is needed and the tables do not grow. It may do so once the device is
 * done with everything that the arena ever held; the arena's own stream at once, because its order is enough. After
 * captures that is not so: their replays may run on any stream.
 *
 *            last block freed         stream retired, or group destroyed
 *    in use -----------------> idle ------------------------------------> over ---> taken over by any stream and group
 *           <-----------------  |                                          +------> no region left: forgotten by a trim
 *            its stream again   +---> more than ARENAS_IDLE exist: taken over by a stream of the same group
 *
 * Memory of a program's own source goes to no other group: the arenas of such a group that was destroyed wait until
 * what they hold is given back (trim_orphans). What a private group leaves goes to private ones, and what a plain one
 * leaves to plain ones: it is the kind of memory that serves them.
 *
 * Queues are in the order in which arenas came to be idle, so that the first is the likeliest to be complete. An idle
 * arena whose stream allocates again stays in its queue until it is looked at: neither an allocation nor a free of a
 * busy stream touches a queue.
 *
 * LOCKING: every function here expects the pool's lock, but for idle_forget_empty.
 */
#include "pool/arenas/idle.h"

#include "base/check.h"
#include "pool/arenas/arenas.h"
#include "pool/arenas/last_freed.h"
#include "pool/arenas/look.h"

#define ARENAS_IDLE 64  /* with this many arenas, a new stream takes over an idle one instead of making another */
#define LOOKS       16  /* at arenas of a queue, for one that may be taken over */
#define WORK_OF_FORGETTING 30u  /* an arena, see look.c: the system has memory back */
#define FLUSHED_AT_ONCE 500u    /* slabs of an arena, as in look.c; a trim finds the others */

/* The next group may be this one. False: none is kept. LOCKING: the pool's lock. */
static bool give_oldest_group(cenote_pool *pool)
{
    struct groups *g = &pool->groups;
    uint32_t oldest = g->ended_first;
    if (!oldest)
        return false;
    g->ended_first = group_of(pool, oldest)->next_ended;
    g->ended--;
    table_give(&g->table, oldest);
    return true;
}

/* The group has gone, and is kept for a while. LOCKING: the pool's lock, or no thread gets into the pool any more. */
void idle_forget_group(cenote_pool *pool, cenote_group *group)
{
    struct groups *g = &pool->groups;
    uint32_t number = group->number;
    group->number = 0;
    group->next_ended = 0;
    *(g->ended_first ? &group_of(pool, g->ended_last)->next_ended : &g->ended_first) = number;
    g->ended_last = number;
    if (++g->ended > GROUPS_KEPT)
        give_oldest_group(pool);
}

/* LOCKING: the pool's lock. */
cenote_group *idle_take_group(cenote_pool *pool)
{
    uint32_t number = table_take(&pool->groups.table);
    if (!number && give_oldest_group(pool))
        number = table_take(&pool->groups.table);
    if (!number)
        return NULL;
    group_of(pool, number)->number = number;
    return group_of(pool, number);
}

/* The index of the queue for an arena that is over. */
static unsigned kind_of(bool is_private, bool is_plain)
{
    return 2u * is_plain + is_private;
}

static struct arena *first_of(const cenote_pool *pool, const struct idle_queue *q)
{
    return q->first ? arena_of(pool, q->first) : NULL;
}

static void enter(cenote_pool *pool, struct idle_queue *q, struct arena *a)
{
    CHECK(!a->queue);
    a->queue = q;
    a->before_idle = q->last;
    a->next_idle = 0;
    *(q->last ? &arena_of(pool, q->last)->next_idle : &q->first) = a->number;
    q->last = a->number;
}

static void leave(cenote_pool *pool, struct arena *a)
{
    struct idle_queue *q = a->queue;
    if (!q)
        return;
    *(a->before_idle ? &arena_of(pool, a->before_idle)->next_idle : &q->first) = a->next_idle;
    *(a->next_idle ? &arena_of(pool, a->next_idle)->before_idle : &q->last) = a->before_idle;
    a->queue = NULL;
}

static void join_group(cenote_pool *pool, struct arena *a, uint32_t group)
{
    a->group = group;
    if (!group)
        return;
    cenote_group *g = group_of(pool, group);
    a->before_of_group = 0;
    a->next_of_group = g->first_arena;
    if (g->first_arena)
        arena_of(pool, g->first_arena)->before_of_group = a->number;
    g->first_arena = a->number;
    g->arenas++;
}

/* A destroyed group goes with its last arena. */
static void leave_group(cenote_pool *pool, struct arena *a)
{
    cenote_group *g = a->group ? group_of(pool, a->group) : NULL;
    a->group = 0;
    if (!g)
        return;
    *(a->before_of_group ? &arena_of(pool, a->before_of_group)->next_of_group : &g->first_arena) = a->next_of_group;
    if (a->next_of_group)
        arena_of(pool, a->next_of_group)->before_of_group = a->before_of_group;
    if (--g->arenas == 0 && g->destroyed)
        idle_forget_group(pool, g);
}

/*
 * Puts the arena into its queue, if it holds no block and is in no queue. An arena that is over belongs to no group any
 * more. The arena of a private group is over when the group is, not when its stream is: graphs write to it (rule 4).
 */
void idle_enter(cenote_pool *pool, struct arena *a)
{
    cenote_group *g = a->group ? group_of(pool, a->group) : NULL;
    bool over = !a->is_private && (a->retired || (g && g->destroyed)), sourced = g && g->has_source;
    if (a->blocks || a->slow_path_users || a->queue)
        return;
    if (over && !sourced) {
        a->retired = true;
        arenas_forget(pool, a); /* by its group, which may be ending just now */
        leave_group(pool, a);
        enter(pool, &pool->streams.over[kind_of(a->was_private, a->is_plain)], a);
    } else {
        enter(pool, sourced && g->destroyed ? &pool->streams.orphans : g ? &g->idle : &pool->streams.idle, a);
    }
}

/* Its stream has retired, or its group was destroyed: nothing is allocated from it any more. */
void idle_end(cenote_pool *pool, struct arena *a)
{
    arena_flush(a, lock_portion(FLUSHED_AT_ONCE));
    arenas_forget(pool, a);
    a->retired = true;
    leave(pool, a);
    idle_enter(pool, a);
}

/* ------------------------------------------------------------------------------------------------------ taking over */

static bool is_complete(const cenote_pool *pool, const struct arena *a)
{
    return horizon_has_passed(&pool->clock.fences, a->last_return_tick, &a->horizon);
}

/* If the driver has no ids for streams, another stream may have the key by now. */
static bool has_its_order(const struct arena *a, uint64_t key)
{
    return a->stream == key && (key & KEY_KIND) != KEY_HANDLE && !a->was_private;
}

static struct arena *find_over(const cenote_pool *pool, uint64_t key, unsigned kind, bool with_regions)
{
    const struct idle_queue *q = &pool->streams.over[kind];
    struct arena *a = first_of(pool, q), *newest = q->last ? arena_of(pool, q->last) : NULL;
    if (a && !is_complete(pool, a))
        a = newest && has_its_order(newest, key) ? newest : NULL;
    return a && (with_regions || !arena_has_regions(a)) ? a : NULL;
}

/* One of the group's own, which live streams have left empty. Those that are not empty after all leave the queue. */
static struct arena *find_idle(cenote_pool *pool, struct idle_queue *q)
{
    bool many = pool->store.arenas.used - pool->store.arenas.free_count > ARENAS_IDLE;
    struct arena *a;
    for (int looks = 0; looks < LOOKS && (a = first_of(pool, q)); looks++) {
        leave(pool, a);
        if (!a->blocks && !a->slow_path_users && (many || a->retired) && !a->is_private && is_complete(pool, a))
            return a;
        if (!a->blocks)
            enter(pool, q, a);
    }
    return NULL;
}

static void take_over(cenote_pool *pool, struct arena *a, uint32_t group, bool is_private)
{
    if (pool->store.last_freed_block.arena == a)
        last_freed_settle(pool);
    leave(pool, a);
    arenas_forget(pool, a);
    lane_leave(&pool->clock, &a->horizon);
    leave_group(pool, a);
    join_group(pool, a, group);
    a->retired = a->captured = false;
    a->ordered = 0;
    a->is_private = is_private;
    CHECK(!is_private || !a->small); /* it served private groups alone */
    heap_fix(&a->heap, is_private);
}

static struct arena *make_arena(cenote_pool *pool, uint32_t group, bool is_private, bool is_plain)
{
    uint32_t number = table_take(&pool->store.arenas);
    if (!number)
        return NULL;
    struct arena *a = arena_of(pool, number);
    a->number = number;
    join_group(pool, a, group);
    arena_open(a, &pool->store.pages, &pool->store.blocks, &pool->store.slabs, is_private);
    a->is_plain = is_plain;
    return a;
}

/* An arena for a stream that has none: one that is over, or idle, or a new one. NULL: no host memory. */
static struct arena *take_one(cenote_pool *pool, uint32_t group, uint64_t key)
{
    cenote_group *g = group ? group_of(pool, group) : NULL;
    bool is_private = g && g->flags & CENOTE_GROUP_PRIVATE, is_plain = g && g->is_plain;
    struct arena *a = find_over(pool, key, kind_of(is_private, is_plain), !g || !g->has_source);
    if (!a)
        a = find_idle(pool, g ? &g->idle : &pool->streams.idle);
    if (!a)
        return make_arena(pool, group, is_private, is_plain);
    CHECK(a->is_plain == is_plain);
    take_over(pool, a, group, is_private);
    return a;
}

/*
 * The arena of (group, key), made or taken over if there is none. An arena that is taken over may have memory in place,
 * which is handed out without another question: the caller has asked whose stream it is (stream_check_own). NULL: no
 * host memory.
 */
struct arena *idle_make_arena(cenote_pool *pool, uint32_t group, uint64_t key, CUstream handle)
{
    struct arena *a = arenas_find(pool, group, key);
    if (a) /* another thread has made it meanwhile */
        return a;
    uint32_t lane = lane_for(&pool->clock, handle, key, NULL);
    if (!lane)
        return NULL;
    lane_hold(&pool->clock, lane);
    if (!index_reserve(&pool->streams.by_key, 1) || !(a = take_one(pool, group, key))) {
        lane_drop(&pool->clock, lane);
        return NULL;
    }
    a->stream = key;
    a->handle = handle;
    lane_join(&pool->clock, &a->horizon, lane, a->last_return_tick);
    arenas_enter(pool, a);
    lane_drop(&pool->clock, lane);
    return a;
}

/* ------------------------------------------------------------------------------------------------------- forgetting */

/* Forgets an arena that no key leads to. LOCKING: the turn, too. */
void idle_forget(cenote_pool *pool, struct arena *a)
{
    uint32_t number = a->number;
    CHECK(!a->is_known);
    leave(pool, a);
    leave_group(pool, a);
    lane_leave(&pool->clock, &a->horizon);
    arena_close_small(a);
    a->number = 0;
    table_give(&pool->store.arenas, number);
}

/* It is over, or an orphan, and not a live stream's or group's. */
static bool is_ended(const cenote_pool *pool, const struct arena *a)
{
    const struct idle_queue *q = a->queue;
    return q && ((q >= pool->streams.over && q < pool->streams.over + sizeof pool->streams.over / sizeof *q) ||
                 q == &pool->streams.orphans);
}

/* Arenas that are over and hold nothing any more. LOCKING: the turn, but not the pool's lock. */
void idle_forget_empty(cenote_pool *pool)
{
    struct look look;
    look_begin_held(&look, pool);
    for (uint32_t number = 1; number < pool->store.arenas.used; number++) {
        struct arena *a = arena_of(pool, number);
        bool goes = a->number && is_ended(pool, a) && !arena_has_regions(a) && is_complete(pool, a);
        if (goes)
            idle_forget(pool, a);
        look_goes_on(&look, goes ? WORK_OF_FORGETTING : 1);
    }
    look_end(&look);
}

/*
 * Takes an orphan out of its queue; the caller puts it back, or forgets
 * it. NULL: there is none, or the device is not done with the first.
 */
struct arena *idle_take_orphan(cenote_pool *pool)
{
    struct arena *a = first_of(pool, &pool->streams.orphans);
    if (!a || !is_complete(pool, a))
        return NULL;
    leave(pool, a);
    return a;
}
