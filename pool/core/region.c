/*
 * region.c: address space, and what each slot of it is mapped to.
 *
 * A region is one reservation, an array of slots. A slot maps one page or none. What the slots mean is decided by
 * pages.c; which bytes of them are in blocks, by heap.c. This file only keeps the arrays and speaks to the driver about
 * addresses.
 *
 * Pages have two sizes, and slots have the smaller one. 2^unit_shift slots are a UNIT. A unit that is JOINED maps one
 * large page or none; else each of its slots maps a small one or none. The first slot under a page speaks for all: it
 * has the page, the bits and the counts. The others are silent: no page, always sole, which is what a search passes
 * over, and no thread asks them anything else. An address is in the slot that speaks (region_slot). units.c decides
 * which units are joined, and changes it only while a unit maps nothing.
 *
 *     slots    |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  7  |  8  |  9  | 10  | 11  | 12  | 13  | 14  | 15  |
 *     units    [ joined: a large page, or none                  ][ up to eight small pages                      ]
 *
 * A segment is a region of one slot, of any size: memory that an async pool, cuMemAlloc or the caller gave as a whole.
 * Its page cannot move, so the layers above need no other special case for memory without virtual memory management.
 *
 *     slots    |    0    |    1    |    2    |    3    |  ...
 *     blocks   [ A ][ B       ][ free    ][  C  ][ free ...        top: beyond it lies nothing yet
 *     busy          1         1         1         1
 *     edges         2         1         1         1           blocks that begin or end in the slot;
 *                                                             one that lies inside counts once
 *
 * LOCKING: the arrays are guarded by the pool's lock. The driver calls are made without it, by the holder of the turn.
 */
#include "pool/core/region.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

/* Carves `bytes` out of the one mapping that holds all arrays, 8-byte aligned. With `memory` NULL it only adds up. */
static void *carve(char *memory, uint64_t *used, uint64_t bytes)
{
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + 7) & ~7ull;
    return at;
}

static uint64_t lay_out(struct region *r, char *memory)
{
    uint64_t used = 0, words = bits_words(r->slots) * sizeof(uint64_t), granules = (r->bytes >> SLAB_GRANULE_SHIFT) + 2;
    r->sole = carve(memory, &used, words);
    r->home = carve(memory, &used, words);
    r->busy = carve(memory, &used, words);
    r->transit = carve(memory, &used, words);
    r->broken = carve(memory, &used, words);
    r->joined = carve(memory, &used, words);
    r->page = carve(memory, &used, r->slots * sizeof *r->page);
    r->edges = carve(memory, &used, r->slots * sizeof *r->edges);
    r->pins = carve(memory, &used, r->slots * sizeof *r->pins);
    r->freed = carve(memory, &used, r->slots * sizeof *r->freed);
    r->next_alias = carve(memory, &used, r->slots * sizeof *r->next_alias);
    r->granules = carve(memory, &used, granules * sizeof *r->granules);
    r->begins = carve(memory, &used, bits_words((uint32_t)granules) * sizeof *r->begins);
    return used;
}

/* False when there is no host memory; then nothing changed. The caller gives the region its number, arena and pool. */
bool region_open(struct region *r, uint64_t base, uint64_t bytes, uint32_t shift)
{
    r->base = base;
    r->bytes = bytes;
    r->shift = shift;
    r->unit_shift = 0;
    r->slots = shift == SEGMENT_SHIFT ? 1 : (uint32_t)(bytes >> shift);
    r->metadata_bytes = lay_out(r, NULL);
    char *memory = memory_map(r->metadata_bytes);
    if (!memory)
        return false;
    lay_out(r, memory);
    r->top = base;
    r->first_block = r->last_block = r->before = r->next = 0;
    r->shares_granule = NULL;
    r->foreign = r->is_listed = false;
    r->is_in_map = false;
    return true;
}

/*
 * From now on the unit is joined, or it is not. Nothing is mapped there, no block lies there, and no thread is at work
 * on it. The tick of its last free becomes that of all its slots.
 */
void region_join(struct region *r, uint32_t unit, bool join)
{
    uint32_t from = unit << r->unit_shift, to = from + (1u << r->unit_shift);
    tick freed = 0;
    bits_clear(r->busy, from, to);
    bits_clear(r->sole, from, to);
    for (uint32_t slot = from; slot < to; slot++)
        freed = freed > r->freed[slot] ? freed : r->freed[slot];
    for (uint32_t slot = from; slot < to; slot++)
        r->freed[slot] = freed;
    if (join)
        bits_set(r->sole, from + 1, to);
    (join ? bit_set : bit_clear)(r->joined, unit);
}

void region_close(struct region *r)
{
    memory_unmap(r->sole, r->metadata_bytes);
    r->sole = NULL;
    r->slots = 0;
}

CUresult region_reserve(const struct device *d, uint64_t bytes, uint64_t alignment, uint64_t *base)
{
    CUdeviceptr at = 0;
    CUresult result = d->driver->cuMemAddressReserve(&at, bytes, alignment, 0, 0);
    *base = at;
    return result;
}

CUresult region_unreserve(const struct device *d, uint64_t base, uint64_t bytes)
{
    return d->driver->cuMemAddressFree(base, bytes);
}

CUresult region_map(struct device *d, const struct region *r, uint32_t slot, CUmemGenericAllocationHandle page)
{
    CUresult result = d->driver->cuMemMap(region_slot_at(r, slot), region_page_bytes(r, slot), 0, page, 0);
    if (!result)
        atomic_fetch_add_explicit(&d->card->mappings, 1, memory_order_relaxed);
    return result;
}

CUresult region_unmap(struct device *d, const struct region *r, uint32_t slot)
{
    CUresult result = d->driver->cuMemUnmap(region_slot_at(r, slot), region_page_bytes(r, slot));
    if (!result)
        atomic_fetch_sub_explicit(&d->card->mappings, 1, memory_order_relaxed);
    return result;
}

/* Access for `count` devices to the slots [from, to), all of them mapped: one call, whatever their number. */
CUresult region_grant(const struct device *d, const struct region *r, uint32_t from, uint32_t to,
                      const CUmemAccessDesc *who, uint32_t count)
{
    return d->driver->cuMemSetAccess(region_slot_at(r, from), (uint64_t)(to - from) << r->shift, who, count);
}
