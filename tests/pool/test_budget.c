/*
 * test_budget.c: how much a pool grows rather than have pages move, by the sums alone: what moving and new pages took, the time since the pool was
 * opened, what was ever live, and what is held.
 */
#include "pool/pool.h"
#include "tests/harness.h"

#define SECOND  1000000000ull
#define BUDGET  (SECOND / 10)     /* of a pool that has created nothing yet, at the moment it was opened */
#define NEED    (1000ull << 20)

static cenote_pool pool;

/* A pool that holds what is live, and no more. */
static void reset(double harvest_budget)
{
    memset(&pool, 0, sizeof pool);
    pool.config.options.harvest_budget = harvest_budget;
    pool.account.stats.allocated.current = pool.account.stats.allocated.peak = pool.account.stats.active.current = NEED;
    pool.store.pages.reserved = NEED;
}

static uint64_t growth(uint64_t moving_ns)
{
    pool.remap.moving_ns = moving_ns;
    return budget_growth(&pool, 0, 0);
}

CASE(within_one_budget_pages_move)
{
    reset(0.01);
    EXPECT_EQ(growth(0), 0);
    EXPECT_EQ(growth(BUDGET), 0);
}

CASE(each_further_budget_is_worth_one_percent)
{
    reset(0.01);
    EXPECT_EQ(growth(2 * BUDGET), NEED / 100);
    EXPECT_EQ(growth(4 * BUDGET), 3 * NEED / 100);
    EXPECT_EQ(growth(6 * BUDGET), 5 * NEED / 100);
    EXPECT_EQ(growth(6 * BUDGET + 1), UINT64_MAX);
    pool.store.pages.reserved = NEED + NEED / 50;
    EXPECT_EQ(growth(2 * BUDGET), 0); /* it wastes more already: pages move */
    EXPECT_EQ(growth(4 * BUDGET), NEED / 100);
}

CASE(a_budget_is_what_new_pages_cost_twice_and_a_sixth_of_the_time_that_is_allowed)
{
    reset(0.01);
    pool.remap.creating_ns = SECOND;
    EXPECT_EQ(growth(2 * SECOND + BUDGET), 0);
    EXPECT(growth(2 * SECOND + BUDGET + 1000) > 0);
    reset(0.06);
    pool.remap.moving_ns = BUDGET + SECOND;
    EXPECT(budget_growth(&pool, 0, 0) > 0);
    EXPECT_EQ(budget_growth(&pool, 0, 100 * SECOND), 0);
    pool.remap.moving_ns = 6 * (BUDGET + SECOND) + 1000;
    EXPECT_EQ(budget_growth(&pool, 0, 100 * SECOND), UINT64_MAX);
}

CASE(need_is_the_most_that_was_ever_live)
{
    reset(0.01);
    EXPECT_EQ(growth(2 * BUDGET), NEED / 100);
    pool.account.stats.allocated.current = pool.account.stats.allocated.peak = 0; /* the program resets the peaks */
    EXPECT_EQ(growth(2 * BUDGET), NEED / 100);
    EXPECT_EQ(budget_growth(&pool, 2 * NEED, 0), NEED + 2 * NEED / 100); /* the request belongs to it */
    EXPECT_EQ(growth(2 * BUDGET), NEED / 100);  /* that request may have failed */
}

CASE(without_a_budget_pages_always_move_and_with_none_once)
{
    reset(-1);
    EXPECT_EQ(growth(100 * SECOND), 0);
    reset(0);
    pool.remap.creating_ns = SECOND;
    EXPECT_EQ(growth(0), 0);
    EXPECT_EQ(growth(1), UINT64_MAX);
}

/* So many pages of 2 MiB are created. */
static void create(uint32_t pages)
{
    pool.remap.fill.creates = pages;
    pool.remap.fill.create_bytes = (uint64_t)pages << 21;
}

/* Of ten pages three moved. */
CASE(mixed_fills_are_booked_by_page)
{
    reset(0.01);
    pool.remap.fill.count = 10;
    create(7);
    budget_book_fill(&pool, 100, 20, 50);
    EXPECT_EQ(pool.remap.creating_ns, 135);
    EXPECT_EQ(pool.remap.moving_ns, 35);
    create(0);
    budget_book_fill(&pool, 0, 20, 50);
    EXPECT_EQ(pool.remap.creating_ns, 135);
    EXPECT_EQ(pool.remap.moving_ns, 105);
    create(10);
    budget_book_fill(&pool, 100, 0, 50);
    EXPECT_EQ(pool.remap.creating_ns, 285);
    EXPECT_EQ(pool.remap.moving_ns, 105);
}

/* Of 20 MiB that are created, 8 are in place of pages of the other size. */
CASE(pages_in_place_of_pages_of_the_other_size_have_moved)
{
    reset(0.01);
    pool.remap.fill.count = 10;
    create(10);
    pool.remap.exchanged = 8ull << 20;
    budget_book_fill(&pool, 100, 20, 50);
    EXPECT_EQ(pool.remap.creating_ns, 90);
    EXPECT_EQ(pool.remap.moving_ns, 80);
    EXPECT_EQ(pool.remap.exchanged, 0);
    budget_book_fill(&pool, 100, 0, 50);
    EXPECT_EQ(pool.remap.creating_ns, 240);
    EXPECT_EQ(pool.remap.moving_ns, 80);
}

