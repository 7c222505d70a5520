/* lane_ends.h: a stream is about to end; see lane_ends.c. LOCKING: none held, not inside. */
#ifndef CENOTE_POOL_CLOCK_LANE_ENDS_H
#define CENOTE_POOL_CLOCK_LANE_ENDS_H

#include "pool/pool.h"

CUresult lane_ends_record(cenote_pool *pool, uint32_t lane, CUstream stream);

#endif
