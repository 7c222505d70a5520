/*
 * uses.h: for what a freed block waits that other streams may still be using; see uses.c.
 *
 * OWNERS: uses.c; peer_uses.c has the events on other devices. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_CLOCK_USES_H
#define CENOTE_POOL_CLOCK_USES_H

#include "base/index.h"
#include "driver/device.h"
#include "pool/clock/fence.h"

#define USES_MAX     (1u << 24)
#define USES_WALKED  16             /* chosen: most blocks have one or two; each further use is found in an index */

/*
 * One stream a block is used on besides its own. The first use of a block stands for it: once it has USES_WALKED of
 * them, the first stays the first.
 */
struct use {
    uint32_t next;                  /* of the same block */
    uint32_t next_in_lane;
    uint32_t lane;                  /* of the stream */
    uint32_t first;                 /* of the same block, once that is freed */
    uint32_t left;                  /* in the first use: those of the block that are not done; while it lives, all */
    uint32_t region;                /* this and `at` are the caller's: where the block is */
    uint64_t at;
    CUevent  event;                 /* from the free on, or as soon as it can be, until it is done; NULL: none yet */
    tick     freed;
    bool     waits;                 /* in its lane */
};

/*
 * For what freed blocks wait: nothing that can be waited for, another device as a whole, an event there, an event here.
 */
enum uses_wait { USES_NOTHING, USES_DEVICE, USES_EVENT_OF_PEER, USES_EVENT };

struct uses {
    uint32_t       first, last;     /* lanes with a use in them */
    struct table   table;
    struct index   by_lane;         /* uses of blocks that have more than USES_WALKED, but for the first of these */
    _Atomic(uint32_t) blocks;       /* freed ones that wait in lanes; read without the lock */
    bool           polling;         /* a thread asks the driver about them */
    tick           fence_wanted;    /* latest free of a use that waits for a fence */
    tick           done_on_peers[DEVICES_MAX]; /* up to which free other devices are known to be done */
};

/* A walk through the lanes, see uses_take_done. */
struct uses_walk {
    uint32_t last;                  /* lane: the walk ends behind it */
    uint32_t looks;                 /* lanes that may still be found not done */
    uint32_t count;                 /* of the uses that were looked at */
};

#endif
