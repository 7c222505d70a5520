/*
 * test_blocks.c: taking and giving blocks: sizes, alignments, what is found where.
 * Not: what a program can do wrong with a pointer (tests/death/), streams and their order (tests/hazard/), other providers (test_providers.c).
 */
#include "tests/api/scene.h"
#include "driver/driver.h"

#include <stdio.h>

static const size_t edges[] = {1,           7,           8,           511,          512,           513,         1023,        1024,
                               1025,        4095,        4096,        4097,         32 * KIB - 1,  32 * KIB,    32 * KIB + 1, MIB - 1,
                               MIB,         MIB + 1,     2 * MIB - 1, 2 * MIB,      2 * MIB + 1,   4 * MIB - 1, 4 * MIB,     4 * MIB + 1,
                               6 * MIB + 511};
#define EDGES ((int)(sizeof edges / sizeof edges[0]))

CASE(sizes_at_the_edges)
{
    struct scene scene;
    struct held held[EDGES];
    scene_open(&scene, 64 * MIB);

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < EDGES; i++) {
            REQUIRE(held_take(&held[i], scene.pool, edges[i], scene.stream[A]));
            EXPECT_EQ((uintptr_t)held[i].at % 512, 0);
            for (int j = 0; j < i; j++)
                EXPECT(!held_overlap(&held[i], &held[j]));
        }
        for (int i = round % 2; i < EDGES; i += 2)
            held_give(&held[i]);
        for (int i = 1 - round % 2; i < EDGES; i += 2)
            held_give(&held[i]);
    }
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 0);
    scene_close(&scene);
}

CASE(nothing_asked_nothing_given)
{
    struct scene scene;
    void *block = &scene;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_alloc(scene.pool, 0, scene.stream[A], &block));
    EXPECT(!block);
    DONE(alloc_aligned(scene.pool, 0, 4096, scene.stream[A], &block));
    EXPECT(!block);
    DONE(cenote_free(NULL));
    DONE(cenote_free_sized(NULL, 0));
    EXPECT_EQ(cenote_free_sized(NULL, 5), CENOTE_WRONG_SIZE);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* Sizes that no card has, up to those whose rounding would overflow: the answer is always the same. */
CASE(sizes_nobody_has)
{
    static const size_t huge[] = {65 * MIB, GIB, (size_t)1 << 40, (size_t)1 << 47, (size_t)1 << 48, ((size_t)1 << 63) - 1,
                                  (size_t)1 << 63, ((size_t)1 << 63) + 1, SIZE_MAX - 4 * MIB, SIZE_MAX - 512, SIZE_MAX - 1, SIZE_MAX};
    struct scene scene;
    struct held held;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));

    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        void *block = &scene;
        EXPECT_EQ(cenote_alloc(scene.pool, huge[i], scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
        EXPECT_EQ(block, &scene); /* results are set only on success */
        EXPECT(strstr(cenote_message(), " out of memory."));
        EXPECT_EQ(alloc_aligned(scene.pool, huge[i], 2 * MIB, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
        DONE(cenote_pool_check(scene.pool));
    }
    EXPECT(scene_stats(scene.pool).ooms > 0);
    held_give(&held);
    scene_close(&scene);
}

CASE(every_alignment_up_to_the_page)
{
    static const size_t sizes[] = {1, 512, 5000, 40 * KIB, 700 * KIB, 3 * MIB};
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct held held[22];
        for (int i = 0; i < 22; i++) {
            size_t alignment = (size_t)1 << i;
            void *block = NULL;
            DONE(alloc_aligned(scene.pool, sizes[s], alignment, scene.stream[A], &block));
            REQUIRE(block);
            EXPECT_EQ((uintptr_t)block % (alignment < 512 ? 512 : alignment), 0);
            held[i] = held_of(block, sizes[s], scene.stream[A]);
            if (i % 3 == 2) /* holes between them, so that later ones have to look for their place */
                held_give(&held[i - 1]);
        }
        for (int i = 0; i < 22; i++)
            if (i % 3 != 1)
                held_give(&held[i]);
        DONE(cenote_pool_check(scene.pool));
    }
    scene_close(&scene);
}

CASE(alignments_that_are_none)
{
    static const size_t wrong[] = {3,       5,       513,     768,      2 * MIB - 1, 2 * MIB + 512,
                                   3 * MIB, 4 * MIB, 6 * MIB, GIB + 1, 64 * GIB, SIZE_MAX / 2 + 1, SIZE_MAX};
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        void *block = &scene;
        char text[32];
        snprintf(text, sizeof text, "%zu", wrong[i]);
        EXPECT_EQ(alloc_aligned(scene.pool, 4096, wrong[i], scene.stream[A], &block), CENOTE_INVALID);
        EXPECT(strstr(cenote_message(), text));
        EXPECT_EQ(block, &scene);
    }
    scene_close(&scene);
}

