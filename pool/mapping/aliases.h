/*
 * aliases.h: mappings that lie under no live byte go, the oldest first, when the device has too many; see aliases.c.
 * LOCKING: the turn.
 */
#ifndef CENOTE_POOL_MAPPING_ALIASES_H
#define CENOTE_POOL_MAPPING_ALIASES_H

#include "pool/pool.h"

bool aliases_may_go(const cenote_pool *pool, const struct region *r, uint32_t slot);
bool aliases_drop(cenote_pool *pool);
bool aliases_drop_at(cenote_pool *pool, struct region *r, uint32_t slot);
void aliases_mend(cenote_pool *pool);
void aliases_make_room(cenote_pool *pool, uint64_t more);

#endif
