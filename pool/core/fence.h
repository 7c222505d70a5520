/* fence.h: how far the device has got, on the pool's own clock of frees; see fence.c for the life of a fence. */
#ifndef CENOTE_POOL_CORE_FENCE_H
#define CENOTE_POOL_CORE_FENCE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t tick;          /* the pool's clock: one more at each free, end of a private group, and fence for which nothing was freed; 0: never */

#define FENCES_DUE_MAX 2048     /* chosen: up to here programs that run far ahead hold less; a full ring is not an error */
#define FENCE_PARTS_MAX 2304    /* events of all fences due, and of the one being recorded */

struct fence_part {             /* of a fence: one event */
    CUevent  event;             /* owned while due */
    uint32_t lane;              /* of the stream that it is on; 0: of none, or of the whole context */
};

enum fence_kind {
    FENCE_WHOLE,                /* over the whole context */
    FENCE_OF_ALL,               /* on each stream that lives as long as the program */
    FENCE_OF_MOST,              /* on those of them that are not being captured */
    FENCE_OF_SOME               /* others had no event either: it says nothing but how far each stream has got that has one */
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

struct fences {                 /* all guarded by the pool's lock */
    struct fence fence[FENCES_DUE_MAX]; /* ring, oldest at `first` */
    uint32_t     first;
    uint32_t     count;
    struct fence_part  part[FENCE_PARTS_MAX]; /* ring, oldest at `first_part`; those of the fence being recorded come last */
    uint32_t     first_part;
    uint32_t     part_count;
    uint32_t     parts_of_next; /* of these, how many are of the fence being recorded */
    tick         now;           /* the newest tick */
    tick         freed;         /* the newest tick of a free */
    tick         done;          /* every stream that could be touched is done with everything freed up to here */
    tick         all;           /* every stream that lives as long as the program is, also those that were captured for a time */
    tick         whole;         /* the whole context is */
    tick        *stream_done;   /* by the number of an arena: its stream is. NULL: each fence so far was over the whole context */
    tick         begun;         /* what the fence being recorded, or the newest due, covers */
    tick         wanted;        /* a fence on the marked streams was tried for frees up to here: a lane with `asked` below this got no event of it */
    uint64_t     moved;         /* counts how often more was done than before */
    bool         recording;     /* that fence is with the driver, outside the lock */
};

tick fences_stamp(struct fences *f);
tick fences_stamp_nothing(struct fences *f);
bool fence_is_done(const struct fences *f, tick freed);
bool fences_begin(struct fences *f);
bool fences_add(struct fences *f, CUevent event, uint32_t lane);
void fences_end(struct fences *f, enum fence_kind kind);
CUevent fences_give_up_newest(struct fences *f);
bool fences_have_all(const struct fences *f, tick freed);
bool fences_bring(const struct fences *f, tick limit, bool all);
bool fences_oldest(const struct fences *f, struct due *due);
CUevent fences_covering(const struct fences *f, tick *freed);
tick fences_newest_whole(const struct fences *f);
CUevent fences_step(struct fences *f, const struct due *asked);
CUevent fences_skip(struct fences *f, const struct due *asked);
void fences_all_done(struct fences *f, tick covers);
bool fences_are_valid(const struct fences *f);

/* The arena's own stream is done with what the arena freed up to here. */
static inline void fences_advance_stream(struct fences *f, uint32_t arena, tick covers)
{
    if (f->stream_done[arena] < covers) {
        f->moved += f->stream_done[arena] < f->freed;
        f->stream_done[arena] = covers;
    }
}

/* Is the device done with what that arena freed at that tick? Pages and slots are asked so. */
static inline bool fence_has_passed(const struct fences *f, tick freed, uint32_t arena)
{
    return fence_is_done(f, freed) && (__builtin_expect(!f->stream_done, 1) || freed <= f->stream_done[arena] || freed <= f->whole);
}

#endif