/* An eighth of what was live, and sixteen pages: half of that once the pool wastes. */
CASE(a_pool_wastes_if_blocks_hold_more_than_was_ever_live)
{
    reset(0.01);
    pool.store.pages.shifts[GRADE_MIDDLE] = 20;
    uint64_t slack = NEED / 8 + (16ull << 20);
    pool.store.pages.reserved = NEED + slack;
    budget_look(&pool);
    EXPECT(!pool.remap.wastes);
    pool.store.pages.reserved++;
    budget_look(&pool);
    EXPECT(pool.remap.wastes);
    pool.store.pages.reserved = NEED + slack / 2 + 1;
    budget_look(&pool);
    EXPECT(pool.remap.wastes);
    pool.store.pages.reserved--;
    budget_look(&pool);
    EXPECT(!pool.remap.wastes);
}

CASE(neither_spares_nor_blocks_that_wait_are_wasted)
{
    reset(0.01);
    pool.store.pages.shifts[GRADE_MIDDLE] = 20;
    pool.store.pages.reserved = 2 * NEED;
    pool.store.pages.spare_bytes = NEED / 2 + 1;
    budget_look(&pool);
    EXPECT(pool.remap.wastes);
    pool.remap.wastes = false;
    pool.store.pages.spare_bytes = NEED;
    budget_look(&pool);
    EXPECT(!pool.remap.wastes);
    pool.store.pages.spare_bytes = 0;
    pool.account.stats.active.current = 2 * NEED; /* other streams use half of it */
    budget_look(&pool);
    EXPECT(!pool.remap.wastes);
}

/* Beside what is live or pending now, as long as the pool makes middle pages: of 4 MiB, from 768 MiB to 3 GiB. */
CASE(a_pool_of_middle_pages_frays_if_blocks_hold_more_than_they_are)
{
    reset(0.01);
    pool.store.pages.shifts[GRADE_MIDDLE] = 22;
    pool.store.pages.shifts[GRADE_LARGE] = 24;
    pool.store.pages.reserved = NEED + NEED / 56;
    budget_look(&pool);
    EXPECT(!pool.remap.frays);
    pool.store.pages.reserved++;
    budget_look(&pool);
    EXPECT(pool.remap.frays);
    pool.store.pages.spare_bytes = 1;
    budget_look(&pool);
    EXPECT(!pool.remap.frays);
    pool.account.stats.active.current = NEED - 1; /* less than it has needed, and as many pages are held */
    budget_look(&pool);
    EXPECT(pool.remap.frays);
    pool.account.stats.active.current = NEED + 1; /* other streams use some */
    budget_look(&pool);
    EXPECT(!pool.remap.frays);
}

CASE(neither_a_small_pool_frays_nor_a_large_one)
{
    reset(0.01);
    pool.store.pages.shifts[GRADE_MIDDLE] = 22;
    pool.store.pages.shifts[GRADE_LARGE] = 24;
    pool.store.pages.reserved = 2 * NEED;
    budget_look(&pool);
    EXPECT(pool.remap.frays);
    pool.store.pages.shifts[GRADE_MIDDLE] = 23; /* what it needs are small pages */
    budget_look(&pool);
    EXPECT(!pool.remap.frays);
    pool.store.pages.shifts[GRADE_MIDDLE] = 20; /* and large ones */
    pool.store.pages.shifts[GRADE_LARGE] = 22;
    budget_look(&pool);
    EXPECT(!pool.remap.frays);
}

CASE(a_reset_of_the_peaks_makes_no_waste)
{
    reset(0.01);
    pool.store.pages.shifts[GRADE_MIDDLE] = 20;
    budget_remember(&pool);
    pool.account.stats.allocated.current = pool.account.stats.allocated.peak = pool.account.stats.active.current = NEED / 2;
    budget_look(&pool);
    EXPECT(!pool.remap.wastes);
}

/* A thousand regions, each with a free page, which no look counts all at once. */
CASE(thousands_of_regions_are_counted_in_several_looks)
{
    static uint64_t home = 1, sole = 1, none;
    static struct region regions[1000];
    static uint32_t page;
    reset(0.01);
    EXPECT(pages_open(&pool.store.pages, 20) && table_reserve(&pool.store.pages.table, 1));
    page = pages_add(&pool.store.pages, 0, 1 << 20);
    for (size_t i = 0; i < 1000; i++) {
        regions[i] = (struct region){.slots = 1, .shift = 20, .is_listed = true, .home = &home, .sole = &sole, .busy = &none, .page = &page};
        EXPECT(pages_add_region(&pool.store.pages, &regions[i]));
    }
    uint64_t slack = NEED / 8 + (16ull << 20), free = 1000ull << 20;
    for (int wasted = 0; wasted < 2; wasted++) {
        pool.store.pages.reserved = NEED + slack + free + (wasted ? 1 : 0);
        for (int look = 0; look < 4; look++) {
            EXPECT(!pool.remap.wastes);
            EXPECT_EQ(pool.remap.counted, look * 256);
            budget_look(&pool);
        }
        EXPECT_EQ(pool.remap.wastes, wasted);
    }
    pages_close(&pool.store.pages);
}

SUITE_MAIN("budget")
