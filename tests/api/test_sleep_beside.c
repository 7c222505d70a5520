/*
 * test_sleep_beside.c: memory that sleeps, and what happens beside it: blocks that are freed and given again, other threads that act while a call
 * waits, other pools of the device.
 */
#include <cenote/share.h>

#include "base/lock.h"
#include "tests/api/copies.h"
#include "tests/api/sleeps.h"
#include "tests/rounds.h"

/* ---------------------------------------------------------------------------------------------------------- what is kept */

/* A block under 1 MiB comes back, whatever it was rounded up to: to 512 bytes, or to the pages of a group of whole ones. */
CASE(small_blocks_are_small_by_what_was_asked_for)
{
    struct scene scene;
    struct held held[2];
    cenote_group *group;
    cenote_sleep slept;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group));
    DONE(group_alloc(group, 300 * KIB, 1, scene.stream[A], &block));
    held[0] = held_of(block, 300 * KIB, scene.stream[A]);
    REQUIRE(held_take(&held[1], scene.pool, MIB - 100, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_DISCARD, &slept));
    EXPECT_EQ(slept.discarded, 0);
    DONE(resume_of(scene.pool, NULL, NULL));
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

static void write_anew(struct held *held)
{
    held->pattern++;
    held_launch(held, sim_launch_fill, held->stream);
}

/* A pause with another word ends what CENOTE_CONSTANT has promised, also of a page that stays awake: the program may write from then on. */
CASE(another_word_ends_a_constant_copy_though_the_page_stays)
{
    struct scene scene;
    struct held held;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, NULL));
    DONE(resume_of(scene.pool, NULL, NULL));
    DONE(cenote_pin(held.at, held.bytes));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.awake, 4 * MIB);
    DONE(cenote_unpin(held.at, held.bytes));
    write_anew(&held);
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    EXPECT_EQ(slept.kept, 4 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* The same of a page that sleeps already when the other word comes. */
CASE(another_word_ends_a_constant_copy_of_a_page_that_sleeps)
{
    struct scene scene;
    struct held held;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, NULL));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    DONE(resume_of(scene.pool, NULL, NULL));
    held_expect(&held, scene.stream[A]);
    write_anew(&held);
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    EXPECT_EQ(slept.kept, 4 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------- other threads, while a call waits */

static struct held at_hand;
static int answer;

static void export_it(void)
{
    cenote_share share;
    answer = cenote_export(at_hand.at, &share);
}

/* A page that is about to sleep has nothing to show to another process, which would map what the driver has then. */
CASE(no_export_while_a_pause_is_under_way)
{
    struct scene scene;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&at_hand, scene.pool, 4 * MIB, scene.stream[A]));
    at_the_next_copy(export_it);
    answer = -1;
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT(!copies.meanwhile);
    EXPECT_EQ(answer, CENOTE_BUSY);
    EXPECT_EQ(slept.pages, 4 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&at_hand);
    scene_close(&scene);
}

#define SLEEPERS 48

static struct held sleeping[SLEEPERS];
static atomic_bool is_over;

static void *free_sleepers(void *unused)
{
    for (int i = 0; i < SLEEPERS; i++)
        DONE(cenote_free(sleeping[i].at));
    atomic_store(&is_over, true);
    return unused;
}

/* A check that pauses raises no alarm because what slept when it began has gone meanwhile: pages go with the pool's lock alone then. */
CASE(no_false_alarm_beside_frees_asleep)
{
    lock_set_portions(1);
    for (int round = 0; round < rounds(10); round++) {
        struct scene scene;
        pthread_t thread;
        scene_open(&scene, 2 * SLEEPERS * MIB);
        for (int i = 0; i < SLEEPERS; i++)
            REQUIRE(held_take(&sleeping[i], scene.pool, 2 * MIB, scene.stream[A]));
        DONE(pause_of(scene.pool, NULL, CENOTE_DISCARD_ALL, NULL));
        atomic_store(&is_over, false);
        DONE(pthread_create(&thread, NULL, free_sleepers, NULL));
        while (!atomic_load(&is_over))
            DONE(cenote_pool_check(scene.pool));
        DONE(pthread_join(thread, NULL));
        scene_close(&scene);
    }
    lock_set_portions(0);
}

