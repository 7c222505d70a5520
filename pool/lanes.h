/*
 * lanes.h: the streams that a pool knows. See lanes.c, and pending.c for the blocks of others that are used on a stream.
 *
 *     a lane: known by its key ---> ended (its stream was retired) ---> gone, when no arena, use or event names it
 *
 * OWNERS: lanes.c; pending.c and peer_uses.c have the line of uses. LOCKING: the pool's lock; `marks` the turn.
 */
#ifndef CENOTE_POOL_LANES_H
#define CENOTE_POOL_LANES_H

#include "base/index.h"
#include "driver/device.h"
#include "pool/core/arena.h"

#define LANES_MAX (1u << 24)
#define MARKS_MAX (TOUCH_STREAMS_MAX + 256)
#define LANE_DONE UINT64_MAX        /* its stream has ended, and the device is done with all of it */

struct lane {
    uint64_t key;                   /* of the stream, see streams.c */
    uint64_t probe;                 /* see lane_hash */
    CUstream stream;                /* its handle when it was last seen */
    struct device *other;           /* whose stream it is; NULL: the pool's own device */
    uint32_t users;                 /* arenas, uses and events of fences that name it: the lane goes with the last one */
    uint32_t first_arena, last_arena; /* its arenas: first those that are found by their stream */
    tick     asked;                 /* the newest fence with an event on the stream */
    tick     done;                  /* the device is done with what the stream was given up to here */
    CUevent  end;                   /* recorded when the stream was retired, behind all that it was given; NULL: none, or it is done */
    uint32_t next_ending;           /* lane with such an event */
    bool     ended;

    /* --- pending.c: freed blocks that were used on the stream */
    bool     is_listed;             /* among the lanes with a use in them */
    bool     is_mute;               /* the driver did not say when it was asked last whether the first use is done */
    uint32_t next;                  /* lane with a use in it */
    uint32_t first, last;           /* uses that wait, in the order of their frees */
    uint32_t done_up_to;            /* use that the driver said is done, with all before it; 0: none */
};

/* A stream on which the fence that is being recorded wants an event. */
struct mark {
    CUstream stream;
    uint32_t lane;                  /* 0: the pool has none of it */
    bool     owed;                  /* something waits for an event on it */
};

struct lanes {
    struct table table;
    struct index by_key;
    uint32_t     first_ending;
    uint32_t     count;             /* of the marks */
    struct mark  marks[MARKS_MAX];
};

#endif
