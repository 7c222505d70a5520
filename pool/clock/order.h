/*
 * order.h: memory that the device is not done with goes to another stream, which is made to wait for it on the
 * device; see order.c. LOCKING: the turn.
 */
#ifndef CENOTE_POOL_CLOCK_ORDER_H
#define CENOTE_POOL_CLOCK_ORDER_H

#include "pool/pool.h"

tick order_reach(const cenote_pool *pool);
CUresult order_behind(cenote_pool *pool, uint64_t of, tick *freed);

#endif
