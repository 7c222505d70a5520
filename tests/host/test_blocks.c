/* test_blocks.c: pinned blocks: taken, used, found, freed; chunks behind them come and go. */
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
    EXPECT(chunks > 1);
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

SCENES_MAIN("blocks")
