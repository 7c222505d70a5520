/*
 * last_freed.h: keeps the block that was freed last as it lies, until a thread looks for free memory, or asks for a
 * block of the same size; see last_freed.c.
 */
#ifndef CENOTE_POOL_ARENAS_LAST_FREED_H
#define CENOTE_POOL_ARENAS_LAST_FREED_H

#include "pool/pool.h"

void last_freed_settle(cenote_pool *pool);
uint64_t last_freed_reuse(cenote_pool *pool, struct arena *a, const struct request *q);

#endif
