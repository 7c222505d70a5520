/*
 * addresses.c: from an address to its region, in two loads.
 *
 * A two-level table of the 57 bits of a device address, by granules of 2 MiB: a leaf entry is the lowest region that
 * touches the granule. Regions of pages fill whole granules; segments need not, so that several may meet in one: they
 * are chained in rising order. A free starts here, before it knows which pool to lock; so entries are atomic, and
 * region structures are never unmapped.
 *
 * An address names one region. The driver gives addresses again only once nothing is there any more: a region that
 * comes to lie on others takes their place, and they leave the map. So it is with segments of a context that the
 * program has ended (pool/mapping/reset.c).
 *
 * LOCKING: writers take the addresses lock; readers take none, unless they have to be certain.
 */
#include "pool/core/addresses.h"

#include <stddef.h>

#include "base/check.h"
#include "base/lock.h"
#include "base/memory.h"

#define GRANULE_SHIFT 21
#define LEAF_BITS     18
#define ROOT_BITS     18            /* 57 bits in all */

typedef _Atomic(struct region *) entry;

static _Atomic(entry *) root[1u << ROOT_BITS];
static LOCK_OF_PROCESS struct lock writers = LOCK_INITIALIZER(LOCK_ADDRESSES);
static struct table structures;

struct region *addresses_new_region(void)
{
    struct region *r = NULL;
    lock_take(&writers);
    if (structures.items || table_open(&structures, sizeof(struct region), 1u << 24)) {
        uint32_t item = table_take(&structures);
        r = item ? table_at(&structures, item) : NULL;
    }
    lock_give(&writers);
    return r;
}

void addresses_free_region(struct region *r)
{
    lock_take(&writers);
    atomic_store(&r->pool, NULL);
    table_give(&structures, (uint32_t)(((char *)r - structures.items) / (ptrdiff_t)sizeof *r));
    lock_give(&writers);
}

static entry *entry_at(uint64_t granule, bool make)
{
    uint64_t top = granule >> LEAF_BITS;
    if (top >> ROOT_BITS)
        return NULL;
    entry *leaf = atomic_load_explicit(&root[top], memory_order_acquire);
    if (!leaf && make && (leaf = memory_map(sizeof(entry) << LEAF_BITS)))
        atomic_store_explicit(&root[top], leaf, memory_order_release);
    return leaf ? &leaf[granule & ((1u << LEAF_BITS) - 1)] : NULL;
}

/* Region `r` joins or leaves one granule's chain. Only the granule where a region ends can hold others behind it. */
static void chain(entry *e, struct region *r)
{
    struct region *first = atomic_load(e);
    if (!first || r->base < first->base) {
        if (first)
            r->shares_granule = first;
        atomic_store_explicit(e, r, memory_order_release);
        return;
    }
    while (first->shares_granule && first->shares_granule->base < r->base)
        first = first->shares_granule;
    r->shares_granule = first->shares_granule;
    first->shares_granule = r;
}

static void unchain(entry *e, struct region *r, uint64_t granule)
{
    struct region *first = atomic_load(e), *next = r->shares_granule;
    if (next && next->base >> GRANULE_SHIFT != granule)
        next = NULL; /* it begins where r ends, but that is not in this granule */
    if (first == r) {
        atomic_store_explicit(e, next, memory_order_release);
        return;
    }
    while (first->shares_granule != r)
        first = first->shares_granule;
    first->shares_granule = next;
}

/* LOCKING: `writers`. */
static struct region *first_in(uint64_t base, uint64_t bytes)
{
    for (uint64_t g = base >> GRANULE_SHIFT; g <= (base + bytes - 1) >> GRANULE_SHIFT; g++) {
        entry *e = entry_at(g, false);
        for (struct region *r = e ? atomic_load(e) : NULL; r && r->base < base + bytes; r = r->shares_granule)
            if (base < region_end(r))
                return r;
    }
    return NULL;
}

/* LOCKING: `writers`. */
static void take_out(struct region *r)
{
    for (uint64_t g = r->base >> GRANULE_SHIFT; g <= (region_end(r) - 1) >> GRANULE_SHIFT; g++)
        unchain(entry_at(g, false), r, g);
    r->shares_granule = NULL; /* it may join again, and the one behind it may be gone by then */
    atomic_store(&r->is_in_map, false);
}

bool addresses_add(struct region *r, struct region **replaced)
{
    uint64_t from = r->base >> GRANULE_SHIFT, to = (region_end(r) - 1) >> GRANULE_SHIFT;
    bool room = true;
    *replaced = NULL;
    lock_take(&writers);
    for (uint64_t g = from; g <= to && room; g++)
        room = entry_at(g, true) != NULL;
    for (struct region *there; room && (there = first_in(r->base, r->bytes)); *replaced = there) {
        take_out(there);
        there->shares_granule = *replaced;
    }
    for (uint64_t g = from; g <= to && room; g++)
        chain(entry_at(g, false), r);
    atomic_store(&r->is_in_map, room);
    lock_give(&writers);
    return room;
}

struct region *addresses_first_in(uint64_t base, uint64_t bytes)
{
    lock_take(&writers);
    struct region *r = first_in(base, bytes);
    lock_give(&writers);
    return r;
}

bool addresses_remove(struct region *r)
{
    lock_take(&writers);
    bool was_there = atomic_load(&r->is_in_map);
    if (was_there)
        take_out(r);
    lock_give(&writers);
    return was_there;
}

struct region *addresses_find(uint64_t at)
{
    entry *e = entry_at(at >> GRANULE_SHIFT, false);
    struct region *r = e ? atomic_load_explicit(e, memory_order_acquire) : NULL;
    while (r && at >= region_end(r))
        r = r->shares_granule;
    return r && at >= r->base ? r : NULL;
}

struct region *addresses_find_for_certain(uint64_t at)
{
    lock_take(&writers);
    struct region *r = addresses_find(at);
    lock_give(&writers);
    return r;
}
