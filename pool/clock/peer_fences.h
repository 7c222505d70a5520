/*
 * peer_fences.h: a page that kernels of other devices may touch (cenote_pool_grant) leaves its place when those
 * devices are done, too; see peer_fences.c.
 */
#ifndef CENOTE_POOL_CLOCK_PEER_FENCES_H
#define CENOTE_POOL_CLOCK_PEER_FENCES_H

#include "driver/device.h"
#include "pool/clock/fence.h"

/* How far a granted device has got. LOCKING: the turn, but for what is atomic. */
struct peer_fence {
    _Atomic(uint64_t) generation; /* of the context that was granted; 0: none. A reset ends the grant */
    CUevent event;              /* in its context; NULL: none was needed so far */
    tick    covers;             /* was recorded after everything that was freed up to here */
    _Atomic(tick) done;         /* read without: the device is done with what it was given before that was freed */
};

struct grants {
    _Atomic(uint64_t) devices;      /* a bit for each device that cenote_pool_grant named; changes with the turn */
    struct peer_fence fence[DEVICES_MAX];
};

#endif
