/* test_region.c: the arrays behind a region, the arithmetic of slots, and what the driver is asked for. */
#include "pool/core/region.h"

#include "base/memory.h"
#include "tests/harness.h"
#include "tests/pool/card.h"

#define BASE  0x7f3000000000ull
#define SHIFT 21u
#define PAGE  (1ull << SHIFT)

static struct region r;

static void open_card(void)
{
    card_open(PAGE);
    r = (struct region){0};
}

static void close_region(void)
{
    if (r.slots)
        region_close(&r);
}

/* Fills the `bytes` at `array` with a value of its own; false if the value of another array was there. */
static bool claim(void *array, uint64_t bytes, uint8_t value)
{
    uint8_t *byte = array;
    for (uint64_t i = 0; i < bytes; i++) {
        if (byte[i])
            return false;
        byte[i] = value;
    }
    return true;
}

/* Every byte of every array is zero at first and belongs to that array alone, at slot counts around the borders of words. */
CASE(arrays_do_not_overlap)
{
    static const uint32_t slots[] = {1, 2, 63, 64, 65, 127, 128, 129, 1000};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        uint32_t n = slots[i];
        REQUIRE(region_open(&r, BASE, n * PAGE, SHIFT));
        EXPECT_EQ(r.slots, n);
        uint64_t words = bits_words(n) * 8ull, granules = (r.bytes >> SLAB_GRANULE_SHIFT) + 1;
        uint64_t *bits[] = {r.sole, r.home, r.busy, r.transit, r.broken};
        for (uint8_t b = 0; b < 5; b++)
            EXPECT(claim(bits[b], words, b + 1));
        EXPECT(claim(r.page, n * sizeof *r.page, 6));
        EXPECT(claim(r.edges, n * sizeof *r.edges, 7));
        EXPECT(claim(r.pins, n * sizeof *r.pins, 8));
        EXPECT(claim(r.freed, n * sizeof *r.freed, 9));
        EXPECT(claim(r.next_alias, n * sizeof *r.next_alias, 10));
        EXPECT(claim(r.granules, granules * sizeof *r.granules, 11));
        EXPECT(claim(r.begins, bits_words((uint32_t)granules) * 8ull, 12));
        EXPECT((uint64_t)((char *)(r.begins + bits_words((uint32_t)granules)) - (char *)r.sole) <= r.metadata_bytes);
        EXPECT_EQ((uintptr_t)r.freed % 8, 0);
        region_close(&r);
    }
}

CASE(slots_and_addresses)
{
    REQUIRE(region_open(&r, BASE, 5 * PAGE, SHIFT));
    EXPECT_EQ(r.top, BASE);
    EXPECT_EQ(region_end(&r), BASE + 5 * PAGE);
    EXPECT_EQ(region_slot(&r, BASE), 0);
    EXPECT_EQ(region_slot(&r, BASE + PAGE - 1), 0);
    EXPECT_EQ(region_slot(&r, BASE + PAGE), 1);
    EXPECT_EQ(region_slot(&r, region_end(&r) - 1), 4);
    for (uint32_t slot = 0; slot < 5; slot++)
        EXPECT_EQ(region_slot_at(&r, slot), BASE + slot * PAGE);
}

CASE(a_segment_has_one_slot_whatever_its_size)
{
    REQUIRE(region_open(&r, BASE + 512, 37 * 512, SEGMENT_SHIFT));
    EXPECT(region_is_segment(&r));
    EXPECT_EQ(r.slots, 1);
    EXPECT_EQ(region_slot(&r, BASE + 512), 0);
    EXPECT_EQ(region_slot(&r, region_end(&r) - 1), 0);
    EXPECT_EQ(region_slot_at(&r, 0), BASE + 512);
    EXPECT_EQ(region_end(&r), BASE + 38 * 512);
}

