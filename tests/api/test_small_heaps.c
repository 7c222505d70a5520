/*
 * test_small_heaps.c: small blocks lie in a heap of their own, where they hold no page each. Under shortage a hole in any heap serves any block.
 * Pages here have 2 MiB, if a case does not say otherwise: blocks of up to 512 KiB are small.
 */
#include "pool/mapping/units.h"
#include "tests/api/scene.h"

#define CARD   (4 * GIB)
#define PAIRS  128
#define LARGE  (1900 * KIB)
#define SMALL  (20 * KIB)
#define MIDDLE (600 * KIB)

struct pairs {
    struct held large[PAIRS], small[PAIRS];
};

/* A small block beside each large one; the large ones go, and the small ones stay. */
static void take_pairs(struct scene *scene, struct pairs *p, size_t large, size_t small)
{
    for (int i = 0; i < PAIRS; i++) {
        REQUIRE(held_take(&p->large[i], scene->pool, large, scene->stream[A]));
        REQUIRE(held_take(&p->small[i], scene->pool, small, scene->stream[A]));
    }
    for (int i = 0; i < PAIRS; i++)
        held_give(&p->large[i]);
}

static void give_small(struct pairs *p)
{
    for (int i = 0; i < PAIRS; i++)
        held_give(&p->small[i]);
}

static uint64_t reserved(const struct scene *scene)
{
    cenote_stats stats;
    DONE(cenote_pool_stats(scene->pool, &stats));
    return stats.reserved.current;
}

static uint64_t apart(const struct held *a, const struct held *b)
{
    uint64_t x = (uint64_t)(uintptr_t)a->at, y = (uint64_t)(uintptr_t)b->at;
    return x < y ? y - x : x - y;
}

CASE(small_blocks_lie_together_and_those_of_middle_size_beside_large_ones)
{
    static struct pairs p;
    struct scene scene;
    scene_open(&scene, CARD);
    take_pairs(&scene, &p, LARGE, SMALL);
    for (int i = 1; i < PAIRS; i++)
        EXPECT_EQ(apart(&p.small[i - 1], &p.small[i]), SMALL);
    EXPECT(apart(&p.small[0], &p.large[0]) >= 64 * MIB);
    give_small(&p);
    int beside = 0;
    take_pairs(&scene, &p, 5 * MIB, MIDDLE);
    for (int i = 1; i < PAIRS; i++)
        beside += apart(&p.small[i - 1], &p.small[i]) < 5 * MIB;
    EXPECT(beside <= PAIRS / 4); /* where holes of before are as good */
    give_small(&p);
    scene_close(&scene);
}

CASE(slabs_lie_beside_large_blocks)
{
    struct scene scene;
    struct held large, item, small;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&large, scene.pool, LARGE, scene.stream[A]));
    REQUIRE(held_take(&item, scene.pool, 2000, scene.stream[A]));
    REQUIRE(held_take(&small, scene.pool, 8193, scene.stream[A])); /* the smallest that comes from no slab */
    EXPECT(apart(&large, &item) <= 2 * MIB);
    EXPECT(apart(&large, &small) >= 64 * MIB);
    held_give(&large);
    held_give(&item);
    held_give(&small);
    scene_close(&scene);
}

CASE(a_small_block_comes_back_to_its_address)
{
    struct scene scene;
    struct held a, b;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&a, scene.pool, SMALL, scene.stream[A]));
    REQUIRE(held_take(&b, scene.pool, SMALL, scene.stream[A]));
    void *at = a.at;
    held_give(&a);
    REQUIRE(held_take(&a, scene.pool, SMALL, scene.stream[A])); /* the block that was freed last */
    EXPECT(a.at == at);
    held_give(&a);
    held_give(&b);
    DONE(alloc_at(scene.pool, NULL, at, SMALL, (cenote_stream)scene.stream[A]));
    cenote_block block;
    DONE(cenote_find((char *)at + 5, &block));
    EXPECT(block.start == at);
    DONE(cenote_free(at));
    scene_close(&scene);
}

