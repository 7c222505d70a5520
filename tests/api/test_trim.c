/*
 * test_trim.c: giving memory back to the driver: when asked, and by itself at every step.
 * Not: limits (test_pools.c), trims during a capture (tests/hazard/).
 */
#include "tests/api/scene.h"

#define CARD (64 * MIB)

static uint64_t reserved(const struct scene *scene)
{
    return scene_stats(scene->pool).reserved.current;
}

CASE(keeps_what_it_is_told_to_keep)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    held_give(&held);
    DONE(cuCtxSynchronize());
    static const size_t keep[] = {CARD, 40 * MIB, 39 * MIB, 21 * MIB, 2 * MIB + 1, 1, 0};
    static const size_t left[] = {40 * MIB, 40 * MIB, 38 * MIB, 20 * MIB, 2 * MIB, 0, 0};
    for (int i = 0; i < 7; i++) {
        DONE(cenote_pool_trim(scene.pool, keep[i], CENOTE_TRIM_WAIT));
        EXPECT_EQ(reserved(&scene), left[i]);
        DONE(cenote_pool_check(scene.pool));
    }
    cenote_stats s = scene_stats(scene.pool);
    EXPECT_EQ(s.trims, 7);
    EXPECT_EQ(s.trimmed, 40 * MIB);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0x80), CENOTE_INVALID);
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    held_give(&held);
    scene_close(&scene);
}

/* The page under the edge of a live block stays, all others go, wherever the live blocks lie. */
CASE(live_blocks_stay)
{
    struct scene scene;
    struct held held[12];
    scene_open(&scene, CARD);
    for (int i = 0; i < 12; i++)
        REQUIRE(held_take(&held[i], scene.pool, 5 * MIB, scene.stream[i % 2]));
    for (int i = 0; i < 12; i++)
        if (i % 4)
            held_give(&held[i]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(reserved(&scene) >= 15 * MIB && reserved(&scene) <= 3 * 8 * MIB);
    for (int i = 0; i < 12; i += 4) {
        held_expect(&held[i], scene.stream[i % 2]);
        held_give(&held[i]);
    }
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(books.handles, 0);
    scene_close(&scene);
}

/* Without WAIT the host waits for nothing: what the device still uses stays, and goes at a later trim. */
CASE(does_not_wait_unless_told)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    held_linger(&held, scene.stream[A]);
    held_give(&held);
    uint64_t before = sim_now();
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(sim_now(), before);
    EXPECT_EQ(reserved(&scene), 40 * MIB);
    sim_advance(100 * MSEC);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    sim_advance(MSEC);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(reserved(&scene), 0);

    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
    held_linger(&held, scene.stream[A]);
    held_give(&held);
    before = sim_now();
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(sim_now() >= before + 10 * MSEC);
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

/* The pages of small blocks stay as long as any other: here the device is at work on one while another, freed long before, comes back. */
CASE(small_blocks_in_flight_stay)
{
    for (int waits = 0; waits < 2; waits++) {
        struct scene scene;
        struct held small[2];
        scene_open(&scene, CARD);
        sim_set_lag(MSEC);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
        REQUIRE(held_take(&small[0], scene.pool, 4096, scene.stream[A]));
        REQUIRE(held_take(&small[1], scene.pool, 4096, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        if (waits)
            DONE(cenote_use(small[0].at, scene.stream[B]));
        held_give(&small[0]);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* looks how far the device is, and gives back nothing */
        DONE(cuCtxSynchronize());
        held_linger(&small[1], scene.stream[A]);
        held_give(&small[1]);
        DONE(cenote_pool_trim(scene.pool, 0, 0));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
        EXPECT_EQ(reserved(&scene), 2 * MIB);
        scene_judge(&scene);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(reserved(&scene), 0);
        scene_close(&scene);
    }
}

/* Blocks that wait for another stream are waited for as well. */
CASE(waits_for_pending_blocks)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&held, scene.stream[B]);
    DONE(cenote_use(held.at, scene.stream[B]));
    DONE(cenote_free(held.at));
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT(reserved(&scene) >= 10 * MIB);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

CASE(during_a_capture_nothing_goes)
{
    struct scene scene;
    struct held held;
    cenote_group *group;
    CUgraph graph = NULL;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[B]));
    held_give(&held);
    DONE(cuCtxSynchronize());
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    int error = cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT);
    EXPECT(error == CENOTE_OK || error == CENOTE_CAPTURE);
    EXPECT(reserved(&scene) >= 10 * MIB);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

