/*
 * test_heap_random.c: random takes and gives against a model that knows only the list of live blocks, works out the gaps between them anew
 * each time, and tries every place. Once with slots alone, and once with units, which are joined and split while they are idle.
 */
#include "tests/base/random.h"
#include "tests/pool/heap_scene.h"

#define LIVE_MAX    300u
#define REGIONS_LIVE 4u
#define GAPS_MAX    (LIVE_MAX + REGIONS_LIVE + 1)

struct piece {
    uint64_t at, size;
    uint32_t block;                     /* live ones */
    struct region *region;              /* gaps */
};

static struct piece live[LIVE_MAX];    /* in order of address */
static uint32_t live_count;
static struct region *model_regions[REGIONS_LIVE];  /* oldest first, which is in order of address too */
static uint64_t model_top[REGIONS_LIVE];
static uint32_t model_region_count;
static struct piece gaps[GAPS_MAX];    /* in order of size, then of address or, below 32 KiB, as the heap has them */
static uint32_t gap_count;

static void add_gap(struct region *r, uint64_t from, uint64_t to)
{
    if (from == to)
        return;
    uint32_t i = gap_count++;
    for (; i && gaps[i - 1].size > to - from; i--)
        gaps[i] = gaps[i - 1];
    gaps[i] = (struct piece){.at = from, .size = to - from, .region = r};
}

/* Small gaps of one size have no order of their own; the heap's is taken over, if it has the same ones. */
static void order_small_gaps(void)
{
    uint32_t range = ranges_at_least(&heap.ranges, 1);
    for (uint32_t i = 0; range && i < gap_count && gaps[i].size < RANGE_LISTS * BLOCK_BYTES; i++, range = ranges_next(&heap.ranges, range))
        for (uint32_t j = i; j < gap_count && gaps[j].size == gaps[i].size; j++)
            if (gaps[j].at == at_of(range)) {
                struct piece held = gaps[i];
                gaps[i] = gaps[j];
                gaps[j] = held;
                break;
            }
}

/* Where nothing lies, up to each region's top. */
static void find_gaps(void)
{
    gap_count = 0;
    for (uint32_t n = 0, next = 0; n < model_region_count; n++) {
        uint64_t at = model_regions[n]->base;
        for (; next < live_count && live[next].at < model_top[n]; next++) {
            add_gap(model_regions[n], at, live[next].at);
            at = live[next].at + live[next].size;
        }
        add_gap(model_regions[n], at, model_top[n]);
    }
    order_small_gaps();
}

static uint64_t model_live, model_need;
static bool has_units;

/* Does the slot lie beyond the line? All that was live at one time, and a 64th more, would lie in front of its page. */
static bool model_is_beyond(const struct region *r, uint32_t slot)
{
    uint64_t in_front = (uint64_t)region_first(r, slot) * STORE_PAGE;
    for (uint32_t n = 0; model_regions[n] != r; n++)
        in_front += model_regions[n]->bytes;
    return in_front >= model_need;
}

static uint32_t model_cost(const struct place *place) { return place->missing + place->beyond; }

/* The first place in [from, to) with no slot in transit, tried one by one. */
static bool model_fits(struct region *r, uint64_t from, uint64_t to, uint64_t alignment, struct place *place)
{
    uint64_t first = (from + alignment - 1) / alignment * alignment;
    for (uint64_t at = first; at + place->size <= to; at += alignment) {
        struct slots under = slots_under(r, at, place->size);
        if (bits_any_set(r->transit, under.from, under.to))
            continue;
        place->region = r->number;
        place->at = at;
        place->slid = at != first;
        place->missing = place->beyond = 0;
        for (uint32_t slot = under.from; slot < under.to; slot++) {
            place->missing += region_first(r, slot) == slot && !r->page[slot];
            place->beyond += model_is_beyond(r, slot);
        }
        place->beyond = has_units ? (place->beyond + 3) / 4 : place->beyond;
        return true;
    }
    return false;
}

static enum fit model_find(uint64_t size, uint64_t alignment, struct place *best)
{
    struct place candidate = {.size = size};
    bool found = false, in_flight = false;
    uint32_t first = 0;
    while (first < gap_count && gaps[first].size < size)
        first++;
    for (uint32_t i = first; i < gap_count && i < first + HEAP_CANDIDATES; i++) {
        bool fits = model_fits(gaps[i].region, gaps[i].at, gaps[i].at + gaps[i].size, alignment, &candidate);
        in_flight |= !fits;
        if (fits && (!found || model_cost(&candidate) < model_cost(best)))
            *best = candidate;
        found |= fits;
    }
    if ((!found || model_cost(best)) && model_region_count) {
        uint32_t newest = model_region_count - 1;
        struct region *r = model_regions[newest];
        const struct piece *last = live_count ? &live[live_count - 1] : NULL;
        uint64_t from = last && last->at >= r->base ? last->at + last->size : r->base;
        bool fits = model_fits(r, from, region_end(r), alignment, &candidate);
        if (fits && (!found || model_cost(&candidate) < model_cost(best)))
            *best = candidate;
        found |= fits;
    }
    return !found ? in_flight ? FIT_IN_FLIGHT : FIT_NOT : best->missing ? FIT_WITH_PAGES : FIT_NOW;
}

