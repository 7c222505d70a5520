/*
 * locate.h: finds the pool and the block of an address, and makes the error for an address that is no live block;
 * see locate.c.
 */
#ifndef CENOTE_POOL_ARENAS_LOCATE_H
#define CENOTE_POOL_ARENAS_LOCATE_H

#include "pool/pool.h"

cenote_pool *locate_lock(const void *address, struct block_ref *w);
bool locate_in(const cenote_pool *pool, uint64_t at, struct block_ref *w);
enum lookup locate_at(cenote_pool *pool, uint64_t at, struct block_ref *w);
int locate_find(const void *address, cenote_block *block, int answer);
int locate_misuse(enum lookup found, const void *address, const struct block_ref *w, int answer);

#endif