#define SEGMENTS 80                 /* more than are picked at a time */

struct begins {                     /* a source that begins a capture when the first segment comes back */
    cenote_group *captured;
    CUstream stream;
    int taken, given;
};

static void *take_from_driver(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream;
    ((struct begins *)arg)->taken++;
    return cuMemAlloc(&at, bytes) ? NULL : (void *)(uintptr_t)at;
}

static void give_and_begin(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    struct begins *begins = arg;
    (void)bytes, (void)stream;
    if (!begins->given++)
        EXPECT_EQ(cenote_capture_begin(NULL, begins->captured, begins->stream), CENOTE_OK);
    DONE(cuMemFree(device_address(memory)));
}

/* What was picked by then stays, too, and no page goes. */
CASE(a_capture_that_begins_in_the_middle_ends_it)
{
    struct scene scene;
    struct held held;
    struct begins begins = {0};
    cenote_source source = {take_from_driver, give_and_begin, &begins};
    cenote_group *group;
    static void *block[SEGMENTS];
    scene_open(&scene, 4 * GIB);
    DONE(cenote_group_create(scene.pool, "source", 0, &source, &group));
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &begins.captured));
    begins.stream = scene.stream[A];
    for (int i = 0; i < SEGMENTS; i++)
        DONE(group_alloc(group, 20 * MIB, 512, scene.stream[B], &block[i]));
    for (int i = 0; i < SEGMENTS; i++)
        DONE(cenote_free(block[i]));
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[B]));
    held_give(&held);
    DONE(cuCtxSynchronize());
    EXPECT_EQ(begins.taken, SEGMENTS);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(begins.given, 1);
    EXPECT_EQ(reserved(&scene), 10 * MIB + (size_t)(SEGMENTS - 1) * 20 * MIB);
    DONE(cenote_capture_end(NULL, begins.captured, begins.stream));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(begins.given, SEGMENTS);
    DONE(cenote_group_destroy(group));
    DONE(cenote_group_destroy(begins.captured));
    scene_close(&scene);
}

static void open_trimming(struct scene *scene, uint32_t trim_every)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.trim_every = trim_every;
    scene_open_with(scene, &shape, &options);
}

/* One step of a program that works on `bytes`. */
static void step(struct scene *scene, size_t bytes)
{
    struct held held;
    REQUIRE(held_take(&held, scene->pool, bytes, scene->stream[A]));
    held_give(&held);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_step(scene->pool));
}

CASE(steps_give_back_what_is_not_used)
{
    struct scene scene;
    open_trimming(&scene, 3);
    step(&scene, 50 * MIB);
    step(&scene, 10 * MIB);
    EXPECT_EQ(reserved(&scene), 50 * MIB); /* used less than three steps ago */
    for (int i = 0; i < 8; i++)
        step(&scene, 10 * MIB);
    EXPECT_EQ(reserved(&scene), 10 * MIB);
    uint64_t created = scene_stats(scene.pool).pages_created;
    for (int i = 0; i < 20; i++)
        step(&scene, 10 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).pages_created, created); /* what every step takes again is never given back */
    EXPECT_EQ(reserved(&scene), 10 * MIB);
    scene_close(&scene);
}

CASE(steps_alone_give_nothing_back)
{
    struct scene scene;
    open_trimming(&scene, 0);
    step(&scene, 50 * MIB);
    for (int i = 0; i < 20; i++)
        step(&scene, 2 * MIB);
    EXPECT_EQ(reserved(&scene), 50 * MIB);
    scene_close(&scene);
}

/* A phase that comes back every fourth step is not given back when pages are kept for five. */
CASE(steps_keep_a_longer_period)
{
    struct scene scene;
    open_trimming(&scene, 5);
    for (int i = 0; i < 8; i++)
        step(&scene, i % 4 ? 10 * MIB : 40 * MIB);
    uint64_t created = scene_stats(scene.pool).pages_created;
    for (int i = 0; i < 16; i++)
        step(&scene, i % 4 ? 10 * MIB : 40 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).pages_created, created);
    scene_close(&scene);
}

static void take_and_give(struct scene *scene, size_t bytes, CUstream stream)
{
    struct held held;
    REQUIRE(held_take(&held, scene->pool, bytes, stream));
    held_give(&held);
}