/* The block freed last lies as it was until a thread looks for free memory; no answer shows it. */
CASE(the_same_again)
{
    struct scene scene;
    void *a, *b, *again;
    cenote_block found;
    scene_open(&scene, 256 * MIB);
    REQUIRE_EQ(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &a), CENOTE_OK);
    REQUIRE_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &b), CENOTE_OK);
    uint64_t active = scene_stats(scene.pool).active.current;
    REQUIRE_EQ(cenote_free(a), CENOTE_OK);
    EXPECT_EQ(scene_stats(scene.pool).active.current, active - 3 * MIB);
    REQUIRE_EQ(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &again), CENOTE_OK);
    EXPECT_EQ(again, a);
    REQUIRE_EQ(cenote_free(a), CENOTE_OK);
    EXPECT_EQ(cenote_free(a), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_find(NULL, &found), CENOTE_INVALID);
    EXPECT_EQ(cenote_find(a, &found), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_find((char *)a + 512, &found), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_use(a, scene.stream[B]), CENOTE_DOUBLE_FREE);
    REQUIRE_EQ(cenote_alloc(scene.pool, 3 * MIB - 511, scene.stream[A], &again), CENOTE_OK); /* as large in its heap, but another request */
    EXPECT_EQ(again, a);
    REQUIRE_EQ(cenote_find(again, &found), CENOTE_OK);
    EXPECT_EQ(found.requested, 3 * MIB - 511);
    REQUIRE_EQ(cenote_free(again), CENOTE_OK);
    REQUIRE_EQ(cenote_alloc(scene.pool, 3 * MIB, scene.stream[B], &again), CENOTE_OK); /* the device may still be at work on it */
    EXPECT(again != a);
    REQUIRE_EQ(cenote_free(again), CENOTE_OK);
    REQUIRE_EQ(cenote_free(b), CENOTE_OK);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT), CENOTE_OK);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* What was freed last is handed out again at once only where a search would end there, too. */
CASE(freed_last_is_not_preferred)
{
    struct scene scene;
    struct held first, second, tight, wall[3], next;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&first, scene.pool, 5 * MIB, scene.stream[A]));
    REQUIRE(held_take(&wall[0], scene.pool, MIB, scene.stream[A]));
    REQUIRE(held_take(&second, scene.pool, 5 * MIB, scene.stream[A]));
    REQUIRE(held_take(&wall[1], scene.pool, MIB, scene.stream[A]));
    REQUIRE(held_take(&tight, scene.pool, 3 * MIB, scene.stream[A]));
    REQUIRE(held_take(&wall[2], scene.pool, MIB, scene.stream[A]));
    held_give(&first);
    held_give(&second);
    REQUIRE(held_take(&next, scene.pool, 5 * MIB, scene.stream[A]));
    EXPECT_EQ(next.at, first.at); /* of equal ranges the lower one */
    held_give(&next);
    held_give(&tight);
    held_give(&wall[1]); /* between two free ranges: what is left of it is no block any more */
    REQUIRE(held_take(&next, scene.pool, MIB, scene.stream[A]));
    EXPECT_EQ(next.at, first.at); /* 5 MiB fit better than 9 */
    held_give(&next);
    held_give(&wall[0]);
    held_give(&wall[2]);
    scene_close(&scene);
}

/*
 * In front of a place that has all it needs lie slots that are in flight. Whether the device is done with those by now is asked now and then,
 * the more rarely the more often in vain, but not never again.
 */
CASE(a_place_in_flight_is_asked_for_now_and_then)
{
    struct scene scene;
    struct held hole, behind, kept, wide;
    void *block;
    scene_open(&scene, 64 * MIB);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&hole, scene.pool, 6 * MIB, scene.stream[A]));
    REQUIRE(held_take(&behind, scene.pool, 2 * MIB, scene.stream[A]));
    REQUIRE(held_take(&kept, scene.pool, 2 * MIB, scene.stream[A]));
    held_give(&hole);
    REQUIRE(held_take(&wide, scene.pool, 10 * MIB, scene.stream[A])); /* takes the pages of the hole along */
    held_give(&behind);
    uint64_t before = scene_stats(scene.pool).slow_allocs;
    for (int i = 0; i < 40; i++) {
        DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &block));
        EXPECT_EQ(block, behind.at);
        DONE(cenote_free(block));
    }
    uint64_t asked = scene_stats(scene.pool).slow_allocs - before;
    EXPECT(asked >= 3 && asked <= 8);
    held_give(&kept);
    held_give(&wide);
    scene_close(&scene);
}

