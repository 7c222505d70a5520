/*
 * test_lost_peer.c: the context of another device is lost, whose streams used blocks of a pool. That device does no work any more, so that nothing
 * waits for it, and the pool itself is not lost: each call about such a stream says what is, and the memory of the pool serves on. With announced:0
 * and without. hazard/devices.c has the plain case, test_unannounced_peers.c streams that were retired before.
 */
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/strict.h"

static struct peers p;

static void open_devices(bool announced)
{
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = scene_options();
    options.announced = announced;
    shape.devices = 2;
    memset(&p, 0, sizeof p);
    scene_open_with(&p.scene, &shape, &options);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.scene.stream[A]));
    DONE(cuDevicePrimaryCtxRetain(&p.other, 1));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static void lose_other(void)
{
    sim_set_quiet(true);
    sim_lose_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* All of the pool's card can be had. */
static void close_lost(void)
{
    struct held next;
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    REQUIRE(held_take(&next, p.scene.pool, 2 * CARD - 4 * MIB, p.scene.stream[A]));
    held_give(&next);
    DONE(cenote_pool_destroy(p.scene.pool));
    sim_set_quiet(false);
    sim_reset(NULL); /* what is left there went with the context */
    scene_is_open = false;
}

/* Before the block is freed, so that no event can be had, or after that. */
CASE(use_that_no_event_can_cover)
{
    for (int i = 0; i < 8; i++) {
        struct held block;
        bool before = i & 1, immortal = i & 2;
        open_devices(i & 4);
        if (immortal)
            DONE(cenote_stream_set_immortal(p.scene.pool, p.stream));
        REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, p.scene.stream[A]));
        DONE(cenote_use(block.at, p.stream));
        if (before)
            lose_other();
        DONE(cenote_free(block.at));
        if (!before)
            lose_other();
        close_lost();
    }
}

/* An event cannot be had for a while, and then the driver does not let a thread into the context any more. */
CASE(context_that_lets_no_thread_in)
{
    struct held block;
    open_devices(false);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream));
    REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream));
    fault_arm("cuEventCreate", 1, CUDA_ERROR_UNKNOWN, true);
    DONE(cenote_free(block.at));
    fault_disarm();
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    lose_other();
    fault_arm("cuCtxPushCurrent", 2, CUDA_ERROR_ILLEGAL_ADDRESS, false); /* the first is of the pool's own device */
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    EXPECT(fault_fired());
    fault_disarm();
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    close_lost();
}

static void expect_elsewhere(int error)
{
    EXPECT_EQ(error, CENOTE_DRIVER);
    EXPECT_EQ(cenote_driver_result(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(strstr(cenote_message(), "not that of device 0") != NULL);
}

/* None of them takes the pool for lost. */
CASE(calls_that_name_a_stream_of_the_lost_device)
{
    for (int announced = 0; announced < 2; announced++) {
        void *block, *none;
        uint64_t sync;
        open_devices(announced);
        DONE(cenote_alloc(p.scene.pool, 16 * MIB, p.scene.stream[A], &block));
        lose_other();
        expect_elsewhere(cenote_use(block, p.stream));
        DONE(cenote_stream_retire(p.scene.pool, p.stream)); /* the pool has nothing of it */
        expect_elsewhere(cenote_stream_set_immortal(p.scene.pool, p.stream));
        expect_elsewhere(cenote_alloc(p.scene.pool, 512, p.stream, &none));
        DONE(cenote_pool_sync_begin(p.scene.pool, &sync));
        DONE(cuCtxPushCurrent(p.other));
        cenote_pool_sync_end(p.scene.pool, sync); /* whatever the driver says of that context */
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_free_on(block, p.stream)); /* no work runs there any more */
        close_lost();
    }
}

/* What the thread last heard from the driver is of another call: a stream that is none stays a mistake of this one. */
CASE(wrong_stream_after_a_loss)
{
    struct held block;
    void *none;
    CUstream gone;
    cenote_pool *pool;
    open_devices(true);
    sim_set_quiet(true); /* about the stream that is none */
    REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, p.scene.stream[A]));
    DONE(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    DONE(cuStreamDestroy(gone));
    EXPECT_EQ(cenote_free_on(block.at, gone), CENOTE_INVALID);
    DONE(cenote_pool_create(1, NULL, &pool));
    lose_other();
    EXPECT_EQ(cenote_alloc(pool, MIB, 0, &none), CENOTE_DEVICE_LOST);
    EXPECT_EQ(cenote_driver_result(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_free_on(block.at, gone), CENOTE_INVALID);
    held_expect(&block, p.scene.stream[A]);
    held_give(&block);
    DONE(cenote_pool_destroy(pool));
    close_lost();
}

SCENES_MAIN("lost peer")
