/*
 * arena.h: the memory of one order domain: what one stream frees, that stream may have again at once. See arena.c.
 */
#ifndef CENOTE_POOL_CORE_ARENA_H
#define CENOTE_POOL_CORE_ARENA_H

#include "pool/core/heap.h"
#include "pool/core/request.h"
#include "pool/core/row.h"
#include "pool/core/slab.h"

#define ARENAS_MAX (1u << 16)
#define BYTES_MAX ((1ull << 48) - 1)   /* no device has more; keeps sums from overflowing,
                                          and fits a record (stats/account/record.h) */

/* Arenas by number, first come first, see idle.c. */
struct idle_queue {
    uint32_t first, last;
};

struct arena {                      /* guarded by the pool's lock */
    struct horizon horizon;         /* at the front, see fence.h */
    struct heap  heap;              /* number 0: blocks of any size */
    struct heap *small;             /* number HEAP_OF_SMALL: small blocks; NULL: none came yet */
    struct slabs slabs;
    uint64_t stream;                /* key of its stream, see keys.c */
    CUstream handle;                /* the stream's handle when the stream got the arena */
    uint32_t number;                /* in the pool's table */
    uint32_t group;                 /* 0: none */
    uint64_t blocks;                /* live and pending ones, items too */
    uint64_t pending;               /* bytes of its pending blocks, as they are counted */
    struct row row;                 /* its part of the allocated bytes */
    uint64_t taken;                 /* blocks that were ever taken from it: a copy of what lies there is of one count */
    uint32_t slow_path_users;       /* threads in shortage.c on its behalf: no other stream takes it over */
    uint32_t slides_allowed;        /* places that may slide until the next poll; each
                                       poll that does not help doubles them */
    uint32_t slides_left;           /* of those, still to come */
    tick     ordered;               /* its stream waits on the device for what any
                                       arena freed up to here, see order.c */
    tick     last_return_tick;      /* latest free of a block that the arena has back */
    uint32_t before_of_lane, next_of_lane;      /* arenas that are found by their stream, of the same stream */
    uint32_t before_of_group, next_of_group;    /* arenas of the same group, but for group 0 */
    uint32_t before_idle, next_idle;
    struct idle_queue *queue;       /* it is in, see idle.c; NULL: none */
    bool     is_private;            /* rule 4 */
    bool     captured;              /* private, and drawn from in a capture: replays may write
                                       to its memory until its group is destroyed */
    bool     was_private;           /* made for a private group, and taken over by such alone */
    bool     is_plain;              /* its memory is that of cuMemAlloc, whatever the
                                       pool's is; taken over by plain groups alone */
    bool     is_known;              /* found by its stream and group */
    bool     retired;               /* its stream or group is gone: another may take the arena over */
};

_Static_assert(offsetof(struct arena, horizon) == 0, "an arena begins with its horizon");

void arena_open(struct arena *a, struct pages *pages, struct table *blocks, struct table *slabs, bool is_private);

bool     arena_open_small(struct arena *a);
void     arena_close_small(struct arena *a);
static inline struct heap *arena_heap(struct arena *a, uint32_t heap) { return heap ? a->small : &a->heap; }
static inline uint32_t arena_heaps(const struct arena *a) { return a->small ? 2 : 1; }
bool     arena_has_regions(const struct arena *a);
uint64_t arena_addresses(const struct arena *a);

enum fit arena_find(struct arena *a, const struct requester *who, const struct request *q, const struct region *r,
                    struct place *place);
uint64_t arena_commit(struct arena *a, const struct request *q, uint32_t block);
void     arena_abandon(struct arena *a, uint32_t block);

void     arena_note_free(struct arena *a, tick freed);
void     arena_give_item(struct arena *a, uint32_t slab, uint32_t item, tick freed);
void     arena_flush(struct arena *a, uint32_t looks);
void     arena_close_slab(struct arena *a, uint32_t slab);

#endif
