/* test_blocks.c: pinned blocks: taken, found, freed; what is no block is refused; chunks behind them come and go. */
#include "tests/host/pinned.h"

CASE(a_block_is_pinned_and_goes_back)
{
    struct scene scene;
    pinned_open(&scene);
    EXPECT_EQ(pinned_chunks(), 0);
    char *block = pinned_take(1000);
    EXPECT_EQ(pinned_chunks(), 1);
    EXPECT_EQ((uintptr_t)block % 512, 0);
    unsigned flags = 0;
    DONE(cuMemHostGetFlags(&flags, block));
    EXPECT(flags & CU_MEMHOSTALLOC_PORTABLE);
    memset(block, 7, 1000);
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

CASE(what_is_free_is_handed_out_again)
{
    struct scene scene;
    pinned_open(&scene);
    for (size_t bytes = 1; bytes < 20 * MIB; bytes = bytes * 3 + 1) {
        char *block = pinned_take(bytes);
        DONE(cenote_host_free(block));
        char *again = pinned_take(bytes);
        EXPECT_EQ(again, block);
        EXPECT_EQ((uintptr_t)again % (bytes > 14336 ? 4096 : 512), 0);
        DONE(cenote_host_free(again));
    }
    pinned_close(&scene);
}

CASE(all_of_a_chunk_comes_back)
{
    struct scene scene;
    char *block[64];
    pinned_open(&scene);
    for (int i = 0; i < 64; i++)
        block[i] = pinned_take(600 * KIB + (size_t)i * 7919);
    uint64_t chunks = pinned_chunks();
    EXPECT(chunks > 1 && chunks < 64); /* blocks share them */
    for (int i = 0; i < 64; i += 2)
        DONE(cenote_host_free(block[i]));
    DONE(cenote_host_check());
    for (int i = 1; i < 64; i += 2)
        DONE(cenote_host_free(block[i]));
    DONE(cenote_host_trim(0, 0));
    EXPECT_EQ(pinned_chunks(), 0);
    EXPECT_EQ(pinned_stats().registered.current, 0);
    pinned_close(&scene);
}

/* jemalloc cuts extents and joins them; sizes on both sides of every border, all live at once, each with contents of its own. */
CASE(no_two_blocks_overlap)
{
    enum { BLOCKS = 3000 };
    struct scene scene;
    static unsigned char *block[BLOCKS];
    static size_t bytes[BLOCKS];
    for (uint32_t large_kib = 0; large_kib <= 14; large_kib += 14) {
        cenote_host_options options = pinned_options();
        options.large_kib = large_kib;
        pinned_open_devices(&scene, &options, 1);
        uint64_t random = 1, wrong = 0;
        for (int step = 0; step < 4 * BLOCKS; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            int i = (int)(random >> 33) % BLOCKS;
            if (block[i]) {
                for (size_t k = 0; k < bytes[i]; k += 511)
                    wrong += block[i][k] != (unsigned char)i;
                DONE(cenote_host_free(block[i]));
                block[i] = NULL;
            } else {
                bytes[i] = (random >> 20) % (step % 50 ? 20000 : 3000000) + 1;
                block[i] = (unsigned char *)pinned_take(bytes[i]);
                memset(block[i], i, bytes[i]);
            }
        }
        DONE(cenote_host_check());
        EXPECT_EQ(wrong, 0);
        for (int i = 0; i < BLOCKS; i++) {
            DONE(cenote_host_free(block[i]));
            block[i] = NULL;
        }
        pinned_close(&scene);
    }
}

CASE(a_block_is_found_by_any_address_in_it)
{
    struct scene scene;
    size_t sizes[] = {1, 512, 3000, 14336, 14337, 3 * MIB + 5};
    pinned_open(&scene);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *block = pinned_take(sizes[i]);
        size_t inside[] = {0, sizes[i] / 2, sizes[i] - 1};
        for (int k = 0; k < 3; k++) {
            cenote_host_block found;
            DONE(cenote_host_find(block + inside[k], &found));
            EXPECT_EQ(found.start, block);
            EXPECT_EQ(found.requested, sizes[i]);
            EXPECT_EQ(found.node, 0);
        }
        cenote_host_block none;
        EXPECT_EQ(cenote_host_find(block + sizes[i], &none), CENOTE_NOT_OURS);
        DONE(cenote_host_free(block));
        EXPECT_EQ(cenote_host_find(block, &none), CENOTE_NOT_OURS);
    }
    pinned_close(&scene);
}

