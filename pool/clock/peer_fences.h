/*
 * peer_fences.h: a page that kernels of other devices may touch (cenote_pool_grant) leaves its place when those
 * devices are done, too; see peer_fences.c.
 */
#ifndef CENOTE_POOL_CLOCK_PEER_FENCES_H
#define CENOTE_POOL_CLOCK_PEER_FENCES_H

#include "pool/pool.h"

bool peer_fences_are_barred(const cenote_pool *pool);
bool peer_fences_wait(cenote_pool *pool);
bool peer_fences_have_context(const struct device *other);
void peer_fences_all_done(cenote_pool *pool, int ordinal, tick covers);
bool peer_fences_know(const cenote_pool *pool, const struct device *other);
void peer_fences_begin(cenote_pool *pool, struct device *other);
void peer_fences_close(cenote_pool *pool);
CUresult peer_fences_ask(cenote_pool *pool, tick covers);

#endif
