/*
 * remap.h: the change of mappings that is under way, and what such changes have cost. See attempt.c and budget.c.
 *
 *     a fill: planned ---> created ---> mapped ---> published, all in one hold of the turn
 *
 * OWNERS: attempt.c; budget.c has the times and `need`; aliases.c has `drop_above`.
 * watch.c and policy/churn.c read the fill while it is under way.
 * LOCKING: the turn; `need` changes with the pool's lock, and may be read with it alone.
 */
#ifndef CENOTE_POOL_MAPPING_REMAP_H
#define CENOTE_POOL_MAPPING_REMAP_H

#include <cenote/cenote.h>

#include "pool/core/fill.h"

struct remap {
    struct fill    fill;
    uint64_t       moving_ns;       /* driver time that moving pages has taken */
    uint64_t       owed;            /* bytes created in place of other sizes, for which
                                       nothing has gone: less than the largest page */
    uint64_t       need;            /* the most bytes that were ever live at one
                                       time, as far as the slow path has seen */
    uint64_t       drop_above;      /* mappings of the device at which aliases.c tries again; 0: at the cap */
};

#endif
