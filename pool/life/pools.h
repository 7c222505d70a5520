/* pools.h: the list of pools of the process, and the devices they have open; see pools.c. */
#ifndef CENOTE_POOL_LIFE_POOLS_H
#define CENOTE_POOL_LIFE_POOLS_H

#include "pool/pool.h"

cenote_pool *pool_next_on_device(const cenote_pool *pool, cenote_pool *after);
int pool_other_device(cenote_pool *pool, int ordinal, struct device **other);
struct device *pool_open_device(int ordinal, int *error);  /* for callers that need a device and no pool */
void pool_close_device(struct device *device);
extern struct lock pools_lock;                            /* of the list of pools, and of devices */
cenote_pool *pools_take_structure(const char *head);      /* LOCKING: that lock, as for the next */
void pools_give_structure(cenote_pool *pool);

#endif
