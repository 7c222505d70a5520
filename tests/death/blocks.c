/* blocks.c: what a program can do wrong with a pointer, a size or a pin. */
#include <cenote/share.h>

#include "driver/driver.h"
#include "tests/death/misuse.h"

/* --------------------------------------------------------------------------------------------------------------------- freed before */

MISUSE(freed_twice, CENOTE_DOUBLE_FREE, "freed already")
{
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_free(block);
}

MISUSE(freed_twice_with_its_size, CENOTE_DOUBLE_FREE, "freed already")
{
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_free_sized(block, 3 * MIB);
}

/* The neighbours are unharmed. Once the block is joined with the free range around it, a second free is still an error, if another one. */
MISUSE(freed_twice_among_neighbours, CENOTE_DOUBLE_FREE, "freed already")
{
    struct held neighbours[3];
    for (int i = 0; i < 3; i++)
        REQUIRE(held_take(&neighbours[i], s->scene.pool, 3 * MIB, s->scene.stream[A]));
    held_give(&neighbours[1]);
    char *freed = neighbours[1].at;
    EXPECT_EQ(cenote_free(freed), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_free_sized(freed, 3 * MIB), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_use(freed, s->scene.stream[B]), CENOTE_DOUBLE_FREE);
    scene_judge(&s->scene);
    held_give(&neighbours[0]);
    held_give(&neighbours[2]);
    int error = cenote_free(freed);
    EXPECT(error == CENOTE_DOUBLE_FREE || error == CENOTE_NOT_OURS);
    s->named = neighbours[2].at;
    return cenote_free(neighbours[2].at);
}

MISUSE(small_ones_freed_twice, CENOTE_DOUBLE_FREE, "freed already")
{
    struct held held[40];
    int error = CENOTE_OK;
    for (int i = 0; i < 40; i++)
        REQUIRE(held_take(&held[i], s->scene.pool, 600, s->scene.stream[A]));
    for (int i = 0; i < 40; i += 2) {
        held_give(&held[i]);
        s->named = held[i].at;
        EXPECT_EQ(error = cenote_free(held[i].at), CENOTE_DOUBLE_FREE);
    }
    EXPECT_EQ(scene_stats(s->scene.pool).blocks.current, 2 + 20);
    for (int i = 1; i < 40; i += 2)
        held_give(&held[i]);
    return error;
}

/* A block that still waits for another stream is free to the program already. */
MISUSE(freed_twice_while_it_waits, CENOTE_DOUBLE_FREE, "waits for the streams")
{
    struct held held;
    REQUIRE(held_take(&held, s->scene.pool, 3 * MIB, s->scene.stream[A]));
    order(s->scene.stream[A], s->scene.stream[B]);
    held_linger(&held, s->scene.stream[B]);
    DONE(cenote_use(held.at, s->scene.stream[B]));
    DONE(cenote_free(held.at));
    EXPECT_EQ(scene_stats(s->scene.pool).pending_blocks, 1);
    EXPECT_EQ(cenote_use(held.at, s->scene.stream[C]), CENOTE_DOUBLE_FREE);
    s->named = held.at;
    return cenote_free(held.at);
}

MISUSE(small_one_freed_twice_while_it_waits, CENOTE_DOUBLE_FREE, "waits for the streams")
{
    struct held held;
    REQUIRE(held_take(&held, s->scene.pool, 700, s->scene.stream[A]));
    order(s->scene.stream[A], s->scene.stream[B]);
    held_linger(&held, s->scene.stream[B]);
    DONE(cenote_use(held.at, s->scene.stream[B]));
    DONE(cenote_free(held.at));
    s->named = held.at;
    return cenote_free(held.at);
}

/* The address has a new owner: the stale free takes it from the new owner, which cenote cannot detect; the owner's own free is an error. */
MISUSE(freed_later_when_the_address_is_another_blocks, CENOTE_DOUBLE_FREE, "freed already")
{
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    char *next = block_of(s, 3 * MIB);
    EXPECT_EQ(next, block);
    DONE(cenote_free(block));
    s->named = next;
    return cenote_free(next);
}

