/* store.c: see store.h. Steps are those of fill.c and provider.c, by hand. */
#include "tests/pool/store.h"

#include "tests/harness.h"

struct pages store;
struct fences fences;

static struct region regions[STORE_REGIONS];
static uint32_t region_count;

void store_open(void)
{
    fences = (struct fences){0};
    store = (struct pages){.fences = &fences};
    region_count = 0;
    if (!pages_open(&store, STORE_SHIFT) || !table_reserve(&store.table, 1))
        abort();
}

void store_close(void)
{
    for (uint32_t i = 0; i < region_count; i++)
        region_close(&regions[i]);
    pages_close(&store);
}

static struct region *add_region(uint64_t bytes, uint32_t shift, uint32_t arena)
{
    REQUIRE(region_count < STORE_REGIONS);
    struct region *r = &regions[region_count];
    *r = (struct region){.arena = arena};
    REQUIRE(region_open(r, STORE_BASE + region_count * STORE_STRIDE, bytes, shift));
    region_count++;
    REQUIRE(pages_add_region(&store, r));
    return r;
}

struct region *store_region(uint32_t slots, uint32_t arena, bool fixed)
{
    struct region *r = add_region(slots * STORE_PAGE, STORE_SHIFT, arena);
    r->fixed = fixed;
    return r;
}

struct region *store_segment(uint64_t bytes, uint32_t arena)
{
    struct region *r = add_region(bytes, SEGMENT_SHIFT, arena);
    uint32_t page = pages_add(&store, 0, bytes);
    page_of(&store, page)->arena = arena;
    pages_link(&store, page, r, 0);
    pages_settle(&store, page);
    return r;
}

static uint32_t spare_of(uint64_t bytes)
{
    uint32_t page = pages_add(&store, store.table.used, bytes);
    pages_add_spare(&store, page);
    return page;
}

uint32_t store_spare(void) { return spare_of(STORE_PAGE); }

void store_map(uint32_t page, struct region *r, uint32_t slot)
{
    pages_lift(&store, page, (struct slot_ref){r->number, slot});
    pages_link(&store, page, r, slot);
    page_of(&store, page)->owner = (struct slot_ref){0, 0};
    pages_settle(&store, page);
}

uint32_t store_page_at(struct region *r, uint32_t slot)
{
    uint32_t page = spare_of(region_page_bytes(r, slot));
    store_map(page, r, slot);
    return page;
}

bool store_is_idle(const struct region *r, uint32_t from, uint32_t to)
{
    uint32_t slot = from;
    while (slot < to && !r->page[slot] && !r->edges[slot] && !r->pins[slot] && !bit_is_set(r->transit, slot) && !bit_is_set(r->broken, slot))
        slot++;
    return slot == to;
}

bool store_turn(struct region *r, uint32_t at)
{
    uint32_t unit = at >> r->unit_shift, from = unit << r->unit_shift, to = from + (1u << r->unit_shift);
    uint32_t top = (uint32_t)((r->top - r->base) >> r->shift);
    if ((from < top && top < to) || !store_is_idle(r, from, to))
        return false;
    region_join(r, unit, !bit_is_set(r->joined, unit));
    return true;
}

void store_finish(void)
{
    fences_all_done(&fences, fences.now);
}

uint32_t store_missing(const struct requester *who, const struct region *r, uint32_t from, uint32_t to, uint32_t *blocked_to)
{
    uint32_t missing = 0;
    *blocked_to = 0;
    pages_look_anew(&store);
    for (uint32_t slot = from; slot < to; slot++) {
        bool blocked;
        missing += pages_lack(&store, who, r, slot, &blocked);
        if (blocked)
            *blocked_to = slot + 1;
    }
    return missing;
}

struct requester store_requester(const struct region *r)
{
    return (struct requester){.arena = r->arena, .may_unmap = true};
}
