/*
 * test_units.c: pages of two sizes in one region. A small pool has small pages, a large one large pages, and what is free is used before memory is
 * created, whatever its size. Pages here have 8 MiB, and small ones 2 MiB; SPLIT and WIDE say what idle units become. Which unit
 * turns: pool/mapping/units.c.
 */
#include "tests/api/pair.h"
#include "tests/api/units.h"

#include "driver/driver.h"

#include <pthread.h>

#define SMALL (2 * MIB)
#define LARGE (8 * MIB)

static void open_with(struct scene *scene, const char *conf) { units_open(scene, LARGE, conf); }
static uint64_t in_small_pages(const struct scene *scene) { return in_pages(scene, GRADE_SMALL); }

/* So much is free afterwards, in pages of one size, on a stream that no case takes anything else on. */
static void leave_free(struct scene *scene, uint32_t split_pages, size_t bytes)
{
    struct held held = take(scene, split_pages, bytes, C);
    give(scene, &held);
}

/* A block on half a split unit, a large page in a wide one, and a quarter of the next. */
static struct held take_mixed(struct scene *scene, struct held *first)
{
    *first = take(scene, SPLIT, LARGE / 2, A);
    struct held held = take(scene, WIDE, LARGE / 2 + LARGE + SMALL, A);
    EXPECT_EQ(held.at, first->at + first->bytes);
    EXPECT_EQ(in_small_pages(scene), LARGE);
    EXPECT_EQ(reserved(scene), 3 * LARGE);
    return held;
}

/* ------------------------------------------------------------------------------------------------------------------- which size comes */

CASE(small_pages_come_first_and_large_ones_past_the_threshold)
{
    struct scene scene;
    open_with(&scene, "");
    struct held first = take(&scene, 2, 9 * MIB, A);
    EXPECT_EQ(reserved(&scene), 10 * MIB);
    EXPECT_EQ(in_small_pages(&scene), 10 * MIB);
    struct held second = take(&scene, 2, 24 * MIB, A);
    EXPECT_EQ(in_small_pages(&scene), 16 * MIB); /* of the unit that the first block began */
    EXPECT_EQ(reserved(&scene), 16 * MIB + 24 * MIB);
    give(&scene, &first);
    give(&scene, &second);
    units_end(&scene);
}

/* Either size serves the other's units, where those map nothing. */
static void moves(uint32_t before, uint32_t after)
{
    struct scene scene;
    open_with(&scene, "");
    leave_free(&scene, before, 4 * LARGE);
    EXPECT_EQ(reserved(&scene), 4 * LARGE);
    struct held held = take(&scene, after, 4 * LARGE, A);
    EXPECT_EQ(reserved(&scene), 4 * LARGE);
    EXPECT_EQ(scene_stats(scene.pool).pages_created, before == SPLIT ? 16 : 4);
    give(&scene, &held);
    units_end(&scene);
}

CASE(free_small_pages_go_before_large_ones_are_made) { moves(SPLIT, WIDE); }
CASE(free_large_pages_go_before_small_ones_are_made) { moves(WIDE, SPLIT); }

/* The small pages of these units are in use elsewhere: aliases. */
CASE(loose_units_lose_their_aliases)
{
    struct scene scene;
    open_with(&scene, "");
    struct held first = take(&scene, SPLIT, 2 * LARGE, A);
    give(&scene, &first);
    struct held elsewhere = take(&scene, SPLIT, 2 * LARGE, B);
    EXPECT_EQ(reserved(&scene), 2 * LARGE);
    leave_free(&scene, WIDE, 2 * LARGE);
    EXPECT_EQ(reserved(&scene), 4 * LARGE);
    struct held second = take(&scene, SPLIT, 2 * LARGE, A);
    EXPECT_EQ(reserved(&scene), 4 * LARGE);
    EXPECT_EQ(second.at, first.at);
    give(&scene, &second);
    give(&scene, &elsewhere);
    units_end(&scene);
}

CASE(a_unit_turns_there_and_back)
{
    struct scene scene;
    open_with(&scene, "");
    for (int i = 0; i < 6; i++) {
        struct held held = take(&scene, i % 2 ? WIDE : SPLIT, 3 * LARGE, A);
        EXPECT_EQ(in_small_pages(&scene), i % 2 ? 0 : 3 * LARGE);
        give(&scene, &held);
        DONE(cenote_pool_trim(scene.pool, 4 * SMALL, 0));
        EXPECT_EQ(reserved(&scene), LARGE);
        DONE(cenote_pool_trim(scene.pool, 0, 0));
        EXPECT_EQ(reserved(&scene), 0);
    }
    units_end(&scene);
}