MISUSE(freed_later_when_the_address_is_inside_another_block, CENOTE_INTERIOR, "give its start")
{
    char *first = block_of(s, 5 * MIB), *second = block_of(s, 5 * MIB);
    DONE(cenote_free(first));
    DONE(cenote_free(second));
    char *both = block_of(s, 10 * MIB), *low = first < second ? first : second, *high = first < second ? second : first;
    EXPECT_EQ(both, low);
    s->named = both;
    int error = cenote_free(high);
    DONE(cenote_free(both));
    return error;
}

MISUSE(freed_again_after_a_trim, CENOTE_NOT_OURS, "stale pointer")
{
    void *block;
    DONE(cenote_alloc(s->scene.pool, 9 * MIB, s->scene.stream[C], &block)); /* an arena of its own, whose region goes with it */
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    s->named = block;
    return cenote_free(block);
}

MISUSE(used_after_its_free, CENOTE_DOUBLE_FREE, "freed already")
{
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_use(block, s->scene.stream[B]);
}

/* ------------------------------------------------------------------------------------------------------------------ not a block's start */

MISUSE(pointers_of_others, CENOTE_NOT_OURS, "look for another allocator's memory")
{
    static char ours_not;
    CUdeviceptr driver_block;
    cenote_block found;
    int error = CENOTE_OK;
    DONE(cuMemAlloc(&driver_block, MIB));
    void *const foreign[] = {&ours_not, s, (void *)(uintptr_t)driver_block, (void *)512, (void *)((uintptr_t)1 << 46), (void *)UINTPTR_MAX};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        EXPECT_EQ(cenote_free_sized(foreign[i], 512), CENOTE_NOT_OURS);
        EXPECT_EQ(cenote_free_on(foreign[i], s->scene.stream[B]), CENOTE_NOT_OURS);
        EXPECT_EQ(cenote_use(foreign[i], s->scene.stream[B]), CENOTE_NOT_OURS);
        EXPECT_EQ(cenote_find(foreign[i], &found), CENOTE_NOT_OURS);
        EXPECT_EQ(cenote_pin(foreign[i], 512), CENOTE_NOT_OURS);
        EXPECT_EQ(cenote_unpin(foreign[i], 512), CENOTE_NOT_OURS);
        s->named = foreign[i];
        EXPECT_EQ(error = cenote_free(foreign[i]), CENOTE_NOT_OURS);
    }
    DONE(cuMemFree(driver_block));
    return error;
}

MISUSE(pointers_inside, CENOTE_INTERIOR, "give its start")
{
    static const size_t sizes[] = {1500, 20 * KIB, 5 * MIB};
    int error = CENOTE_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t offsets[] = {1, 8, 511, 512, 1024, sizes[i] - 1};
        struct held held;
        REQUIRE(held_take(&held, s->scene.pool, sizes[i], s->scene.stream[A]));
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            EXPECT_EQ(cenote_free_sized(held.at + offsets[o], sizes[i]), CENOTE_INTERIOR);
            EXPECT_EQ(error = cenote_free(held.at + offsets[o]), CENOTE_INTERIOR);
        }
        s->named = held.at;
        held_give(&held);
    }
    return error;
}

/* What a block of 100 bytes was rounded up to is not the program's, but it is inside. */
MISUSE(pointer_into_the_rounding, CENOTE_INTERIOR, "give its start")
{
    char *block = block_of(s, 100);
    s->named = block;
    int error = cenote_free(block + 300);
    DONE(cenote_free(block));
    return error;
}

MISUSE(misaligned_pointer_into_free_memory, CENOTE_DOUBLE_FREE, "freed already")
{
    char *block = block_of(s, 5 * MIB), *behind = block_of(s, MIB);
    DONE(cenote_free(block));
    s->named = block + 4097;
    int error = cenote_free(block + 4097);
    DONE(cenote_free(behind));
    return error;
}

/* Free memory of the pool, where no block ever began: what was there before, if anything, is not known. */
MISUSE(pointer_behind_the_last_block, CENOTE_DOUBLE_FREE, "or is no block's")
{
    char *last = block_of(s, 7 * MIB);
    s->named = last + 8 * MIB;
    int error = cenote_free(last + 8 * MIB);
    DONE(cenote_free(last));
    return error;
}