/* Every call takes time. */
static uint64_t ticking(void *unused)
{
    static uint64_t now;
    (void)unused;
    return ++now;
}

/* A move that takes time uses up the budget of none: from then on each stream that comes grows the pool. */
static void open_growing(struct scene *scene, unsigned provider, double trim_above, double limit, uint64_t lag)
{
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = scene_options();
    options.harvest_budget = 0;
    options.clock = ticking;
    options.trim_above = trim_above;
    options.limit = limit;
    options.provider = provider;
    shape.lag = lag;
    scene_open_with(scene, &shape, &options);
    for (int i = 0; i < SCENE_STREAMS; i++) {
        take_and_give(scene, 2 * MIB, scene->stream[i]);
        DONE(cuCtxSynchronize());
    }
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    DONE(cenote_pool_reset_totals(scene->pool));
}

CASE(what_is_held_above_a_threshold_goes_back)
{
    struct scene scene;
    struct held held;
    open_growing(&scene, CENOTE_VMM, 0.25, 0, 0);
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    take_and_give(&scene, 12 * MIB, scene.stream[B]);
    EXPECT_EQ(reserved(&scene), 32 * MIB); /* not above it */
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[C]));
    EXPECT_EQ(reserved(&scene), 32 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).trimmed, 10 * MIB);
    uint64_t created = scene_stats(scene.pool).pages_created;
    take_and_give(&scene, 12 * MIB, scene.stream[B]); /* stream A's went: they were free longest */
    EXPECT_EQ(scene_stats(scene.pool).pages_created, created);
    held_give(&held);
    DONE(cenote_pool_set_trim_above(scene.pool, 0));
    take_and_give(&scene, 20 * MIB, scene.stream[A]);
    EXPECT(reserved(&scene) > 32 * MIB);
    EXPECT_EQ(cenote_pool_set_trim_above(scene.pool, 1.5), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_trim_above(scene.pool, -1), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_trim_above(scene.pool, 0.0 / 0.0), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_trim_above(NULL, 0), CENOTE_INVALID);
    scene_close(&scene);
}

CASE(the_threshold_is_a_part_of_the_limit)
{
    struct scene scene;
    open_growing(&scene, CENOTE_VMM, 0.5, 48 * (double)MIB, 0);
    for (int i = 0; i < SCENE_STREAMS; i++)
        take_and_give(&scene, 14 * MIB, scene.stream[i]);
    EXPECT_EQ(reserved(&scene), 24 * MIB);
    scene_close(&scene);
}

/* What lives stays, and so does what the device may be at work on. */
CASE(the_threshold_is_waited_for_by_nobody)
{
    struct scene scene;
    struct held held;
    open_growing(&scene, CENOTE_VMM, 0.25, 0, MSEC);
    REQUIRE(held_take(&held, scene.pool, 20 * MIB, scene.stream[A]));
    take_and_give(&scene, 10 * MIB, scene.stream[B]);
    take_and_give(&scene, 10 * MIB, scene.stream[C]);
    EXPECT_EQ(reserved(&scene), 40 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    sim_advance(10 * MSEC);
    take_and_give(&scene, 12 * MIB, scene.stream[C]);
    EXPECT(reserved(&scene) <= 32 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    held_give(&held);
    scene_close(&scene);
}

/* Pages that move do not make the pool grow. */
CASE(the_threshold_is_for_a_pool_that_grows)
{
    struct scene scene;
    scene_open(&scene, CARD);
    take_and_give(&scene, 40 * MIB, scene.stream[A]);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_set_trim_above(scene.pool, 0.1));
    take_and_give(&scene, 20 * MIB, scene.stream[B]);
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, 10);
    EXPECT_EQ(reserved(&scene), 40 * MIB);
    scene_close(&scene);
}

CASE(the_threshold_is_for_segments_too)
{
    struct scene scene;
    open_growing(&scene, CENOTE_PLAIN, 0.5, 0, 0);
    take_and_give(&scene, 24 * MIB, scene.stream[A]);
    take_and_give(&scene, 30 * MIB, scene.stream[B]);
    EXPECT_EQ(reserved(&scene), 54 * MIB);
    take_and_give(&scene, 20 * MIB, scene.stream[C]);
    EXPECT_EQ(reserved(&scene), 50 * MIB);
    scene_close(&scene);
}

SCENES_MAIN("api: trim")
