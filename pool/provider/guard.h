/*
 * guard.h: addresses of freed blocks that stay unused for a while. Provider guard only. See guard.c.
 *
 *     addresses: of a block ---> kept (a ring) ---> given back to the driver, the oldest first
 *
 * OWNER: guard.c. LOCKING: the turn.
 */
#ifndef CENOTE_POOL_PROVIDER_GUARD_H
#define CENOTE_POOL_PROVIDER_GUARD_H

#include <cenote/cenote.h>

#include "driver/device.h"

#define GUARD_KEPT 4096             /* chosen: freed blocks whose addresses no block gets yet */

struct guard {
    struct guard_kept {
        uint64_t base, bytes;       /* of the memory that was there; 0: none */
    } kept[GUARD_KEPT];             /* a ring */
    uint32_t next;
    struct guard_taken {
        uint64_t base, bytes;
        CUmemGenericAllocationHandle handle;
        bool     has_handle, is_mapped;
    } taken;                        /* what is being taken, or could not be given back yet */
};

bool guard_give(cenote_pool *pool, uint64_t at, uint64_t bytes);
void guard_forget(cenote_pool *pool);
CUresult guard_take(cenote_pool *pool, uint64_t bytes, CUdeviceptr *at);

#endif
