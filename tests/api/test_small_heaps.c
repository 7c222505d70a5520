/*
 * test_small_heaps.c: while blocks hold much more memory than they are, small ones go to heaps of their own, where they hold no page each. A pool
 * that does not waste keeps its layout. Pages here have 2 MiB: blocks of up to 128 KiB and of up to 1 MiB are small.
 */
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

#define SETS 3

/*
 * Three times the pairs. What stays is no small block, and larger than the holes of the sets before: the pool wastes memory from then on, and its
 * heaps for small blocks are empty.
 */
static void make_it_waste(struct scene *scene, struct pairs p[SETS], size_t times)
{
    for (size_t i = 0; i < SETS; i++)
        take_pairs(scene, &p[i], times * (900 + 75 * i) * KIB, times * 1100 * KIB);
}

static void give_sets(struct pairs p[SETS])
{
    for (int i = 0; i < SETS; i++)
        give_small(&p[i]);
}

static uint64_t apart(const struct held *a, const struct held *b)
{
    uint64_t x = (uint64_t)(uintptr_t)a->at, y = (uint64_t)(uintptr_t)b->at;
    return x < y ? y - x : x - y;
}

CASE(small_blocks_lie_beside_large_ones_in_a_pool_that_does_not_waste)
{
    static struct pairs p;
    struct scene scene;
    scene_open(&scene, CARD);
    take_pairs(&scene, &p, LARGE, SMALL);
    for (int i = 1; i < PAIRS; i++)
        EXPECT(apart(&p.small[i - 1], &p.small[i]) >= LARGE);
    give_small(&p);
    scene_close(&scene);
}

CASE(in_a_pool_that_wastes_small_blocks_lie_together_and_hold_few_pages)
{
    static struct pairs p[SETS], more[3];
    struct scene scene;
    scene_open(&scene, CARD);
    make_it_waste(&scene, p, 1);
    uint64_t before = reserved(&scene);
    for (int i = 0; i < 3; i++)
        take_pairs(&scene, &more[i], LARGE + (size_t)(i + 2) * 64 * KIB, SMALL);
    for (int i = 1; i < PAIRS; i++)
        EXPECT(apart(&more[2].small[i - 1], &more[2].small[i]) <= 2 * SMALL);
    EXPECT(reserved(&scene) <= before + PAIRS * (LARGE + 5 * 64 * KIB) / 4 * 5); /* one set of large blocks more, not three */
    for (int i = 0; i < 3; i++)
        give_small(&more[i]);
    give_sets(p);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    scene_close(&scene);
}

CASE(each_size_of_small_blocks_has_a_heap)
{
    static struct pairs p[SETS];
    struct scene scene;
    struct held large, middle[2], small[2], item[2];
    scene_open(&scene, CARD);
    make_it_waste(&scene, p, 1);
    REQUIRE(held_take(&large, scene.pool, 1025 * KIB, scene.stream[A])); /* no small one */
    for (int i = 0; i < 2; i++) {
        REQUIRE(held_take(&middle[i], scene.pool, MIDDLE, scene.stream[A]));
        REQUIRE(held_take(&small[i], scene.pool, 128 * KIB, scene.stream[A]));
        REQUIRE(held_take(&item[i], scene.pool, 2000, scene.stream[A]));
    }
    EXPECT_EQ(apart(&middle[0], &middle[1]), MIDDLE);
    EXPECT(apart(&small[0], &small[1]) <= 256 * KIB); /* a slab may lie between the two */
    EXPECT(apart(&small[0], &middle[0]) >= 128 * MIB);
    EXPECT(apart(&large, &middle[0]) >= 64 * MIB);
    EXPECT(apart(&small[0], &item[1]) <= MIB);
    held_give(&large);
    for (int i = 0; i < 2; i++) {
        held_give(&middle[i]);
        held_give(&small[i]);
        held_give(&item[i]);
    }
    give_sets(p);
    scene_close(&scene);
}

CASE(a_small_block_comes_back_to_its_address)
{
    static struct pairs p[SETS];
    struct scene scene;
    struct held a, b;
    scene_open(&scene, CARD);
    make_it_waste(&scene, p, 1);
    REQUIRE(held_take(&a, scene.pool, MIDDLE, scene.stream[A]));
    REQUIRE(held_take(&b, scene.pool, MIDDLE, scene.stream[A]));
    void *at = a.at;
    held_give(&a);
    REQUIRE(held_take(&a, scene.pool, MIDDLE, scene.stream[A])); /* the block that was freed last */
    EXPECT(a.at == at);
    held_give(&a);
    held_give(&b);
    DONE(cenote_alloc_at(scene.pool, NULL, at, MIDDLE, (cenote_stream)scene.stream[A]));
    cenote_block block;
    DONE(cenote_find((char *)at + 5, &block));
    EXPECT(block.start == at);
    DONE(cenote_free(at));
    give_sets(p);
    scene_close(&scene);
}