CASE(what_is_no_block_is_refused)
{
    struct scene scene;
    char mine[1024];
    void *block = mine;
    EXPECT_EQ(cenote_host_free(mine), CENOTE_NOT_OURS);
    pinned_open(&scene);
    char *small = pinned_take(4000), *large = pinned_take(100 * KIB);
    DONE(cenote_host_free(NULL));
    EXPECT_EQ(cenote_host_free(mine), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_host_free(small + 512), CENOTE_INTERIOR);
    EXPECT_EQ(cenote_host_free(small + 1), CENOTE_INTERIOR);
    EXPECT_EQ(cenote_host_free(large + 4096), CENOTE_INTERIOR);
    EXPECT(strstr(cenote_host_message(), "not at its start"));
    EXPECT_EQ(cenote_host_use(mine, 0, scene.stream[A]), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_host_use(small, 5, scene.stream[A]), CENOTE_NO_DEVICE);
    DONE(cenote_host_free(small));
    DONE(cenote_host_free(large));
    EXPECT_EQ(cenote_host_free(small), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_host_free(large), CENOTE_DOUBLE_FREE);
    DONE(cenote_host_alloc(0, 0, &block));
    EXPECT_EQ(block, NULL);
    EXPECT_EQ(cenote_host_alloc(0, 1, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_alloc(1, 1, &block), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_host_alloc(-1, 1, &block), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_host_alloc(0, SIZE_MAX, &block), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(cenote_host_alloc(0, (size_t)1 << 39, &block), CENOTE_OUT_OF_HOST_MEMORY);
    pinned_close(&scene);
}

CASE(arguments_out_of_range)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    cenote_host_stats stats;
    CUcontext context;
    CUstream far;
    shape.devices = 2;
    scene_open_card(&scene, &shape);
    DONE(cenote_host_open(&options));
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    EXPECT_EQ(cenote_host_stream_set_immortal(2, scene.stream[A]), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_host_stream_set_immortal(0, far), CENOTE_INVALID);
    EXPECT(strstr(cenote_host_message(), "is no stream of device 0"));
    EXPECT_EQ(cenote_host_stream_set_immortal(1, scene.stream[A]), CENOTE_INVALID);
    DONE(cenote_host_stream_set_immortal(1, far));
    DONE(cenote_host_stream_set_immortal(0, scene.stream[A]));
    EXPECT_EQ(cenote_host_node_stats(-2, &stats), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_node_stats(1000, &stats), CENOTE_INVALID);
    DONE(cenote_host_node_stats(-1, &stats));
    EXPECT_EQ(cenote_host_set_announced(2), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_trim(0, CENOTE_TRIM_PERIODIC), CENOTE_INVALID);
    EXPECT_EQ(cenote_host_find(NULL, &(cenote_host_block){0}), CENOTE_NOT_OURS);
    DONE(cuStreamDestroy(far));
    DONE(cuDevicePrimaryCtxRelease(1));
    pinned_close(&scene);
}

CASE(it_does_not_close_while_blocks_are_live)
{
    struct scene scene;
    pinned_open(&scene);
    char *block = pinned_take(5000);
    EXPECT_EQ(cenote_host_close(), CENOTE_BUSY);
    EXPECT_EQ(cenote_host_open(NULL), CENOTE_BUSY);
    memset(block, 1, 5000);
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

CASE(counters_say_what_is_there)
{
    struct scene scene;
    pinned_open(&scene);
    char *small = pinned_take(1000), *large = pinned_take(3 * MIB + 1);
    cenote_host_stats stats = pinned_stats();
    EXPECT_EQ(stats.requested.current, 1000 + 3 * MIB + 1);
    EXPECT_EQ(stats.allocated.current, 1024 + 3 * MIB + 4096);
    EXPECT_EQ(stats.blocks.current, 2);
    EXPECT_EQ(stats.registrations, pinned_chunks());
    uint64_t bytes;
    sim_registered(&bytes);
    EXPECT_EQ(stats.registered.current, bytes);
    EXPECT_EQ(stats.cached, bytes - stats.allocated.current);
    EXPECT_EQ(stats.strayed, 0);
    DONE(cenote_host_free(large));
    EXPECT_EQ(pinned_stats().requested.current, 1000);
    EXPECT_EQ(pinned_stats().requested.peak, 1000 + 3 * MIB + 1);
    DONE(cenote_host_reset_peaks());
    EXPECT_EQ(pinned_stats().requested.peak, 1000);
    DONE(cenote_host_free(small));
    EXPECT_EQ(pinned_stats().blocks.total_in, 2);
    EXPECT_EQ(pinned_stats().blocks.total_out, 2);
    pinned_close(&scene);
}

SCENES_MAIN("blocks")
