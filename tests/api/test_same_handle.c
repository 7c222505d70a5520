/*
 * test_same_handle.c: a driver without ids of streams (before CUDA 12.0) gives the handle of a stream that has ended to the next one. The pool has
 * the option announced:0. A program of its own, because a process has one driver.
 */
#include "pool/pool.h"
#include "driver/driver.h"
#include "tests/api/strict.h"

#include <pthread.h>
#include <unistd.h>

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

/* The next stream of that handle may be of another device: the driver is asked, although the pool has met the handle. */
CASE(stream_of_the_same_handle_on_another_device)
{
    struct scene scene;
    struct held block;
    CUcontext other;
    CUstream there = NULL;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = strict();
    shape.devices = 2;
    shape.lag = MSEC;
    shape.driver_version = 11080;
    scene_open_with(&scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&other, 1));
    CUstream first = scene.stream[B];
    REQUIRE(held_take(&block, scene.pool, 40 * MIB, scene.stream[A]));
    DONE(cenote_use(block.at, first));
    DONE(cenote_stream_retire(scene.pool, first));
    DONE(cuStreamDestroy(first));
    DONE(cuCtxPushCurrent(other));
    DONE(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    REQUIRE(there == first);
    DONE(cuCtxPopCurrent(NULL));
    fault_arm("cuStreamGetCtx", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_use(block.at, there), CENOTE_DRIVER);
    fault_disarm();
    DONE(cenote_use(block.at, there));
    DONE(cenote_free(block.at));
    DONE(cenote_stream_retire(scene.pool, there));
    DONE(cuCtxPushCurrent(other));
    DONE(cuStreamDestroy(there));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene.stream[B] = NULL;
    close_strict(&scene);
}

/* Two lanes may have one key where a handle is the key: the second is found, and not made anew, when the first has gone. */
CASE(lane_stays_when_another_one_of_its_key_goes)
{
    struct scene scene;
    struct device other = {.generation = 1}; /* in a context that lives */
    const uint64_t key = 7;
    scene_open(&scene, CARD);
    lock_take(&scene.pool->lock);
    uint32_t first = lane_for(&scene.pool->clock, scene.stream[A], key, NULL);
    lane_hold(&scene.pool->clock, first);
    uint32_t second = lane_for(&scene.pool->clock, scene.stream[A], key, &other);
    lane_hold(&scene.pool->clock, second);
    EXPECT(first && second && first != second);
    lane_drop(&scene.pool->clock, first);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, NULL), 0);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, &other), second);
    uint32_t third = lane_for(&scene.pool->clock, scene.stream[A], key, NULL);
    lane_hold(&scene.pool->clock, third);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, NULL), third);
    lane_drop(&scene.pool->clock, second);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, NULL), third);
    lane_drop(&scene.pool->clock, third);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, NULL), 0);
    EXPECT_EQ(lane_find(&scene.pool->clock, key, &other), 0);
    lock_give(&scene.pool->lock);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------- a stream that ends in a moment */

static const struct driver *below;
static CUstream ends_now;       /* another thread retires and destroys it in the moment before its next event */
static cenote_pool *ending_pool;
static CUcontext ending_context;
static pthread_t ender;

static void *end_it(void *stream)
{
    DONE(cuCtxPushCurrent(ending_context));
    DONE(cenote_stream_retire(ending_pool, stream));
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    if (ends_now && stream == ends_now) {
        ends_now = NULL;
        pthread_create(&ender, NULL, end_it, stream);
        usleep(200000);
    }
    return below->cuStreamIsCapturing(stream, status);
}

static CUstream brought;        /* another thread takes a block on it while this one asks whose it is; NULL: none does */
static void *block_of_another;

static void *take_there(void *stream)
{
    DONE(cuCtxPushCurrent(ending_context));
    DONE(cenote_alloc(ending_pool, MIB, stream, &block_of_another));
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static CUresult whose(CUstream stream, CUcontext *context)
{
    pthread_t thread;
    if (stream == brought && brought) {
        brought = NULL;
        REQUIRE(!pthread_create(&thread, NULL, take_there, stream));
        pthread_join(thread, NULL);
    }
    return below->cuStreamGetCtx(stream, context);
}

static const struct driver *with_an_end(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuStreamIsCapturing = is_capturing;
    table.cuStreamGetCtx = whose;
    table.cuStreamGetCtx_v2 = NULL;
    return &table;
}

/* Once for the program. */
static void put_in_between(void)
{
    static bool is_there;
    if (!is_there)
        driver_interpose(with_an_end);
    is_there = true;
}

/* A fence has an event on each stream that was not retired: one that another thread retires meanwhile lives until it has it. */
CASE(stream_that_ends_while_a_fence_is_recorded)
{
    struct scene scene;
    open_old(&scene);
    put_in_between();
    leave_block(&scene, scene.stream[A], 8 * MIB);
    ending_pool = scene.pool;
    ending_context = scene.context;
    ends_now = scene.stream[A];
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    REQUIRE(!ends_now);
    pthread_join(ender, NULL);
    scene.stream[A] = NULL;
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
    close_strict(&scene);
}

/* Two threads bring one stream that is new to the pool: it has one arena (invariant 32). */
CASE(stream_that_two_threads_bring)
{
    struct scene scene;
    void *block;
    open_old(&scene);
    put_in_between();
    ending_pool = scene.pool;
    ending_context = scene.context;
    brought = scene.stream[A];
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    REQUIRE(!brought);
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_free(block));
    DONE(cenote_free(block_of_another));
    EXPECT_EQ(scene.pool->store.arenas.used, 2);
    close_strict(&scene);
}

SCENES_MAIN("same handle")
