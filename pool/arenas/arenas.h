/*
 * arenas.h: which arena a stream has: found by (group, key of the stream), remembered, forgotten; see arenas.c.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_ARENAS_H
#define CENOTE_POOL_ARENAS_ARENAS_H

#include "pool/pool.h"

struct arena *arenas_find(cenote_pool *pool, uint32_t group, uint64_t key);
void arenas_enter(cenote_pool *pool, struct arena *a);
void arenas_forget(cenote_pool *pool, struct arena *a);
bool arenas_has_one(const cenote_pool *pool, const struct arena *a);

#endif
