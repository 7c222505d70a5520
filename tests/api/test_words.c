/*
 * test_words.c: the program's word of a block: it comes back by address, in pieces and in snapshots, and ends with the block.
 */
#include "base/memory.h"
#include "tests/api/scene.h"

static int take_with(cenote_pool *pool, size_t bytes, uint64_t word, CUstream stream, void **block)
{
    return cenote_alloc_with(pool, (&(cenote_request){.bytes = bytes, .word = word, .stream = stream}), block);
}

static uint64_t word_at(const void *address)
{
    cenote_block found;
    DONE(cenote_find(address, &found));
    return found.word;
}

/* Words of live pieces, added up. */
static uint64_t words_of_pieces(cenote_pool *pool)
{
    static cenote_piece pieces[2000];
    size_t count;
    uint64_t sum = 0;
    DONE(cenote_pool_pieces(pool, NULL, pieces, 2000, &count));
    REQUIRE(count <= 2000);
    for (size_t i = 0; i < count; i++) {
        EXPECT(pieces[i].state == CENOTE_PIECE_LIVE || !pieces[i].word);
        sum += pieces[i].word;
    }
    return sum;
}

CASE(a_word_is_given_back)
{
    struct scene scene;
    void *small, *large, *plain, *none, *aligned;
    scene_open(&scene, 64 * MIB);
    DONE(take_with(scene.pool, 700, 7, scene.stream[A], &small));
    DONE(take_with(scene.pool, 3 * MIB, UINT64_MAX, scene.stream[B], &large));
    DONE(cenote_alloc(scene.pool, 700, scene.stream[A], &plain));
    EXPECT_EQ(word_at(small), 7);
    EXPECT_EQ(word_at((char *)large + 2 * MIB), UINT64_MAX);
    EXPECT_EQ(word_at(plain), 0);
    EXPECT_EQ(words_of_pieces(scene.pool), 6); /* 7 and the largest */
    DONE(cenote_alloc_with(scene.pool, (&(cenote_request){.bytes = 100, .alignment = MIB, .word = 2, .stream = scene.stream[C]}), &aligned));
    EXPECT_EQ(word_at(aligned), 2);
    DONE(take_with(scene.pool, 0, 5, scene.stream[A], &none)); /* no block, no word */
    EXPECT(!none);
    EXPECT_EQ(words_of_pieces(scene.pool), 8);
    DONE(cenote_free(aligned));
    DONE(cenote_free(small));
    DONE(cenote_free(large));
    EXPECT_EQ(words_of_pieces(scene.pool), 0);
    DONE(cenote_free(plain));
    scene_close(&scene);
}

/* The next block at the address has none, unless it was asked for with one; a block that grows keeps its own. */
CASE(a_word_ends_with_its_block)
{
    struct scene scene;
    cenote_group *group;
    void *block, *again;
    scene_open(&scene, 64 * MIB);
    for (int i = 0; i < 3; i++) {
        size_t bytes = i == 0 ? 700 : i == 1 ? 100 * KIB : 5 * MIB;
        DONE(take_with(scene.pool, bytes, 9, scene.stream[A], &block));
        DONE(cenote_free(block));
        DONE(cenote_alloc(scene.pool, bytes, scene.stream[A], &again));
        EXPECT(again == block);
        EXPECT_EQ(word_at(again), 0);
        DONE(cenote_free(again));
        DONE(take_with(scene.pool, bytes, 10, scene.stream[A], &again));
        EXPECT_EQ(word_at(again), 10);
        DONE(cenote_use(again, scene.stream[B]));
        DONE(cenote_free(again)); /* pending: it has none any more */
        EXPECT_EQ(words_of_pieces(scene.pool), 0);
        DONE(cuCtxSynchronize());
    }
    DONE(take_with(scene.pool, 3 * MIB, 11, scene.stream[C], &block));
    DONE(cenote_extend(block, 4 * MIB));
    EXPECT_EQ(word_at(block), 11);
    DONE(cenote_free(block));
    DONE(cenote_group_create(scene.pool, "some", 0, NULL, &group));
    for (uint64_t i = 1; i <= 300; i++)
        DONE(cenote_alloc_with(NULL, (&(cenote_request){.bytes = i * 100, .group = group, .word = i, .stream = scene.stream[A]}), &block));
    EXPECT_EQ(words_of_pieces(scene.pool), 300 * 301 / 2);
    DONE(cenote_group_reset(group));
    EXPECT_EQ(words_of_pieces(scene.pool), 0);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Without host memory for the word there is no block, and nothing is left behind. */
CASE(no_host_memory_for_a_word)
{
    struct scene scene;
    void *others[2000];
    int refused = 0;
    scene_open(&scene, 64 * MIB);
    for (int i = 0; i < 2000; i++) {
        memory_fail(1, true);
        int error = take_with(scene.pool, 512, 1, scene.stream[A], &others[i]);
        memory_fail(0, false);
        EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_HOST_MEMORY);
        refused += error != CENOTE_OK;
        if (error)
            DONE(take_with(scene.pool, 512, 1, scene.stream[A], &others[i]));
    }
    EXPECT(refused > 0);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 2000);
    for (int i = 0; i < 2000; i++)
        DONE(cenote_free(others[i]));
    scene_close(&scene);
}

SCENES_MAIN("words of blocks")
