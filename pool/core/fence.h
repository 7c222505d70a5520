/* fence.h: how far the device has got, on the pool's own clock of frees; see fence.c for the life of a fence. */
#ifndef CENOTE_POOL_CORE_FENCE_H
#define CENOTE_POOL_CORE_FENCE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint64_t tick;          /* one more at each free of a pool; 0: never */

#define FENCES_DUE_MAX 256      /* more in flight than any run-ahead seen in traces; a full ring is not an error */

struct fence {
    CUevent event;              /* owned while due */
    tick    covers;             /* everything freed up to here was freed before it was recorded */
};

struct fences {                 /* all guarded by the pool's lock */
    struct fence due[FENCES_DUE_MAX];   /* ring, oldest at `first` */
    uint32_t     first;
    uint32_t     count;
    tick         now;           /* of the last free */
    tick         done;          /* the device is done with everything freed up to here */
    tick         begun;         /* what the fence being recorded, or the newest due, covers */
    bool         recording;     /* that fence is with the driver, outside the lock */
};

tick fences_stamp(struct fences *f);
bool fence_is_done(const struct fences *f, tick freed);
bool fences_begin(struct fences *f);
void fences_end(struct fences *f, CUevent event);
bool fences_oldest(const struct fences *f, struct fence *oldest);
bool fences_newest(const struct fences *f, struct fence *newest);
CUevent fences_mark_done(struct fences *f, tick covers);
void fences_all_done(struct fences *f, tick covers);
bool fences_are_valid(const struct fences *f);

#endif
