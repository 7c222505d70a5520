/*
 * test_waits.c: an allocation waits for the device only when physical memory is short for it, for what could help it, and not at all where
 * no wait can help (rule 12 of docs/design.md).
 *
 * The clock of the card stands still unless something synchronises, so the time that has passed is the time that was waited. A stream that
 * waits for the program itself is one that is busy for an hour: a wait for it would hang on a real card.
 */
#include "tests/api/scene.h"

#define HOUR  (3600 * 1000 * MSEC)
#define STEPS 2000

static uint64_t driver_calls(const struct scene *scene)
{
    return scene_stats(scene->pool).driver_calls;
}

/* Sizes at random, so that nothing fits where it lay: 16 blocks of up to 64 MiB, while another stream waits for this thread. */
CASE(a_stalled_stream_holds_back_no_other)
{
    struct scene scene;
    void *block[16] = {NULL};
    uint64_t random = 1;
    scene_open(&scene, 32 * GIB);
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        void **b = &block[random >> 60];
        DONE(cenote_free(*b));
        REQUIRE(!cenote_alloc(scene.pool, (random >> 33) % (64 * MIB) + 1, scene.stream[A], b));
    }
    EXPECT_EQ(sim_now(), 0);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    EXPECT(scene_stats(scene.pool).reserved.peak < 2 * GIB);
    for (int i = 0; i < 16; i++)
        DONE(cenote_free(block[i]));
    scene_close(&scene);
}