CASE(private_groups_and_whole_pages_have_no_heaps_for_small_blocks)
{
    struct scene scene;
    cenote_group *group[2];
    void *large[2], *small[2];
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "private", CENOTE_GROUP_PRIVATE, NULL, &group[0]));
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group[1]));
    for (int i = 0; i < 2; i++) {
        DONE(group_alloc(group[i], LARGE, 512, (cenote_stream)scene.stream[A], &large[i]));
        DONE(group_alloc(group[i], SMALL, 512, (cenote_stream)scene.stream[A], &small[i]));
        uint64_t between = (uint64_t)(uintptr_t)small[i] - (uint64_t)(uintptr_t)large[i];
        EXPECT_EQ(between, i ? 2 * MIB : LARGE);
        DONE(cenote_free(large[i]));
        DONE(cenote_free(small[i]));
        DONE(cenote_group_destroy(group[i]));
    }
    scene_close(&scene);
}

/* What is free in the pages of small blocks serves others before an allocation fails. */
CASE(if_memory_is_short_a_block_goes_to_any_heap)
{
    struct scene scene;
    static void *filling[8192];
    struct held small[10], rest;
    size_t count = 0, beside = 0;
    scene_open(&scene, CARD);
    for (int i = 0; i < 10; i++)
        REQUIRE(held_take(&small[i], scene.pool, 100 * KIB, scene.stream[A]));
    for (int i = 1; i < 9; i++)
        held_give(&small[i]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&rest, scene.pool, CARD - reserved(&scene), scene.stream[A]));
    while (count < 8192 && cenote_alloc(scene.pool, 520 * KIB, (cenote_stream)scene.stream[A], &filling[count]) == CENOTE_OK) {
        struct held block = {.at = filling[count++]};
        beside += apart(&block, &small[0]) < MIB;
    }
    EXPECT(beside > 0); /* no page was left, but a hole beside the small ones */
    EXPECT(count < 8192);
    while (count)
        DONE(cenote_free(filling[--count]));
    held_give(&rest);
    held_give(&small[0]);
    held_give(&small[9]);
    scene_close(&scene);
}

/* ---------------------------------------------------------------------------------------------------------------- pages of two sizes */

/* Pages of 8 MiB, and of 2 MiB for small blocks: of up to 512 KiB. 256 MiB of large pages are free. */
static void open_two_sizes(struct scene *scene, uint64_t limit)
{
    struct sim_shape shape = scene_card(4 * CARD);
    cenote_options options = scene_options();
    struct held large;
    shape.charge_cost = true;
    strcpy(shape.prices, "contended");
    units_grade_pages = 0; /* blocks that are not small have large pages from the first one on */
    options.page_mib = 8;
    options.harvest_budget = 0.01;
    options.limit = limit;
    scene_open_with(scene, &shape, &options);
    REQUIRE(held_take(&large, scene->pool, 256 * MIB, scene->stream[A]));
    held_give(&large);
    DONE(cuCtxSynchronize());
}

static void close_two_sizes(struct scene *scene)
{
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(scene), 0);
    scene_close(scene);
    units_grade_pages = GRADE_PAGES;
}

#define SMALLS 240
#define HALF   (512 * KIB)
#define FEW    60
#define ROUNDS 4000    /* the budget is used up long before */

static void take_smalls(struct scene *scene, struct held small[SMALLS])
{
    for (int i = 0; i < SMALLS; i++)
        REQUIRE(held_take(&small[i], scene->pool, HALF, scene->stream[A]));
}

static void give_smalls(struct held small[SMALLS])
{
    for (int i = 0; i < SMALLS; i++)
        held_give(&small[i]);
}

CASE(a_small_block_holds_a_small_page)
{
    struct scene scene;
    struct held one, other;
    open_two_sizes(&scene, 0);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&one, scene.pool, HALF, scene.stream[A]));
    EXPECT_EQ(reserved(&scene), 2 * MIB);
    REQUIRE(held_take(&other, scene.pool, HALF + 1, scene.stream[A]));
    EXPECT_EQ(reserved(&scene), 10 * MIB);
    held_give(&one);
    held_give(&other);
    close_two_sizes(&scene);
}

