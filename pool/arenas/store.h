/*
 * store.h: the memory of a pool and what lies in it: pages, blocks, slabs, arenas. See pool/core/ for what each is.
 *
 *     a block: free ---> live ---> (pending, see pending.h) ---> last freed ---> free
 *
 * OWNERS: the road of a block (alloc.c, place.c, locate.c, last_freed.c), and
 * what adds and takes away pages (attempt.c, grow.c, trim.c, recycle.c).
 * LOCKING: the pool's lock; pages and regions come and go with the turn as well (docs/locks.md).
 */
#ifndef CENOTE_POOL_ARENAS_STORE_H
#define CENOTE_POOL_ARENAS_STORE_H

#include <cenote/cenote.h>

#include "base/index.h"
#include "pool/core/addresses.h"
#include "pool/core/arena.h"

/* The block that was freed last, still as it lay. See last_freed.c. */
struct last_freed_block {
    uint32_t      number;           /* 0: none */
    struct arena *arena;
    uint32_t      heap;             /* of the arena, in which it lies */
    tick          freed;
};

struct store {
    struct pages   pages;
    struct table   blocks, slabs, arenas;
    struct index   by_address;      /* block address -> block */
    struct last_freed_block last_freed_block;
};

/* What an address stands for: see locate.c. */
enum lookup { FOUND_LIVE, FOUND_PENDING, FOUND_INSIDE, FOUND_FREE, FOUND_NOTHING };
struct block_ref {
    struct region *region;
    struct arena  *arena;
    uint32_t block;                 /* the heap block, or the slab's block */
    uint32_t slab, item;            /* slab 0: the block itself */
    uint64_t start, requested, size;
    uint32_t *uses;                 /* head of its list of uses */
    uint64_t *mark;                 /* see label.h */
};

#endif
