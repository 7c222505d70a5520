/*
 * async.h: provider async, segments of the driver's own stream-ordered
 * pool; see async.c. All that cenote knows of it stands there.
 *
 * LOCKING: the turn, unless a function says otherwise.
 */
#ifndef CENOTE_POOL_PROVIDER_ASYNC_H
#define CENOTE_POOL_PROVIDER_ASYNC_H

#include "pool/pool.h"

bool     async_serves(const cenote_pool *pool, const struct arena *a);
void     async_close(cenote_pool *pool);
uint64_t async_habit(cenote_pool *pool, const struct arena *a, uint64_t size, uint64_t plain);
CUresult async_take(cenote_pool *pool, const struct arena *a, uint64_t bytes, CUdeviceptr *at);
void     async_trim(cenote_pool *pool);
CUresult async_set_access(cenote_pool *pool, CUmemAccessDesc who);

#endif
