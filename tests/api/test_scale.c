/*
 * test_scale.c: what there is a lot of: streams, groups that come and go. Counts and addresses stay flat.
 * Not: what it costs in time (bench/scale).
 */
#include "tests/api/scene.h"

/* A page of 8 MiB each fits the card, and what else a stream takes must not be the limit: 47 bits of addresses on the simulated machine, and fewer. */
CASE(twenty_thousand_streams_side_by_side)
{
    enum { MANY = 20000 };
    static CUstream streams[MANY];
    static void *blocks[MANY];
    struct scene scene;
    struct sim_shape shape = scene_card(192 * GIB);
    cenote_options options = scene_options();
    shape.address_space = 1ull << 47;
    options.page_mib = 8;
    scene_open_with(&scene, &shape, &options);
    int error = 0, count = 0;
    while (count < MANY && !(error = cuStreamCreate(&streams[count], CU_STREAM_NON_BLOCKING)) &&
           !(error = cenote_alloc(scene.pool, 4 * KIB, streams[count], &blocks[count])))
        count++;
    EXPECT_EQ(error, 0);
    EXPECT_EQ(count, MANY);
    EXPECT_EQ(scene_stats(scene.pool).arenas, count);
    DONE(cenote_pool_check(scene.pool));
    while (count-- > 0) {
        DONE(cenote_free(blocks[count]));
        DONE(cuStreamDestroy(streams[count]));
    }
    scene_close(&scene);
}

SCENES_MAIN("scale")
