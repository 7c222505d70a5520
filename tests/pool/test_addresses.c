/*
 * test_addresses.c: the map of the process from addresses to regions, against a list that is searched from end to end: regions of pages,
 * and segments of odd places and sizes that share the granules of the map.
 */
#include "pool/core/addresses.h"

#include "base/memory.h"
#include "tests/base/random.h"
#include "tests/harness.h"

#define GRANULE (2ull << 20)
#define BASE    (0x7f4000000000ull)
#define MOST    64u

static struct region *regions[MOST];
static uint32_t region_count;

/* NULL when the map would not take it. */
static struct region *add(uint64_t base, uint64_t bytes)
{
    struct region *replaced, *r = addresses_new_region();
    if (!r)
        return NULL;
    r->base = base;
    r->bytes = bytes;
    r->shares_granule = NULL;
    if (!addresses_add(r, &replaced)) {
        addresses_free_region(r);
        return NULL;
    }
    regions[region_count++] = r;
    return r;
}

static void drop(uint32_t which)
{
    struct region *r = regions[which];
    addresses_remove(r);
    regions[which] = regions[--region_count];
    addresses_free_region(r);
}

static void drop_all(void)
{
    while (region_count)
        drop(region_count - 1);
}

static struct region *model_find(uint64_t at)
{
    for (uint32_t i = 0; i < region_count; i++)
        if (at >= regions[i]->base && at < region_end(regions[i]))
            return regions[i];
    return NULL;
}

/* Both edges of every region, their neighbours, and one place inside. */
static bool edges_are_right(void)
{
    for (uint32_t i = 0; i < region_count; i++) {
        uint64_t at = regions[i]->base, end = region_end(regions[i]);
        uint64_t places[] = {at - 1, at, at + 1, at + (end - at) / 2, end - 1, end, end + 1};
        for (size_t p = 0; p < sizeof places / sizeof *places; p++)
            if (addresses_find(places[p]) != model_find(places[p]))
                return false;
    }
    return true;
}

CASE(nothing_is_anywhere_at_first)
{
    EXPECT_EQ(addresses_find(0), NULL);
    EXPECT_EQ(addresses_find(BASE), NULL);
    EXPECT_EQ(addresses_find(UINT64_MAX), NULL);
}

CASE(a_region_of_pages_is_found_at_its_edges)
{
    struct region *r = add(BASE, 5 * GRANULE);
    REQUIRE(r);
    EXPECT_EQ(addresses_find(BASE), r);
    EXPECT_EQ(addresses_find(BASE + 5 * GRANULE - 1), r);
    EXPECT_EQ(addresses_find(BASE - 1), NULL);
    EXPECT_EQ(addresses_find(BASE + 5 * GRANULE), NULL);
    drop_all();
    EXPECT_EQ(addresses_find(BASE), NULL);
    EXPECT_EQ(addresses_find(BASE + 4 * GRANULE), NULL);
}

CASE(neighbours_do_not_answer_for_each_other)
{
    add(BASE + GRANULE, GRANULE);
    add(BASE, GRANULE);
    add(BASE + 2 * GRANULE, GRANULE);
    EXPECT(edges_are_right());
    drop(0);
    EXPECT(edges_are_right());
    EXPECT_EQ(addresses_find(BASE + GRANULE), NULL);
}

CASE(a_region_over_two_leaves_of_the_map)
{
    uint64_t leaf = GRANULE << 18;
    REQUIRE(add(BASE / leaf * leaf + leaf - 3 * GRANULE, 6 * GRANULE));
    EXPECT(edges_are_right());
}