/* Freed blocks wait for a stalled stream; others, used on a quick one, fill the card many times. */
CASE(blocks_of_a_quick_stream_pass_those_of_a_stalled_one)
{
    struct scene scene;
    void *block;
    scene_open(&scene, GIB);
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    for (int i = 0; i < 8; i++) {
        REQUIRE(!cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
        DONE(cenote_use(block, scene.stream[B]));
        DONE(cenote_free(block));
    }
    for (int i = 0; i < STEPS; i++) {
        REQUIRE(!cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
        DONE(cenote_use(block, scene.stream[C]));
        DONE(cenote_free(block));
    }
    EXPECT_EQ(sim_now(), 0);
    EXPECT(scene_stats(scene.pool).pending_blocks <= 8 + 1); /* the last was freed after the last look */
    scene_close(&scene);
}

/* A live block keeps the line of its stream; what waits in it comes and goes. */
CASE(a_line_that_was_empty)
{
    struct scene scene;
    void *live, *block;
    scene_open(&scene, GIB);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    REQUIRE(!cenote_alloc(scene.pool, MIB, scene.stream[A], &live));
    DONE(cenote_use(live, scene.stream[C]));
    for (int i = 0; i < 3; i++) {
        REQUIRE(!cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
        DONE(cenote_use(block, scene.stream[C]));
        DONE(cenote_free(block));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    }
    DONE(cenote_free(live));
    scene_close(&scene);
}

/* The same where the quick stream has work of its own: that is waited for, and nothing else. */
CASE(the_wait_is_for_what_helps)
{
    struct scene scene;
    void *block;
    scene_open(&scene, 256 * MIB);
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    for (int i = 0; i < 100; i++) {
        REQUIRE(!cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
        DONE(sim_launch_wait(scene.stream[C], MSEC));
        DONE(cenote_use(block, scene.stream[i % 8 ? C : A]));
        if (i == 0)
            DONE(cenote_use(block, scene.stream[B]));
        DONE(cenote_free(block));
    }
    EXPECT(sim_now() > 0 && sim_now() <= 100 * MSEC);
    EXPECT(scene_stats(scene.pool).waits > 0);
    EXPECT(scene_stats(scene.pool).pending_blocks > 0);
    scene_close(&scene);
}

/* 100 MiB of a card of 256 with 200 live, and a device that is far behind with what little was freed. */
CASE(too_much_is_live)
{
    struct scene scene;
    void *live, *freed, *none = NULL;
    scene_open(&scene, 256 * MIB);
    REQUIRE(!cenote_alloc(scene.pool, 200 * MIB, scene.stream[A], &live));
    REQUIRE(!cenote_alloc(scene.pool, 40 * MIB, scene.stream[B], &freed));
    DONE(sim_launch_wait(scene.stream[B], 2 * HOUR));
    DONE(cenote_free(freed));
    EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(sim_now(), 0);
    REQUIRE(!cenote_alloc(scene.pool, 40 * MIB, scene.stream[A], &none)); /* this one is worth a wait, of its stream */
    EXPECT_EQ(sim_now(), 0);
    EXPECT_EQ(scene_stats(scene.pool).orders, 1);
    DONE(cenote_free(none));
    DONE(cenote_free(live));
    scene_close(&scene);
}

/* What is in flight would not be enough: other processes have the rest of the card, or a limit stands before it. */
CASE(a_wait_that_is_not_enough)
{
    for (int limited = 0; limited < 2; limited++) {
        struct scene scene;
        struct sim_shape shape = scene_card(256 * MIB);
        cenote_options options = scene_options();
        void *freed, *none = NULL;
        options.limit = limited ? (double)(100 * MIB) : 0;
        scene_open_with(&scene, &shape, &options);
        REQUIRE(!cenote_alloc(scene.pool, 40 * MIB, scene.stream[B], &freed));
        if (!limited)
            sim_set_foreign(0, 160 * MIB);
        DONE(sim_launch_wait(scene.stream[B], HOUR));
        DONE(cenote_free(freed));
        EXPECT_EQ(cenote_alloc(scene.pool, 120 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
        EXPECT_EQ(sim_now(), 0);
        if (!limited)
            sim_set_foreign(0, 0);
        scene_close(&scene);
    }
}

/* A refusal costs a few calls of the driver, however many pages were asked for. */
CASE(what_cannot_fit_costs_few_calls)
{
    struct scene scene;
    void *none = NULL;
    scene_open(&scene, GIB);
    sim_set_foreign(0, 100 * MIB);
    for (int i = 0; i < 3; i++) {
        uint64_t before = driver_calls(&scene);
        EXPECT_EQ(cenote_alloc(scene.pool, 1000 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
        EXPECT(driver_calls(&scene) - before < 25);
    }
    sim_set_foreign(0, 0);
    REQUIRE(!cenote_alloc(scene.pool, 1000 * MIB, scene.stream[A], &none));
    DONE(cenote_free(none));
    scene_close(&scene);
}

static void *take_far_away(size_t bytes, cenote_stream stream, void *arg)
{
    (void)stream, (void)arg;
    CUdeviceptr at = 0;
    return cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL) ? NULL : (void *)(uintptr_t)at;
}

static unsigned given_back;

static void give_far_away(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    given_back++;
    DONE(cuMemFree((CUdeviceptr)(uintptr_t)memory));
}

/* A source of the program's own may have more than the card: its blocks do not count against that. */
CASE(memory_that_is_not_of_the_card)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *far[3], *near;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "far", 0, &(cenote_source){.take = take_far_away, .give = give_far_away}, &group));
    for (int i = 0; i < 3; i++)
        REQUIRE(!group_alloc(group, 150 * MIB, 512, scene.stream[A], &far[i]));
    REQUIRE(!cenote_alloc(scene.pool, 60 * MIB, scene.stream[A], &near));
    DONE(cenote_free(near));
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(far[i]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* 100 MiB of a card of 256 with 200 live: nothing that the pool holds could make room, so it keeps what it holds. */
CASE(a_hopeless_request_leaves_what_is_free)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *live, *far, *none = NULL;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "far", 0, &(cenote_source){.take = take_far_away, .give = give_far_away}, &group));
    REQUIRE(!group_alloc(group, 20 * MIB, 512, scene.stream[A], &far));
    DONE(cenote_free(far));
    REQUIRE(!cenote_alloc(scene.pool, 200 * MIB, scene.stream[A], &live));
    given_back = 0;
    EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(given_back, 0);
    DONE(cenote_free(live));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
    EXPECT_EQ(given_back, 1);
}

SCENES_MAIN("api: waits")