/* A block that was allocated outside of all groups lies in memory that a group has lent: it does not sleep with the group, but with the pool. */
CASE(what_a_group_has_lent_is_not_its_own)
{
    static const size_t bytes[] = {300, 3 * MIB};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        struct held all, own, lent;
        cenote_group *group;
        cenote_sleep slept;
        void *block;
        scene_open(&scene, CARD);
        DONE(cenote_group_create(scene.pool, "lends", CENOTE_GROUP_LEND | CENOTE_GROUP_PRIVATE, NULL, &group));
        DONE(group_alloc(group, MIB, 1, scene.stream[A], &block));
        own = held_of(block, MIB, scene.stream[A]);
        DONE(group_alloc(group, 7 * MIB, 1, scene.stream[A], &block));
        DONE(cenote_free(block));
        REQUIRE(held_take(&all, scene.pool, CARD - 8 * MIB, scene.stream[B]));
        REQUIRE(held_take(&lent, scene.pool, bytes[i], scene.stream[A]));
        DONE(pause_of(scene.pool, group, CENOTE_KEEP, &slept));
        held_expect(&lent, scene.stream[A]);
        held_expect(&own, scene.stream[A]); /* its page has both */
        EXPECT(slept.awake >= 2 * MIB);
        DONE(cuCtxSynchronize());
        EXPECT_EQ(sim_mismatches(), 0);
        DONE(cenote_free(all.at));
        DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
        EXPECT_EQ(slept.awake, 0);
        DONE(resume_of(scene.pool, NULL, NULL));
        held_give(&lent);
        held_give(&own);
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* ------------------------------------------------------------------------------------------------------- addresses that sleep */

/* Free memory beside blocks that sleep is not there to be had by its address, and no wait for the device brings it. */
CASE(an_address_that_sleeps_is_not_given)
{
    static const size_t bytes[] = {512 * KIB, 3000};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        struct held held[3];
        scene_open(&scene, CARD);
        for (int b = 0; b < 3; b++)
            REQUIRE(held_take(&held[b], scene.pool, bytes[i], scene.stream[A]));
        DONE(cenote_free(held[1].at));
        DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
        EXPECT_EQ(alloc_at(scene.pool, NULL, held[1].at, bytes[i], scene.stream[A]), CENOTE_BUSY);
        EXPECT(strstr(cenote_message(), "sleep") != NULL);
        EXPECT_EQ(alloc_at(scene.pool, NULL, held[0].at, bytes[i], scene.stream[A]), CENOTE_INVALID); /* a block is there */
        DONE(cenote_pool_check(scene.pool));
        DONE(resume_of(scene.pool, NULL, NULL));
        DONE(alloc_at(scene.pool, NULL, held[1].at, bytes[i], scene.stream[A]));
        held[1] = held_of(held[1].at, bytes[i], scene.stream[A]);
        for (int b = 0; b < 3; b++)
            held_give(&held[b]);
        scene_close(&scene);
    }
}

/* ----------------------------------------------------------------------------------------------------- other pools of the device */

/* What another pool has free, and is done with soon, is room for what wakes. */
CASE(other_pools_give_way)
{
    for (int busy = 0; busy < 2; busy++) {
        struct scene scene;
        struct held held, other;
        cenote_pool *beside;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        shape.lag = MSEC;
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_pool_create(0, &options, &beside));
        REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
        DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
        REQUIRE(held_take(&other, beside, 60 * MIB, scene.stream[B]));
        if (busy)
            held_linger(&other, scene.stream[B]);
        DONE(cenote_free(other.at));
        DONE(resume_of(scene.pool, NULL, NULL));
        held_give(&held);
        DONE(cenote_pool_destroy(beside));
        scene_close(&scene);
    }
}

/* ------------------------------------------------------------------------------------------------- captures are not announced */

/*
 * A stream that is never named again has used a block, which may be in use for ever. What shares no page with it sleeps all the same.
 */
CASE(a_stream_that_is_not_named_again_holds_back_its_own_pages)
{
    struct scene scene;
    struct held held, other;
    cenote_sleep slept;
    open_strict(&scene, true);
    REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
    REQUIRE(held_take(&other, scene.pool, 4 * MIB, scene.stream[B]));
    DONE(cuCtxSynchronize());
    DONE(cenote_free(other.at));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 4 * MIB);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    close_strict(&scene);
}

