/*
 * test_free_on.c: a free that names the stream of the last use does what cenote_use and cenote_free do.
 */
#include "driver/driver.h"
#include "tests/api/strict.h"

/* Most of the card is wanted on the block's own stream while the other one still reads the block: its contents are the judge. */
CASE(the_stream_of_the_last_use_is_waited_for)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct scene scene;
    struct held used, next;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&used, scene.pool, 40 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&used, scene.stream[B]);
    DONE(cenote_free_on(used.at, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    REQUIRE(held_take(&next, scene.pool, 50 * MIB, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    held_give(&next);
    scene_close(&scene);
}

CASE(its_own_stream_is_not_waited_for)
{
    struct scene scene;
    struct held first, next;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&first, scene.pool, 40 * MIB, scene.stream[A]));
    held_linger(&first, scene.stream[A]);
    DONE(cenote_free_on(first.at, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    REQUIRE(held_take(&next, scene.pool, 40 * MIB, scene.stream[A]));
    EXPECT_EQ((uintptr_t)next.at, (uintptr_t)first.at);
    held_give(&next);
    scene_close(&scene);
}

/* Streams named before count as well. */
CASE(beside_streams_named_before)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct scene scene;
    struct held used, next;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&used, scene.pool, 40 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    order(scene.stream[A], scene.stream[C]);
    held_linger(&used, scene.stream[C]);
    DONE(cenote_use(used.at, scene.stream[C]));
    DONE(cenote_free_on(used.at, scene.stream[B]));
    REQUIRE(held_take(&next, scene.pool, 50 * MIB, scene.stream[A]));
    held_give(&next);
    scene_close(&scene);
}

CASE(a_mistake_changes_nothing)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    DONE(cenote_free_on(NULL, scene.stream[A]));
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    EXPECT_EQ(cenote_free_on(held.at + 512, scene.stream[B]), CENOTE_INTERIOR);
    held_expect(&held, scene.stream[A]);
    DONE(cenote_free_on(held.at, scene.stream[B]));
    EXPECT_EQ(cenote_free_on(held.at, scene.stream[B]), CENOTE_DOUBLE_FREE);
    scene_close(&scene);
}

/* Captures are not announced, and the stream is destroyed right after: the call has named it while it was alive, and that is enough. */
CASE(stream_that_ends_after_the_free)
{
    struct scene scene;
    struct held used;
    open_strict(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    REQUIRE(held_take(&used, scene.pool, 48 * MIB, scene.stream[B]));
    order(scene.stream[B], scene.stream[A]);
    held_linger(&used, scene.stream[A]);
    DONE(cenote_free_on(used.at, scene.stream[A]));
    DONE(cuStreamDestroy(scene.stream[A]));
    scene.stream[A] = NULL;
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1); /* it is read still */
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
    close_strict(&scene);
}

/* Nothing runs any more, and the caller cannot say which stream it was. */
CASE(a_lost_context_stops_no_free)
{
    struct scene scene;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block));
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_use(block, scene.stream[B]), CENOTE_DEVICE_LOST);
    DONE(cenote_free_on(block, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    sim_set_quiet(false);
    cenote_pool_destroy(scene.pool);
    sim_reset(NULL);
    scene_is_open = false;
}

SCENES_MAIN("free_on")
