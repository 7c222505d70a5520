/*
 * pending.h: freed blocks that streams besides their own may still be using. See pending.c.
 * OWNER: pending.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_PENDING_H
#define CENOTE_POOL_ARENAS_PENDING_H

#include "pool/arenas/store.h"

struct pending {
    uint32_t       allocs_since_poll; /* allocations since an allocation polled and found the turn free */
};

struct block_ref;
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key,
                      struct device *other);
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed);
void pending_record(cenote_pool *pool, uint32_t uses);
void pending_poll(cenote_pool *pool);
void pending_poll_some(cenote_pool *pool);

#endif
