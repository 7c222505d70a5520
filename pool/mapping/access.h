/*
 * access.h: which devices may use what the pool maps. See peer_access.c.
 * OWNER: peer_access.c; pool/library.c enters the own device. LOCKING: the turn.
 */
#ifndef CENOTE_POOL_MAPPING_ACCESS_H
#define CENOTE_POOL_MAPPING_ACCESS_H

#include "driver/device.h"

struct access {
    CUmemAccessDesc list[DEVICES_MAX]; /* the own device first */
    uint32_t       count;
    uint64_t       grants;          /* to what was mapped: what is being mapped then has to be given it, too */
    uint64_t       contexts;        /* of those, whose contexts see memory of cuMemAlloc */
};

#endif
