/*
 * portions.h: small portions for random programs. What large pools do in portions, one hold of the lock for each, small programs come through as well
 * if a portion is one piece of work, or two; other threads get in between (base/lock.h). In debug builds alone: in others nothing changes.
 */
#ifndef CENOTE_TESTS_STRESS_PORTIONS_H
#define CENOTE_TESTS_STRESS_PORTIONS_H

#include "base/lock.h"

/* By the seed, in half of the programs. Before the program has a pool. */
static inline void portions_begin(uint64_t seed)
{
    lock_set_portions(seed % 4 < 2 ? 0 : (uint32_t)(seed % 4) - 1);
}

/* Without a pool, too. */
static inline void portions_end(void)
{
    lock_set_portions(0);
}

#endif