/* Its work on a block that was freed beside a live one is not done: their page stays. */
CASE(what_such_a_stream_freed_keeps_its_page_awake)
{
    struct scene scene;
    struct held held[2];
    cenote_sleep slept;
    open_strict(&scene, true);
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&held[i], scene.pool, MIB, scene.stream[A]));
    held_linger(&held[1], scene.stream[A]);
    DONE(cenote_free(held[1].at));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 0);
    EXPECT_EQ(slept.awake, 2 * MIB);
    held_give(&held[0]);
    close_strict(&scene);
}

/* -------------------------------------------------------------------------------------------------------------- refused waits */

/* The driver refuses to wait for the copies of a pause or of a resume: as long as it does, the pool does not end under them. */
static void end_after_a_refusal(bool wakes)
{
    struct scene scene;
    struct held held;
    open_strict(&scene, false);
    REQUIRE(held_take(&held, scene.pool, 8 * MIB, scene.stream[A]));
    if (wakes)
        DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    fault_arm("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN, true);
    EXPECT_EQ(wakes ? resume_of(scene.pool, NULL, NULL) : pause_of(scene.pool, NULL, CENOTE_KEEP, NULL), CENOTE_DRIVER);
    DONE(cenote_free(held.at));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_DRIVER);
    fault_disarm();
    close_strict(&scene);
}

CASE(a_pool_ends_after_a_pause_was_refused) { end_after_a_refusal(false); }
CASE(a_pool_ends_after_a_resume_was_refused) { end_after_a_refusal(true); }

/* ------------------------------------------------------------------------------------------------ functions of the program */

static cenote_pool *to_sleep;
static int said;

static void give_and_sleep(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    said = cenote_pool_pause(to_sleep, NULL);
    give_source(memory, bytes, stream, arg);
}

/* A source that has memory back because a pause ends, or a resume has no room, here or in another pool, puts the pool to sleep: no call waits for
   itself. */
CASE(a_source_may_pause)
{
    for (int wakes = 0; wakes < 3; wakes++) {
        struct scene scene;
        struct held held, other;
        cenote_pool *beside;
        cenote_group *group;
        cenote_options options = scene_options();
        void *block;
        scene_open(&scene, CARD);
        DONE(cenote_pool_create(0, &options, &beside));
        to_sleep = scene.pool;
        said = -1;
        DONE(cenote_group_create(wakes > 1 ? beside : scene.pool, "source", 0, &((cenote_source){take_source, give_and_sleep, NULL}), &group));
        REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
        if (wakes)
            DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
        DONE(group_alloc(group, 2 * MIB, 1, scene.stream[A], &block));
        REQUIRE(!wakes || held_take(&other, scene.pool, 30 * MIB, scene.stream[B]));
        DONE(cenote_free(block));
        if (wakes) {
            EXPECT_EQ(resume_of(scene.pool, NULL, NULL), CENOTE_OUT_OF_MEMORY);
            held_give(&other);
        } else {
            DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
            EXPECT_EQ(said, CENOTE_OK);
        }
        DONE(resume_of(scene.pool, NULL, NULL));
        held_give(&held);
        DONE(cenote_group_destroy(group));
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_destroy(beside));
        scene_close(&scene);
    }
}

/* ------------------------------------------------------------------------------------------------------------------- a reset */

/* The host still has what was kept, when the device has been reset; the pool ends with all of it. */
CASE(a_reset_while_memory_sleeps)
{
    for (int asleep = 0; asleep < 2; asleep++) {
        struct scene scene;
        struct held held;
        static char bytes[4 * MIB], again[4 * MIB];
        scene_open(&scene, CARD);
        REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
        DONE(cuMemcpyDtoH(bytes, (CUdeviceptr)(uintptr_t)held.at, sizeof bytes));
        DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, NULL));
        if (!asleep)
            DONE(resume_of(scene.pool, NULL, NULL));
        DONE(cuDevicePrimaryCtxReset(0));
        if (asleep) {
            DONE(cenote_block_read_asleep(held.at, again, sizeof again));
            EXPECT(!memcmp(bytes, again, sizeof bytes));
        }
        EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL), CENOTE_DEVICE_LOST);
        EXPECT_EQ(resume_of(scene.pool, NULL, NULL), CENOTE_DEVICE_LOST);
        DONE(cenote_pool_destroy(scene.pool));
        scene.pool = NULL;
        struct sim_books books;
        sim_books(&books);
        EXPECT_EQ(books.violations, 0);
        EXPECT_TEXT_EQ(sim_last_violation(), "");
        EXPECT_EQ(books.used, 0);
        scene_is_open = false;
    }
}

SCENES_MAIN("sleep_beside")
