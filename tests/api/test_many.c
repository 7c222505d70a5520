/*
 * test_many.c: several blocks in one call: each is like one that was allocated or freed alone.
 */
#include "base/memory.h"
#include "tests/api/scene.h"

#define MANY 300

static void *many[MANY];

/* On all roads: slabs, small blocks, large ones, with a group, an alignment and a word. */
CASE(many_are_like_single_ones)
{
    struct scene scene;
    cenote_group *group;
    cenote_block found;
    static const size_t sizes[] = {100, 3000, 20 * KIB, 300 * KIB, MIB + 512};
    scene_open(&scene, 512 * MIB);
    DONE(cenote_group_create(scene.pool, "some", 0, NULL, &group));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cenote_request request = {.bytes = sizes[i], .alignment = i % 2 ? 4096 : 0, .group = i % 2 ? group : NULL, .stream = scene.stream[i % 3],
                                  .word = i};
        DONE(cenote_alloc_many(scene.pool, &request, MANY, many));
        cenote_stats stats = scene_stats(scene.pool);
        EXPECT_EQ(stats.blocks.current, MANY);
        EXPECT_EQ(stats.requested.current, MANY * sizes[i]);
        for (int b = 0; b < MANY; b++) {
            DONE(cenote_find(many[b], &found));
            EXPECT(found.start == many[b] && found.requested == sizes[i] && found.group == request.group && found.word == i);
            EXPECT(!request.alignment || (uintptr_t)many[b] % 4096 == 0);
        }
        scene_judge(&scene);
        DONE(cenote_free_many(many, MANY));
        EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    }
    many[0] = &scene;
    DONE(cenote_alloc_many(scene.pool, (&(cenote_request){.bytes = 0, .stream = scene.stream[A], .word = 1}), 2, many));
    EXPECT(!many[0] && !many[1]);
    DONE(cenote_alloc_many(scene.pool, (&(cenote_request){.bytes = 512, .stream = scene.stream[A]}), 0, many));
    DONE(cenote_free_many(many, 2));
    DONE(cenote_free_many(NULL, 0));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Memory ends in the middle, of the device or of the host. */
CASE(all_or_none)
{
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    EXPECT_EQ(cenote_alloc_many(scene.pool, (&(cenote_request){.bytes = MIB, .stream = scene.stream[A]}), 70, many), CENOTE_OUT_OF_MEMORY);
    EXPECT(strstr(cenote_message(), "MiB"));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    for (uint64_t nth = 1; nth < 40; nth++) {
        memory_fail(nth, true);
        int error = cenote_alloc_many(scene.pool, (&(cenote_request){.bytes = 700, .stream = scene.stream[A], .word = nth}), MANY, many);
        memory_fail(0, false);
        EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_HOST_MEMORY);
        if (!error)
            DONE(cenote_free_many(many, MANY));
        EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    }
    scene_judge(&scene);
    scene_close(&scene);
}

/* Blocks of two pools, of streams that others use, none at all, and what is no block. */
CASE(many_are_freed_like_single_ones)
{
    struct scene scene;
    cenote_options options = scene_options();
    cenote_pool *other;
    struct held read, next;
    void *blocks[7] = {NULL};
    scene_open(&scene, 64 * MIB);
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_alloc(scene.pool, 700, scene.stream[A], &blocks[0]));
    DONE(cenote_alloc(other, 700, scene.stream[A], &blocks[1]));
    REQUIRE(held_take(&read, scene.pool, 20 * MIB, scene.stream[A]));
    DONE(cenote_use(read.at, scene.stream[B]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&read, scene.stream[B]);
    blocks[3] = read.at; /* [2] is NULL */
    blocks[4] = blocks[0];
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[C], &blocks[5]));
    blocks[6] = &scene;
    EXPECT_EQ(cenote_free_many(blocks, 7), CENOTE_NOT_OURS);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    EXPECT_EQ(scene_stats(other).blocks.current, 0);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    REQUIRE(held_take(&next, scene.pool, 20 * MIB, scene.stream[A])); /* it waits for the reader */
    held_give(&next);
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

/* What a program does about a shortage: it gives up its group, and takes something of it for itself. */
struct in_the_middle {
    cenote_group *group;
    CUstream      stream;
    void         *taken;
};

static int reset_and_take(cenote_pool *pool, size_t bytes, void *arg)
{
    struct in_the_middle *m = arg;
    (void)pool;
    DONE(cenote_group_reset(m->group));
    DONE(group_alloc(m->group, bytes, 512, m->stream, &m->taken));
    return 1;
}

/* A group is reset while several blocks of it are asked for: those that are there already stay the call's, and no other block is freed with them. */
CASE(a_reset_in_the_middle)
{
    struct scene scene;
    struct in_the_middle m = {0};
    cenote_block found;
    void *before;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "some", 0, NULL, &m.group));
    m.stream = scene.stream[A];
    DONE(group_alloc(m.group, 4 * MIB, 512, m.stream, &before)); /* it goes, and one of MiB comes to lie there */
    DONE(cenote_pool_on_shortage(scene.pool, 1, reset_and_take, &m));
    cenote_request request = {.bytes = MIB, .group = m.group, .stream = m.stream, .word = 3};
    EXPECT_EQ(cenote_alloc_many(NULL, &request, 80, many), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_find(m.taken, &found));
    EXPECT(found.start == m.taken);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
    DONE(cenote_free(m.taken));
    DONE(group_alloc(m.group, 4 * MIB, 512, m.stream, &before));
    DONE(cenote_alloc_many(NULL, &request, 61, many)); /* with what the reset gives up */
    for (int i = 0; i < 61; i++) {
        DONE(cenote_find(many[i], &found));
        EXPECT(found.start == many[i] && found.word == 3 && many[i] != m.taken);
    }
    DONE(cenote_group_reset(m.group));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    DONE(cenote_pool_on_shortage(scene.pool, 0, reset_and_take, &m));
    DONE(cenote_group_destroy(m.group));
    scene_close(&scene);
}

SCENES_MAIN("many blocks in one call")
