/*
 * prove.h: a pool that was made for pages finds out, before it calls the driver for the first time, whether the
 * device has them; see prove.c.
 */
#ifndef CENOTE_POOL_LIFE_PROVE_H
#define CENOTE_POOL_LIFE_PROVE_H

#include "pool/pool.h"

static inline bool pool_wants_fabric(const cenote_pool *pool)
{
    return pool->config.options.handles == CENOTE_HANDLES_FABRIC;
}
static inline CUmemAllocationProp pool_page_prop(const cenote_pool *pool)
{
    return device_page_prop(pool->config.device, pool_wants_fabric(pool));
}

int prove_pages(cenote_pool *pool);

#endif
