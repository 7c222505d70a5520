/* test_fence.c: the life of a fence, and what each state refuses. Events are made-up pointers: nothing here knows a driver. */
#include "pool/core/fence.h"

#include "tests/base/random.h"
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

/* Something is freed and a fence over it recorded. What it covers. */
static tick record(uintptr_t number)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    fences_end(&f, event(number), false);
    return freed;
}

CASE(what_is_freed_is_done_when_its_fence_is)
{
    tick first = fences_stamp(&f);
    EXPECT(fence_is_done(&f, 0)); /* never freed */
    EXPECT(!fence_is_done(&f, first));
    REQUIRE(fences_begin(&f));
    tick while_recording = fences_stamp(&f);
    EXPECT(while_recording > first);
    fences_end(&f, event(1), false);
    EXPECT(!fence_is_done(&f, first));
    EXPECT_EQ(fences_mark_done(&f, first), event(1));
    EXPECT(fence_is_done(&f, first));
    EXPECT(!fence_is_done(&f, while_recording)); /* it belongs to the next */
    EXPECT(fences_are_valid(&f));
}

CASE(nothing_freed_needs_no_fence)
{
    EXPECT(!fences_begin(&f));
    record(1);
    EXPECT(!fences_begin(&f));
    fences_stamp(&f);
    EXPECT(fences_begin(&f));
}

CASE(one_at_a_time)
{
    fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    fences_stamp(&f);
    EXPECT(!fences_begin(&f));
    fences_end(&f, event(1), false);
    EXPECT(fences_begin(&f));
}

CASE(a_refused_recording_leaves_its_frees_to_the_next)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    fences_end(&f, NULL, false);
    struct fence oldest;
    EXPECT(!fences_oldest(&f, &oldest));
    REQUIRE(fences_begin(&f)); /* although nothing more was freed */
    fences_end(&f, event(2), false);
    EXPECT_EQ(fences_mark_done(&f, freed), event(2));
    EXPECT(fence_is_done(&f, freed));
    EXPECT(fences_are_valid(&f));
}

CASE(a_refused_recording_behind_one_that_is_due)
{
    tick first = record(1);
    tick second = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    fences_end(&f, NULL, false);
    EXPECT(fences_are_valid(&f));
    EXPECT_EQ(fences_mark_done(&f, first), event(1));
    EXPECT(!fence_is_done(&f, second));
    REQUIRE(fences_begin(&f));
    fences_end(&f, event(2), false);
    EXPECT_EQ(fences_mark_done(&f, second), event(2));
    EXPECT(fence_is_done(&f, second));
}

CASE(fences_retire_in_order)
{
    tick first = record(1), second = record(2);
    struct fence seen;
    EXPECT_EQ(fences_mark_done(&f, second), NULL); /* not the oldest: nothing happens */
    EXPECT(!fence_is_done(&f, first));
    REQUIRE(fences_oldest(&f, &seen));
    EXPECT(seen.covers == first && seen.event == event(1));
    REQUIRE(fences_newest(&f, &seen));
    EXPECT(seen.covers == second && seen.event == event(2));
    EXPECT_EQ(fences_mark_done(&f, first), event(1));
    REQUIRE(fences_oldest(&f, &seen));
    EXPECT_EQ(seen.covers, second);
    EXPECT_EQ(fences_mark_done(&f, second), event(2));
    EXPECT(!fences_oldest(&f, &seen) && !fences_newest(&f, &seen));
}

/* Two threads asked about the same fence; meanwhile its event was reused for the next one. The late answer says nothing of that one. */
CASE(an_answer_about_a_reused_event_changes_nothing)
{
    tick first = record(1);
    EXPECT_EQ(fences_mark_done(&f, first), event(1));
    tick second = record(1);
    EXPECT_EQ(fences_mark_done(&f, first), NULL);
    EXPECT(!fence_is_done(&f, second));
    EXPECT_EQ(f.count, 1);
}

