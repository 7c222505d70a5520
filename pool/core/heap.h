/*
 * heap.h: blocks of any size, packed by 512 bytes into the regions of one arena. See heap.c.
 */
#ifndef CENOTE_POOL_CORE_HEAP_H
#define CENOTE_POOL_CORE_HEAP_H

#include "base/ranges.h"
#include "pool/core/pages.h"

#define HEAP_CANDIDATES 16

struct heap {                   /* guarded by the pool's lock */
    struct pages *pages;        /* the pool's store */
    struct ranges ranges;
    uint32_t      regions;      /* newest first, through region.next; 0: none yet */
    uint64_t      bytes;        /* of addresses, in all of them */
    uint64_t      used;         /* of these, below the tops: not virgin */
    uint64_t      live;         /* bytes of its blocks */
    uint64_t      need;         /* the most that was live at one time, with its pages */
    uint32_t      arena;        /* the number it goes by in regions and pages */
    uint32_t      index;        /* which of the arena's heaps it is */
    uint32_t      best;         /* the block that heap_would_choose found to be the best fit last; 0: none was yet */
    uint64_t      best_of;      /* what `ranges.changes` was then: it still is, if that has not changed */
    bool          fixed;        /* private arena: regions it gets are fixed */
};

/* The slots [from, to) that the bytes [at, at + size) touch. */
struct slots {
    uint32_t from, to;
};
static inline struct slots slots_under(const struct region *r, uint64_t at, uint64_t size)
{
    uint32_t last = region_slot(r, at + size - 1);
    return (struct slots){region_slot(r, at), last + region_span(r, last)};
}

/* Where a block could go. */
struct place {
    uint32_t region;
    uint32_t range;             /* free range that holds it; 0: wholly beyond the region's top */
    uint64_t at;
    uint64_t size;
    struct slots under;         /* it */
    uint32_t missing;           /* pages it lacks */
    uint32_t beyond;            /* units of it that lie beyond the heap's line */
    bool     behind;            /* the stream has to wait for some that it has */
    bool     grows;             /* reaches beyond the top */
    bool     slid;              /* not at the start of its range: what lies there waits for the device */
};

enum fit {
    FIT_NOW,                    /* no page is missing, and the stream has to wait for none */
    FIT_WITH_PAGES,             /* fill.c can make it usable */
    FIT_IN_FLIGHT,              /* ranges are large enough, but none can be used now; of
                                   place_try also: the place has slid, poll first */
    FIT_NOT                     /* the heap needs another region */
};

void     heap_open(struct heap *h, struct pages *pages, struct table *blocks, uint32_t arena, bool fixed);
void     heap_fix(struct heap *h, bool fixed);
enum fit heap_find(struct heap *h, const struct requester *who, uint64_t size, uint64_t alignment, struct place *place);
enum fit heap_find_at(struct heap *h, const struct requester *who, const struct region *r, uint64_t at, uint64_t size,
                      struct place *place);
enum fit heap_find_behind(struct heap *h, const struct requester *who, uint32_t block, uint64_t size,
                          struct place *place);
enum fit heap_find_last(struct heap *h, uint64_t size, uint64_t alignment, struct place *place);
enum fit heap_find_alone(struct heap *h, const struct requester *who, uint64_t at, uint64_t size, uint64_t alignment,
                         struct place *place);
bool     heap_would_choose(struct heap *h, uint32_t block);
uint32_t heap_take(struct heap *h, const struct place *place);
void     heap_join(struct heap *h, uint32_t block);
void     heap_keep(struct heap *h);
void     heap_give(struct heap *h, uint32_t block, tick freed);
void     heap_give_back(struct heap *h, uint32_t block);
void     heap_add_region(struct heap *h, struct region *r);
bool     heap_region_has_block(const struct heap *h, const struct region *r);
bool     heap_region_is_empty(const struct heap *h, const struct region *r);
void     heap_remove_region(struct heap *h, struct region *r);
void     heap_restore_region(struct heap *h, struct region *r);
static inline uint64_t heap_addresses_used(const struct heap *h) { return h->used; }
uint32_t heap_piece_at(const struct heap *h, const struct region *r, uint64_t at);

/* How far a check of a region has come, see heap_check.c. All 0: it begins. */
struct heap_walk {
    uint64_t at;                /* pieces below are checked */
    uint32_t slot, edges;       /* the slot that is being counted; pieces that begin or end in it, so far */
    bool     in_doubt;          /* some were counted before a pause */
    bool     without_slots;     /* within heap_take and heap_give, where they are about to change */
    uint64_t live;              /* bytes of blocks so far */
};
bool        heap_check(struct heap *h, const struct region *r, struct heap_walk *w, uint32_t most, const char **broken);
const char *heap_broken_region(const struct heap *h, const struct region *r);
const char *heap_broken_rule(struct heap *h);    /* NULL, or the invariant that does not hold */
const char *heap_broken_cover(struct heap *h);   /* the same; it does not hold within heap_take and heap_give */

#endif