CASE(large_blocks_do_not_take_the_place_of_small_ones_that_were_freed_last)
{
    static struct pairs p[SETS];
    struct scene scene;
    struct held before, after;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&before, scene.pool, MIDDLE, scene.stream[A]));
    make_it_waste(&scene, p, 1);
    void *at = before.at;
    held_give(&before);
    REQUIRE(held_take(&after, scene.pool, MIDDLE, scene.stream[A])); /* its size has a heap of its own now */
    EXPECT(after.at != at);
    held_give(&after);
    give_sets(p);
    scene_close(&scene);
}

CASE(private_groups_and_whole_pages_have_no_heaps_for_small_blocks)
{
    static struct pairs p[SETS];
    struct scene scene;
    cenote_group *group[2];
    void *large[2], *small[2];
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "private", CENOTE_GROUP_PRIVATE, NULL, &group[0]));
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group[1]));
    make_it_waste(&scene, p, 1);
    for (int i = 0; i < 2; i++) {
        DONE(cenote_group_alloc(group[i], LARGE, 512, (cenote_stream)scene.stream[A], &large[i]));
        DONE(cenote_group_alloc(group[i], MIDDLE, 512, (cenote_stream)scene.stream[A], &small[i]));
        uint64_t between = (uint64_t)(uintptr_t)small[i] - (uint64_t)(uintptr_t)large[i];
        EXPECT_EQ(between, i ? 2 * MIB : LARGE);
        DONE(cenote_free(large[i]));
        DONE(cenote_free(small[i]));
        DONE(cenote_group_destroy(group[i]));
    }
    give_sets(p);
    scene_close(&scene);
}

/* What is free in the pages of small blocks serves others before an allocation fails. */
CASE(if_memory_is_short_a_block_goes_to_any_heap)
{
    static struct pairs p[SETS];
    struct scene scene;
    static void *filling[8192];
    struct held small[10], rest;
    size_t count = 0, beside = 0;
    scene_open(&scene, CARD);
    make_it_waste(&scene, p, 1);
    for (int i = 0; i < 10; i++)
        REQUIRE(held_take(&small[i], scene.pool, 100 * KIB, scene.stream[A]));
    for (int i = 1; i < 9; i++)
        held_give(&small[i]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&rest, scene.pool, CARD - reserved(&scene), scene.stream[A]));
    while (count < 8192 && cenote_alloc(scene.pool, 130 * KIB, (cenote_stream)scene.stream[A], &filling[count]) == CENOTE_OK) {
        struct held block = {.at = filling[count++]};
        beside += apart(&block, &small[0]) < MIB;
    }
    EXPECT(beside > 0); /* blocks of the heap in the middle: no page was left, but a hole beside the small ones */
    EXPECT(count < 8192);
    while (count)
        DONE(cenote_free(filling[--count]));
    held_give(&rest);
    held_give(&small[0]);
    held_give(&small[9]);
    give_sets(p);
    scene_close(&scene);
}

/* ---------------------------------------------------------------------------------------------------------------- pages of two sizes */

/*
 * Pages of 8 MiB, and of 2 MiB for small blocks: of up to 512 KiB and of up to 4 MiB. A quarter of the card may be live. The pool wastes, and 256 MiB
 * of its large pages are free.
 */
static void open_two_sizes(struct scene *scene, struct pairs p[SETS], uint64_t limit)
{
    struct sim_shape shape = scene_card(4 * CARD);
    cenote_options options = scene_options();
    shape.charge_cost = true;
    strcpy(shape.prices, "contended");
    options.page_mib = 8;
    options.harvest_budget = 0.01;
    options.limit = limit;
    scene_open_with(scene, &shape, &options);
    make_it_waste(scene, p, 4);
    struct held large;
    REQUIRE(held_take(&large, scene->pool, 256 * MIB, scene->stream[A]));
    held_give(&large);
    DONE(cuCtxSynchronize());
}

static void close_two_sizes(struct scene *scene, struct pairs p[SETS])
{
    give_sets(p);
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(scene), 0);
    scene_close(scene);
}

#define MIDDLES 60
#define ROUNDS  4000   /* the budget is used up after 1,500 */
#define FOURS   30

