/*
 * test_asleep.c: what was kept of a block that sleeps: the host can read it, and has its memory back when the block is freed.
 */
#include "base/memory.h"
#include "tests/api/sleeps.h"

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

/* Blocks that another stream has used come back later, and with them their copies. */
CASE(copies_go_with_their_blocks)
{
    struct scene scene;
    struct held held[3];
    size_t before;
    scene_open(&scene, CARD);
    for (int i = 0; i < 3; i++)
        REQUIRE(held_take(&held[i], scene.pool, 8 * MIB, scene.stream[A]));
    DONE(cenote_use(held[1].at, scene.stream[B]));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    before = memory_in_use();
    DONE(cenote_free(held[0].at));
    EXPECT(memory_in_use() + 8 * MIB <= before);
    DONE(cenote_free(held[1].at));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT(memory_in_use() + 16 * MIB <= before);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held[2]);
    scene_close(&scene);
}

/* What sleeps is allocated, and no page of the pool: the words of an explanation add up all the same. */
CASE(an_explanation_says_what_sleeps)
{
    struct scene scene;
    struct held held;
    char text[4096];
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 8 * MIB, scene.stream[A]));
    DONE(cenote_pool_pause(scene.pool, NULL));
    EXPECT(cenote_pool_explain(scene.pool, 0, text, sizeof text) < sizeof text);
    EXPECT(strstr(text, "8.00 MiB in 1 block (8.00 MiB asleep)") != NULL);
    EXPECT(!strstr(text, "between blocks"));
    DONE(cenote_pool_resume(scene.pool, NULL));
    held_give(&held);
    scene_close(&scene);
}

SCENES_MAIN("asleep")
