/*
 * watch.h: tells the program where memory comes and goes, so that it can remember what lies under an address
 * (cenote_pool_watch); see watch.c. LOCKING: not the pool's lock.
 */
#ifndef CENOTE_POOL_LIFE_WATCH_H
#define CENOTE_POOL_LIFE_WATCH_H

#include "pool/pool.h"

void watch_tell(cenote_pool *pool, enum cenote_change change, uint64_t at, uint64_t bytes);
void watch_fill_begins(cenote_pool *pool);
void watch_fill_ends(cenote_pool *pool, CUresult result);

#endif
