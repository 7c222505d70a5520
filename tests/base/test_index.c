/*
 * test_index.c: the index against an array that holds the value of each address of a small universe, in the patterns that addresses
 * come in: runs of equal blocks, pages, anything.
 */
#include "base/index.h"

#include "base/memory.h"
#include "tests/base/random.h"
#include "tests/harness.h"

#define UNIVERSE 20000u
#define BASE     0x7f1200000000ull

static struct index index_used;
static uint32_t model[UNIVERSE]; /* value of each address, 0: not in the index */

static void forget(void)
{
    index_close(&index_used);
    memset(model, 0, sizeof(model));
}

/* One random operation; false when the index answers otherwise than the model. */
static bool step(struct random *r, uint64_t stride, uint32_t adds_in_100)
{
    uint32_t which = random_below(r, UNIVERSE);
    uint64_t address = BASE + which * stride;
    if (index_find(&index_used, address) != model[which])
        return false;
    if (random_below(r, 100) >= adds_in_100) {
        bool same = index_remove(&index_used, address) == model[which];
        model[which] = 0;
        return same;
    }
    if (!model[which]) {
        if (!index_reserve(&index_used, 1))
            return false;
        model[which] = 1 + random_below(r, UINT32_MAX - 1);
        index_add(&index_used, address, model[which]);
    }
    return true;
}

/* Grows, churns at the top, shrinks, and compares everything at the end. */
static void churn(uint64_t stride, uint64_t seed)
{
    static const uint32_t adds_in_100[] = {80, 50, 20};
    struct random r = {seed};
    uint32_t wrong = 0;
    for (int phase = 0; phase < 3; phase++) {
        for (int i = 0; i < 60000; i++)
            wrong += !step(&r, stride, adds_in_100[phase]);
        EXPECT(index_is_valid(&index_used));
    }
    uint32_t live = 0;
    for (uint32_t which = 0; which < UNIVERSE; which++) {
        live += model[which] != 0;
        wrong += index_find(&index_used, BASE + which * stride) != model[which];
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(index_used.count, live);
    EXPECT(live > UNIVERSE / 10);
}

CASE(consecutive_small_blocks) { churn(512, 1); }
CASE(blocks_with_long_runs) { churn(512 << 5, 2); } /* the stride of test runs whose searches are longest at this size */
CASE(two_mib_pages) { churn(2 << 20, 3); }
CASE(odd_distances) { churn(512 * 1237, 4); }

CASE(what_is_not_there)
{
    EXPECT_EQ(index_find(&index_used, BASE), 0); /* nothing mapped yet */
    EXPECT_EQ(index_remove(&index_used, BASE), 0);
    REQUIRE(index_reserve(&index_used, 2));
    index_add(&index_used, BASE, 7);
    EXPECT_EQ(index_find(&index_used, 0), 0);
    EXPECT_EQ(index_remove(&index_used, 0), 0);
    EXPECT_EQ(index_find(&index_used, BASE + 8), 0); /* inside, not at the start */
    EXPECT_EQ(index_remove(&index_used, BASE), 7);
    EXPECT_EQ(index_remove(&index_used, BASE), 0);
    EXPECT_EQ(index_used.count, 0);
}

/* After index_reserve, adding needs no memory. */
CASE(reserved_room_is_there)
{
    REQUIRE(index_reserve(&index_used, 50000));
    memory_fail(1, true);
    for (uint32_t i = 0; i < 50000; i++)
        index_add(&index_used, BASE + i * 512ull, i + 1);
    memory_fail(0, false);
    EXPECT_EQ(index_used.count, 50000);
    EXPECT(index_is_valid(&index_used));
}

CASE(a_growth_that_fails_changes_nothing)
{
    REQUIRE(index_reserve(&index_used, 1));
    uint32_t added = 0;
    memory_fail(1, true);
    while (index_reserve(&index_used, 1)) {
        index_add(&index_used, BASE + added * 512ull, added + 1);
        added++;
    }
    memory_fail(0, false);
    EXPECT(added > 100);
    EXPECT_EQ(index_used.count, added);
    EXPECT(index_is_valid(&index_used));
    EXPECT(index_reserve(&index_used, 1));
    EXPECT_EQ(index_find(&index_used, BASE + (added - 1) * 512ull), added);
}

/* Entries of before the growth are found, and removed, wherever they are; each growth ends long before the next. */
CASE(a_growth_moves_a_few_at_a_time)
{
    uint32_t wrong = 0, halves = 0, most = 0, begun = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        REQUIRE(index_reserve(&index_used, 1));
        uint32_t before = index_used.moved;
        index_add(&index_used, BASE + i * 512ull, i + 1);
        halves += index_used.before.count != 0;
        begun += index_used.before.count && !before;
        most = index_used.before.count && index_used.moved - before > most ? index_used.moved - before : most;
        if (i % 3 == 0 && i > 1000) { /* one that was there before the growth, or moved since */
            uint32_t gone = i / 2;
            uint32_t value = index_find(&index_used, BASE + gone * 512ull);
            wrong += value && value != gone + 1;
            wrong += index_remove(&index_used, BASE + gone * 512ull) != value;
            wrong += index_find(&index_used, BASE + gone * 512ull) != 0;
        }
        wrong += index_find(&index_used, BASE + i * 512ull) != i + 1;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(begun > 5 && halves > 10000 && halves < 150000); /* most of the time nothing is on the move */
    EXPECT(most <= 8);
    EXPECT(index_is_valid(&index_used));
}

CASE(more_than_any_index_holds)
{
    EXPECT(!index_reserve(&index_used, UINT32_MAX));
    EXPECT_EQ(index_bytes(&index_used), 0);
}

CASE(closing_gives_memory_back)
{
    size_t before = memory_in_use();
    REQUIRE(index_reserve(&index_used, 10000));
    EXPECT_EQ(memory_in_use() - before, index_bytes(&index_used));
    index_close(&index_used);
    EXPECT_EQ(memory_in_use(), before);
}

SUITE_MAIN_AROUND("index", NULL, forget)
