/* grow.h: makes an arena grow by a region of addresses, or by a segment; see grow.c. */
#ifndef CENOTE_POOL_MAPPING_GROW_H
#define CENOTE_POOL_MAPPING_GROW_H

#include "pool/pool.h"

int grow_arena(cenote_pool *pool, struct arena *a, const struct request *q, CUresult *driver);
uint64_t grow_least(const cenote_pool *pool, const struct arena *a, const struct request *q);

#endif
