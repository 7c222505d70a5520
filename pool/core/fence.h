/* fence.h: how far the device has got, on the pool's own clock of frees; see fence.c for the life of a fence. */
#ifndef CENOTE_POOL_CORE_FENCE_H
#define CENOTE_POOL_CORE_FENCE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t tick;          /* one more at each free of a pool; 0: never */

#define FENCES_DUE_MAX 256      /* more in flight than any run-ahead seen in traces; a full ring is not an error */

#define FENCES_MORE_MAX 2048    /* further events of fences due */

struct fence {
    CUevent  event;             /* owned while due */
    tick     covers;            /* everything freed up to here was freed before it was recorded */
    uint32_t more;              /* further events of it, on other streams: they come to be `event` one after the other */
    bool     whole;             /* recorded over the whole context, not on streams */
};

struct fences {                 /* all guarded by the pool's lock */
    struct fence due[FENCES_DUE_MAX];   /* ring, oldest at `first` */
    uint32_t     first;
    uint32_t     count;
    CUevent      more[FENCES_MORE_MAX]; /* ring: further events of the fences due, and of the one being recorded, oldest at `first_more` */
    uint32_t     first_more;
    uint32_t     more_count;
    uint32_t     more_of_next;  /* of these, how many are of the fence being recorded */
    tick         now;           /* of the last free */
    tick         done;          /* the device is done with everything freed up to here, but for what `held` says */
    tick         whole;         /* up to here it is, and with what other streams did that cenote does not know */
    tick        *held;          /* by the number of an arena: what it freed from here on is not done, whatever `done` says; 0: nothing is held */
    tick         begun;         /* what the fence being recorded, or the newest due, covers */
    bool         recording;     /* that fence is with the driver, outside the lock */
};

tick fences_stamp(struct fences *f);
bool fence_is_done(const struct fences *f, tick freed);
bool fences_begin(struct fences *f);
bool fences_add(struct fences *f, CUevent event);
CUevent fences_take_back(struct fences *f);
void fences_end(struct fences *f, CUevent event, bool whole);
void fences_pass(struct fences *f);
CUevent fences_step(struct fences *f, tick covers);
bool fences_oldest(const struct fences *f, struct fence *oldest);
bool fences_newest(const struct fences *f, struct fence *newest);
CUevent fences_mark_done(struct fences *f, tick covers);
void fences_all_done(struct fences *f, tick covers);
bool fences_are_valid(const struct fences *f);

/* Is the device done with what that arena freed at that tick? Pages and slots are asked so: of one arena `done` may say too much. */
static inline bool fence_has_passed(const struct fences *f, tick freed, uint32_t arena)
{
    return fence_is_done(f, freed) && (__builtin_expect(!f->held, 1) || !f->held[arena] || freed < f->held[arena]);
}

#endif
