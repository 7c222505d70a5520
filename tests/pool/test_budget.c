/*
 * test_budget.c: how much a pool grows rather than have pages move, by the sums alone: what moving took, the time since the pool was opened, what was
 * ever live, and what is held.
 */
#include "pool/mapping/budget.h"
#include "tests/harness.h"

#define SECOND  1000000000ull
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

CASE(as_long_as_nothing_has_moved_pages_move)
{
    reset(0.01);
    EXPECT_EQ(growth(0), 0);
}

CASE(the_more_moving_has_taken_the_more_may_the_pool_hold)
{
    reset(0.01);
    EXPECT_EQ(growth(SECOND / 5), NEED / 100);
    EXPECT_EQ(growth(SECOND / 5 * 4), NEED / 25);
    EXPECT_EQ(growth(SECOND), UINT64_MAX);
    pool.store.pages.reserved = NEED + NEED / 50;
    EXPECT_EQ(growth(SECOND / 5), 0); /* it holds more already: pages move */
    EXPECT_EQ(growth(SECOND / 5 * 4), NEED / 25 - NEED / 50);
}

CASE(moving_may_take_a_part_of_the_time)
{
    reset(0.01);
    pool.remap.moving_ns = SECOND;
    EXPECT_EQ(budget_growth(&pool, 0, 0), UINT64_MAX);
    EXPECT_EQ(budget_growth(&pool, 0, 400 * SECOND), NEED / 100);
    pool.remap.moving_ns = 5 * SECOND;
    EXPECT_EQ(budget_growth(&pool, 0, 400 * SECOND), UINT64_MAX);
}

CASE(need_is_the_most_that_was_ever_live)
{
    reset(0.01);
    EXPECT_EQ(growth(SECOND / 5), NEED / 100);
    pool.account.stats.allocated.current = pool.account.stats.allocated.peak = 0; /* the program resets the peaks */
    EXPECT_EQ(growth(SECOND / 5), NEED / 100);
    EXPECT_EQ(budget_growth(&pool, 2 * NEED, 0), NEED + 2 * NEED / 100); /* the request belongs to it */
    EXPECT_EQ(growth(SECOND / 5), NEED / 100);  /* that request may have failed */
}

CASE(without_a_budget_pages_always_move_and_with_none_once)
{
    reset(-1);
    EXPECT_EQ(growth(100 * SECOND), 0);
    reset(0);
    EXPECT_EQ(growth(0), 0);
    EXPECT_EQ(growth(1), UINT64_MAX);
}

/* Of ten pages three moved. */
CASE(pages_that_are_created_do_not_move)
{
    reset(0.01);
    pool.remap.fill.count = 10;
    pool.remap.fill.creates = 7;
    budget_book_fill(&pool, 20, 50);
    EXPECT_EQ(pool.remap.moving_ns, 35);
    pool.remap.fill.creates = 0;
    budget_book_fill(&pool, 20, 50);
    EXPECT_EQ(pool.remap.moving_ns, 105);
    pool.remap.fill.creates = 10;
    budget_book_fill(&pool, 0, 50);
    EXPECT_EQ(pool.remap.moving_ns, 105);
}

CASE(a_reset_of_the_peaks_does_not_change_the_need)
{
    reset(0.01);
    budget_remember(&pool);
    pool.account.stats.allocated.current = pool.account.stats.allocated.peak = pool.account.stats.active.current = NEED / 2;
    EXPECT_EQ(growth(SECOND / 5), NEED / 100);
}

SUITE_MAIN("budget")
