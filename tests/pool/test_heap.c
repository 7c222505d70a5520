/* test_heap.c: where blocks go, decision by decision. All of them together, against a model: test_heap_random.c. */
#include "tests/pool/heap_scene.h"

CASE(a_heap_without_regions_fits_nothing)
{
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 512, BLOCK_BYTES, &place), FIT_NOT);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(blocks_are_packed_to_the_byte_and_share_pages)
{
    struct region *r = add_region(8);
    uint32_t first = take(512), second = take(STORE_PAGE), third = take(1024);
    EXPECT_EQ(at_of(first), r->base);
    EXPECT_EQ(at_of(second), r->base + 512);
    EXPECT_EQ(at_of(third), r->base + 512 + STORE_PAGE);
    EXPECT_EQ(r->top, r->base + 2 * STORE_PAGE); /* to the border of the last page touched */
    EXPECT_EQ(r->page[2], 0);
    EXPECT_EQ(block_of(&blocks, first)->state, BLOCK_LIVE);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(the_smallest_range_that_fits_is_taken_then_the_lowest)
{
    struct region *r = add_region(8);
    static const uint64_t sizes[] = {8 * KIB, 4 * KIB, 6 * KIB, 4 * KIB};
    uint32_t holes[4];
    for (int i = 0; i < 4; i++) {
        holes[i] = take(sizes[i]);
        take(512);
    }
    for (int i = 3; i >= 0; i--)
        give(holes[i]);
    EXPECT_EQ(at_of(take(4 * KIB)), r->base + 8 * KIB + 512); /* the lower of the two */
    EXPECT_EQ(at_of(take(5 * KIB)), r->base + 12 * KIB + 1024);
    EXPECT_EQ(at_of(take(512)), r->base + 17 * KIB + 1024); /* what was left of that */
    EXPECT_EQ(at_of(take(8 * KIB)), r->base);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(neighbours_join_on_both_sides)
{
    add_region(4);
    uint32_t a = take(4 * KIB), b = take(4 * KIB), c = take(4 * KIB), last = take(STORE_PAGE - 12 * KIB);
    uint64_t at = at_of(a);
    give(a);
    give(c);
    give(b);
    uint32_t all = ranges_at_least(&heap.ranges, 512);
    EXPECT_EQ(at_of(all), at);
    EXPECT_EQ(block_of(&blocks, all)->size, 12 * KIB);
    EXPECT_EQ(ranges_next(&heap.ranges, all), 0);
    give(last);
    EXPECT_EQ(block_of(&blocks, ranges_at_least(&heap.ranges, 512))->size, STORE_PAGE);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/* Two ranges fit; the smaller lacks a page, the larger lacks none. */
CASE(the_range_that_lacks_fewest_pages_wins)
{
    struct region *r = add_region(16);
    uint32_t small = take(2 * STORE_PAGE), wall = take(STORE_PAGE), large = take(3 * STORE_PAGE);
    take(STORE_PAGE);
    uint64_t small_at = at_of(small), large_at = at_of(large);
    give(small);
    give(large);
    unmap(r, 1);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 2 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, large_at);
    EXPECT_EQ(place.missing, 0);
    unmap(r, 3);
    unmap(r, 4);
    EXPECT_EQ(heap_find(&heap, &who, 2 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, small_at);
    EXPECT_EQ(place.missing, 1);
    give(wall);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(equal_candidates_the_better_fit_wins)
{
    struct region *r = add_region(16);
    uint32_t small = take(2 * STORE_PAGE);
    take(STORE_PAGE);
    uint32_t large = take(3 * STORE_PAGE);
    take(STORE_PAGE);
    give(small);
    give(large);
    unmap(r, 0);
    unmap(r, 3);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 2 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, r->base);
}

/* The seventeenth candidate lacks nothing, but the search does not go that far. */
CASE(so_many_candidates_are_looked_at)
{
    struct region *r = add_region(64);
    uint32_t holes[HEAP_CANDIDATES + 1];
    for (uint32_t i = 0; i <= HEAP_CANDIDATES; i++) {
        holes[i] = take(STORE_PAGE);
        take(STORE_PAGE);
    }
    for (uint32_t i = 0; i <= HEAP_CANDIDATES; i++) {
        give(holes[i]);
        if (i < HEAP_CANDIDATES)
            unmap(r, 2 * i);
    }
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, r->base);
    store_page_at(r, 2 * (HEAP_CANDIDATES - 1));
    EXPECT_EQ(heap_find(&heap, &who, STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, region_slot_at(r, 2 * (HEAP_CANDIDATES - 1)));
}

CASE(growing_wins_only_if_it_lacks_fewer_pages)
{
    struct region *r = add_region(16);
    uint32_t hole = take(3 * STORE_PAGE);
    take(STORE_PAGE);
    give(hole);
    for (uint32_t slot = 0; slot < 3; slot++)
        unmap(r, slot);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT(!place.grows);
    EXPECT_EQ(place.at, r->base);
    store_page_at(r, 5); /* above the top */
    heap.need = 16 * STORE_PAGE; /* the line */
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT(place.grows);
    EXPECT_EQ(place.at, region_slot_at(r, 4));
}

/* Six pages were live at one time, so the line lies behind the seventh slot: of the complete place two slots lie beyond it. */
CASE(a_slot_beyond_the_line_counts_as_one_that_lacks_its_page)
{
    struct region *r = add_region(16);
    uint32_t low = take(4 * STORE_PAGE);
    take(STORE_PAGE);
    give(low);
    uint32_t high = take(5 * STORE_PAGE);
    EXPECT_EQ(at_of(high), region_slot_at(r, 5));
    EXPECT(!heap_would_choose(&heap, high));
    give(high);
    EXPECT_EQ(heap.need, 6 * STORE_PAGE);
    struct place place;
    unmap(r, 0);
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, r->base);
    unmap(r, 1);
    unmap(r, 2); /* three are missing: as good, and the better fit */
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, r->base);
    who.anywhere = true;
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, region_slot_at(r, 5));
    who.anywhere = false;
    heap_fix(&heap, true);
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    heap_fix(&heap, false);
    unmap(r, 3);
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, region_slot_at(r, 5));
}