/* What the driver gives again is the next region's, whole, and those that lay there leave once. */
CASE(a_region_takes_the_place_of_those_that_were_there)
{
    struct region *low = add(BASE + GRANULE / 2, GRANULE), *high = add(BASE + 3 * GRANULE / 2, GRANULE), *behind = add(BASE + 5 * GRANULE / 2, 512);
    struct region *next = addresses_new_region(), *replaced;
    REQUIRE(low && high && behind && next);
    next->base = BASE + GRANULE;
    next->bytes = GRANULE;
    REQUIRE(addresses_add(next, &replaced));
    EXPECT_EQ(replaced, high);
    EXPECT_EQ(atomic_load(&high->shares_granule), low);
    EXPECT_EQ(atomic_load(&low->shares_granule), NULL);
    EXPECT_EQ(addresses_find(BASE + GRANULE), next);
    EXPECT_EQ(addresses_find(BASE + 2 * GRANULE - 1), next);
    EXPECT_EQ(addresses_find(BASE + GRANULE - 1), NULL);
    EXPECT_EQ(addresses_find(BASE + 2 * GRANULE), NULL);
    EXPECT_EQ(addresses_find(BASE + 5 * GRANULE / 2), behind);
    EXPECT(!addresses_remove(low) && !addresses_remove(high));
    EXPECT_EQ(addresses_find(BASE + GRANULE), next);
    EXPECT(addresses_remove(next));
    addresses_free_region(next);
    drop_all();
}

/*
 * One pool offers a segment to its driver, which refuses, so that it joins again. Another pool gives back the neighbour meanwhile, and its structure
 * serves elsewhere: what comes behind the segment later is found for as long as it is there.
 */
CASE(a_neighbour_goes_while_a_segment_is_refused)
{
    struct region *kept = add(BASE + GRANULE / 4, 512), *replaced;
    REQUIRE(kept && add(BASE + GRANULE / 2, 512));
    addresses_remove(kept);
    drop(1);
    struct region *elsewhere = add(BASE - GRANULE, 512); /* in the structure of the neighbour */
    REQUIRE(addresses_add(kept, &replaced));
    REQUIRE(elsewhere && add(BASE + GRANULE * 3 / 4, 512));
    EXPECT(edges_are_right());
    drop(1);
    EXPECT(edges_are_right());
    REQUIRE(add(BASE - 2 * GRANULE, 512)); /* in the structure of the one that was elsewhere */
    EXPECT(edges_are_right());
}

/* Every order of adding and every order of removing of four segments, three of them reaching into a granule's neighbours. */
CASE(segments_in_shared_granules_in_any_order)
{
    static const uint64_t at[] = {GRANULE / 4, GRANULE / 2, GRANULE * 2 + 512, GRANULE * 4 + 1024};
    static const uint64_t bytes[] = {512, GRANULE * 3 / 2, GRANULE * 2, GRANULE};
    uint32_t wrong = 0, orders = 0;
    for (uint32_t order = 0; order < 256 * 256; order++) {
        uint32_t in[4], out[4], added = 0, removed = 0;
        for (uint32_t i = 0; i < 4; i++) {
            in[i] = order >> (2 * i) & 3;
            out[i] = order >> (8 + 2 * i) & 3;
            added |= 1u << in[i];
            removed |= 1u << out[i];
        }
        if (added != 15 || removed != 15)
            continue;
        orders++;
        for (uint32_t i = 0; i < 4; i++) {
            add(BASE + at[in[i]], bytes[in[i]]);
            wrong += !edges_are_right();
        }
        for (uint32_t i = 0; i < 4; i++) {
            struct region *gone = model_find(BASE + at[out[i]]);
            uint64_t was_at = gone->base, was_end = region_end(gone);
            uint32_t which = 0;
            while (regions[which] != gone)
                which++;
            drop(which);
            wrong += addresses_find(was_at) || addresses_find(was_end - 1) || !edges_are_right();
        }
    }
    EXPECT_EQ(orders, 24 * 24);
    EXPECT_EQ(wrong, 0);
}

/* A region that leaves is not known to any other: its structure may be used again for any place. */
CASE(nobody_keeps_a_link_to_a_region_that_left)
{
    struct region *low = add(BASE + GRANULE / 2, GRANULE);
    struct region *middle = add(BASE + GRANULE * 3 / 2, GRANULE);
    struct region *high = add(BASE + GRANULE * 5 / 2, GRANULE);
    REQUIRE(low && middle && high);
    drop(1);
    EXPECT_EQ(low->shares_granule, NULL);
    EXPECT_EQ(addresses_find(BASE + GRANULE * 5 / 2), high);
    drop(1);
    EXPECT_EQ(low->shares_granule, NULL);
    EXPECT_EQ(addresses_find(BASE + GRANULE / 2), low);
}

