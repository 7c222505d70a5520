/*
 * addresses.h: which region does an address belong to? For the whole process, readable without a lock. See addresses.c.
 */
#ifndef CENOTE_POOL_CORE_ADDRESSES_H
#define CENOTE_POOL_CORE_ADDRESSES_H

#include "pool/core/region.h"

/*
 * A region structure, zeroed. It is never unmapped, only used again:
 * a stale pointer to one can be read. NULL: no host memory.
 */
struct region *addresses_new_region(void);
void           addresses_free_region(struct region *r);

/*
 * False: no host memory, or addresses out of range. *replaced: those
 * that lay there and have left the map, chained by `shares_granule`.
 */
bool           addresses_add(struct region *r, struct region **replaced);
bool           addresses_remove(struct region *r); /* false: another has replaced it */
struct region *addresses_first_in(uint64_t base, uint64_t bytes); /* a region that lies there, the lowest
                                                                     one; NULL: none does */

/*
 * A region that may hold the address, or NULL. To be sure look at its pool, take that pool's lock, and look at the
 * region again. Without a lock a region that shares a granule with one that is just leaving may be missed; not so for
 * certain.
 */
struct region *addresses_find(uint64_t at);
struct region *addresses_find_for_certain(uint64_t at);

#endif