/* The place in the older region lacks one page, and of the other one two slots lie beyond the line. */
CASE(addresses_below_the_line_are_counted_from_the_oldest_region)
{
    struct region *older = add_region(4), *newer;
    uint32_t low = take(3 * STORE_PAGE);
    newer = add_region(16);
    uint32_t high = take(4 * STORE_PAGE);
    EXPECT_EQ(newer->below, older->bytes);
    EXPECT_EQ(at_of(high), newer->base);
    give(low);
    give(high);
    unmap(older, 0);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, newer->base);
    heap.need = 4 * STORE_PAGE;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, older->base);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/*
 * Slots 0, 1 and 3 lack their pages, and the page at slot 2 is in flight. Behind it a place lacks one page, as does in effect the complete one of
 * which one slot lies beyond the line. If the stream can wait for slot 2, the place begins at slot 0, where two are missing.
 */
CASE(a_page_that_stays_can_make_a_place_beyond_the_line_the_best)
{
    struct region *r = add_region(16);
    uint32_t low = take(6 * STORE_PAGE);
    take(STORE_PAGE);
    uint32_t high = take(7 * STORE_PAGE);
    give(low);
    give(high);
    heap.need = 8 * STORE_PAGE + STORE_PAGE / 2;
    unmap(r, 0);
    unmap(r, 1);
    unmap(r, 3);
    bit_clear(r->sole, 2);
    struct page *p = page_of(&store, r->page[2]);
    p->arena = 2;
    p->freed = r->freed[2] = fences_stamp(&fences);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, region_slot_at(r, 3));
    who.orderable = p->freed;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, region_slot_at(r, 7));
    EXPECT_EQ(place.beyond, 1);
}

/* Slots 0 and 2 map one page. If the stream can wait for the page at slot 1, the look begins at slot 0, and slot 2, in flight, can hold no other. */
CASE(a_page_that_stays_can_hide_a_place_behind_it)
{
    struct region *r = add_region(6);
    uint32_t hole = take(5 * STORE_PAGE);
    take(STORE_PAGE);
    give(hole);
    unmap(r, 2);
    store_map(r->page[0], r, 2);
    unmap(r, 4);
    bit_clear(r->sole, 1);
    struct page *p = page_of(&store, r->page[1]);
    p->arena = 2;
    p->freed = r->freed[1] = fences_stamp(&fences);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, region_slot_at(r, 2));
    who.orderable = p->freed;
    EXPECT_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_IN_FLIGHT);
}