/* No link may outlive what it points to: a broken chain would be searched for ever, so it is found here before any search. */
static bool links_are_sound(void)
{
    for (uint32_t i = 0; i < region_count; i++) {
        const struct region *next = regions[i]->shares_granule;
        if (next && (next != model_find(next->base) || next->base < region_end(regions[i]) ||
                     next->base / GRANULE != (region_end(regions[i]) - 1) / GRANULE))
            return false;
    }
    return true;
}

static void add_random(struct random *r)
{
    bool pages = random_below(r, 4) == 0;
    uint64_t base = BASE + (pages ? random_below(r, 48) * GRANULE : random_below(r, 48 * 4096) * 512ull);
    uint64_t bytes = pages ? (1 + random_below(r, 8)) * GRANULE : (1 + random_below(r, random_below(r, 2) ? 512 : 3 * 4096)) * 512ull;
    for (uint32_t i = 0; i < region_count; i++)
        if (base < region_end(regions[i]) && regions[i]->base < base + bytes)
            return; /* the driver gives out no address twice */
    add(base, bytes);
}

CASE(random_regions_come_and_go)
{
    struct random r = {41};
    uint32_t steps = 0, most = 0;
    bool right = true;
    while (right && steps < 40000) {
        if (region_count < MOST && random_below(&r, 3))
            add_random(&r);
        else if (region_count)
            drop(random_below(&r, region_count));
        most = region_count > most ? region_count : most;
        steps++;
        right = links_are_sound() && edges_are_right();
        for (int i = 0; i < 4 && right; i++) {
            uint64_t at = BASE + random_next(&r) % (60 * GRANULE);
            right = addresses_find(at) == model_find(at);
        }
    }
    EXPECT_EQ(steps, 40000);
    EXPECT(right);
    EXPECT(most > 20);
}

CASE(addresses_beyond_57_bits_are_refused)
{
    EXPECT_EQ(add(1ull << 57, GRANULE), NULL);
    EXPECT_EQ(add((1ull << 57) - GRANULE, 2 * GRANULE), NULL);
    EXPECT_EQ(addresses_find((1ull << 57) - GRANULE), NULL);
    EXPECT(add((1ull << 57) - GRANULE, GRANULE));
    EXPECT(edges_are_right());
}

CASE(without_host_memory_nothing_is_added)
{
    uint64_t untouched = 0x123400000000ull; /* its leaf does not exist yet */
    memory_fail(1, true);
    EXPECT_EQ(add(untouched, GRANULE), NULL);
    memory_fail(0, false);
    EXPECT_EQ(addresses_find(untouched), NULL);
    EXPECT(add(untouched, GRANULE));
    EXPECT(edges_are_right());
}

CASE(structures_are_used_again_and_start_zeroed)
{
    struct region *r = addresses_new_region();
    REQUIRE(r);
    r->base = r->bytes = 77;
    addresses_free_region(r);
    struct region *again = addresses_new_region();
    EXPECT_EQ(again, r);
    EXPECT(!again->base && !again->bytes && !again->pool);
    addresses_free_region(again);
}

/* Any byte in common, wherever in the granules they share. */
CASE(what_is_taken)
{
    uint64_t kib = 1024;
    REQUIRE(add(BASE + 100 * kib, 100 * kib) && add(BASE + 300 * kib, 5 * GRANULE));
    EXPECT(!addresses_first_in(BASE, 100 * kib)); /* ends where it begins */
    EXPECT(addresses_first_in(BASE, 100 * kib + 1));
    EXPECT(addresses_first_in(BASE + 150 * kib, 1));
    EXPECT(!addresses_first_in(BASE + 200 * kib, 100 * kib)); /* between the two */
    EXPECT(addresses_first_in(BASE + 200 * kib, 100 * kib + 1));
    EXPECT(addresses_first_in(BASE + 3 * GRANULE, 2 * GRANULE));
    EXPECT(addresses_first_in(BASE + 4 * GRANULE, 9 * GRANULE));
    EXPECT(!addresses_first_in(BASE + 300 * kib + 5 * GRANULE, 20 * GRANULE));
    EXPECT(!addresses_first_in(BASE - 100 * GRANULE, 100 * GRANULE));
    drop_all();
}

SUITE_MAIN_AROUND("addresses", NULL, drop_all)
