/*
 * sums.h: what is added up before a request climbs and before it waits (rule 12), so that neither is done in vain;
 * see sums.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_SHORTAGE_SUMS_H
#define CENOTE_POOL_SHORTAGE_SUMS_H

#include "pool/pool.h"

uint64_t sums_live(const cenote_pool *pool);
bool sums_are_hopeless(const cenote_pool *pool, const struct arena *a, uint64_t bytes, uint64_t live_elsewhere);
bool sums_may_lend(const cenote_pool *pool, const struct arena *from, const struct arena *to);
uint64_t sums_missing(cenote_pool *pool, const struct arena *a, uint64_t bytes);

#endif
