/* give_out.h: blocks that were made a moment ago become the program's; see give_out.c. */
#ifndef CENOTE_POOL_CALLS_GIVE_OUT_H
#define CENOTE_POOL_CALLS_GIVE_OUT_H

#include "pool/pool.h"

void give_out(cenote_pool *pool, void *const *blocks, size_t count);
int  give_out_with(cenote_pool *pool, void *const *blocks, size_t count, uint64_t word);

#endif