/* A segment may straddle one more granule than its size says: both ends have an entry. */
CASE(granules_reach_both_ends_of_an_odd_segment)
{
    uint64_t granule = 1ull << SLAB_GRANULE_SHIFT;
    REQUIRE(region_open(&r, BASE + granule - 512, granule + 1024, SEGMENT_SHIFT));
    uint64_t last = ((region_end(&r) - 1) >> SLAB_GRANULE_SHIFT) - (r.base >> SLAB_GRANULE_SHIFT);
    EXPECT_EQ(last, 2);
    EXPECT((char *)(r.granules + last + 1) <= (char *)r.begins);
    EXPECT((char *)(r.begins + last / 64 + 1) <= (char *)r.sole + r.metadata_bytes);
}

CASE(opening_over_old_contents_starts_anew)
{
    struct region other = {0};
    r = (struct region){.top = 1, .first_block = 2, .last_block = 3, .next = 4, .shares_granule = &other};
    REQUIRE(region_open(&r, BASE, 2 * PAGE, SHIFT));
    EXPECT_EQ(r.top, BASE);
    EXPECT(!r.first_block && !r.last_block && !r.next && !r.shares_granule);
}

CASE(without_host_memory_there_is_no_region)
{
    size_t before = memory_in_use();
    memory_fail(1, true);
    EXPECT(!region_open(&r, BASE, 4 * PAGE, SHIFT));
    memory_fail(0, false);
    r.slots = 0;
    EXPECT_EQ(memory_in_use(), before);
}

CASE(closing_gives_memory_back)
{
    size_t before = memory_in_use();
    REQUIRE(region_open(&r, BASE, 5000 * PAGE, SHIFT));
    EXPECT(memory_in_use() > before);
    region_close(&r);
    EXPECT_EQ(memory_in_use(), before);
}

CASE(the_driver_is_asked_for_these_slots)
{
    CUmemAccessDesc own = device_access(&card_device);
    uint64_t base = 0;
    REQUIRE_EQ(region_reserve(&card_device, 4 * PAGE, PAGE, &base), CUDA_SUCCESS);
    EXPECT_EQ(base, card.reserved_at);
    EXPECT_EQ(card.reserved_bytes, 4 * PAGE);
    REQUIRE(region_open(&r, base, 4 * PAGE, SHIFT));
    CUmemGenericAllocationHandle first = card_create(), second = card_create();
    EXPECT_EQ(region_map(&card_device, &r, 1, first), CUDA_SUCCESS);
    EXPECT_EQ(region_map(&card_device, &r, 2, second), CUDA_SUCCESS);
    EXPECT_EQ(card_at(base + PAGE), 0); /* no access yet */
    EXPECT_EQ(region_grant(&card_device, &r, 1, 3, &own, 1), CUDA_SUCCESS);
    EXPECT_EQ(card_at(base + PAGE), first);
    EXPECT_EQ(card_at(base + 2 * PAGE), second);
    EXPECT_EQ(region_unmap(&card_device, &r, 1), CUDA_SUCCESS);
    EXPECT_EQ(card_at(base + PAGE), 0);
    EXPECT_EQ(card_mapped(), 1);
    EXPECT_EQ(region_unreserve(&card_device, base, 4 * PAGE), CUDA_SUCCESS);
    EXPECT_EQ(card.reserved_at, 0);
    EXPECT_EQ(card.mistakes, 0);
}

CASE(refusals_of_the_driver_come_through)
{
    CUmemAccessDesc own = device_access(&card_device);
    uint64_t base = 7;
    card_fail(1, UINT32_MAX);
    EXPECT_EQ(region_reserve(&card_device, PAGE, PAGE, &base), CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(region_open(&r, BASE, 2 * PAGE, SHIFT));
    EXPECT_EQ(region_map(&card_device, &r, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(region_grant(&card_device, &r, 0, 1, &own, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(region_unmap(&card_device, &r, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(region_unreserve(&card_device, BASE, 2 * PAGE), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(card.calls, 5);
}

SUITE_MAIN_AROUND("region", open_card, close_region)
