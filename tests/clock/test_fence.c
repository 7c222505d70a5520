/* test_fence.c: the life of a fence, and what each state refuses. Events are made-up pointers: nothing here knows a driver. */
#include "pool/clock/fence.h"

#include "tests/base/random.h"
#include "tests/harness.h"

#include <string.h>

static struct fences f;

static void forget(void)
{
    f = (struct fences){0};
}

static CUevent event(uintptr_t number)
{
    return (CUevent)number;
}

/* The fence being recorded is one event; 0: the driver refused. */
static void end(uintptr_t number)
{
    EXPECT(!number || fences_add(&f, event(number), 0));
    fences_end(&f, FENCE_OF_ALL);
}

/* The driver said that the oldest fence is done, if it covers this. */
static CUevent mark_done(tick covers)
{
    struct due due;
    return fences_oldest(&f, &due) && due.covers == covers ? fences_step(&f, &due) : NULL;
}

/* Something is freed and a fence over it recorded. What it covers. */
static tick record(uintptr_t number)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    end(number);
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
    end(1);
    EXPECT(!fence_is_done(&f, first));
    EXPECT_EQ(mark_done(first), event(1));
    EXPECT(fence_is_done(&f, first));
    EXPECT(!fence_is_done(&f, while_recording)); /* it belongs to the next */
    EXPECT(fences_are_valid(&f));
}

/* A stream waits for a fence over the whole context alone, the oldest that is late enough. */
CASE(a_stream_waits_for_the_oldest_fence_over_the_context)
{
    tick covers[3], wanted = fences_stamp(&f);
    EXPECT_EQ(fences_newest_whole(&f), 0);
    EXPECT(fences_covering(&f, &wanted) == NULL);
    for (uintptr_t i = 0; i < 3; i++) {
        covers[i] = fences_stamp(&f);
        REQUIRE(fences_begin(&f));
        EXPECT(fences_add(&f, event(i + 1), 0));
        fences_end(&f, i == 1 ? FENCE_WHOLE : FENCE_OF_ALL);
    }
    EXPECT_EQ(fences_newest_whole(&f), covers[1]);
    EXPECT_EQ(fences_covering(&f, &wanted), event(2));
    EXPECT_EQ(wanted, covers[1]);
    wanted = covers[2];
    EXPECT(fences_covering(&f, &wanted) == NULL);
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
    end(1);
    EXPECT(fences_begin(&f));
}

CASE(a_refused_recording_leaves_its_frees_to_the_next)
{
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    end(0);
    struct due oldest;
    EXPECT(!fences_oldest(&f, &oldest));
    REQUIRE(fences_begin(&f)); /* although nothing more was freed */
    end(2);
    EXPECT_EQ(mark_done(freed), event(2));
    EXPECT(fence_is_done(&f, freed));
    EXPECT(fences_are_valid(&f));
}

CASE(a_refused_recording_behind_one_that_is_due)
{
    tick first = record(1);
    tick second = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    end(0);
    EXPECT(fences_are_valid(&f));
    EXPECT_EQ(mark_done(first), event(1));
    EXPECT(!fence_is_done(&f, second));
    REQUIRE(fences_begin(&f));
    end(2);
    EXPECT_EQ(mark_done(second), event(2));
    EXPECT(fence_is_done(&f, second));
}

CASE(fences_retire_in_order)
{
    tick first = record(1), second = record(2);
    struct due seen;
    EXPECT_EQ(mark_done(second), NULL); /* not the oldest: nothing happens */
    EXPECT(!fence_is_done(&f, first));
    REQUIRE(fences_oldest(&f, &seen));
    EXPECT(seen.covers == first && seen.event == event(1));
    EXPECT_EQ(mark_done(first), event(1));
    REQUIRE(fences_oldest(&f, &seen));
    EXPECT_EQ(seen.covers, second);
    EXPECT_EQ(mark_done(second), event(2));
    EXPECT(!fences_oldest(&f, &seen));
}

