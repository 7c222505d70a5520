/* alloc.h: the road of one block: allocated, used on another stream, freed; see alloc.c. */
#ifndef CENOTE_POOL_CALLS_ALLOC_H
#define CENOTE_POOL_CALLS_ALLOC_H

#include "pool/arenas/locate.h"

void alloc_begin_slow(cenote_pool *pool, struct arena *a);
int alloc_serve_slow(cenote_pool *pool, struct arena *a, const struct request *q, uint64_t *at);
uint32_t alloc_end_block(cenote_pool *pool, const struct block_ref *w);

#endif