MISUSE(used_by_an_interior_pointer, CENOTE_INTERIOR, "give its start")
{
    s->named = s->live[0].at;
    return cenote_use(s->live[0].at + 512, s->scene.stream[B]);
}

/* After its pool is gone a pointer belongs to no pool, also if the address is in use again by another pool. */
MISUSE(stale_after_its_pool, CENOTE_NOT_OURS, "stale pointer")
{
    cenote_pool *pool = pool_of(s);
    void *stale[3];
    for (int i = 0; i < 3; i++)
        DONE(cenote_alloc(pool, MIB << i, s->scene.stream[A], &stale[i]));
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(stale[i]));
    DONE(cenote_pool_destroy(pool));
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cenote_free(stale[i]), CENOTE_NOT_OURS);
    pool = pool_of(s);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cenote_free(stale[i]), CENOTE_NOT_OURS);
    DONE(cenote_pool_destroy(pool));
    s->named = stale[2];
    return cenote_free(stale[2]);
}

/* ------------------------------------------------------------------------------------------------------------------------ wrong size */

MISUSE(sizes_that_are_wrong, CENOTE_WRONG_SIZE, "give that size, or call cenote_free")
{
    static const size_t sizes[] = {1,        7,        8,           511,     512,     513,         1023,        1024,    1025,        4095,
                                   4096,     4097,     32 * KIB - 1, 32 * KIB, 32 * KIB + 1, MIB - 1, MIB,     MIB + 1, 2 * MIB - 1, 2 * MIB,
                                   2 * MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 6 * MIB + 511};
    int error = CENOTE_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct held held;
        REQUIRE(held_take(&held, s->scene.pool, sizes[i], s->scene.stream[A]));
        EXPECT_EQ(cenote_free_sized(held.at, sizes[i] + 1), CENOTE_WRONG_SIZE);
        EXPECT_EQ(cenote_free_sized(held.at, SIZE_MAX), CENOTE_WRONG_SIZE);
        s->named = held.at;
        EXPECT_EQ(error = cenote_free_sized(held.at, sizes[i] - 1), CENOTE_WRONG_SIZE);
        held_expect(&held, s->scene.stream[A]);
        DONE(cenote_free_sized(held.at, sizes[i]));
    }
    return error;
}

/* ----------------------------------------------------------------------------------------------------------------------- questions */

ANSWER(found_after_its_free, CENOTE_DOUBLE_FREE, "freed already")
{
    cenote_block found;
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_find(block, &found);
}

ANSWER(found_in_others_memory, CENOTE_NOT_OURS, "not handed out by cenote")
{
    cenote_block found;
    s->named = s;
    return cenote_find(s, &found);
}

ANSWER(more_than_the_card_has, CENOTE_OUT_OF_MEMORY, " out of memory.")
{
    void *block;
    return cenote_alloc(s->scene.pool, GIB, s->scene.stream[A], &block);
}

ANSWER(a_card_that_is_full, CENOTE_OUT_OF_MEMORY, " out of memory.")
{
    static struct hoard hoard;
    hoard_take(&hoard, s->scene.pool, 2 * MIB, s->scene.stream[A]);
    hoard_give(&hoard);
    return hoard.bytes >= 50 * MIB ? CENOTE_OUT_OF_MEMORY : CENOTE_OK;
}

ANSWER(a_driver_that_refuses, CENOTE_DRIVER, "CUDA_ERROR_")
{
    void *block;
    fault_arm("cuMemMap", 1, CUDA_ERROR_INVALID_VALUE, false);
    int error = cenote_alloc(s->scene.pool, 20 * MIB, s->scene.stream[C], &block);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    return error;
}

/* ------------------------------------------------------------------------------------------------------------- pins, kinds, places */

