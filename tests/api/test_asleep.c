/*
 * test_asleep.c: what was kept of a block that sleeps can be read by the host.
 */
#include <cenote/sleep.h>

#include "tests/api/strict.h"

/* The host gets what was kept, and nothing else. */
CASE(read_asleep)
{
    struct scene scene;
    struct held small, large;
    cenote_sleep discard = {.contents = CENOTE_DISCARD};
    static char bytes[9 * MIB], again[9 * MIB];
    scene_open(&scene, CARD);
    REQUIRE(held_take(&small, scene.pool, 700, scene.stream[A]));
    REQUIRE(held_take(&large, scene.pool, 9 * MIB, scene.stream[A]));
    DONE(cuMemcpyDtoHAsync(bytes, (CUdeviceptr)(uintptr_t)large.at, sizeof bytes, scene.stream[A]));
    DONE(cuStreamSynchronize(scene.stream[A]));
    EXPECT_EQ(cenote_block_read_asleep(large.at, again, 1), CENOTE_INVALID);
    DONE(cenote_pool_pause(scene.pool, NULL));
    DONE(cenote_block_read_asleep(large.at, again, sizeof again));
    EXPECT(!memcmp(bytes, again, sizeof bytes));
    DONE(cenote_block_read_asleep((char *)large.at + 5 * MIB + 3, again, 3 * MIB));
    EXPECT(!memcmp(bytes + 5 * MIB + 3, again, 3 * MIB));
    DONE(cenote_block_read_asleep(small.at, again, 700));
    EXPECT_EQ(cenote_block_read_asleep((char *)large.at + 1, again, sizeof again), CENOTE_INVALID);
    EXPECT_EQ(cenote_block_read_asleep(bytes, again, 1), CENOTE_NOT_OURS);
    DONE(cenote_pool_resume(scene.pool, NULL));
    DONE(cenote_pool_pause(scene.pool, &discard));
    EXPECT_EQ(cenote_block_read_asleep(large.at, again, 1), CENOTE_INVALID);
    DONE(cenote_block_read_asleep(small.at, again, 700));
    DONE(cenote_pool_resume(scene.pool, NULL));
    held_give(&small);
    DONE(cenote_free(large.at));
    scene_close(&scene);
}

SCENES_MAIN("asleep")
