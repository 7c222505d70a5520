/*
 * test_lane_order.c: two threads free blocks that one stream used, at the same time: their uses come into the stream's lane in another order than
 * that of the frees. An event is believed only of what was freed before it was recorded. Not: one thread alone (test_streams.c).
 */
#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)

static const struct driver *below;
static bool refuses;
static void (*after_record)(void);      /* is called once */

static CUresult record(CUevent event, CUstream stream)
{
    if (refuses)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = below->cuEventRecord(event, stream);
    void (*now)(void) = after_record;
    after_record = NULL;
    if (now)
        now();
    return result;
}

static const struct driver *with_moments(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuEventRecord = record;
    return &table;
}

static struct scene scene;
static struct held second;

/* Work on B that comes behind the event of the first block; and the free of the second one gets no event. */
static void *free_second(void *unused)
{
    (void)unused;
    DONE(cuCtxPushCurrent(scene.context));
    DONE(sim_launch_wait(scene.stream[B], 100 * MSEC));
    held_expect(&second, scene.stream[B]);
    DONE(cenote_use(second.at, scene.stream[B]));
    refuses = true;
    DONE(cenote_free(second.at));
    refuses = false;
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static void free_second_elsewhere(void)
{
    pthread_t thread;
    DONE(pthread_create(&thread, NULL, free_second, NULL));
    DONE(pthread_join(thread, NULL));
}

/* `later`: a third block is freed behind both, and has an event. It covers the second one's free, and the first one's event still does not. */
static void free_both(int announced, bool later)
{
    struct held first, next, third;
    CUevent written;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.announced = announced;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    if (!below)
        driver_interpose(with_moments);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[0]));
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    REQUIRE(held_take(&first, scene.pool, 4 * MIB, scene.stream[0]));
    REQUIRE(held_take(&second, scene.pool, 4 * MIB, scene.stream[0]));
    REQUIRE(held_take(&third, scene.pool, 4 * MIB, scene.stream[0]));
    DONE(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
    DONE(cuEventRecord(written, scene.stream[0]));
    DONE(cuStreamWaitEvent(scene.stream[B], written, 0));
    held_expect(&first, scene.stream[B]);
    DONE(cenote_use(first.at, scene.stream[B]));
    after_record = free_second_elsewhere;
    DONE(cenote_free(first.at));
    if (later)
        DONE(cenote_use(third.at, scene.stream[B]));
    held_give(&third);
    sim_advance(10 * MSEC);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(cuStreamQuery(scene.stream[B]), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, later ? 3 : 2);
    REQUIRE(held_take(&first, scene.pool, 4 * MIB, scene.stream[0]));
    REQUIRE(held_take(&next, scene.pool, 4 * MIB, scene.stream[0]));
    held_give(&first);
    held_give(&next);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    DONE(cuEventDestroy(written));
    if (!announced)
        for (int i = 0; i < SCENE_STREAMS; i++)
            if (scene.stream[i])
                cenote_stream_retire(scene.pool, scene.stream[i]);
    scene_close(&scene);
}

CASE(an_older_event_says_nothing_of_a_later_free)
{
    free_both(1, false);
    free_both(1, true);
}

CASE(an_older_event_where_captures_are_not_announced)
{
    free_both(0, false);
    free_both(0, true);
}

SUITE_MAIN_AROUND("lane order", NULL, scene_after)
