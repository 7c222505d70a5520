/*
 * test_reset_group.c: all blocks of a group are freed at once (cenote_group_reset), each in the order of its streams, and no other block is.
 */
#include "base/lock.h"
#include "tests/api/scene.h"

#define BLOCKS 1500

static void *take_from(cenote_group *group, size_t bytes, CUstream stream)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, 512, stream, &block));
    return block;
}

/* Of slabs and of their own, on three streams, more than one portion. */
static void reset_twice(void)
{
    struct scene scene;
    cenote_group *group, *other;
    struct held beside, none;
    static const size_t sizes[] = {100, 3000, 40 * KIB, 512, 8 * KIB, 200 * KIB};
    scene_open(&scene, 512 * MIB);
    DONE(cenote_group_create(scene.pool, "sequence", 0, NULL, &group));
    DONE(cenote_group_create(scene.pool, "other", 0, NULL, &other));
    void *at = take_from(other, 3 * MIB, scene.stream[A]);
    beside = held_of(at, 3 * MIB, scene.stream[A]);
    EXPECT(held_take(&none, scene.pool, 3000, scene.stream[A]));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++)
            take_from(group, sizes[i % 6], scene.stream[i % 3]);
        take_from(group, 30 * MIB, scene.stream[B]);
        EXPECT_EQ(scene_stats(scene.pool).blocks.current, BLOCKS + 3);
        DONE(cenote_group_reset(group));
        EXPECT_EQ(scene_stats(scene.pool).blocks.current, 2);
        DONE(cenote_pool_check(scene.pool));
    }
    DONE(cenote_group_reset(group)); /* nothing is there */
    void *again = take_from(group, MIB, scene.stream[A]);
    DONE(cenote_free(again));
    scene_judge(&scene);
    held_give(&beside);
    held_give(&none);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    EXPECT_EQ(scene_stats(scene.pool).requested.total_in, scene_stats(scene.pool).requested.total_out);
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(cenote_group_reset(group), CENOTE_INVALID);
    DONE(cenote_group_destroy(other));
    scene_close(&scene);
}

CASE(all_blocks_of_the_group_and_no_others)
{
    reset_twice();
}

CASE(a_block_in_each_portion)
{
    lock_set_portions(1);
    reset_twice();
    lock_set_portions(0);
}

/* Other streams still read what goes: it waits for them. */
CASE(in_the_order_of_all_streams)
{
    struct scene scene;
    cenote_group *group;
    struct held read[20], next;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "read", 0, NULL, &group));
    for (int i = 0; i < 20; i++) {
        size_t bytes = i % 2 ? MIB : 2000;
        read[i] = held_of(take_from(group, bytes, scene.stream[A]), bytes, scene.stream[A]);
        DONE(cenote_use(read[i].at, scene.stream[B]));
    }
    order(scene.stream[A], scene.stream[B]);
    for (int i = 0; i < 20; i++)
        held_linger(&read[i], scene.stream[B]);
    DONE(cenote_group_reset(group));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 20);
    for (int i = 0; i < 5; i++) {
        next = held_of(take_from(group, 3 * MIB, scene.stream[A]), 3 * MIB, scene.stream[A]);
        held_give(&next);
    }
    EXPECT_EQ(cenote_free(read[0].at), CENOTE_DOUBLE_FREE);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Memory that the group has lent is another's. */
CASE(what_is_lent_stays)
{
    struct scene scene;
    cenote_group *group;
    struct held lent;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND, NULL, &group));
    void *block = take_from(group, 60 * MIB, scene.stream[A]);
    DONE(cenote_free(block));
    EXPECT(held_take(&lent, scene.pool, 20 * MIB, scene.stream[A]));
    take_from(group, 20 * MIB, scene.stream[A]);
    DONE(cenote_group_reset(group));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
    held_give(&lent);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

static int reset_all(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes;
    DONE(cenote_group_reset(arg));
    return 1;
}

/* Memory is short for a block of the group that grows, and a shortage function gives up all of the group: not this one. */
CASE(what_grows_stays)
{
    struct scene scene;
    cenote_group *own;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "cache", 0, NULL, &own));
    for (int i = 0; i < 10; i++)
        take_from(own, 4 * MIB, scene.stream[B]);
    struct held grows = held_of(take_from(own, 10 * MIB, scene.stream[A]), 10 * MIB, scene.stream[A]);
    DONE(cenote_pool_on_shortage(scene.pool, 1, reset_all, own));
    DONE(cenote_extend(grows.at, 40 * MIB));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
    held_give(&grows);
    take_from(own, MIB, scene.stream[A]);
    DONE(cenote_group_reset(own)); /* what has grown is let go of */
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    void *again = take_from(own, MIB, scene.stream[A]);
    DONE(cenote_extend(again, 3 * MIB));
    DONE(cenote_group_reset(own));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    DONE(cenote_pool_on_shortage(scene.pool, 0, reset_all, own));
    DONE(cenote_group_destroy(own));
    scene_close(&scene);
}

SCENES_MAIN("groups that are reset")
