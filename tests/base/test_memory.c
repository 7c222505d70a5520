/* test_memory.c: mapped memory and its books, tables against a plain array, and both when memory runs out. */
#include "base/memory.h"

#include "tests/base/random.h"
#include "tests/harness.h"

#define ITEMS 5000u

static struct table table_used;
static size_t in_use_before;

static void begin(void)
{
    in_use_before = memory_in_use();
}

/* Whatever a case did, the books are level at its end. */
static void end(void)
{
    memory_fail(0, false);
    table_close(&table_used);
    EXPECT_EQ(memory_in_use(), in_use_before);
}

static bool is_filled(const void *memory, size_t bytes, unsigned char with)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != with)
            return false;
    return true;
}

CASE(mapped_memory_is_zeroed_and_counted)
{
    unsigned char *memory = memory_map(10000);
    REQUIRE(memory != NULL);
    EXPECT(is_filled(memory, 10000, 0));
    memset(memory, 0xee, 10000);
    EXPECT(memory_in_use() - in_use_before >= 10000);
    memory_unmap(memory, 10000);
    EXPECT_EQ(memory_in_use(), in_use_before);
    memory_unmap(NULL, 10000);
    EXPECT_EQ(memory_in_use(), in_use_before);
}

CASE(what_cannot_be_mapped)
{
    EXPECT(memory_map(0) == NULL);
    EXPECT(memory_map(SIZE_MAX) == NULL);
    EXPECT(memory_map(SIZE_MAX / 2) == NULL);
}

CASE(the_nth_map_fails)
{
    void *maps[4];
    memory_fail(3, false);
    for (int i = 0; i < 4; i++)
        maps[i] = memory_map(1);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(maps[i] == NULL, i == 2);
        memory_unmap(maps[i], 1);
    }
}

CASE(all_maps_from_the_nth_fail)
{
    void *maps[4];
    memory_fail(3, true);
    for (int i = 0; i < 4; i++)
        maps[i] = memory_map(1);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(maps[i] == NULL, i >= 2);
        memory_unmap(maps[i], 1);
    }
}

/*
 * Takes and gives items at random. Each live item is filled with a byte of its own: nothing else writes to it, it never moves, and it is
 * zeroed when it is handed out again.
 */
static void churn(size_t item_size, uint64_t seed)
{
    static uint32_t live[ITEMS];
    uint32_t count = 0;
    uint32_t wrong = 0;
    struct random r = {seed};
    REQUIRE(table_open(&table_used, item_size, ITEMS));
    const char *items = table_used.items;

    for (int i = 0; i < 200000; i++) {
        bool takes = count < ITEMS && (count == 0 || random_below(&r, 100) < (i < 100000 ? 60 : 40));
        uint32_t at = takes ? count : random_below(&r, count);
        if (takes) {
            live[at] = table_take(&table_used);
            REQUIRE(live[at] != 0);
            wrong += !is_filled(table_at(&table_used, live[at]), item_size, 0);
            memset(table_at(&table_used, live[at]), (int)(live[at] % 255 + 1), item_size);
            count++;
        } else {
            wrong += !is_filled(table_at(&table_used, live[at]), item_size, (unsigned char)(live[at] % 255 + 1));
            table_give(&table_used, live[at]);
            live[at] = live[--count];
        }
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(table_used.items == items);
    EXPECT_EQ(table_used.used - 1 - table_used.free_count, count);
    EXPECT_EQ(memory_in_use() - in_use_before, table_bytes(&table_used));
}

CASE(smallest_items) { churn(4, 11); }
CASE(items_that_do_not_divide_a_page) { churn(120, 12); }

/* Larger than the steps in which tables grow. */
CASE(huge_items)
{
    REQUIRE(table_open(&table_used, 100000, 50));
    for (uint32_t i = 1; i <= 50; i++) {
        REQUIRE_EQ(table_take(&table_used), i);
        memset(table_at(&table_used, i), 0xff, 100000);
        EXPECT_EQ(memory_in_use() - in_use_before, table_bytes(&table_used));
    }
    EXPECT_EQ(table_take(&table_used), 0);
}

CASE(a_table_holds_as_many_as_it_said)
{
    REQUIRE(table_open(&table_used, 16, ITEMS));
    for (uint32_t i = 1; i <= ITEMS; i++)
        REQUIRE_EQ(table_take(&table_used), i);
    EXPECT_EQ(table_take(&table_used), 0);
    EXPECT(!table_reserve(&table_used, 1));
    table_give(&table_used, 17);
    EXPECT(table_reserve(&table_used, 1));
    EXPECT(!table_reserve(&table_used, 2));
    EXPECT_EQ(table_take(&table_used), 17);
}

CASE(reserved_items_need_no_memory)
{
    REQUIRE(table_open(&table_used, 64, ITEMS));
    REQUIRE(table_take(&table_used) == 1 && table_take(&table_used) == 2);
    table_give(&table_used, 1);
    REQUIRE(table_reserve(&table_used, 3000));
    memory_fail(1, true);
    for (uint32_t i = 0; i < 3000; i++)
        REQUIRE(table_take(&table_used) != 0);
    EXPECT(!table_reserve(&table_used, ITEMS - 3001));
}

/* A failed growth loses nothing, and the next one succeeds. */
CASE(growth_that_fails)
{
    REQUIRE(table_open(&table_used, 64, ITEMS));
    memory_fail(2, false); /* the first growth succeeds */
    uint32_t taken = 0;
    while (table_take(&table_used))
        taken++;
    EXPECT(taken > 0 && taken < ITEMS);
    EXPECT_EQ(table_used.used, taken + 1);
    EXPECT_EQ(table_take(&table_used), taken + 1);
}

/* Address space costs no memory: this one is far larger than the machine. */
CASE(a_table_larger_than_memory)
{
    REQUIRE(table_open(&table_used, 256, 1u << 31));
    EXPECT_EQ(memory_in_use(), in_use_before);
    EXPECT_EQ(table_take(&table_used), 1);
    EXPECT(memory_in_use() - in_use_before <= 1 << 20);
}

CASE(tables_that_cannot_be)
{
    EXPECT(!table_open(&table_used, 64, 0));
    EXPECT(!table_open(&table_used, 64, UINT32_MAX));
    EXPECT(!table_open(&table_used, SIZE_MAX / 1000 / 8 * 8, 1000));
}

CASE(room_is_made_anew_where_there_was_too_little)
{
    size_t before = memory_in_use(), bytes = 0;
    void *memory = NULL;
    REQUIRE(memory_make_room(&memory, &bytes, 100000));
    EXPECT(bytes >= 125000);
    ((char *)memory)[bytes - 1] = 1;
    void *kept = memory;
    size_t enough = bytes;
    EXPECT(memory_make_room(&memory, &bytes, enough));
    EXPECT(memory == kept && bytes == enough);
    EXPECT(memory_make_room(&memory, &bytes, enough + 1));
    EXPECT(bytes > enough);
    memory_fail(1, false);
    EXPECT(!memory_make_room(&memory, &bytes, bytes + 1));
    memory_fail(0, false);
    EXPECT(!memory && !bytes);
    EXPECT_EQ(memory_in_use(), before);
}

SUITE_MAIN_AROUND("memory", begin, end)