static void take_middles(struct scene *scene, struct held middle[MIDDLES])
{
    for (int i = 0; i < MIDDLES; i++)
        REQUIRE(held_take(&middle[i], scene->pool, 2 * MIB, scene->stream[A]));
}

static void give_middles(struct held middle[MIDDLES])
{
    for (int i = 0; i < MIDDLES; i++)
        held_give(&middle[i]);
}

CASE(a_small_block_holds_a_small_page)
{
    static struct pairs p[SETS];
    struct scene scene;
    struct held one;
    open_two_sizes(&scene, p, 0);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    uint64_t before = reserved(&scene);
    REQUIRE(held_take(&one, scene.pool, 2 * MIB, scene.stream[A]));
    EXPECT_EQ(reserved(&scene), before + 2 * MIB);
    held_give(&one);
    close_two_sizes(&scene, p);
}

CASE(free_pages_of_one_size_go_before_the_other_is_created)
{
    static struct pairs p[SETS];
    static struct held middle[MIDDLES];
    struct scene scene;
    struct held large;
    open_two_sizes(&scene, p, 0);
    uint64_t before = reserved(&scene);
    take_middles(&scene, middle);
    EXPECT(reserved(&scene) <= before);
    give_middles(middle);
    DONE(cuCtxSynchronize());
    before = reserved(&scene);
    REQUIRE(held_take(&large, scene.pool, 4 * GIB, scene.stream[A]));
    EXPECT(reserved(&scene) <= before + 4 * GIB - MIDDLES * 2 * MIB); /* all that was free is part of it */
    held_give(&large);
    close_two_sizes(&scene, p);
}

/*
 * Two phases take turns, one of small blocks and one of large ones. Each could create its pages in place of free ones of the other, for ever. What an
 * exchange takes is booked as moves, so that no exchange pays for the next one: soon the pool holds the pages of both.
 */
CASE(phases_of_two_sizes_do_not_exchange_their_pages_for_ever)
{
    static struct pairs p[SETS];
    struct scene scene;
    void *block[FOURS];
    uint64_t released[ROUNDS];
    open_two_sizes(&scene, p, 0);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < FOURS; k++)
            DONE(cenote_alloc(scene.pool, 4 * MIB, (cenote_stream)scene.stream[A], &block[k]));
        for (int k = 0; k < FOURS; k++)
            DONE(cenote_free(block[k]));
        DONE(cuCtxSynchronize());
        DONE(cenote_alloc(scene.pool, GIB + 7 * 8 * MIB, (cenote_stream)scene.stream[A], &block[0]));
        DONE(cenote_free(block[0]));
        DONE(cuCtxSynchronize());
        released[i] = scene_stats(scene.pool).pages_released;
    }
    EXPECT(released[ROUNDS / 10] > released[0]);
    EXPECT_EQ(released[ROUNDS - 1], released[ROUNDS / 2]);
    close_two_sizes(&scene, p);
}

/* The pool may hold no more, and what it holds is free pages of the other size. */
CASE(at_the_limit_pages_of_one_size_become_pages_of_the_other)
{
    static struct pairs p[SETS];
    static struct held middle[MIDDLES];
    struct scene scene;
    struct held rest, other;
    open_two_sizes(&scene, p, 6 * GIB);
    REQUIRE(held_take(&rest, scene.pool, 6 * GIB - reserved(&scene), scene.stream[A]));
    REQUIRE(held_take(&other, scene.pool, 4 * LARGE, scene.stream[A]));
    take_middles(&scene, middle);
    EXPECT(reserved(&scene) <= 6 * GIB);
    give_middles(middle);
    held_give(&other);
    held_give(&rest);
    REQUIRE(held_take(&rest, scene.pool, 2 * GIB, scene.stream[A]));
    EXPECT(reserved(&scene) <= 6 * GIB);
    held_give(&rest);
    close_two_sizes(&scene, p);
}

/* A capture forbids to release: the pool grows instead. */
CASE(during_a_capture_pages_of_the_other_size_stay)
{
    static struct pairs p[SETS];
    static struct held middle[MIDDLES];
    struct scene scene;
    open_two_sizes(&scene, p, 0);
    uint64_t before = reserved(&scene);
    DONE(cenote_pool_capture_begin(scene.pool, (cenote_stream)scene.stream[B]));
    take_middles(&scene, middle);
    EXPECT(reserved(&scene) >= before + MIDDLES * 2 * MIB);
    DONE(cenote_pool_capture_end(scene.pool, (cenote_stream)scene.stream[B]));
    give_middles(middle);
    close_two_sizes(&scene, p);
}

SCENES_MAIN("api: small heaps")
