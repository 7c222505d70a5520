/*
 * idle.h: arenas without a block, and which stream gets those next: a new stream gets its arena here; see idle.c.
 * LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_IDLE_H
#define CENOTE_POOL_ARENAS_IDLE_H

#include "pool/pool.h"

void idle_forget_group(cenote_pool *pool, cenote_group *group);
cenote_group *idle_take_group(cenote_pool *pool);         /* with its number; NULL: no memory or number is left */
struct arena *idle_make_arena(cenote_pool *pool, uint32_t group, uint64_t key, CUstream handle);
void idle_enter(cenote_pool *pool, struct arena *a);
void idle_end(cenote_pool *pool, struct arena *a);
struct arena *idle_take_orphan(cenote_pool *pool);
void idle_forget(cenote_pool *pool, struct arena *a);
void idle_forget_empty(cenote_pool *pool);

#endif
