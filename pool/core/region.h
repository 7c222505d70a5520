/*
 * region.h: a reserved range of device addresses, cut into slots. See region.c.
 */
#ifndef CENOTE_POOL_CORE_REGION_H
#define CENOTE_POOL_CORE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "driver/device.h"
#include "pool/clock/fence.h"

/* One slot of one region of a pool. Region 0 is "nowhere". */
struct slot_ref {
    uint32_t region;
    uint32_t slot;
};

static inline bool slot_ref_is(struct slot_ref a, uint32_t region, uint32_t slot)
{
    return a.region == region && a.slot == slot;
}

#define SEGMENT_SHIFT 63            /* a segment has one slot, whatever its size */
#define SLAB_GRANULE_SHIFT 16            /* of the index of what lies where: 64 KiB,
                                            at multiples of which slabs start */

/* What lies in 64 KiB of address. */
struct granule {
    uint32_t slab;                  /* 0: none */
    uint32_t piece;                 /* some block or free range that begins there, 0: none does. See heap.c */
};

struct region {
    uint64_t base;
    uint64_t bytes;
    uint32_t number;                /* in the pool's table */
    uint32_t slots;
    uint32_t shift;                 /* log2 of the slot size; SEGMENT_SHIFT: memory that came whole and cannot move */
    uint32_t unit_shift;            /* log2 of the slots of a unit; 0: there are
                                       none, each slot has a page of its own */
    uint32_t arena;                 /* the arena to which it belongs */
    uint32_t heap;                  /* and to which of its heaps, see arena.h */
    uint32_t before, next;          /* regions of that heap, newest first; 0: none */
    uint64_t below;                 /* bytes of addresses in use in those that follow; not of a segment */
    uint32_t before_listed, next_listed; /* regions with pages that may be free, see pages.c */
    bool     is_sourced;            /* a segment that leaves: a function of the program gave it */
    bool     is_listed;
    uint32_t first_block;           /* lowest block or free range, 0: none */
    uint32_t last_block;            /* highest one */
    bool     fixed;                 /* of a private arena: what was used there stays mapped, see rule 4 */
    bool     foreign;               /* a segment of a cenote_source: only the program's function takes it back */
    uint64_t top;                   /* addresses from here on are in no block and no free range */
    _Atomic(struct cenote_pool *) pool;   /* NULL: not in use. Readable without a lock, see addresses.h */
    _Atomic(struct region *) shares_granule;  /* the region that starts in the granule where this
                                                 one ends; guarded by the addresses lock */
    atomic_bool is_in_map;          /* its addresses name it, and no other has replaced it; the same */

    /* One bit per slot. */
    uint64_t *sole;                 /* maps a page that is mapped nowhere else and not being moved */
    uint64_t *home;                 /* the first in the chain of slots that map its page: where the page is counted */
    uint64_t *busy;                 /* lies under live bytes */
    uint64_t *transit;              /* its mapping is being changed, outside the lock */
    uint64_t *broken;               /* the driver would not unmap it: nothing is put there until it has */

    uint64_t *joined;               /* one bit per unit: it takes a large page */

    /* One entry per slot. */
    uint32_t *page;                 /* page mapped here, 0: none */
    uint32_t *edges;                /* blocks that are not free and begin or end here:
                                       live, pending, last freed, and slabs */
    uint32_t *pins;                 /* cenote_pin calls that cover it */
    tick     *freed;                /* last free of a block that touched it */
    struct slot_ref *next_alias;        /* next slot that maps the same page */

    struct granule *granules;       /* one entry per 64 KiB of address */
    uint64_t *begins;               /* one bit for each of these: a piece begins there */
    uint64_t  metadata_bytes;       /* of all the arrays: one mapping */
};

bool     region_open(struct region *r, uint64_t base, uint64_t bytes, uint32_t shift);
void     region_close(struct region *r);
void     region_join(struct region *r, uint32_t unit, bool join);

/*
 * The first slot under a page speaks for all: log2 of how many,
 * which one speaks for this one, and for how many does it?
 */
static inline uint32_t region_span_shift(const struct region *r, uint32_t slot)
{
    return bit_is_set(r->joined, slot >> r->unit_shift) ? r->unit_shift : 0;
}
static inline uint32_t region_first(const struct region *r, uint32_t slot)
{
    uint32_t shift = region_span_shift(r, slot);
    return slot >> shift << shift;
}
static inline uint32_t region_span(const struct region *r, uint32_t slot) { return 1u << region_span_shift(r, slot); }
static inline uint64_t region_page_bytes(const struct region *r, uint32_t slot)
{
    return (uint64_t)region_span(r, slot) << r->shift;
}

static inline uint32_t region_slot(const struct region *r, uint64_t at)
{
    return region_first(r, (uint32_t)((at - r->base) >> r->shift));
}
static inline uint64_t region_slot_at(const struct region *r, uint32_t slot)
{
    return slot ? r->base + ((uint64_t)slot << r->shift) : r->base;
}
static inline uint32_t region_granule(const struct region *r, uint64_t at)
{
    return (uint32_t)((at >> SLAB_GRANULE_SHIFT) - (r->base >> SLAB_GRANULE_SHIFT));
}
static inline uint64_t region_end(const struct region *r) { return r->base + r->bytes; }
static inline bool     region_is_segment(const struct region *r) { return r->shift == SEGMENT_SHIFT; }

/* Driver calls about address space and mappings; between device_enter and device_leave, with no lock but the turn. */
CUresult region_reserve(const struct device *d, uint64_t bytes, uint64_t alignment, uint64_t *base);
CUresult region_unreserve(const struct device *d, uint64_t base, uint64_t bytes);
CUresult region_map(struct device *d, const struct region *r, uint32_t slot, CUmemGenericAllocationHandle page);
CUresult region_unmap(struct device *d, const struct region *r, uint32_t slot);
CUresult region_grant(const struct device *d, const struct region *r, uint32_t from, uint32_t to,
                      const CUmemAccessDesc *who, uint32_t count);

#endif
