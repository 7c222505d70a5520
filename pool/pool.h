/*
 * pool.h: everything a pool owns, in one structure of parts: the object graph of the library. See pool/library.c.
 *
 * The header of the files that own a part declares it, and says its lock and its states; tools/check/parts.txt says which other files may touch
 * it. Files that own no part, and functions that need the whole pool, have their declarations here.
 *
 *     cenote_pool
 *       +-- config            its device, its options
 *       +-- store             physical pages, regions, fences; arenas, one for each (group, stream); blocks by address
 *       +-- streams, groups   whose arena; arena families of their own
 *       +-- pending, events   freed blocks that wait for other streams, and what they wait for
 *       +-- remap             the change of mappings that is under way
 *       +-- account, steps    what is counted
 *       +-- policy            when memory goes back
 */
#ifndef CENOTE_POOL_POOL_H
#define CENOTE_POOL_POOL_H

#include "base/sized.h"
#include "pool/clock/access.h"
#include "pool/life/callback.h"
#include "pool/arenas/groups.h"
#include "pool/provider/guard.h"
#include "pool/clock/keys.h"
#include "pool/clock/lanes.h"
#include "pool/life/life.h"
#include "pool/arenas/pending.h"
#include "pool/policy/policy.h"
#include "pool/mapping/remap.h"
#include "pool/clock/spare_events.h"
#include "pool/arenas/store.h"
#include "pool/arenas/streams.h"
#include "share/exports.h"
#include "stats/account/account.h"
#include "stats/account/label.h"
#include "stats/report/report.h"

/*
 * The order is by use. Locks come first and then what a structure keeps when a new pool takes it over (pools_take_structure). After these comes
 * what the fast path of cenote_alloc and cenote_free touches, from `life` to `streams`; a part with a large array has it last. The rest is
 * seldom touched.
 */
struct cenote_pool {
    struct lock      lock;          /* guards every part, unless the part says otherwise */
    struct lock      turn;          /* held by the one thread that changes mappings */
    struct lock      watching;      /* held while the watch function runs */
    struct pool_list list;
    struct groups    groups;        /* its table is the last that is kept */

    struct life      life;
    struct config    config;
    struct store     store;
    struct pending   pending;
    struct exports   exports;
    struct recorder  recorder;
    struct account   account;
    struct steps     steps;
    struct streams   streams;
    struct immortals immortals;

    struct limits    limits;
    struct remap     remap;
    struct lanes     lanes;
    struct events    events;
    struct access    access;
    struct ask       ask;
    struct watch     watch;
    struct policy    policy;
    struct report    report;
    struct guard     guard;         /* provider guard */
};

static inline struct arena *arena_of(const cenote_pool *pool, uint32_t arena) { return TABLE_AT(struct arena, &pool->store.arenas, arena); }
static inline cenote_group *group_of(const cenote_pool *pool, uint32_t group) { return TABLE_AT(cenote_group, &pool->groups.table, group); }
static inline struct use   *use_of(const cenote_pool *pool, uint32_t use) { return TABLE_AT(struct use, &pool->pending.uses, use); }
static inline struct lane  *lane_of(const cenote_pool *pool, uint32_t lane) { return TABLE_AT(struct lane, &pool->lanes.table, lane); }

/* Does something wait for a call that names this stream, because a fence had no event on it? LOCKING: the pool's lock. */
static inline bool lane_waits_for_call(const cenote_pool *pool, uint32_t lane)
{
    return __builtin_expect(pool->store.pages.fences.wanted != 0, 0) && lane_is_wanted(pool, lane);
}

/*
 * The first use of its lane from this one on whose event covers this one: its block was freed later, and the event was recorded after that. An event
 * of a use that was freed earlier may be older than the work that this one waits for. 0: none has such an event.
 */
static inline uint32_t use_covering(const cenote_pool *pool, uint32_t use)
{
    tick freed = use_of(pool, use)->freed;
    if (lane_of(pool, use_of(pool, use)->lane)->has_events < freed) /* or it would be looked for among tens of thousands */
        return 0;
    while (use && (!use_of(pool, use)->event || use_of(pool, use)->freed < freed))
        use = use_of(pool, use)->next_in_lane;
    return use;
}

/* The use has an event from now on. LOCKING: the pool's lock. */
static inline void use_got_event(const cenote_pool *pool, const struct use *u)
{
    struct lane *lane = lane_of(pool, u->lane);
    lane->has_events = lane->has_events > u->freed ? lane->has_events : u->freed;
}

/* The use of the lane that was freed last, or this one, the first, if that was later: an event on it covers both. */
static inline uint32_t use_to_cover(const cenote_pool *pool, const struct lane *lane, uint32_t use)
{
    return use_of(pool, lane->last)->freed < use_of(pool, use)->freed ? use : lane->last;
}

/* LOCKING: the pool's lock. */
static inline void uses_are_done(const cenote_pool *pool, struct lane *lane, uint32_t covering)
{
    tick freed = use_of(pool, covering)->freed;
    lane->uses_done = lane->uses_done > freed ? lane->uses_done : freed;
}

/* The pool's context has ended, as the last call knows that asked. */
static inline bool pool_is_over(const cenote_pool *pool)
{
    return !device_is(pool->config.device, pool->config.generation);
}

static inline bool pool_is_capturing(const cenote_pool *pool)
{
    const struct device *d = pool->config.device;
    return device_is_captured(d) && (!pool->life.ending || device_bars_end(d)); /* of a pool that ends nothing waits for captures elsewhere */
}

static inline bool lanes_have_captured(const cenote_pool *pool)
{
    return __builtin_expect(atomic_load_explicit(&pool->lanes.captured, memory_order_relaxed) != 0, 0);
}

#endif
