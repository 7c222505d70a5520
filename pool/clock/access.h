/*
 * access.h: which devices may use what the pool maps. See peer_access.c.
 * OWNER: peer_access.c; peer_fences.c of `fences`; pool/library.c enters the own device. LOCKING: the turn; `granted` is atomic, and read without.
 */
#ifndef CENOTE_POOL_CLOCK_ACCESS_H
#define CENOTE_POOL_CLOCK_ACCESS_H

#include "driver/device.h"
#include "pool/clock/fence.h"

/* How far a granted device has got, see peer_fences.c. */
struct peer_fence {
    _Atomic(uint64_t) generation; /* of the context that was granted; 0: none. A reset ends the grant */
    CUevent event;              /* in its context; NULL: none was needed so far */
    tick    covers;             /* was recorded after everything that was freed up to here */
    tick    done;               /* the device is done with what it was given before that was freed */
};

struct access {
    CUmemAccessDesc list[DEVICES_MAX]; /* the own device first */
    uint32_t       count;
    uint64_t       contexts;        /* of those, whose contexts see memory of cuMemAlloc; in a pool of pages once a group is plain */
    _Atomic(uint64_t) granted;      /* one bit for each device that cenote_pool_grant named */
    struct peer_fence fences[DEVICES_MAX];
};

#endif