CASE(an_answer_about_a_fence_that_another_thread_retired)
{
    tick covers = record(1);
    EXPECT_EQ(fences_mark_done(&f, covers), event(1));
    EXPECT_EQ(fences_mark_done(&f, covers), NULL); /* its event was handed back once */
    EXPECT_EQ(f.done, covers);
}

CASE(a_full_ring_refuses_until_one_is_done)
{
    tick first = record(1);
    for (uintptr_t i = 2; i <= FENCES_DUE_MAX; i++)
        record(i);
    fences_stamp(&f);
    EXPECT(!fences_begin(&f));
    EXPECT_EQ(f.count, FENCES_DUE_MAX);
    EXPECT(fences_are_valid(&f));
    EXPECT_EQ(fences_mark_done(&f, first), event(1));
    EXPECT(fences_begin(&f));
}

CASE(a_wait_for_everything_needs_no_fence_after_it)
{
    tick freed = fences_stamp(&f);
    fences_all_done(&f, freed);
    EXPECT(fence_is_done(&f, freed));
    EXPECT(!fences_begin(&f));
}

CASE(a_wait_for_everything_overtakes_what_is_due)
{
    tick first = record(1), second = record(2);
    fences_all_done(&f, second);
    EXPECT(fence_is_done(&f, second));
    EXPECT_EQ(fences_mark_done(&f, first), event(1)); /* handed back, and time does not run backwards */
    EXPECT(fence_is_done(&f, second));
    EXPECT_EQ(fences_mark_done(&f, second), event(2));
    EXPECT(fences_are_valid(&f));
}

CASE(a_wait_that_began_before_a_free_does_not_cover_it)
{
    tick asked = fences_stamp(&f), late = fences_stamp(&f);
    fences_all_done(&f, asked);
    EXPECT(fence_is_done(&f, asked));
    EXPECT(!fence_is_done(&f, late));
    EXPECT(fences_begin(&f));
}

CASE(a_wait_while_one_is_being_recorded)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    tick late = fences_stamp(&f);
    fences_all_done(&f, late);
    fences_end(&f, event(1), false);
    EXPECT(fences_are_valid(&f));
    EXPECT_EQ(fences_mark_done(&f, freed), event(1));
    EXPECT(fence_is_done(&f, late));
    EXPECT(fences_are_valid(&f));
}

/* Broken states that the rule has to see. */
CASE(validity_sees_what_is_wrong)
{
    record(1);
    record(2);
    EXPECT(fences_are_valid(&f));
    struct fences sound = f;
    f.due[1].covers = f.due[0].covers;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.begun = f.due[0].covers;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.done = f.now + 1;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.begun = f.now + 1;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    for (f.count = 0; f.count <= FENCES_DUE_MAX; f.count++) /* more than the ring holds: the first comes again */
        f.due[f.count % FENCES_DUE_MAX].covers = f.begun = f.now = f.count + 1;
    EXPECT(!fences_are_valid(&f));
}

/* Random lives: `done` is never ahead of the device, and once all is retired everything freed before the last fence is done. */
CASE(never_ahead_of_the_device)
{
    struct random r = {21};
    tick device = 0; /* what the device has completed */
    uint32_t wrong = 0, retired = 0;
    for (int i = 0; i < 300000; i++) {
        struct fence oldest;
        switch (random_below(&r, 5)) {
        case 0:
            fences_stamp(&f);
            break;
        case 1:
            fences_begin(&f);
            break;
        case 2:
            if (f.recording)
                fences_end(&f, random_below(&r, 4) ? event(1 + random_below(&r, 9)) : NULL, random_below(&r, 2));
            break;
        case 3:
            if (fences_oldest(&f, &oldest)) {
                device = device > oldest.covers ? device : oldest.covers;
                retired += fences_mark_done(&f, oldest.covers) == oldest.event;
                wrong += f.done < oldest.covers;
            }
            break;
        default:
            if (random_below(&r, 50) == 0)
                fences_all_done(&f, device = f.now);
        }
        wrong += f.done > device || !fences_are_valid(&f);
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(retired > 10000);
}

SUITE_MAIN_AROUND("fence", NULL, forget)
