/* addresses.h: which region does an address belong to? For the whole process, readable without a lock. See addresses.c. */
#ifndef CENOTE_POOL_CORE_ADDRESSES_H
#define CENOTE_POOL_CORE_ADDRESSES_H

#include "pool/core/region.h"

/* A region structure, zeroed. It is never unmapped, only used again: a stale pointer to one can be read. NULL: no host memory. */
struct region *addresses_new_region(void);
void           addresses_free_region(struct region *r);

bool           addresses_add(struct region *r);    /* false: no host memory, or addresses out of range */
void           addresses_remove(struct region *r);
bool           addresses_are_taken(uint64_t base, uint64_t bytes); /* does some region lie there? */

/*
 * A region that may hold the address, or NULL. To be sure look at its pool, take that pool's lock, and look at the region again. Without a
 * lock a region that shares a granule with one that is just leaving may be missed; not so for certain.
 */
struct region *addresses_find(uint64_t at);
struct region *addresses_find_for_certain(uint64_t at);

#endif
