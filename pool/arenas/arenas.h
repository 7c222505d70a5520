/*
 * arenas.h: which arena a stream has: found by (group, key of the stream), remembered, forgotten; see arenas.c.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_ARENAS_H
#define CENOTE_POOL_ARENAS_ARENAS_H

#include "pool/pool.h"

struct arena *stream_arena(cenote_pool *pool, uint32_t group, uint64_t key);
void stream_remember(cenote_pool *pool, struct arena *a);
void stream_forget(cenote_pool *pool, struct arena *a);
bool stream_has_one_arena(const cenote_pool *pool, const struct arena *a);

#endif