/* Two threads asked about the same fence; meanwhile its event was reused for the next one. The late answer says nothing of that one. */
CASE(an_answer_about_a_reused_event_changes_nothing)
{
    struct due asked;
    record(1);
    REQUIRE(fences_oldest(&f, &asked));
    EXPECT_EQ(fences_step(&f, &asked), event(1));
    tick second = record(1);
    EXPECT_EQ(fences_step(&f, &asked), NULL);
    EXPECT(!fence_is_done(&f, second));
    EXPECT_EQ(f.count, 1);
}

CASE(an_answer_about_a_fence_that_another_thread_retired)
{
    tick covers = record(1);
    EXPECT_EQ(mark_done(covers), event(1));
    EXPECT_EQ(mark_done(covers), NULL); /* its event was handed back once */
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
    EXPECT_EQ(mark_done(first), event(1));
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
    EXPECT_EQ(mark_done(first), event(1)); /* handed back, and time does not run backwards */
    EXPECT(fence_is_done(&f, second));
    EXPECT_EQ(mark_done(second), event(2));
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
    end(1);
    EXPECT(fences_are_valid(&f));
    EXPECT_EQ(mark_done(freed), event(1));
    EXPECT(fence_is_done(&f, late));
    EXPECT(fences_are_valid(&f));
}

/* ------------------------------------------------------------------------------------------------------------------ events on streams */

static struct horizon horizon[4];
static struct progress stream[4];
static const struct table arenas = {.items = (char *)horizon, .item_size = sizeof *horizon};

/* Each arena has a stream of its own. */
static void count_streams(void)
{
    memset(stream, 0, sizeof stream);
    for (uint32_t i = 0; i < 4; i++)
        horizon[i] = (struct horizon){.lane = i, .stream = &stream[i]};
    f.arenas = &arenas;
}

CASE(the_last_event_of_a_fence_makes_it_done)
{
    struct due due;
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    EXPECT(fences_add(&f, event(1), 1) && fences_add(&f, event(2), 2));
    fences_end(&f, FENCE_OF_ALL);
    REQUIRE(fences_oldest(&f, &due));
    EXPECT(due.lane == 1 && !due.is_last);
    EXPECT_EQ(fences_step(&f, &due), event(1));
    EXPECT(!fence_is_done(&f, freed));
    REQUIRE(fences_oldest(&f, &due));
    EXPECT(due.lane == 2 && due.is_last && due.covers == freed);
    EXPECT_EQ(fences_step(&f, &due), event(2));
    EXPECT(fence_is_done(&f, freed));
}

CASE(an_arena_is_done_when_its_own_stream_is_and_all_others_are)
{
    count_streams();
    tick freed = record(1);
    stream[1].done = freed;
    EXPECT(!fence_has_passed(&f, freed, 1)); /* other streams may be behind */
    mark_done(freed);
    EXPECT(fence_has_passed(&f, freed, 1));
    EXPECT(!fence_has_passed(&f, freed, 2)); /* no event on its stream */
    fences_all_done(&f, freed);
    EXPECT(fence_has_passed(&f, freed, 2)); /* the whole context was waited for */
    EXPECT(!fence_has_passed(&f, fences_stamp(&f), 2));
}

CASE(a_fence_that_lacks_events_moves_no_other_stream)
{
    count_streams();
    struct due due;
    tick freed = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    EXPECT(fences_add(&f, event(1), 1));
    fences_end(&f, FENCE_OF_SOME);
    REQUIRE(fences_oldest(&f, &due));
    EXPECT_EQ(fences_step(&f, &due), event(1));
    EXPECT(!fence_is_done(&f, freed));
    EXPECT(fences_are_valid(&f));
}

/* What replays may have written to waits for a fence that lacks no stream. */
CASE(a_fence_with_gaps_moves_done_alone)
{
    tick first = fences_stamp(&f);
    REQUIRE(fences_begin(&f));
    EXPECT(fences_add(&f, event(1), 1));
    fences_end(&f, FENCE_OF_MOST);
    EXPECT(!fences_have_all(&f, first));
    EXPECT(fences_bring(&f, first));
    mark_done(first);
    EXPECT(fence_is_done(&f, first));
    EXPECT_EQ(f.all, 0);
    tick second = record(2);
    EXPECT(fences_have_all(&f, second)); /* when that one is done */
    EXPECT(!fences_bring(&f, first));
    f.released = first;
    EXPECT(fences_bring(&f, first));
    mark_done(second);
    EXPECT_EQ(f.all, second);
    EXPECT(fences_are_valid(&f));
}

