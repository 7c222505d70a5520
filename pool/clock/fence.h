/* fence.h: how far the device has got, on the pool's own clock of frees; see fence.c for the life of a fence. */
#ifndef CENOTE_POOL_CLOCK_FENCE_H
#define CENOTE_POOL_CLOCK_FENCE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"
#include "base/memory.h"

typedef uint64_t tick;          /* the pool's clock: one more at each free, end of a private group and
                                   pause of it, and fence for which nothing was freed; 0: never */

#define FENCES_DUE_MAX 2048     /* chosen: up to here programs that run far ahead
                                   hold less; a full ring is not an error */
#define FENCE_PARTS_MAX 2304    /* events of all fences due, and of the one being recorded */

struct fence_part {             /* of a fence: one event */
    CUevent  event;             /* owned while due */
    uint32_t lane;              /* of the stream that it is on; 0: of none, or of the whole context */
};

enum fence_kind {
    FENCE_WHOLE,                /* over the whole context */
    FENCE_OF_ALL,               /* on each stream that lives as long as the program */
    FENCE_OF_MOST,              /* on those of them that are not being captured */
    FENCE_OF_SOME               /* others had no event either: it says nothing but
                                   how far each stream has got that has one */
};

struct fence {
    tick     covers;            /* everything freed up to here was freed before it was recorded */
    uint32_t parts;             /* of its events, those that are not known to be done */
    enum fence_kind kind;
};

/* The one event that is worth asking the driver about: the next of the oldest fence. */
struct due {
    CUevent  event;
    uint32_t lane;
    tick     covers;
    bool     is_last;           /* of its fence */
};

/* Of a stream. */
struct progress {
    tick     freed;             /* no arena of the stream has freed anything later */
    tick     done;              /* the device is done with what the stream was given up to
                                   here; UINT64_MAX: it has ended, and with all of it */
};

/* Of an arena, which begins with it: up to where its own stream is done with what it freed. See fence_has_passed. */
struct horizon {
    uint32_t of_table;          /* while the arena is free, the table chains it here */
    uint32_t lane;              /* of its stream, see lanes.c */
    struct progress *stream;    /* of that lane; NULL: it has no stream */
    tick     known;             /* all that it freed up to here was done when it came to its stream */
    tick     released;          /* its private group ended then: what it freed until then,
                                   or later, waits for replays, too. 0: it left none */
};

struct fences {                 /* all guarded by the pool's lock */
    struct fence fence[FENCES_DUE_MAX]; /* ring, oldest at `first` */
    uint32_t     first;
    uint32_t     count;
    struct fence_part  part[FENCE_PARTS_MAX]; /* ring, oldest at `first_part`; those of
                                                 the fence being recorded come last */
    uint32_t     first_part;
    uint32_t     part_count;
    uint32_t     parts_of_next; /* of these, how many are of the fence being recorded */
    tick         now;           /* the newest tick */
    tick         freed;         /* the newest tick of a free */
    tick         done;          /* every stream that could be touched is done with everything freed up to here */
    tick         all;           /* every stream that lives as long as the program is,
                                   also those that were captured for a time */
    tick         whole;         /* the whole context is */
    tick         released;      /* the newest end of a private group */
    tick         unreplayed;    /* no replay writes any more to what private groups have left that ended up to here */
    uint32_t     replaying;     /* lanes that such memory waits for */
    const struct table *arenas; /* by number; each begins with its horizon */
    tick         begun;         /* what the fence being recorded, or the newest due, covers */
    tick         wanted;        /* a fence on the marked streams was tried for frees up to here:
                                   a lane with `asked` below this got no event of it */
    uint64_t     moved;         /* counts how often more was done than before */
    bool         recording;     /* that fence is with the driver, outside the lock */
};

tick fences_stamp_nothing(struct fences *f);
bool fences_begin(struct fences *f);
bool fences_add(struct fences *f, CUevent event, uint32_t lane);
void fences_end(struct fences *f, enum fence_kind kind);
CUevent fences_give_up_newest(struct fences *f);
bool fences_have_all(const struct fences *f, tick freed);
bool fences_bring(const struct fences *f, tick limit);
void fences_look_at_replays(struct fences *f);
bool fences_oldest(const struct fences *f, struct due *due);
CUevent fences_covering(const struct fences *f, tick *freed);
tick fences_newest_whole(const struct fences *f);
CUevent fences_step(struct fences *f, const struct due *asked);
CUevent fences_skip(struct fences *f, const struct due *asked);
void fences_all_done(struct fences *f, tick covers);
bool fences_are_valid(const struct fences *f);

/* A free happens now. What it frees is stamped with the result. */
static inline tick fences_stamp(struct fences *f)
{
    return f->freed = ++f->now;
}

static inline bool fence_is_done(const struct fences *f, tick freed)
{
    CHECK(freed <= f->now); /* invariant 14: nothing was freed in the future */
    return freed <= f->done;
}

/* Does memory that a private group has left wait for replays? */
static inline bool fences_await_replays(const struct fences *f)
{
    return f->unreplayed < f->released;
}

/*
 * Up to where its own stream is done with what the arena freed. Replays
 * may be on any stream: what they may still write to is not done.
 */
static inline tick horizon_of(const struct fences *f, const struct horizon *h)
{
    tick done = h->stream ? h->stream->done : 0;
    if (h->released > f->unreplayed && done >= h->released)
        done = h->released - 1;
    return done > h->known ? done : h->known;
}

static inline bool horizon_has_passed(const struct fences *f, tick freed, const struct horizon *h)
{
    return freed <= f->whole || (fence_is_done(f, freed) && freed <= horizon_of(f, h));
}

/* Is the device done with what that arena freed at that tick? Pages and slots are asked so. */
static inline bool fence_has_passed(const struct fences *f, tick freed, uint32_t arena)
{
    return freed <= f->whole || (fence_is_done(f, freed) && freed <= horizon_of(f, table_at(f->arenas, arena)));
}

#endif
