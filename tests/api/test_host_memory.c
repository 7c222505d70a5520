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

/* There is no host memory for the books of what the driver has just given, and the driver refuses once to take it back. */
CASE(memory_that_comes_without_books_goes_back)
{
    static const struct { unsigned provider; const char *refuses; } roads[] = {{CENOTE_VMM, "cuMemAddressFree"}, {CENOTE_PLAIN, "cuMemFree"},
                                                                               {CENOTE_GUARD, "cuMemUnmap"}};
    for (size_t i = 0; i < sizeof roads / sizeof *roads; i++) {
        int error = CENOTE_OUT_OF_HOST_MEMORY, refused = 0;
        for (uint64_t nth = 1; error == CENOTE_OUT_OF_HOST_MEMORY && nth < 100; nth++) {
            struct scene scene;
            struct sim_shape shape = scene_card(CARD);
            cenote_options options = scene_options();
            void *first, *block = NULL;
            options.provider = roads[i].provider;
            scene_open_with(&scene, &shape, &options);
            DONE(cenote_alloc(scene.pool, 512, scene.stream[B], &first)); /* the driver has been tried, and nothing is free that could go back */
            memory_fail(nth, false);
            fault_arm(roads[i].refuses, 1, CUDA_ERROR_UNKNOWN, false);
            error = cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block);
            refused += fault_fired() != 0;
            memory_fail(0, false);
            fault_disarm();
            DONE(cenote_free(first));
            DONE(cenote_free(block));
            scene_close(&scene);
        }
        EXPECT_EQ(error, CENOTE_OK);
        EXPECT(refused > 0);
    }
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

/* Without the promise, too, an allocation is served or refused, and the next look records the fence. */
CASE(fence_on_streams)
{
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed; nth++) {
        struct scene scene;
        void *block;
        open_strict(&scene, false);
        memory_fail(nth, false);
        int error = cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &block);
        failed = memory_failed();
        memory_fail(0, false);
        EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_HOST_MEMORY);
        if (!error)
            DONE(cenote_free(block));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).cached.current, 0);
        close_strict(&scene);
    }
}

/* The stream ends, and is done, while there is no host memory: what it left comes back. */
CASE(end_without_memory)
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

SCENES_MAIN("host memory")
