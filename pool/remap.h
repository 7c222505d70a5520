/*
 * remap.h: the change of mappings that is under way. See attempt.c.
 *
 *     a fill: planned ---> created ---> mapped ---> published, all in one hold of the turn
 *
 * OWNERS: attempt.c; aliases.c has `drop_above`. watch.c and policy/churn.c read the fill while it is under way. LOCKING: the turn.
 */
#ifndef CENOTE_POOL_REMAP_H
#define CENOTE_POOL_REMAP_H

#include "pool/core/fill.h"

struct remap {
    struct fill    fill;
    uint64_t       creating_ns;     /* driver time spent on creating pages, which moving may match */
    uint64_t       drop_above;      /* mappings of the device at which aliases.c tries again; 0: at the cap */
    uint64_t       moving_ns;       /* driver time spent on moving pages, against the harvest budget */
};

#endif
