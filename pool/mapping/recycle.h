/*
 * recycle.h: regions in which no block lies give their addresses back, and the pool keeps their pages; see
 * recycle.c. LOCKING: the turn.
 */
#ifndef CENOTE_POOL_MAPPING_RECYCLE_H
#define CENOTE_POOL_MAPPING_RECYCLE_H

#include "pool/pool.h"

bool recycle_oldest(cenote_pool *pool);

#endif