/* A block beside it keeps the region, and the units behind it as they were. */
CASE(a_large_pool_makes_large_pages_where_small_ones_have_been)
{
    struct scene scene;
    open_with(&scene, "");
    struct held stays = take(&scene, WIDE, LARGE, A), held = take(&scene, SPLIT, 3 * LARGE, A);
    EXPECT_EQ(in_small_pages(&scene), 3 * LARGE);
    give(&scene, &held);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(reserved(&scene), LARGE);
    held = take(&scene, WIDE, 3 * LARGE, A);
    EXPECT_EQ(in_small_pages(&scene), 0);
    give(&scene, &held);
    give(&scene, &stays);
    units_end(&scene);
}

/*
 * The place at the end of the region would have moved the top, but its plan fails for the limit, and then empty slabs make room elsewhere. What idle
 * units became meanwhile must fit the top that stayed (invariant 30).
 */
CASE(no_unit_is_joined_beyond_a_top_that_stays)
{
    struct scene scene;
    enum { ITEMS = 2 * MIB / (8 * KIB) };
    void *item[ITEMS];
    open_with(&scene, "limit:10MiB");
    for (int i = 0; i < ITEMS; i++)
        DONE(cenote_alloc(scene.pool, 8 * KIB, (cenote_stream)scene.stream[A], &item[i]));
    struct held hole = take(&scene, SPLIT, 3 * MIB / 2, A), stays = take(&scene, SPLIT, 9 * MIB / 2, A), last = take(&scene, SPLIT, MIB, A), held;
    give(&scene, &last);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(reserved(&scene), LARGE);
    held_give(&hole);
    for (int i = 0; i < ITEMS; i++)
        DONE(cenote_free(item[i]));
    held = take(&scene, WIDE, 5 * MIB / 2, A);
    EXPECT(held.at < stays.at);
    EXPECT_EQ(reserved(&scene), LARGE);
    DONE(cenote_pool_check(scene.pool));
    give(&scene, &held);
    give(&scene, &stays);
    units_end(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------- blocks on both */

CASE(a_block_on_both_sizes_keeps_its_contents)
{
    struct scene scene;
    struct held first, mixed, other;
    open_with(&scene, "");
    mixed = take_mixed(&scene, &first);
    other = take(&scene, SPLIT, 5 * MIB, B);
    held_expect(&mixed, mixed.stream);
    held_expect(&first, first.stream);
    scene_judge(&scene);
    give(&scene, &mixed);
    give(&scene, &first);
    give(&scene, &other);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(reserved(&scene), 0);
    units_end(&scene);
}

/* Pinned memory stays mapped, and its pages move nowhere. */
static void pin_holds(uint32_t split_pages)
{
    struct scene scene;
    open_with(&scene, "limit:16MiB");
    struct held held = take(&scene, split_pages, 2 * LARGE, A), other;
    DONE(cenote_pin(held.at + MIB, LARGE));
    DONE(cenote_pin(held.at + LARGE - 512, MIB));
    give(&scene, &held);
    EXPECT(!held_take(&other, scene.pool, LARGE, scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    held_expect(&held, scene.stream[A]); /* or as much of it as was pinned */
    DONE(cenote_unpin(held.at + LARGE - 512, MIB));
    DONE(cenote_unpin(held.at + MIB, LARGE));
    EXPECT_EQ(cenote_unpin(held.at + MIB, LARGE), CENOTE_INVALID);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    units_end(&scene);
}

CASE(pins_hold_large_pages) { pin_holds(WIDE); }

CASE(pins_hold_pages_of_both_sizes)
{
    struct scene scene;
    struct held first, mixed;
    open_with(&scene, "");
    mixed = take_mixed(&scene, &first);
    DONE(cenote_pin(mixed.at, mixed.bytes));
    give(&scene, &mixed);
    give(&scene, &first);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 2 * LARGE + LARGE / 2);
    held_expect(&mixed, mixed.stream);
    DONE(cenote_unpin(mixed.at, mixed.bytes));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    units_end(&scene);
}

/* Calls name the stream, which has an event then, and the pool sees that it is done. They take no memory. */
static void name(struct scene *scene, int stream)
{
    for (int i = 0; i < 2; i++) {
        DONE(cenote_capture_begin(scene->pool, NULL, scene->stream[stream]));
        DONE(cenote_capture_end(scene->pool, NULL, scene->stream[stream]));
        DONE(cuCtxSynchronize());
    }
}

/*
 * A page of two streams loses its mapping in the arena that used it last, which is done with it. What is left is that of the other stream, whose last
 * event is older than that use: it says nothing of the page.
 */
CASE(a_page_that_is_left_at_its_place_before)
{
    struct scene scene;
    open_with(&scene, "announced:0,harvest_budget:off");
    struct held hole = take(&scene, WIDE, LARGE, A), stays = take(&scene, WIDE, LARGE, A);
    held_give(&hole);
    name(&scene, A);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    struct held wide = take(&scene, WIDE, LARGE, C);
    struct held before = take(&scene, SPLIT, SMALL, B);
    held_give(&before);
    name(&scene, B);
    struct held held = take(&scene, SPLIT, SMALL, A);
    held_give(&held);
    name(&scene, A);
    held_give(&wide);
    name(&scene, C);
    held = take(&scene, WIDE, LARGE, A); /* in a unit of which the small page has a part */
    held_give(&held);
    held_give(&stays);
    name(&scene, A);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(&scene), 0);
    units_end(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------------- imported */

/* Blocks that begin and end anywhere in wide and in split units. */
CASE(blocks_on_both_sizes_are_imported)
{
    struct pair p;
    struct held held[6];
    struct sim_shape shape = shared_card();
    cenote_options options = units_options(LARGE, "");
    scene_open_with(&p.scene, &shape, &options);
    other_start(&p.other, shape_text, CENOTE_VMM);
    static const struct {
        uint32_t split_pages;
        size_t bytes;
    } blocks[] = {{SPLIT, 5 * MIB}, {WIDE, 13 * MIB + 512}, {SPLIT, 12 * MIB}, {WIDE, 7 * MIB}, {WIDE, 3 * LARGE}, {SPLIT, 11 * MIB}};
    for (int i = 0; i < 6; i++)
        held[i] = take(&p.scene, blocks[i].split_pages, blocks[i].bytes, A);
    for (int i = 0; i < 6; i++)
        import_there(&p.other, &held[i]);
    units_grade_pages = GRADE_PAGES;
    close_pair(&p);
}

/* ------------------------------------------------------------------------------------------------------------------------- shortage */

/* Only small pages fit where another block lies beside, and all that is free is large: some of it goes back. */
CASE(what_is_short_is_made_of_the_other_size)
{
    struct scene scene;
    open_with(&scene, "limit:28MiB");
    struct held beside = take(&scene, SPLIT, 3 * MIB, A), held;
    leave_free(&scene, WIDE, 3 * LARGE);
    EXPECT_EQ(reserved(&scene), 28 * MIB);
    held = take(&scene, WIDE, 13 * MIB, A);
    give(&scene, &held);
    give(&scene, &beside);
    units_end(&scene);
}

static int let_go(cenote_pool *pool, size_t bytes, void *arg)
{
    const struct held *pinned = arg;
    (void)pool, (void)bytes;
    DONE(cenote_unpin(pinned->at, pinned->bytes));
    return 0; /* it freed nothing */
}

/*
 * The place lacks a large page, and small ones are all that can be had. Its unit has an alias that is pinned where it lies now, so it is not loose.
 * Then the program lets go of that one: the last rung splits the unit, because none before has tried it in vain.
 */
CASE(no_loose_units_where_a_page_is_pinned)
{
    struct scene scene;
    open_with(&scene, "limit:14MiB");
    struct held first = take(&scene, WIDE, LARGE, A);
    give(&scene, &first);
    struct held elsewhere = take(&scene, WIDE, LARGE, B);
    EXPECT_EQ(reserved(&scene), LARGE);
    DONE(cenote_pin(elsewhere.at, elsewhere.bytes));
    leave_free(&scene, SPLIT, 3 * SMALL);
    EXPECT_EQ(reserved(&scene), LARGE + 3 * SMALL);
    DONE(cenote_pool_on_shortage(scene.pool, let_go, &elsewhere));
    struct held second = take(&scene, SPLIT, 3 * SMALL, A);
    EXPECT_EQ(second.at, first.at);
    EXPECT_EQ(cenote_unpin(elsewhere.at, elsewhere.bytes), CENOTE_INVALID); /* the program was asked */
    DONE(cenote_pool_on_shortage(scene.pool, NULL, NULL));
    give(&scene, &second);
    give(&scene, &elsewhere);
    units_end(&scene);
}

/* While a capture is open nothing goes back to the driver: what is free must do, whatever its size. */
static void capture_draws(uint32_t split_pages)
{
    struct scene scene;
    cenote_group *group;
    void *at = NULL;
    open_with(&scene, "limit:32MiB");
    leave_free(&scene, split_pages, 4 * LARGE);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cenote_alloc(scene.pool, 3 * LARGE, scene.stream[A], &at));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cenote_free(at));
    DONE(cenote_group_destroy(group));
    units_end(&scene);
}

CASE(a_capture_draws_free_large_pages) { capture_draws(WIDE); }
CASE(a_capture_draws_free_small_pages) { capture_draws(SPLIT); }

/* Behind the first block two small pages lack, of which one could be made. The large ones are whole, and wait in front of other units. */
CASE(a_capture_begins_with_a_large_page_where_small_ones_lack)
{
    struct scene scene;
    cenote_group *group;
    void *first = NULL, *second = NULL;
    open_with(&scene, "limit:30MiB");
    struct held small = take(&scene, SPLIT, 2 * SMALL, B);
    leave_free(&scene, WIDE, 3 * LARGE);
    give(&scene, &small);
    units_grade_pages = SPLIT;
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &first));
    DONE(cenote_alloc(scene.pool, LARGE + SMALL, scene.stream[A], &second));
    EXPECT_EQ((uintptr_t)second % LARGE, 0);
    EXPECT_EQ(reserved(&scene), 3 * LARGE + 2 * SMALL);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cenote_free(first));
    DONE(cenote_free(second));
    DONE(cenote_group_destroy(group));
    units_end(&scene);
}

