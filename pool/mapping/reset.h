/*
 * reset.h: what an end of the context, mostly by a reset of the device, does to pools that were in it; see reset.c.
 */
#ifndef CENOTE_POOL_MAPPING_RESET_H
#define CENOTE_POOL_MAPPING_RESET_H

#include "pool/pool.h"

bool reset_addresses_are_free(uint64_t at, uint64_t bytes);
void reset_regions_are_replaced(struct region *replaced);
void reset_is_seen(cenote_pool *pool, uint64_t generation);

#endif
