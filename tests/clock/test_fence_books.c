/* test_fence_books.c: fences of several events: questions that come late, what the fences that are due will bring, and books that are broken. */
#include "pool/clock/fence.h"

#include "tests/harness.h"

static struct fences f;

static void forget(void)
{
    f = (struct fences){0};
}

static CUevent event(uintptr_t number)
{
    return (CUevent)number;
}

/* Something is freed, and a fence over it has one event. */
static struct due record(uintptr_t number, enum fence_kind kind)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    EXPECT(fences_add(&f, event(number), 1));
    fences_end(&f, kind);
    return (struct due){event(number), 1, freed, true};
}

CASE(an_answer_comes_when_nothing_is_due)
{
    struct due due = record(1, FENCE_OF_ALL);
    EXPECT_EQ(fences_step(&f, &due), event(1));
    EXPECT_EQ(fences_step(&f, &due), NULL);
    EXPECT_EQ(fences_skip(&f, &due), NULL);
    EXPECT(fences_are_valid(&f));
}

/* Another thread has been told the same, and the event serves the next fence; or the next event of the same fence is the oldest by now. */
CASE(an_answer_about_an_older_event)
{
    struct due old = record(1, FENCE_OF_ALL), other;
    EXPECT_EQ(fences_step(&f, &old), event(1));
    struct due due = record(1, FENCE_OF_ALL);
    EXPECT_EQ(fences_step(&f, &old), NULL);
    EXPECT_EQ(fences_skip(&f, &old), NULL);
    other = due;
    other.event = event(2);
    EXPECT_EQ(fences_step(&f, &other), NULL);
    EXPECT_EQ(fences_skip(&f, &other), NULL);
    EXPECT(!fence_is_done(&f, due.covers));
    EXPECT_EQ(fences_step(&f, &due), event(1));
    EXPECT(fence_is_done(&f, due.covers)); /* skips that came late took nothing from it */
}

CASE(a_fence_with_an_event_that_says_nothing)
{
    struct due due = record(1, FENCE_OF_ALL);
    EXPECT_EQ(fences_skip(&f, &due), event(1));
    EXPECT(!fence_is_done(&f, due.covers));
    EXPECT_EQ(f.count, 0);
}

CASE(what_is_due_brings)
{
    struct due first = record(1, FENCE_OF_ALL), second;
    EXPECT_EQ(fences_step(&f, &first), event(1));
    second = record(2, FENCE_OF_ALL);
    EXPECT(fences_have_all(&f, first.covers)); /* without a look at what is due */
    EXPECT(fences_have_all(&f, second.covers));
    EXPECT(!fences_bring(&f, first.covers));
    EXPECT(fences_bring(&f, second.covers));
    record(3, FENCE_OF_MOST);
    EXPECT(fences_have_all(&f, second.covers));
    EXPECT(!fences_have_all(&f, f.now));
}

CASE(no_more_events_than_there_is_room_for)
{
    for (uint32_t i = 0; i < FENCE_PARTS_MAX / 32; i++) {
        fences_stamp(&f);
        REQUIRE(fences_begin(&f));
        for (uint32_t part = 0; part < 32; part++)
            REQUIRE(fences_add(&f, event(1 + part), 0));
        fences_end(&f, FENCE_OF_ALL);
    }
    fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    EXPECT(!fences_add(&f, event(1), 0));
    fences_end(&f, FENCE_OF_SOME);
    EXPECT_EQ(f.begun, f.now - 1); /* it was none */
    EXPECT(fences_are_valid(&f));
}

static void break_order(void) { f.fence[1].covers = f.fence[0].covers; }
static void break_parts(void) { f.fence[1].parts = 0; }
static void break_sum(void) { f.part_count++; }
static void break_begun(void) { f.begun = f.fence[0].covers; }
static void break_now(void) { f.now = f.begun - 1; }
static void break_freed(void) { f.freed = f.now + 1; }
static void break_done(void) { f.done = f.now + 1; }
static void break_all(void) { f.all = f.done + 1; }
static void break_whole(void) { f.whole = f.all + 1; }

CASE(broken_books_are_seen)
{
    static void (*const breaks[])(void) = {break_order, break_parts, break_sum, break_begun, break_now, break_freed, break_done, break_all,
                                           break_whole};
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        forget();
        record(1, FENCE_OF_ALL);
        record(2, FENCE_OF_ALL);
        EXPECT(fences_are_valid(&f));
        breaks[i]();
        EXPECT(!fences_are_valid(&f));
    }
}

SUITE_MAIN_AROUND("pool: books of fences", forget, NULL)
