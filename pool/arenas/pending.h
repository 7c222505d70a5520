/*
 * pending.h: freed blocks that streams besides their own may still be using. See pending.c, and peer_uses.c for streams of other devices.
 *
 *     a use: noted ---> detached (its block is freed) ---> recorded: waits in its lane ---> done; with the last one the block is free
 *
 * OWNERS: pending.c, peer_uses.c. LOCKING: the pool's lock; `count` is read without; a thread that set `polling` walks the lanes.
 */
#ifndef CENOTE_POOL_ARENAS_PENDING_H
#define CENOTE_POOL_ARENAS_PENDING_H

#include "base/index.h"
#include "driver/device.h"
#include "pool/arenas/store.h"

#define USES_MAX     (1u << 24)

#define USES_WALKED  16             /* chosen: most blocks have one or two; each further use of a block is found in an index */

/*
 * One stream a block is used on besides its own, see pending.c. The first use of a block stands for it: once it has USES_WALKED of them, the first
 * stays the first.
 */
struct use {
    uint32_t next;                  /* of the same block */
    uint32_t next_in_lane;
    uint32_t lane;                  /* of the stream */
    uint32_t first;                 /* of the same block, once that is freed */
    uint32_t left;                  /* in the first use: those of the block that are not done; as long as it lives, all */
    uint32_t region;                /* of the pool, in which the block lies */
    uint64_t at;                    /* the block */
    CUevent  event;                 /* recorded at the free, or as soon as it can be, until it is done; NULL: none yet */
    tick     freed;
    bool     waits;                 /* in its lane */
};

/* For what freed blocks wait: nothing that can be waited for, another device as a whole, an event there, an event here. */
enum pending_wait { PENDING_NOTHING, PENDING_DEVICE, PENDING_EVENT_OF_PEER, PENDING_EVENT };

struct pending {
    _Atomic(uint32_t) count;
    uint32_t       allocs_since_poll; /* allocations since an allocation polled and found the turn free */
    uint32_t       first, last;     /* lanes with a use in them */
    struct table   uses;
    struct index   by_lane;         /* uses of blocks that have more than USES_WALKED, but for the first of these */
    bool           polling;         /* a thread asks the driver about pending blocks */
    tick           fence_wanted;    /* latest free of a use that waits for a fence */
    tick           done_on_peers[DEVICES_MAX]; /* up to which free other devices are known to be done */
};

struct block_ref;
bool pending_note_use(cenote_pool *pool, const struct block_ref *w, CUstream stream, uint64_t key, struct device *other);
uint32_t pending_detach(cenote_pool *pool, const struct block_ref *w, tick freed);
void pending_record(cenote_pool *pool, uint32_t uses);
void pending_poll(cenote_pool *pool);
void pending_poll_some(cenote_pool *pool);
enum pending_wait pending_waits_for(const cenote_pool *pool, tick limit);

#endif
