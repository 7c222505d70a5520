/*
 * spare_events.h: events that the pool keeps for its fences and for pending blocks. See spare_events.c.
 *
 *     an event: made ---> in use <---> spare ---> destroyed with the pool
 *
 * OWNER: spare_events.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_CLOCK_SPARE_EVENTS_H
#define CENOTE_POOL_CLOCK_SPARE_EVENTS_H

#include <cenote/cenote.h>
#include <cuda.h>

#define EVENTS_MAX   4096      /* at one time; a use that gets none waits for a fence instead */

struct events {
    uint32_t       count;           /* spare ones */
    uint32_t       made;            /* spare ones and those in use */
    uint64_t       dropped;         /* counts those of all devices that were recorded and said nothing */
    CUevent        spare[EVENTS_MAX];
};

#endif
