/* test_reset.c: cudaDeviceReset under a pool of cenote's. The process is over for that pool, not for the device. */
#include <cuda_runtime_api.h>

#include "tests/api/scene.h"

static cenote_pool *new_pool(void)
{
    cenote_options options = scene_options();
    cenote_pool *pool = NULL;
    DONE(cenote_pool_create(0, &options, &pool));
    REQUIRE(pool);
    return pool;
}

CASE(the_runtime_resets_the_device)
{
    struct sim_shape shape = scene_card(GIB);
    struct sim_books books;
    void *block = NULL, *more = NULL, *theirs = NULL;
    sim_reset(&shape);
    DONE(cudaSetDevice(0));
    for (int round = 0; round < 3; round++) {
        cenote_pool *pool = new_pool();
        DONE(cudaMalloc(&theirs, MIB));
        DONE(cenote_alloc(pool, 40 * MIB, NULL, &block));
        DONE(cudaMemset(block, 3, 40 * MIB));
        DONE(cudaDeviceReset());
        DONE(cudaMalloc(&theirs, 3 * MIB)); /* the runtime begins anew, under the same handle */
        EXPECT_EQ(cenote_alloc(pool, 90 * MIB, NULL, &more), CENOTE_DEVICE_LOST);
        EXPECT(strstr(cenote_message(), "has reset the device"));
        DONE(cenote_free(block));
        DONE(cenote_pool_destroy(pool));
        DONE(cudaFree(theirs));
        sim_books(&books);
        EXPECT_EQ(books.used + books.reserved + books.handles + books.mappings + books.events, 0);
        EXPECT_EQ(books.contexts, 1); /* the runtime's */
        EXPECT_EQ(books.violations, 0);
        EXPECT_TEXT_EQ(sim_last_violation(), "");
    }
    cenote_pool *pool = new_pool();
    DONE(cenote_alloc(pool, 40 * MIB, NULL, &block));
    DONE(cudaMemset(block, 3, 40 * MIB));
    DONE(cudaDeviceSynchronize());
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(pool));
}

/* What cudaMallocAsync gave is the device's as all else is, live or freed. */
CASE(memory_of_the_default_pool_ends_with_a_reset)
{
    struct sim_books books;
    cudaStream_t stream;
    cudaMemPool_t pool;
    void *live = NULL, *freed = NULL;
    uint64_t most = UINT64_MAX;
    size_t left = 0, total = 0, before = 0;
    for (int round = 0; round < 3; round++) {
        DONE(cudaMemGetInfo(&left, &total));
        EXPECT(round == 0 || left == before);
        before = left;
        DONE(cudaDeviceGetDefaultMemPool(&pool, 0));
        DONE(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
        DONE(cudaStreamCreate(&stream));
        DONE(cudaMallocAsync(&live, 600 * MIB, stream));
        DONE(cudaMallocAsync(&freed, 40 * MIB, stream));
        DONE(cudaFreeAsync(freed, stream));
        DONE(cudaDeviceReset());
        sim_books(&books);
        EXPECT_EQ(books.used + books.allocations + books.violations, 0);
    }
}

SUITE_MAIN("libraries: resets")