/* A free range at the top is the beginning of the place that grows. */
CASE(growing_uses_the_free_range_below_the_top)
{
    struct region *r = add_region(8);
    take(STORE_PAGE);
    uint32_t last = take(STORE_PAGE);
    give(last);
    struct place place;
    REQUIRE_EQ(heap_find(&heap, &who, 3 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT_EQ(place.at, region_slot_at(r, 1));
    EXPECT_EQ(place.missing, 2);
    take_at(&place);
    EXPECT_EQ(r->top, region_slot_at(r, 4));
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/* The range below the top is in flight: the place lies beyond it, and the two stay apart. */
CASE(growing_past_a_free_range_in_flight)
{
    struct region *r = add_region(8);
    take(STORE_PAGE);
    uint32_t last = take(STORE_PAGE);
    give(last);
    bit_set(r->broken, 1);
    bit_clear(r->sole, 1);
    struct place place;
    REQUIRE_EQ(heap_find(&heap, &who, STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
    EXPECT(place.grows && !place.range);
    uint32_t block = take_at(&place);
    EXPECT_EQ(at_of(block), region_slot_at(r, 2));
    EXPECT_EQ(at_of(ranges_at_least(&heap.ranges, 512)), region_slot_at(r, 1));
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/* Slot 1 of five cannot be filled: the block slides behind it. */
CASE(blocks_slide_past_slots_in_flight)
{
    struct region *r = add_region(8);
    uint32_t hole = take(5 * STORE_PAGE);
    take(3 * STORE_PAGE);
    give(hole);
    bit_set(r->broken, 1);
    bit_clear(r->sole, 1);
    struct place place;
    EXPECT_EQ(heap_find(&heap, &who, 2 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, region_slot_at(r, 2));
    EXPECT_EQ(heap_find(&heap, &who, STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    EXPECT_EQ(place.at, r->base);
    EXPECT_EQ(heap_find(&heap, &who, 4 * STORE_PAGE, BLOCK_BYTES, &place), FIT_IN_FLIGHT);
    EXPECT_EQ(heap_find(&heap, &who, 6 * STORE_PAGE, BLOCK_BYTES, &place), FIT_NOT);
    uint32_t block = take(2 * STORE_PAGE);
    EXPECT_EQ(at_of(block), region_slot_at(r, 2));
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/* Two slots of one range map one page: together they lack one, each alone lacks none, as often as one looks. */
CASE(aliases_in_one_range_count_once)
{
    struct region *r = add_region(4);
    uint32_t hole = take(2 * STORE_PAGE);
    take(2 * STORE_PAGE);
    give(hole);
    store_finish();
    unmap(r, 1);
    store_map(r->page[0], r, 1);
    struct place place;
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(heap_find(&heap, &who, 2 * STORE_PAGE, BLOCK_BYTES, &place), FIT_WITH_PAGES);
        EXPECT_EQ(place.missing, 1);
        EXPECT_EQ(heap_find(&heap, &who, STORE_PAGE, BLOCK_BYTES, &place), FIT_NOW);
    }
}

CASE(alignment_leaves_a_range_in_front)
{
    struct region *r = add_region(8);
    take(512);
    uint32_t aligned = take_aligned(4 * KIB, 16 * KIB);
    EXPECT_EQ(at_of(aligned), r->base + 16 * KIB);
    uint32_t front = take(15 * KIB);
    EXPECT_EQ(at_of(front), r->base + 512);
    uint32_t beyond = take_aligned(STORE_PAGE, 2 * STORE_PAGE);
    EXPECT_EQ(at_of(beyond), r->base + 2 * STORE_PAGE);
    EXPECT_EQ(take_aligned(512, 16 * STORE_PAGE), 0); /* only the base is so aligned, and it is taken */
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(a_new_region_closes_the_top_of_the_one_before)
{
    struct region *old = add_region(4);
    uint32_t block = take(STORE_PAGE);
    struct region *young = add_region(4);
    EXPECT_EQ(old->top, region_end(old));
    EXPECT_EQ(young->top, young->base);
    EXPECT_EQ(heap_addresses_used(&heap), 4 * STORE_PAGE);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    EXPECT_EQ(at_of(take(3 * STORE_PAGE)), region_slot_at(old, 1));
    give(block);
    EXPECT_EQ(at_of(take(4 * STORE_PAGE)), young->base);
    add_region(2);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(a_region_that_was_never_used_closes_as_one_range)
{
    struct region *old = add_region(4);
    add_region(4);
    EXPECT_EQ(block_of(&blocks, old->first_block)->size, 4 * STORE_PAGE);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(a_segment_is_one_range_from_the_start)
{
    struct region *r = store_segment(10 * KIB, 1);
    heap_add_region(&heap, r);
    EXPECT_EQ(r->top, region_end(r));
    uint32_t a = take(4 * KIB), b = take(6 * KIB);
    EXPECT_EQ(at_of(a), r->base);
    EXPECT_EQ(at_of(b), r->base + 4 * KIB);
    EXPECT_EQ(take(512), 0);
    give(a);
    EXPECT(bit_is_set(r->busy, 0));
    give(b);
    EXPECT(!bit_is_set(r->busy, 0));
    EXPECT_EQ(block_of(&blocks, r->first_block)->size, 10 * KIB);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

CASE(an_empty_region_leaves_the_heap)
{
    struct region *low = add_region(4), *high = add_region(4);
    uint32_t block = take(STORE_PAGE);
    struct region *held = region_of(&store, block_of(&blocks, block)->region);
    EXPECT_EQ(held, low);
    EXPECT(!heap_region_is_empty(&heap, low));
    EXPECT(heap_region_is_empty(&heap, high));
    give(block);
    EXPECT(!heap_region_is_empty(&heap, low)); /* its page is still mapped */
    unmap(low, 0);
    EXPECT(heap_region_is_empty(&heap, low));
    bit_set(low->transit, 2);
    EXPECT(!heap_region_is_empty(&heap, low));
    bit_clear(low->transit, 2);
    low->pins[3] = 1;
    EXPECT(!heap_region_is_empty(&heap, low));
    low->pins[3] = 0;
    heap_remove_region(&heap, low);
    EXPECT_EQ(heap.regions, high->number);
    EXPECT_EQ(high->next, 0);
    EXPECT_EQ(ranges_at_least(&heap.ranges, 512), 0);
    heap_remove_region(&heap, high);
    EXPECT_EQ(heap.regions, 0);
    EXPECT_EQ(blocks.used - 1, blocks.free_count);
}

/* The driver would not take its addresses back: it is there again, and the next to be used unless another is virgin. */
CASE(a_region_that_could_not_leave_comes_back)
{
    struct region *low = add_region(4), *high = add_region(4);
    memory_fail(1, true);
    heap_remove_region(&heap, high);
    heap_restore_region(&heap, high);
    EXPECT_EQ(heap.regions, high->number);
    EXPECT(high->next == low->number && low->next == 0);
    heap_remove_region(&heap, low);
    heap_restore_region(&heap, low);
    EXPECT_EQ(heap.regions, high->number);
    memory_fail(0, false);
    EXPECT_EQ(heap_addresses_used(&heap), 0); /* both are virgin */
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    EXPECT(heap_region_is_empty(&heap, low));
    EXPECT_EQ(high->below, 0); /* what waits for a trim lies below no line */
    EXPECT_EQ(at_of(take(STORE_PAGE)), high->base);
    EXPECT_EQ(take(4 * STORE_PAGE), 0);
    give(high->first_block);
    unmap(high, 0);
    heap_remove_region(&heap, high);
    EXPECT_EQ(at_of(take(4 * STORE_PAGE)), low->base);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

/* While it was out the last pieces there are were taken: it waits as one virgin range, and is whole again when a block comes. */
CASE(a_segment_that_comes_back_without_host_memory)
{
    struct region *r = store_segment(10 * KIB, 1);
    heap_add_region(&heap, r);
    heap_remove_region(&heap, r);
    while (blocks.free_count || blocks.used < blocks.committed)
        table_take(&blocks);
    memory_fail(1, true);
    heap_restore_region(&heap, r);
    memory_fail(0, false);
    EXPECT_EQ(r->top, r->base);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    uint32_t block = take(4 * KIB);
    EXPECT_EQ(at_of(block), r->base);
    EXPECT_EQ(r->top, region_end(r));
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    give(block);
}

/* Only where it was, and only if all of it is free. */
CASE(a_block_has_to_be_at_its_place)
{
    struct place place;
    struct region *low = add_region(4);
    uint32_t block = take(3 * STORE_PAGE);
    uint64_t at = at_of(block);
    struct region *high = add_region(4);
    take(2 * STORE_PAGE);
    give(block);
    store_finish();
    EXPECT_EQ(heap_find_at(&heap, &who, low, at, 3 * STORE_PAGE, &place), FIT_NOW);
    EXPECT_EQ(heap_find_at(&heap, &who, low, at + STORE_PAGE, 2 * STORE_PAGE, &place), FIT_NOW);
    EXPECT_EQ(heap_find_at(&heap, &who, low, at + STORE_PAGE, 4 * STORE_PAGE, &place), FIT_NOT);
    EXPECT_EQ(heap_find_at(&heap, &who, high, high->base, 512, &place), FIT_NOT); /* is in use */
    EXPECT_EQ(heap_find_at(&heap, &who, high, high->top, 512, &place), FIT_NOT); /* nothing was ever there */
    EXPECT_EQ(heap_find_at(&heap, &who, low, low->base - STORE_PAGE, 512, &place), FIT_NOT);
}

/* The end of a segment, where it has room for the block as it is aligned. */
CASE(a_block_at_the_end_of_a_segment)
{
    struct place place;
    store_region(1, 2, false); /* of another heap, at an address that is a multiple of much */
    struct region *r = store_segment(10 * KIB, 1);
    EXPECT_EQ(heap_find_last(&heap, KIB, 512, &place), FIT_NOT); /* it is not here yet */
    heap_add_region(&heap, r);
    EXPECT_EQ(heap_find_last(&heap, 11 * KIB, 512, &place), FIT_NOT);
    EXPECT_EQ(heap_find_last(&heap, KIB, 16 * KIB << 20, &place), FIT_NOT); /* the last such address lies before it */
    REQUIRE_EQ(heap_find_last(&heap, 3 * KIB, 2 * KIB, &place), FIT_NOW);
    EXPECT_EQ(place.at, r->base + 6 * KIB);
    give(heap_take(&heap, &place));
    EXPECT_EQ(heap_find_last(&heap, KIB, 512, &place), FIT_NOT); /* a block has been in it */
}

CASE(freeing_needs_no_host_memory)
{
    add_region(8);
    uint32_t held[64];
    for (uint32_t i = 0; i < 64; i++)
        held[i] = take(4 * KIB);
    memory_fail(1, true);
    for (uint32_t i = 0; i < 64; i++)
        give(held[i * 37 % 64]);
    memory_fail(0, false);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    EXPECT_EQ(blocks.used - 1 - blocks.free_count, 1);
}

CASE(chosen_again_only_where_it_is_the_best_fit)
{
    add_region(20);
    uint32_t small = take(4 * KIB), wall = take(KIB), large = take(64 * KIB), last = take(KIB);
    EXPECT(heap_would_choose(&heap, small) && heap_would_choose(&heap, large) && heap_would_choose(&heap, last));
    give(small);
    EXPECT(!heap_would_choose(&heap, last)); /* the 4 KiB fit better than what it would join; the heap has just said yes of it */
    EXPECT(!heap_would_choose(&heap, wall)); /* it would join what lies before it */
    EXPECT(heap_would_choose(&heap, large)); /* 4 KiB are too few for it */
    give(large);
    give(wall);
    give(last);
}

/* The rule that is told with the change made, and none when it is undone. */
#define EXPECT_BROKEN(rule_of, rule, field, value)                  \
    do {                                                            \
        __typeof__(field) was = (field);                            \
        (field) = (value);                                          \
        const char *broken = rule_of(&heap);                        \
        EXPECT(broken && !strncmp(broken, rule, strlen(rule)));     \
        (field) = was;                                              \
        EXPECT_EQ(rule_of(&heap), NULL);                            \
    } while (0)

/* All of a segment. */
CASE(a_block_alone_in_its_segment)
{
    struct place place;
    store_region(1, 2, false); /* of another heap, at an address that is a multiple of much */
    struct region *r = store_segment(10 * KIB + 512, 1), *larger = store_segment(20 * KIB, 1);
    EXPECT_EQ(heap_find_alone(&heap, &who, 0, KIB, 512, &place), FIT_NOT); /* they are not here yet */
    heap_add_region(&heap, larger);
    heap_add_region(&heap, r);
    EXPECT_EQ(heap_find_alone(&heap, &who, r->base + 3 * KIB, KIB, 512, &place), FIT_NOT); /* it begins where its memory does */
    EXPECT_EQ(heap_find_alone(&heap, &who, 0, KIB, 1ull << 40, &place), FIT_NOT);
    REQUIRE_EQ(heap_find_alone(&heap, &who, r->base, KIB, 512, &place), FIT_NOW);
    EXPECT_EQ(place.at, r->base);
    EXPECT_EQ(place.size, 10 * KIB + 512);
    uint32_t block = heap_take(&heap, &place);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    EXPECT_EQ(heap_broken_cover(&heap), NULL);
    REQUIRE_EQ(heap_find(&heap, &who, KIB, 512, &place), FIT_NOW);
    EXPECT_EQ(place.region, larger->number);
    give(block);
    EXPECT_EQ(r->first_block, r->last_block);
    REQUIRE_EQ(heap_find_alone(&heap, &who, 0, KIB, 512, &place), FIT_NOW); /* the smaller one again */
    EXPECT_EQ(place.region, r->number);
    uint32_t small = take(11 * KIB); /* in the larger one: only the smaller is empty */
    EXPECT_EQ(heap_find_alone(&heap, &who, 0, KIB, 512, &place), FIT_NOW);
    EXPECT_EQ(place.region, r->number);
    EXPECT_EQ(heap_find_alone(&heap, &who, larger->base, 15 * KIB, 512, &place), FIT_NOT);
    give(small);
}

/* In 20 slots: a block over three, a hole, two in one slot, one that ends where its last slot ends, and nothing behind them. */
CASE(each_rule_sees_what_is_wrong)
{
    struct region *r = add_region(20);
    take(2 * 64 * KIB + KIB);
    uint32_t hole = take(4 * 64 * KIB), small = take(KIB);
    take(2 * KIB);
    take(64 * KIB - 4 * KIB);
    give(hole);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    EXPECT_EQ(heap_broken_cover(&heap), NULL);

    struct block *b = block_of(&blocks, small), *free = block_of(&blocks, b->before);
    REQUIRE_EQ(free->state, BLOCK_FREE);
    EXPECT_BROKEN(heap_broken_rule, "11:", b->at, b->at + 512);
    EXPECT_BROKEN(heap_broken_rule, "11:", b->before, small);
    EXPECT_BROKEN(heap_broken_rule, "11:", b->region, b->region + 1);
    EXPECT_BROKEN(heap_broken_rule, "11:", b->size, 0);
    EXPECT_BROKEN(heap_broken_rule, "11:", b->size, b->size + 1);
    EXPECT_BROKEN(heap_broken_rule, "12:", b->state, BLOCK_FREE);
    EXPECT_BROKEN(heap_broken_rule, "11:", r->top, r->top + 512);
    EXPECT_BROKEN(heap_broken_rule, "11:", r->last_block, small);

    EXPECT_BROKEN(heap_broken_rule, "22:", heap.live, heap.live + 512);
    EXPECT_BROKEN(heap_broken_rule, "22:", r->below, r->below + 512);

    for (uint32_t slot = 0; slot < r->slots; slot++) {
        EXPECT_BROKEN(heap_broken_cover, "18:", r->edges[slot], r->edges[slot] + 1);
        EXPECT_BROKEN(heap_broken_cover, "18:", r->busy[0], r->busy[0] ^ 1ull << slot);
    }

    struct region *newer = add_region(4);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    take(12 * 64 * KIB);
    while (newer->top == newer->base)
        take(64 * KIB);
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
    heap.regions = r->number; /* the order turned round */
    r->next = newer->number;
    newer->next = 0;
    EXPECT(!strncmp(heap_broken_rule(&heap), "13:", 3));
    heap.regions = newer->number;
    newer->next = r->number;
    r->next = 0;
    EXPECT_EQ(heap_broken_rule(&heap), NULL);
}

SUITE_MAIN_AROUND("heap", open_all, close_all)