/* A private group ends: its arena waits for a fence without gaps, even if its own stream has ended, and for the lanes that have replays. */
CASE(what_a_private_group_leaves_waits_for_replays)
{
    count_streams();
    tick before = record(1);
    mark_done(before);
    tick end = fences_stamp(&f);
    horizon[1].released = f.released = end;
    stream[1].done = UINT64_MAX;
    f.done = end;
    EXPECT(fences_await_replays(&f));
    EXPECT(!fence_has_passed(&f, end, 1));
    EXPECT(fence_has_passed(&f, before, 1));
    f.replaying = 1;
    f.all = end;
    fences_look_at_replays(&f);
    EXPECT(!fence_has_passed(&f, end, 1));
    uint64_t moved = f.moved;
    f.replaying = 0;
    fences_look_at_replays(&f);
    EXPECT(fence_has_passed(&f, end, 1) && !fences_await_replays(&f));
    EXPECT_EQ(f.moved, moved + 1);
    f.replaying = 1; /* another group, later: what was done stays done */
    fences_look_at_replays(&f);
    EXPECT(fence_has_passed(&f, end, 1));
    EXPECT(fences_are_valid(&f));
}

/* The arena comes to a stream that has done nothing: what the device was done with before stays done. */
CASE(an_arena_keeps_what_was_known_when_it_came)
{
    count_streams();
    tick freed = fences_stamp(&f), later = fences_stamp(&f);
    f.done = later;
    horizon[2].known = freed;
    EXPECT(fence_has_passed(&f, freed, 2));
    EXPECT(!fence_has_passed(&f, later, 2));
    stream[2].done = later;
    EXPECT(fence_has_passed(&f, later, 2));
}

/* A wait goes on as long as memory comes: fences over nothing are no reason to. */
CASE(what_moved_is_counted)
{
    count_streams();
    tick freed = record(1);
    uint64_t before = f.moved;
    mark_done(freed);
    EXPECT_EQ(f.moved, before + 1);
    tick nothing = fences_stamp_nothing(&f);
    REQUIRE(fences_begin(&f));
    end(2);
    mark_done(nothing);
    EXPECT_EQ(f.moved, before + 1);
}

/* Broken states that the rule has to see. */
CASE(validity_sees_what_is_wrong)
{
    record(1);
    record(2);
    EXPECT(fences_are_valid(&f));
    struct fences sound = f;
    f.fence[1].covers = f.fence[0].covers;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.begun = f.fence[0].covers;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.done = f.now + 1;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    f.begun = f.now + 1;
    EXPECT(!fences_are_valid(&f));
    f = sound;
    for (f.count = 0; f.count <= FENCES_DUE_MAX; f.count++) /* more than the ring holds: the first comes again */
        f.fence[f.count % FENCES_DUE_MAX].covers = f.begun = f.now = f.count + 1;
    EXPECT(!fences_are_valid(&f));
}

/* Random lives: `done` is never ahead of the device, and once all is retired everything freed before the last fence is done. */
CASE(never_ahead_of_the_device)
{
    struct random r = {21};
    tick device = 0; /* what the device has completed */
    uint32_t wrong = 0, retired = 0;
    for (int i = 0; i < 300000; i++) {
        struct due oldest;
        switch (random_below(&r, 5)) {
        case 0:
            fences_stamp(&f);
            break;
        case 1:
            fences_begin(&f);
            break;
        case 2:
            if (f.recording)
                end(random_below(&r, 4) ? 1 + random_below(&r, 9) : 0);
            break;
        case 3:
            if (fences_oldest(&f, &oldest)) {
                device = device > oldest.covers ? device : oldest.covers;
                retired += mark_done(oldest.covers) == oldest.event;
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
