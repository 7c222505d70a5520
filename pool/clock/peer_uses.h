/* peer_uses.h: blocks that streams of other devices use; see peer_uses.c. */
#ifndef CENOTE_POOL_CLOCK_PEER_USES_H
#define CENOTE_POOL_CLOCK_PEER_USES_H

#include "pool/pool.h"

void peer_uses_record(cenote_pool *pool, struct use *u);
bool peer_uses_is_done(cenote_pool *pool, uint32_t use);
bool peer_uses_are_owed(const cenote_pool *pool, uint32_t lane);
void peer_uses_name(cenote_pool *pool, uint32_t lane, CUstream stream);
void peer_uses_all_done(cenote_pool *pool, int ordinal, tick covers);
bool peer_uses_wait(cenote_pool *pool);
bool peer_uses_wait_for(struct device *other, uint64_t generation);
CUresult peer_uses_end(const struct lane *lane, CUstream stream, CUevent *end);
CUresult peer_uses_become_careful(cenote_pool *pool);

#endif