CASE(free_pages_of_one_size_go_before_the_other_is_created)
{
    static struct held small[SMALLS];
    struct scene scene;
    void *large;
    open_two_sizes(&scene, 0);
    uint64_t before = reserved(&scene);
    take_smalls(&scene, small);
    EXPECT(reserved(&scene) <= before + before / 20); /* as far as moving has taken time, the pool grows instead */
    give_smalls(small);
    DONE(cuCtxSynchronize());
    before = reserved(&scene);
    DONE(cenote_alloc(scene.pool, 4 * GIB, (cenote_stream)scene.stream[A], &large));
    EXPECT(reserved(&scene) <= before + 4 * GIB - SMALLS * HALF); /* all that was free is part of it */
    DONE(cenote_free(large));
    close_two_sizes(&scene);
}

/*
 * Two phases take turns, one of small blocks and one of large ones. Each could create its pages in place of free ones of the other, for ever. What an
 * exchange takes is booked as moves, so that no exchange pays for the next one: soon the pool holds the pages of both.
 */
CASE(phases_of_two_sizes_do_not_exchange_their_pages_for_ever)
{
    struct scene scene;
    void *block[FEW];
    uint64_t released[ROUNDS];
    open_two_sizes(&scene, 0);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < FEW; k++)
            DONE(cenote_alloc(scene.pool, HALF, (cenote_stream)scene.stream[A], &block[k]));
        for (int k = 0; k < FEW; k++)
            DONE(cenote_free(block[k]));
        DONE(cuCtxSynchronize());
        DONE(cenote_alloc(scene.pool, GIB + 7 * 8 * MIB, (cenote_stream)scene.stream[A], &block[0]));
        DONE(cenote_free(block[0]));
        DONE(cuCtxSynchronize());
        released[i] = scene_stats(scene.pool).pages_released;
    }
    EXPECT(released[ROUNDS / 10] > released[0]);
    EXPECT_EQ(released[ROUNDS - 1], released[ROUNDS / 2]);
    close_two_sizes(&scene);
}

/* A program that is a small block now and then beside large ones: its one small page costs no large page each time. */
CASE(a_few_small_blocks_cost_no_large_page_each_time)
{
    struct scene scene;
    struct held small;
    void *large;
    uint64_t before = 0;
    open_two_sizes(&scene, 0);
    for (int i = 0; i < 100; i++) {
        REQUIRE(held_take(&small, scene.pool, HALF, scene.stream[A]));
        held_give(&small);
        DONE(cenote_alloc(scene.pool, GIB, (cenote_stream)scene.stream[A], &large));
        DONE(cenote_free(large));
        DONE(cuCtxSynchronize());
        before = i == 1 ? scene_stats(scene.pool).pages_created : before;
    }
    EXPECT_EQ(scene_stats(scene.pool).pages_created, before);
    EXPECT(reserved(&scene) <= GIB + 8 * MIB);
    close_two_sizes(&scene);
}

/* The pool may hold no more, and what it holds is free pages of the other size. */
CASE(at_the_limit_pages_of_one_size_become_pages_of_the_other)
{
    static struct held small[SMALLS];
    struct scene scene;
    struct held rest, other;
    open_two_sizes(&scene, 2 * GIB);
    REQUIRE(held_take(&rest, scene.pool, 2 * GIB - SMALLS * HALF, scene.stream[A]));
    REQUIRE(held_take(&other, scene.pool, SMALLS * HALF, scene.stream[A]));
    EXPECT_EQ(reserved(&scene), 2 * GIB);
    held_give(&other);
    take_smalls(&scene, small);
    EXPECT(reserved(&scene) <= 2 * GIB);
    give_smalls(small);
    held_give(&rest);
    REQUIRE(held_take(&rest, scene.pool, 2 * GIB, scene.stream[A]));
    EXPECT(reserved(&scene) <= 2 * GIB);
    held_give(&rest);
    close_two_sizes(&scene);
}

/* A capture forbids to release: the pool grows instead. */
CASE(during_a_capture_pages_of_the_other_size_stay)
{
    static struct held small[SMALLS];
    struct scene scene;
    open_two_sizes(&scene, 0);
    uint64_t before = reserved(&scene);
    DONE(cenote_capture_begin(scene.pool, NULL, (cenote_stream)scene.stream[B]));
    take_smalls(&scene, small);
    EXPECT(reserved(&scene) >= before + SMALLS * HALF);
    DONE(cenote_capture_end(scene.pool, NULL, (cenote_stream)scene.stream[B]));
    give_smalls(small);
    close_two_sizes(&scene);
}

SCENES_MAIN("api: small heaps")