static void model_insert(uint32_t block, uint64_t at, uint64_t size)
{
    uint32_t i = live_count++;
    for (; i && live[i - 1].at > at; i--)
        live[i] = live[i - 1];
    live[i] = (struct piece){.at = at, .size = size, .block = block};
    model_live += size;
    model_need = model_live > model_need ? model_live : model_need;
    uint32_t newest = model_region_count - 1;
    uint64_t base = model_regions[newest]->base, end = at + size;
    if (at >= base && end > model_top[newest]) {
        const struct region *r = model_regions[newest];
        uint32_t slot = region_slot(r, end - 1) + region_span(r, region_slot(r, end - 1));
        model_top[newest] = base + slot * STORE_PAGE;
    }
}

static bool take_random(struct random *r)
{
    uint64_t size = (1 + random_below(r, random_below(r, 3) ? 64 : 600)) * 512ull;
    uint64_t alignment = random_below(r, 8) ? 512 : 512ull << random_below(r, 9);
    struct place place, expected = {0};
    enum fit fit = heap_find(&heap, &who, size, alignment, &place);
    if (fit != model_find(size, alignment, &expected))
        return false;
    if (fit == FIT_NOT && model_region_count < REGIONS_LIVE && random_below(r, 4) == 0) {
        if (model_region_count)
            model_top[model_region_count - 1] = region_end(model_regions[model_region_count - 1]);
        model_regions[model_region_count] = add_region(20 + 60 * model_region_count);
        if (has_units)
            model_regions[model_region_count]->unit_shift = 2;
        model_top[model_region_count] = model_regions[model_region_count]->base;
        model_region_count++;
    }
    if (fit == FIT_NOT || fit == FIT_IN_FLIGHT)
        return true;
    if (place.at != expected.at || place.missing != expected.missing || place.region != expected.region || place.slid != expected.slid)
        return false;
    uint32_t block = take_at(&place);
    model_insert(block, place.at, size);
    return at_of(block) == place.at && block_of(&blocks, block)->size == size;
}

/* What heap_would_choose said of a block before it was given back is what heap_find says afterwards. */
static uint32_t chosen_again;

static bool give_random(struct random *r)
{
    uint32_t which = random_below(r, live_count);
    const struct block *b = block_of(&blocks, live[which].block);
    bool same = b->at == live[which].at && b->size == live[which].size && b->state == BLOCK_LIVE;
    bool chosen = heap_would_choose(&heap, live[which].block);
    struct place place;
    give(live[which].block);
    if (chosen)
        same &= heap_find(&heap, &who, live[which].size, BLOCK_BYTES, &place) == FIT_NOW && place.at == live[which].at && !place.slid;
    chosen_again += chosen;
    model_live -= live[which].size;
    memmove(&live[which], &live[which + 1], (--live_count - which) * sizeof *live);
    return same;
}

static uint32_t turned;

/* An idle unit changes; or some slot without live bytes loses its page, goes into transit, or comes back from there. */
static void disturb(struct random *r)
{
    struct region *region = model_regions[random_below(r, model_region_count)];
    uint32_t slot = region_first(region, random_below(r, region->slots));
    if (has_units && random_below(r, 2))
        turned += store_turn(region, slot);
    else if (bit_is_set(region->busy, slot))
        return;
    else if (bit_is_set(region->transit, slot))
        bit_clear(region->transit, slot);
    else if (region->page[slot])
        unmap(region, slot);
    else if (random_below(r, 3) == 0)
        bit_set(region->transit, slot);
}

/* The heap's free ranges are the gaps, in their order, and all that the table holds besides is live. */
static bool ranges_are_the_gaps(void)
{
    uint32_t range = ranges_at_least(&heap.ranges, 1);
    for (uint32_t i = 0; i < gap_count; i++, range = ranges_next(&heap.ranges, range))
        if (!range || at_of(range) != gaps[i].at || block_of(&blocks, range)->size != gaps[i].size)
            return false;
    return !range && blocks.used - 1 - blocks.free_count == gap_count + live_count;
}

static void takes_and_gives(void)
{
    static const uint32_t takes_in_100[] = {65, 50, 35};
    struct random r = {51};
    uint32_t wrong = 0, most = 0;
    live_count = model_region_count = chosen_again = turned = 0;
    model_live = model_need = 0;
    for (int i = 0; i < 100000; i++) {
        find_gaps();
        if (random_below(&r, 100) < takes_in_100[i / 500 % 3] && live_count < LIVE_MAX)
            wrong += !take_random(&r);
        else if (live_count)
            wrong += !give_random(&r);
        if (model_region_count && random_below(&r, 3) == 0)
            disturb(&r);
        find_gaps();
        wrong += heap_broken_rule(&heap) || !ranges_are_the_gaps() || (i % 16 == 0 && pages_broken_rule(&store));
        most = live_count > most ? live_count : most;
        REQUIRE_EQ(wrong, 0);
    }
    EXPECT_EQ(model_region_count, REGIONS_LIVE);
    EXPECT(most > 100);
    EXPECT(chosen_again > 1000);
}

CASE(random_takes_and_gives)
{
    has_units = false;
    takes_and_gives();
}

CASE(random_takes_and_gives_on_units)
{
    has_units = true;
    takes_and_gives();
    EXPECT(turned > 1000);
}

SUITE_MAIN_AROUND("random heap", open_all, close_all)
