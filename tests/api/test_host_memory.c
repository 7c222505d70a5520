/* test_host_memory.c: the host has no memory for the books: a pool does not open, a use is not noted, a pool without the promise has no fence. */
#include "base/memory.h"
#include "tests/api/strict.h"

/* A pool that records, with nothing left behind by the attempts that fail. */
CASE(pool_that_records)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    uint64_t nth = 0;
    int error = CENOTE_OUT_OF_HOST_MEMORY;
    options.record = 1000;
    scene_open_card(&scene, &shape);
    for (; error == CENOTE_OUT_OF_HOST_MEMORY && nth < 100; nth++) {
        memory_fail(nth + 1, false);
        error = cenote_pool_create(0, &options, &scene.pool);
        EXPECT_EQ(memory_failed(), error ? 1 : 0);
        memory_fail(0, false);
    }
    EXPECT_EQ(error, CENOTE_OK);
    EXPECT(nth > 5); /* tables and a ring */
    scene_close(&scene);
}

#define STREAMS 3000

/* The books of uses and of lanes grow now and then. */
CASE(use_that_cannot_be_noted)
{
    struct scene scene;
    struct held block;
    static CUstream stream[STREAMS];
    int refused = 0;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&block, scene.pool, 4 * MIB, scene.stream[A]));
    for (int i = 0; i < STREAMS; i++) {
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        for (uint64_t nth = 1; nth < 10; nth++) {
            memory_fail(nth, false);
            int error = cenote_use(block.at, stream[i]);
            uint64_t failed = memory_failed();
            memory_fail(0, false);
            if (!failed)
                break;
            refused++;
            EXPECT_EQ(error, CENOTE_OUT_OF_HOST_MEMORY);
        }
        cenote_block found;
        DONE(cenote_find(block.at, &found));
        if (found.used != (uint32_t)i + 1)
            EXPECT_EQ(found.used, (uint32_t)i + 1);
    }
    EXPECT(refused > 2);
    held_give(&block);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    for (int i = 0; i < STREAMS; i++)
        DONE(cuStreamDestroy(stream[i]));
    scene_close(&scene);
}

/* The first fence of a pool without the promise needs a table. An allocation does without that fence, and the next look records it. */
CASE(fence_on_streams)
{
    int without = 0;
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed; nth++) {
        struct scene scene;
        void *block;
        open_strict(&scene, false);
        memory_fail(nth, false);
        int error = cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block);
        failed = memory_failed();
        memory_fail(0, false);
        without += failed && !error;
        EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_HOST_MEMORY);
        if (!error)
            DONE(cenote_free(block));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
        close_strict(&scene);
    }
    EXPECT(without > 0);
}

/* The stream ends, and is done, while there is no memory for that table: what it left comes back when there is. */
CASE(end_without_the_table)
{
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed; nth++) {
        struct scene scene;
        void *block;
        open_strict(&scene, true);
        memory_fail(nth, false);
        int error = cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block);
        failed = memory_failed();
        memory_fail(1, true);
        if (!error) {
            DONE(cenote_free(block));
            DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
            DONE(cuCtxSynchronize());
            DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
        }
        memory_fail(0, false);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
        close_strict(&scene);
    }
}

/* The last fence over the context needs the table, too, when the first such pool opens. It does not open, and the next one does. */
CASE(last_fence_over_the_context)
{
    struct scene scene;
    cenote_pool *careful;
    const cenote_options options = strict();
    scene_open(&scene, CARD);
    sim_set_lag(MSEC);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    memory_fail(1, false);
    EXPECT_EQ(cenote_pool_create(0, &options, &careful), CENOTE_DRIVER);
    EXPECT_EQ(memory_failed(), 1);
    EXPECT(strstr(cenote_message(), "again") != NULL);
    memory_fail(0, false);
    DONE(cenote_pool_create(0, &options, &careful));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
    DONE(cenote_pool_destroy(careful));
    scene_close(&scene);
}

SCENES_MAIN("host memory")
