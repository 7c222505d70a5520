/*
 * test_reserve.c: pages ahead (cenote_pool_reserve): the first repetition of a program calls no driver, and what is not used goes back.
 */
#include "tests/api/scene.h"

/* Slabs, small blocks, large ones: 27 MiB at most. */
static void run_once(struct scene *scene)
{
    static const size_t sizes[] = {512, 5 * MIB + 512, 3000, 40 * KIB, 9 * MIB, 200 * KIB, 8 * KIB, 3 * MIB, MIB, 700 * KIB, 8 * MIB, 100, 64 * KIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    void *block[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            DONE(cenote_alloc(scene->pool, sizes[i], scene->stream[A], &block[i]));
        for (int i = 0; i < COUNT; i++)
            DONE(cenote_free(block[(i * 5) % COUNT]));
    }
}

static void open_with(struct scene *scene, unsigned provider, uint32_t decay_ms)
{
    struct sim_shape shape = scene_card(128 * MIB);
    cenote_options options = scene_options();
    options.provider = provider;
    options.decay_ms = decay_ms;
    scene_open_with(scene, &shape, &options);
    DONE(cenote_stream_set_immortal(scene->pool, scene->stream[A]));
}

CASE(the_first_repetition_calls_no_driver)
{
    const unsigned providers[] = {CENOTE_VMM, CENOTE_PLAIN, CENOTE_ASYNC};
    for (int i = 0; i < 3; i++) {
        struct scene scene;
        open_with(&scene, providers[i], 0);
        DONE(cenote_pool_reserve(scene.pool, 40 * MIB, scene.stream[A]));
        cenote_stats before = scene_stats(scene.pool);
        EXPECT(before.reserved.current >= 40 * MIB && before.reserved.current <= 44 * MIB);
        EXPECT(before.allocated.peak == 0 && before.blocks.total_in == 0 && before.ooms == 0);
        run_once(&scene);
        cenote_stats after = scene_stats(scene.pool);
        EXPECT_EQ(after.driver_calls, before.driver_calls);
        EXPECT_EQ(after.pages_created, before.pages_created);
        EXPECT_EQ(after.reserved.peak, before.reserved.peak);
        scene_close(&scene);
    }
}

/* One stream does not get what another has reserved, as long as there is more. */
CASE(each_stream_has_its_own)
{
    struct scene scene;
    open_with(&scene, CENOTE_VMM, 0);
    for (int i = A; i <= C; i++)
        DONE(cenote_pool_reserve(scene.pool, 30 * MIB, scene.stream[i]));
    uint64_t before = scene_stats(scene.pool).driver_calls;
    run_once(&scene);
    EXPECT_EQ(scene_stats(scene.pool).driver_calls, before);
    scene_close(&scene);
}

/* Again, and what is there already is not asked for twice. */
CASE(what_is_there_is_enough)
{
    struct scene scene;
    open_with(&scene, CENOTE_VMM, 0);
    DONE(cenote_pool_reserve(scene.pool, 40 * MIB, scene.stream[A]));
    cenote_stats before = scene_stats(scene.pool);
    DONE(cenote_pool_reserve(scene.pool, 30 * MIB, scene.stream[A]));
    DONE(cenote_pool_reserve(scene.pool, 0, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).pages_created, before.pages_created);
    scene_close(&scene);
}

/* A trim, another stream that is short, and time take what is not used. */
CASE(what_is_not_used_goes)
{
    struct scene scene;
    void *block;
    open_with(&scene, CENOTE_VMM, 40);
    DONE(cenote_pool_reserve(scene.pool, 100 * MIB, scene.stream[A]));
    DONE(cenote_alloc(scene.pool, 120 * MIB, scene.stream[B], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);

    sim_advance(200 * MSEC);
    DONE(cenote_pool_step(scene.pool));
    DONE(cenote_pool_reserve(scene.pool, 20 * MIB, scene.stream[A]));
    sim_advance(20 * MSEC);
    for (int i = 0; i < 40; i++)
        DONE(cenote_pool_step(scene.pool));
    EXPECT(scene_stats(scene.pool).reserved.current >= 20 * MIB);
    for (int i = 0; i < 100 && scene_stats(scene.pool).reserved.current; i++) {
        sim_advance(10 * MSEC);
        DONE(cenote_pool_step(scene.pool));
    }
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

static int never(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes, (void)arg;
    EXPECT(!"the program is not asked");
    return 0;
}

CASE(all_or_nothing)
{
    struct scene scene;
    void *block;
    open_with(&scene, CENOTE_VMM, 0);
    DONE(cenote_pool_on_shortage(scene.pool, 1, never, NULL));
    DONE(cenote_alloc(scene.pool, 60 * MIB, scene.stream[B], &block));
    EXPECT_EQ(cenote_pool_reserve(scene.pool, 80 * MIB, scene.stream[A]), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 60 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).ooms, 0);
    DONE(cenote_pool_on_shortage(scene.pool, 0, never, NULL));
    DONE(cenote_free(block));
    scene_close(&scene);

    open_with(&scene, CENOTE_GUARD, 0);
    EXPECT_EQ(cenote_pool_reserve(scene.pool, MIB, scene.stream[A]), CENOTE_NOT_SUPPORTED);
    scene_close(&scene);
}

/* The pages are the group's, which is private and has one heap alone. */
CASE(in_a_capture)
{
    struct scene scene;
    cenote_group *group;
    CUgraph graph = NULL;
    void *large, *small;
    open_with(&scene, CENOTE_VMM, 0);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_pool_reserve(scene.pool, 20 * MIB, scene.stream[A]));
    uint64_t before = scene_stats(scene.pool).driver_calls;
    DONE(cenote_alloc(scene.pool, 10 * MIB, scene.stream[A], &large));
    DONE(cenote_alloc(scene.pool, 3000, scene.stream[A], &small));
    EXPECT_EQ(scene_stats(scene.pool).driver_calls, before);
    DONE(cenote_free(small));
    DONE(cenote_free(large));
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

SCENES_MAIN("pages ahead")
