/*
 * test_same_handle.c: a driver without ids of streams (before CUDA 12.0) gives the handle of a stream that has ended to the next one. The pool has
 * the option announced:0. A program of its own, because a process has one driver.
 */
#include "tests/api/strict.h"

static void open_old(struct scene *scene)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = strict();
    shape.lag = MSEC;
    shape.driver_version = 11080; /* no ids of streams: the handle is all that identifies one */
    scene_open_with(scene, &shape, &options);
}

CASE(stream_of_the_same_handle)
{
    struct scene scene;
    struct held block, next;
    open_old(&scene);
    CUstream first = scene.stream[B];
    REQUIRE(held_take(&block, scene.pool, 40 * MIB, scene.stream[A]));
    DONE(cenote_use(block.at, first));
    DONE(cenote_stream_retire(scene.pool, first));
    DONE(cuStreamDestroy(first));
    DONE(cuStreamCreate(&scene.stream[B], CU_STREAM_NON_BLOCKING));
    REQUIRE(scene.stream[B] == first); /* the simulated driver gives the handle to the next one, as drivers do */
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cenote_free(block.at));
    sim_advance(3 * MSEC); /* the first stream of that handle is long done */
    REQUIRE(held_take(&next, scene.pool, 40 * MIB, scene.stream[A]));
    held_give(&next);
    close_strict(&scene);
}

SCENES_MAIN("same handle")