CASE(found_by_any_address)
{
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    for (int i = 0; i < EDGES; i++) {
        struct held held;
        cenote_block found;
        unsigned long long stream_id;
        REQUIRE(held_take(&held, scene.pool, edges[i], scene.stream[B]));
        const size_t offsets[] = {0, edges[i] / 2, edges[i] - 1};
        for (int o = 0; o < 3; o++) {
            memset(&found, 0xff, sizeof found);
            DONE(cenote_find(held.at + offsets[o], &found));
            EXPECT_EQ(found.start, held.at);
            EXPECT_EQ(found.requested, edges[i]);
            EXPECT(found.size >= edges[i] && found.size % 512 == 0);
            EXPECT_EQ(found.pool, scene.pool);
            EXPECT(!found.group);
            DONE(cuStreamGetId(scene.stream[B], &stream_id));
            EXPECT_EQ(found.stream_id, stream_id);
        }
        char *freed = held.at;
        held_give(&held);
        EXPECT(cenote_find(freed, &found) != CENOTE_OK);
    }
    scene_close(&scene);
}

/* Errors have a name and a meaning; the message belongs to the thread and stays until its next failure. */
/* Freed by mistake, in every state that memory can be in, told by any address of it. */
CASE(addresses_of_no_live_block)
{
    struct scene scene;
    struct held held, waits;
    scene_open(&scene, 64 * MIB);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    REQUIRE(held_take(&waits, scene.pool, 3 * MIB, scene.stream[A]));
    EXPECT_EQ(cenote_free(held.at + 40 * MIB), CENOTE_NOT_OURS); /* of this pool's addresses, and nothing was ever there */
    DONE(cenote_use(waits.at, scene.stream[B]));
    held_give(&waits);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    EXPECT_EQ(cenote_free(waits.at + 700), CENOTE_DOUBLE_FREE);
    EXPECT(strstr(cenote_message(), "waits for the streams") != NULL);
    held_give(&held);
    scene_close(&scene);
}

/* The block that was freed last, asked for at its address. */
CASE(put_back_at_once)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    held_give(&held);
    DONE(alloc_at(scene.pool, NULL, held.at, 3 * MIB, scene.stream[A]));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
    held = held_of(held.at, 3 * MIB, scene.stream[A]);
    held_give(&held);
    scene_close(&scene);
}

/* The driver refuses pages for the place and does not say beforehand that it has none: the place itself is no more in flight than before. */
CASE(put_back_where_pages_come_late)
{
    struct scene scene;
    struct held first, other, back;
    scene_open(&scene, 64 * MIB);
    sim_set_lag(MSEC);
    REQUIRE(held_take(&first, scene.pool, 20 * MIB, scene.stream[A]));
    held_give(&first);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* the device is done with it, and the pool knows */
    REQUIRE(held_take(&other, scene.pool, 50 * MIB, scene.stream[B]));
    held_give(&other);
    fault_arm("cuMemGetInfo", 1, CUDA_ERROR_UNKNOWN, true);
    DONE(alloc_at(scene.pool, NULL, first.at, 20 * MIB, scene.stream[A]));
    fault_disarm();
    back = held_of(first.at, 20 * MIB, scene.stream[A]);
    held_give(&back);
    scene_close(&scene);
}

CASE(errors_in_words)
{
    char kept[512];
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    EXPECT_TEXT_EQ(cenote_error_name(CENOTE_OUT_OF_MEMORY), "CENOTE_OUT_OF_MEMORY");
    EXPECT_TEXT_EQ(cenote_error_text(CENOTE_DOUBLE_FREE), "the block is free already");
    EXPECT(cenote_error_name(12345));
    EXPECT(cenote_error_text(-1));
    EXPECT(cenote_version() >= CENOTE_VERSION);

    EXPECT_EQ(cenote_free(&scene), CENOTE_NOT_OURS);
    snprintf(kept, sizeof kept, "%s", cenote_message());
    EXPECT(kept[0] != 0);
    DONE(cenote_free(NULL));
    EXPECT(!strncmp(cenote_message(), kept, sizeof kept - 1));
    scene_close(&scene);
}

static const struct driver *below;
static struct driver above;
static bool looks;
static int found_early, looked; /* what a look at a page's addresses says while the page is being mapped */

static CUresult map_and_look(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle page, unsigned long long flags)
{
    cenote_block block;
    for (size_t from = 0; looks && from < bytes; from += 512 * KIB) {
        found_early += cenote_find((char *)(uintptr_t)at + from, &block) == CENOTE_OK;
        looked++;
    }
    return below->cuMemMap(at, bytes, offset, page, flags);
}

static const struct driver *looks_while_it_maps(const struct driver *inner)
{
    below = inner;
    above = *inner;
    above.cuMemMap = map_and_look;
    return &above;
}

/* The program has not been given it. */
CASE(a_block_that_waits_for_its_pages_is_not_found)
{
    struct scene scene;
    struct held held;
    driver_interpose(looks_while_it_maps);
    looks = true;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 7 * MIB, scene.stream[A]));
    looks = false;
    EXPECT(looked > 0);
    EXPECT_EQ(found_early, 0);
    cenote_block block;
    DONE(cenote_find(held.at + 4 * MIB, &block));
    EXPECT_EQ(block.start, held.at);
    held_give(&held);
    scene_close(&scene);
}

SCENES_MAIN("api: blocks")
