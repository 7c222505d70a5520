/*
 * end_blocks.h: a pool ends although blocks of it are live, because its context has ended, and they with it: see
 * reset.c; see end_blocks.c.
 */
#ifndef CENOTE_POOL_CALLS_END_BLOCKS_H
#define CENOTE_POOL_CALLS_END_BLOCKS_H

#include "pool/pool.h"

void end_blocks(cenote_pool *pool);

#endif
