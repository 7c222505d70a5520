/*
 * pool.h: everything a pool owns, in one structure of parts: the object graph of the library. See pool/library.c.
 *
 * The header of the files that own a part declares it, and says its lock and its states; tools/check/parts.txt says
 * which other files may touch it. Functions are declared in the headers of their files; here are only the few short
 * ones that all rooms need.
 *
 *     cenote_pool
 *       +-- config            its device, its options
 *       +-- store             physical pages, regions; arenas, one for each (group, stream); blocks by address
 *       +-- clock             is the device done with it?
 *       +-- streams, groups   whose arena; arena families of their own
 *       +-- pending           freed blocks that wait for other streams
 *       +-- remap             the change of mappings that is under way
 *       +-- account, steps    what is counted; board: how others see that
 *       +-- policy            when memory goes back
 */
#ifndef CENOTE_POOL_POOL_H
#define CENOTE_POOL_POOL_H

#include "base/sized.h"
#include "pool/clock/clock.h"
#include "pool/life/callback.h"
#include "pool/arenas/groups.h"
#include "pool/provider/guard.h"
#include "pool/life/life.h"
#include "pool/arenas/pending.h"
#include "pool/policy/policy.h"
#include "pool/mapping/access.h"
#include "pool/mapping/remap.h"
#include "pool/sleep/courier.h"
#include "pool/arenas/store.h"
#include "pool/arenas/streams.h"
#include "pool/arenas/words.h"
#include "share/exports.h"
#include "share/lent.h"
#include "stats/account/account.h"
#include "stats/account/board.h"
#include "stats/account/label.h"
#include "stats/report/report.h"

/*
 * The order is by use. Locks come first and then what a structure keeps when a new pool takes it over
 * (pools_take_structure). After these comes what the fast path of cenote_alloc and cenote_free touches, from `life` to
 * `streams`, and it touches what is counted, at the end; a part with a large array has it last. The rest is seldom
 * touched.
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
    struct clock     clock;
    struct pending   pending;
    struct exports   exports;
    struct lent      lent;
    struct words     words;
    struct recorder  recorder;
    struct streams   streams;

    struct limits    limits;
    struct remap     remap;
    struct access    access;
    struct ask       ask;
    struct watch     watch;
    struct policy    policy;
    struct report    report;
    struct guard     guard;         /* provider guard */
    struct courier   courier;       /* copies of memory that sleeps */

    struct board     board;         /* from here to the end: pages of their own, which other processes may read */
    struct account   account;
    struct steps     steps;
};

static inline struct arena *arena_of(const cenote_pool *pool, uint32_t arena)
{
    return TABLE_AT(struct arena, &pool->store.arenas, arena);
}
static inline cenote_group *group_of(const cenote_pool *pool, uint32_t group)
{
    return TABLE_AT(cenote_group, &pool->groups.table, group);
}

/* The pool's context has ended, as the last call knows that asked. */
static inline bool pool_is_over(const cenote_pool *pool)
{
    return !device_is(pool->config.device, pool->config.generation);
}

static inline bool pool_is_capturing(const cenote_pool *pool)
{
    return clock_is_captured(&pool->clock);
}

#endif
