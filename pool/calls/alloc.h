/* alloc.h: the road of one block: allocated, used on another stream, freed; see alloc.c. */
#ifndef CENOTE_POOL_CALLS_ALLOC_H
#define CENOTE_POOL_CALLS_ALLOC_H

#include "pool/arenas/locate.h"

void alloc_begin_slow(cenote_pool *pool, struct arena *a);
int alloc_serve_slow(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at);
uint32_t alloc_end_block(cenote_pool *pool, const struct block_ref *w);

/* capture.c: *pool, which may be NULL if there is a group, becomes that of the group. Not if one may not be used. */
int group_find_pool(const cenote_group *group, cenote_pool **pool);

#endif