MISUSE(pinned_after_its_free, CENOTE_NOT_OURS, "live blocks")
{
    void *block;
    DONE(cenote_alloc(s->scene.pool, 9 * MIB, s->scene.stream[C], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    s->named = block;
    return cenote_pin(block, 512);
}

MISUSE(pinned_with_no_bytes, CENOTE_NOT_OURS, "0 bytes at")
{
    s->named = s->live[0].at;
    return cenote_pin(s->live[0].at, 0);
}

MISUSE(pinned_beyond_the_pool, CENOTE_NOT_OURS, "not within memory of one pool")
{
    s->named = s->live[0].at;
    EXPECT_EQ(cenote_pin(s->live[0].at, SIZE_MAX), CENOTE_NOT_OURS);
    return cenote_pin(s->live[0].at, (size_t)1 << 62);
}

MISUSE(pinned_where_nothing_is_mapped, CENOTE_INVALID, "pin live blocks")
{
    s->named = s->live[0].at;
    return cenote_pin(s->live[0].at, 40 * MIB);
}

MISUSE(unpinned_without_a_pin, CENOTE_INVALID, "once for each pin")
{
    s->named = s->live[0].at;
    return cenote_unpin(s->live[0].at, s->live[0].bytes);
}

MISUSE(unpinned_twice, CENOTE_INVALID, "once for each pin")
{
    DONE(cenote_pin(s->live[0].at, s->live[0].bytes));
    DONE(cenote_unpin(s->live[0].at, s->live[0].bytes));
    s->named = s->live[0].at;
    return cenote_unpin(s->live[0].at, s->live[0].bytes);
}

MISUSE(no_such_kind, CENOTE_INVALID, "a kind from 0 to")
{
    EXPECT_EQ(cenote_block_set_kind(s->live[0].at, -1), CENOTE_INVALID);
    return cenote_block_set_kind(s->live[0].at, CENOTE_KINDS);
}

MISUSE(the_kind_of_a_freed_block, CENOTE_NOT_OURS, "no live block")
{
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_block_set_kind(block, CENOTE_KIND_GRADIENTS);
}

MISUSE(a_place_that_no_block_has, CENOTE_INVALID, "address that an earlier block had")
{
    s->named = s->live[0].at + 100;
    EXPECT_EQ(alloc_at(s->scene.pool, NULL, s->live[0].at, 0, s->scene.stream[A]), CENOTE_INVALID);
    return alloc_at(s->scene.pool, NULL, s->live[0].at + 100, 512, s->scene.stream[A]);
}

MISUSE(a_place_in_another_pools_group, CENOTE_INVALID, "is of another pool: give its own, or NULL")
{
    cenote_pool *pool = pool_of(s);
    cenote_group *group = group_of(s, 0);
    int error = alloc_at(pool, group, s->live[0].at, 512, s->scene.stream[A]);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(pool));
    return error;
}

ANSWER(a_place_that_is_taken, CENOTE_INVALID, "not free memory of this stream and group")
{
    return alloc_at(s->scene.pool, NULL, s->live[0].at, 3 * MIB, s->scene.stream[A]);
}

/* -------------------------------------------------------------------------------------------------------------------------- shares */

MISUSE(exported_after_its_free, CENOTE_DOUBLE_FREE, "freed already")
{
    cenote_share share;
    char *block = block_of(s, 3 * MIB);
    DONE(cenote_free(block));
    s->named = block;
    return cenote_export(block, &share);
}

MISUSE(exported_though_it_is_anothers, CENOTE_NOT_OURS, "not handed out by cenote")
{
    cenote_share share;
    s->named = s;
    return cenote_export(s, &share);
}

ANSWER(a_share_that_came_damaged, CENOTE_INVALID, "damaged on its way")
{
    cenote_share share;
    void *there;
    DONE(cenote_export(s->live[0].at, &share));
    share.words[3] ^= 1;
    EXPECT_EQ(cenote_import(&share, 7, 0, &there), CENOTE_INVALID);
    return cenote_import(&share, sizeof share, 0, &there);
}

MISUSE(an_import_closed_twice, CENOTE_NOT_OURS, "close each import once")
{
    cenote_share share;
    void *there = NULL;
    DONE(cenote_export(s->live[0].at, &share));
    DONE(cenote_import(&share, sizeof share, 0, &there));
    DONE(cenote_import_close(there));
    s->named = there;
    return cenote_import_close(there);
}

MISUSE(an_import_that_is_freed, CENOTE_NOT_OURS, "not handed out by cenote")
{
    cenote_share share;
    void *there = NULL;
    DONE(cenote_export(s->live[0].at, &share));
    DONE(cenote_import(&share, sizeof share, 0, &there));
    s->named = there;
    int error = cenote_free(there);
    DONE(cenote_import_close(there));
    return error;
}
