/*
 * lanes.h: the streams that a pool knows. See lanes.c, lane_events.c,
 * and uses.c for the blocks of others that are used on a stream.
 *
 *    a lane: known by its key ---> ended (its stream was retired) ---> gone, when no arena, use, event or mark names it
 *
 * OWNERS: lanes.c, lane_events.c; uses.c and peer_uses.c have the line of uses. LOCKING: the pool's lock. What a lane
 * is of (`key`, `stream`, `newest`, `other`, `generation`) is constant, and a thread that holds the lane reads it
 * without; `is_mute` belongs to the thread that is `polling`. The marks and their count change with the turn as well,
 * and are read with either. `captured` is a hint without the lock; nothing else of `struct lanes` is so.
 */
#ifndef CENOTE_POOL_CLOCK_LANES_H
#define CENOTE_POOL_CLOCK_LANES_H

#include <cenote/cenote.h>

#include "base/index.h"
#include "driver/device.h"
#include "pool/clock/fence.h"

#define LANES_MAX (1u << 24)
#define MARKS_MAX (TOUCH_STREAMS_MAX + 1)
#define LANE_DONE UINT64_MAX        /* its stream has ended, and the device is done with all of it */
#define LANE_DUE_MAX 3

/* An event on the lane's stream that is not known to be done. */
struct lane_event {
    CUevent event;
    tick    covers;                 /* what was freed up to here; LANE_DONE: the stream got nothing behind it */
};

struct lane {
    uint64_t key;                   /* of the stream, see keys.c */
    uint32_t probe;                 /* see lane_hash */
    CUstream stream;                /* its handle when it was first seen */
    uint64_t newest;                /* of one that was captured then: no stream had a greater
                                       id. 0: it was not, or that is not known */
    uint64_t capture;               /* in which it was named last; 0: it was not captured, or that is not known */
    struct device *other;           /* whose stream it is; NULL: the pool's own device */
    uint64_t generation;            /* of the other device's context: with that the lane is over */
    uint32_t users;                 /* arenas, uses, events and marks that name it: the lane goes with the last one */
    uint32_t first_arena;           /* of those that are found by their stream, see arenas.c */
    struct progress progress;       /* its arenas point at it */
    tick     born;                  /* it has nothing that was freed up to here */
    tick     asked;                 /* the newest event on the stream covers what was freed up to here */
    tick     ended_at;
    tick     replayed;              /* until the device is done with it up to here, no memory
                                       of destroyed private groups moves; 0: that may */
    _Atomic(bool) ended;            /* read without the lock while the device is visited: lane_ends.c waits for that */

    /* --- lane_events.c: events on a stream that ends */
    struct lane_event due[LANE_DUE_MAX]; /* the oldest first */
    uint32_t due_count;
    bool     end_is_near;           /* of a stream of another device: when it was asked last,
                                       the driver said that the one event is not done */
    uint32_t next_asking;           /* lane with such an event */
    bool     is_asking;

    /* --- uses.c: freed blocks that were used on the stream */
    bool     is_listed;             /* among the lanes with a use in them */
    bool     is_mute;               /* in the last look at the first use the driver was not
                                       asked for its event, or did not say "not ready" */
    uint32_t next;                  /* lane with a use in it */
    uint32_t first, last;           /* uses that wait, as their frees came here: those of threads
                                       that free at one time may have changed places */
    tick     has_events;            /* no use of a block that was freed later has an event */
    tick     uses_done;             /* uses of blocks that were freed up to here are done, by their events */
};

/* A stream on which the fence that is being recorded wants an event. */
struct mark {
    CUstream stream;
    uint32_t lane;                  /* held; 0: the pool has none of it */
    bool     owed;                  /* something waits for an event on it */
};

_Static_assert(MARKS_MAX <= FENCE_PARTS_MAX, "a fence has room for an event on each marked stream");

struct lanes {
    struct table table;
    struct index by_key;
    uint32_t     probes;            /* the highest probe that a lane was ever entered with */
    _Atomic(uint32_t) captured;     /* of these: streams that the pool knows by their handles
                                       in captures. Read without the lock, as a hint */
    uint32_t     first_asking, last_asking, asking;
    tick         known_from;        /* lanes that ended before are done when the context is; 0: none are */
    uint32_t     count;             /* of the marks; 0 unless a thread records a fence */
    struct mark  marks[MARKS_MAX];
};

struct lanes_call {                 /* what a call of the API names: inside it, a
                                       function of the program may make others */
    uint64_t key;
    CUstream stream;
    bool     names;
};

/* With its context, of another device: nothing that is left of the lane is named to the driver. */
static inline bool lane_is_over(const struct lane *lane)
{
    return lane->other && !device_is(lane->other, lane->generation);
}

#endif