CASE(small_pages_count_for_the_most_mappings)
{
    struct scene scene;
    struct sim_books books;
    open_with(&scene, "mappings:40,limit:64MiB");
    for (int i = 0; i < 12; i++) {
        struct held held = take(&scene, SPLIT, 6 * LARGE, i % SCENE_STREAMS);
        sim_books(&books);
        EXPECT(books.mappings <= 40);
        give(&scene, &held);
    }
    units_end(&scene);
}

/* --------------------------------------------------------------------------------------------- while another thread takes the place */

struct thief {
    struct scene *scene;
    atomic_int notices;
    struct held held;
};

static void *steal(void *arg)
{
    struct thief *t = arg;
    DONE(cuCtxPushCurrent(t->scene->context));
    EXPECT(held_take(&t->held, t->scene->pool, LARGE, t->scene->stream[A])); /* of pages in place: needs no turn */
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

/* The driver is about to be asked for the second unit, and the first is as it was. */
static void at_notice(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct thief *t = arg;
    pthread_t thread;
    (void)pool;
    if (notice->change != CENOTE_UNMAPPING || atomic_fetch_add(&t->notices, 1) != 1)
        return;
    DONE(pthread_create(&thread, NULL, steal, t));
    DONE(pthread_join(thread, NULL));
}

CASE(a_place_is_taken_while_the_driver_keeps_the_aliases)
{
    struct scene scene;
    struct thief thief = {.scene = &scene};
    void *at = NULL;
    open_with(&scene, "");
    struct held first = take(&scene, SPLIT, LARGE, A), next = take(&scene, SPLIT, LARGE, A), second;
    give(&scene, &next); /* its pages are the older ones */
    give(&scene, &first);
    second = take(&scene, SPLIT, LARGE, B);
    leave_free(&scene, WIDE, 2 * LARGE);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, at_notice, &thief));
    units_grade_pages = SPLIT;
    fault_arm("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, true);
    int error = cenote_alloc(scene.pool, 2 * LARGE, scene.stream[A], &at);
    EXPECT(error == CENOTE_OK || error == CENOTE_DRIVER);
    EXPECT(fault_fired() > 1);
    fault_disarm();
    DONE(cenote_pool_watch(scene.pool, 0, at_notice, &thief));
    DONE(cenote_pool_check(scene.pool));
    if (at)
        DONE(cenote_free(at));
    if (thief.held.at)
        give(&scene, &thief.held);
    give(&scene, &second);
    units_end(&scene);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("units", argc > 1 ? argv[1] : "", NULL, scene_after);
}
