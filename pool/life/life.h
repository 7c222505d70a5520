/*
 * life.h: a pool in the list of pools, what it was made with, and
 * how far its life has come. See pool/library.c and pools.c.
 *
 *     open ---> ending ---> closed ---> `reusable`: once POOLS_KEPT more pools have ended, a new one takes over the
 *       |                               structure
 *       +-----> lost: the first sticky error of the driver; the pool stays open, and allocations fail
 *
 * OWNERS: pool/library.c makes and ends pools; pools.c keeps the list, and the devices that pools have open; pool.c and
 * reset.c note the first sticky error; turn.c and look.c count the threads that are away; alloc.c, pending.c,
 * retire.c and capture.c count those that come back to the books.
 * LOCKING: each part says its own.
 */
#ifndef CENOTE_POOL_LIFE_LIFE_H
#define CENOTE_POOL_LIFE_LIFE_H

#include <cenote/sleep.h>

#include "base/error.h"
#include "base/lock.h"
#include "driver/device.h"
#include "pool/clock/fence.h"

#define POOLS_KEPT    64        /* chosen: so many more pools end before a structure is
                                   another pool's, and late calls find it ended: docs/locks.md */
#define EXIT_PATIENCE 1000      /* in ms, chosen: so long the end of the process waits
                                   for a thread of ours. What that does takes a few */

/* What stands above the road of a block and is called by it. pool/library.c has the one that pools get. */
struct pool_hooks {
    int  (*explain)(cenote_pool *pool, uint64_t bytes);             /* explain_shortage */
    bool (*decay)(cenote_pool *pool, uint64_t most);                /* decay_go */
    void (*created)(cenote_pool *pool, uint64_t creating_ns, uint64_t mapping_ns); /* churn_created */
    void (*wished)(cenote_pool *pool);                              /* board_answer */
    uint64_t (*want)(cenote_pool *pool, uint64_t bytes, uint64_t *until);           /* wants_ask */
    int  (*pause)(cenote_pool *pool, cenote_sleep *sleep);          /* pause_alone */
};

/*
 * A pool in the list of all pools of the process. It outlives the
 * pool: threads may be at the structure of one that is closed.
 * LOCKING: the lock of the pools; `attended` under the lock of the background thread, and read without.
 */
struct pool_list {
    cenote_pool   *next;
    uint32_t       walkers;         /* threads that go through all pools and are at this one */
    bool           reusable;        /* closed for good: a new pool may take over the structure, */
    uint64_t       reusable_from;   /* when so many pools of the process have ended */
    atomic_bool    attended;        /* by the background thread */
};

/*
 * LOCKING: `open` and `lost` change under the pool's lock, `ending` is atomic, and all three are read without a lock;
 * `users`: the pool's lock; `away`: the turn or the pool's lock, and a thread with both finds it as it stays.
 */
struct life {
    _Atomic(bool)  open;            /* false: destroyed, kept for reuse */
    _Atomic(bool)  ending;          /* a thread destroys it */
    _Atomic(CUresult) lost;         /* first sticky error, 0: none */
    uint32_t       users;           /* threads without the lock that come back to the books: allocations on the slow
                                       path, frees that record, uses and retires that hold a lane, captures that are
                                       just being announced. The pool does not end meanwhile */
    _Atomic(uint32_t) away;         /* threads that have let go of the turn, or of the pool's lock in a pause of a look,
                                       and come back to it: the end of the pool waits for them (invariant 31) */
};

/* What a pool was made with. LOCKING: constant while the pool is open; `others` is atomic. */
struct config {
    struct device *device;
    uint64_t       generation;      /* of its context, in which the pool is: with that the pool is over, see reset.c */
    const struct pool_hooks *hooks;
    cenote_options options;         /* limit and trim_above as they were asked for first */
    _Atomic(enum cenote_provider) provider; /* never CENOTE_AUTO; changes at most once, before
                                               the pool has memory: prove_pages */
    bool           is_default;
    CUmemoryPool   driver_pool;     /* of async.c, which makes it with the turn; NULL: none so far */
    uint64_t       opened_ns;
    uint64_t       serial;          /* no other pool of the process has it, earlier or later */
    _Atomic(struct device *) others[DEVICES_MAX]; /* devices whose streams use its blocks, or that have access, open as
                                                     long as the pool; added under the lock of the pools */
};

/* How much the pool may hold. LOCKING: the pool's lock. */
struct limits {
    uint64_t       bytes;           /* 0: no limit */
    uint64_t       promised;        /* bytes of segments being taken, not yet in reserved */
    double         trim_above;      /* part of the limit or the device's memory; up to 0: off */
};

#endif
