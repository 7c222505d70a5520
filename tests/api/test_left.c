/*
 * test_left.c: cenote_pool_available: what a pool holds, what others hold, what is free now and after a wait.
 */
#include "tests/api/scene.h"

static cenote_available left_in(cenote_pool *pool)
{
    cenote_available left;
    DONE(cenote_pool_available(pool, &left));
    return left;
}

#define EXPECT_BUDGET(pool, mib_held, mib_others, mib_now, mib_later)         \
    do {                                                                      \
        cenote_available found = left_in(pool);                                \
        EXPECT_EQ(found.held, (mib_held) * MIB);                              \
        EXPECT_EQ(found.others, (mib_others) * MIB);                          \
        EXPECT_EQ(found.free_now, (mib_now) * MIB);                           \
        EXPECT_EQ(found.free_later, (mib_later) * MIB);                       \
    } while (0)

CASE(a_card_is_divided_into_ours_others_and_free)
{
    struct scene scene;
    void *block;
    CUdeviceptr other;
    scene_open(&scene, 64 * MIB);
    EXPECT_BUDGET(scene.pool, 0, 0, 64, 64);
    DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
    EXPECT_BUDGET(scene.pool, 8, 0, 56, 56);
    DONE(cuMemAlloc(&other, 4 * MIB));
    EXPECT_BUDGET(scene.pool, 8, 4, 52, 52);
    DONE(cenote_free(block));
    DONE(cuMemFree(other));
    scene_close(&scene);
}

/* The device is at work with it; then it has been, and the call finds that out itself. */
CASE(what_the_device_works_with_is_free_later)
{
    struct scene scene;
    void *block, *used;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
    DONE(cenote_alloc(scene.pool, 4 * MIB, scene.stream[A], &used));
    DONE(sim_launch_wait(scene.stream[A], MSEC));
    DONE(sim_launch_wait(scene.stream[B], 5 * MSEC));
    DONE(cenote_use(used, scene.stream[B]));
    DONE(cenote_free(block));
    DONE(cenote_free(used));
    EXPECT_BUDGET(scene.pool, 12, 0, 52, 64);
    DONE(cuStreamSynchronize(scene.stream[A]));
    EXPECT_BUDGET(scene.pool, 12, 0, 52, 64); /* the event is behind the work of both streams */
    DONE(cuCtxSynchronize());
    EXPECT_BUDGET(scene.pool, 12, 0, 64, 64);
    scene_close(&scene);
}

CASE(the_limit_bounds_what_may_come)
{
    struct scene scene;
    void *block;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_pool_set_limit(scene.pool, 20 * MIB));
    DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block));
    EXPECT_BUDGET(scene.pool, 8, 0, 12, 12);
    EXPECT_EQ(left_in(scene.pool).limit, 20 * MIB);
    DONE(cenote_free(block));
    DONE(cuCtxSynchronize());
    EXPECT_BUDGET(scene.pool, 8, 0, 20, 20);
    scene_close(&scene);
}

/* What stays in a private group is free to that group alone; a segment is free as a whole. */
CASE(what_cannot_move_is_not_free)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_options options = scene_options();
    cenote_group *group;
    void *block, *beside;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 8 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cuCtxSynchronize());
    EXPECT_BUDGET(scene.pool, 8, 0, 56, 56);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);

    options.provider = CENOTE_PLAIN;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block));
    DONE(cenote_alloc(scene.pool, 6 * MIB, scene.stream[A], &beside));
    DONE(cenote_free(block));
    DONE(cuCtxSynchronize());
    EXPECT_BUDGET(scene.pool, 40, 0, 24 + 20, 24 + 20);
    DONE(cenote_free(beside));
    scene_close(&scene);
}

/* A scheduler asks at each step, also while a graph is captured: the capture goes on. */
CASE(asked_during_a_capture)
{
    struct scene scene;
    CUgraph graph;
    void *block;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[B], &block));
    DONE(cenote_capture_begin(scene.pool, NULL, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_BUDGET(scene.pool, 8, 0, 56, 56);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, NULL, scene.stream[A]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_free(block));
    scene_close(&scene);
}

SCENES_MAIN("what is left")
