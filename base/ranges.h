/*
 * ranges.h: blocks and free ranges, and the free ranges of one heap in order of size. See ranges.c.
 */
#ifndef CENOTE_BASE_RANGES_H
#define CENOTE_BASE_RANGES_H

#include <stdint.h>

#include "base/memory.h"

#define BLOCK_BYTES 512u            /* everything in a heap is a multiple of this, as PyTorch users expect */
#define BLOCKS_MAX (1u << 28)
#define RANGE_BINS  896
#define RANGE_LISTS 64u             /* bins of one size each: below 32 KiB */

enum block_state {
    BLOCK_FREE,                     /* a free range */
    BLOCK_LIVE,                     /* held by the caller */
    BLOCK_PENDING,                  /* freed, waits for other streams */
    BLOCK_LAST_FREED,               /* freed last and left as it lies, see last_freed_settle */
    BLOCK_SLAB                      /* cut into small blocks by slab.c */
};

/* A piece of a region. The pieces of a region tile it from its base to its top, in a list by address. */
struct block {
    uint64_t at;
    uint64_t size;                  /* multiple of 512 */
    uint64_t requested;             /* live: bytes asked for */
    uint64_t mark;                  /* live: see label.h */
    uint32_t before, after;         /* neighbours by address, 0: none */
    uint32_t region;
    union {
        struct { uint32_t smaller, larger; };  /* free: children in the tree of its bin, or neighbours in its list */
        struct { uint32_t uses; };             /* live or pending: streams it is used on, see pending.c */
    };
    uint8_t  state;                 /* enum block_state */
    uint16_t bin;                   /* free: where it is */
};

struct ranges {
    struct table *blocks;           /* shared by all heaps of a pool */
    uint64_t changes;               /* counts them: as long as it stays, so does the answer to every search */
    uint64_t filled[RANGE_BINS / 64];  /* bins that hold a range */
    uint32_t bins[RANGE_BINS];      /* first of each list, root of each tree */
};

static inline struct block *block_of(const struct table *blocks, uint32_t block) { return TABLE_AT(struct block, blocks, block); }

void     ranges_add(struct ranges *r, uint32_t block);
void     ranges_remove(struct ranges *r, uint32_t block);
void     ranges_resize(struct ranges *r, uint32_t block, uint64_t at, uint64_t size);
uint32_t ranges_at_least(const struct ranges *r, uint64_t size);  /* the best fit; 0: none */
uint32_t ranges_next(const struct ranges *r, uint32_t block);     /* the next best */

#endif
