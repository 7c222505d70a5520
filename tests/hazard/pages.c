/*
 * pages.c: which pages move to another stream or another size, which stay, and when it stops.
 * Not: whether the device is done with them (fences.c).
 */
#include "tests/hazard/hazards.h"

#define CARD (80 * MIB)

/* Half of the card is freed but under way on A, a quarter more than what is left is wanted by B: it waits, and gets it. */
void hazard_half_in_flight_three_quarters_wanted(void)
{
    struct scene scene;
    struct held first, second;
    hazard_open(&scene, CARD);
    REQUIRE(held_take(&first, scene.pool, CARD / 2, scene.stream[A]));
    held_linger(&first, scene.stream[A]);
    DONE(cenote_free(first.at));
    REQUIRE(held_take(&second, scene.pool, CARD / 4 * 3, scene.stream[B]));
    EXPECT(scene_stats(scene.pool).reserved.peak <= CARD);
    held_give(&second);
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/* The same at the size people have. Contents of that many bytes are not kept; that all of it is mapped is what is checked. */
void hazard_half_of_a_real_card_in_flight(void)
{
    struct scene scene;
    void *first, *second;
    struct sim_shape shape = scene_card(80 * GIB);
    cenote_options options = scene_options();
    options.page_mib = 0;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    EXPECT_EQ(scene_stats(scene.pool).page_bytes, 16 * MIB);
    DONE(cenote_alloc(scene.pool, 40 * GIB, scene.stream[A], &first));
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    DONE(sim_launch_touch(scene.stream[A], device_address(first), 40 * GIB));
    DONE(cenote_free(first));
    DONE(cenote_alloc(scene.pool, 60 * GIB, scene.stream[B], &second));
    if (sim_now() < 10 * MSEC) /* the host waited, or the stream does */
        EXPECT_EQ(scene_stats(scene.pool).orders, 1);
    DONE(sim_launch_touch(scene.stream[B], device_address(second), 60 * GIB));
    DONE(cenote_free(second));
    scene_close(&scene);
}

/* A stream that stopped working keeps no other from using what it left, and no thread has to wait for it. */
void hazard_idle_stream_holds_everything(void)
{
    struct scene scene;
    struct hoard hoard;
    hazard_open(&scene, CARD);
    hoard_take(&hoard, scene.pool, 5 * MIB, scene.stream[A]);
    hoard_give(&hoard);
    DONE(cuStreamSynchronize(scene.stream[A]));
    cenote_stats before = scene_stats(scene.pool);

    struct held block;
    REQUIRE(held_take(&block, scene.pool, CARD / 2, scene.stream[B]));
    held_give(&block);
    cenote_stats after = scene_stats(scene.pool);
    EXPECT(after.reserved.current <= CARD);
    EXPECT(after.pages_created <= before.pages_created + 1);
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}

/* Three streams take turns with nearly all of the memory: it follows them, and no more is held than the most that was live. */
void hazard_memory_shifts_between_streams(void)
{
    static const size_t sizes[] = {3 * MIB, 7 * MIB + 512, 1 * MIB + 4096};
    struct scene scene;
    struct held kept[SCENE_STREAMS] = {{0}};
    hazard_open(&scene, CARD);
    for (int phase = 0; phase < 12; phase++) {
        CUstream stream = scene.stream[phase % SCENE_STREAMS];
        struct hoard hoard;
        hoard_take(&hoard, scene.pool, sizes[phase % 3], stream);
        EXPECT(hoard.bytes >= CARD / 4 * 3);
        if (kept[phase % SCENE_STREAMS].at)
            held_give(&kept[phase % SCENE_STREAMS]);
        kept[phase % SCENE_STREAMS] = hoard.held[--hoard.count]; /* one block of each phase outlives it */
        hoard_give(&hoard);
    }
    for (int i = 0; i < SCENE_STREAMS; i++)
        held_give(&kept[i]);
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[A]);
    scene_close(&scene);
}

/* ----------------------------------------------------------------------------------------------------------------- pins */

/*
 * Memory registered with a network card and freed: others may not have its pages, and its addresses still lead to the same memory. The
 * card is played by a stream that reads there after the free.
 */
void hazard_pinned_memory_stays_where_it_is(void)
{
    struct scene scene;
    struct held pinned, other;
    struct hoard hoard;
    hazard_open(&scene, CARD);
    REQUIRE(held_take(&pinned, scene.pool, 32 * MIB, scene.stream[A]));
    DONE(cenote_pin(pinned.at, pinned.bytes));
    EXPECT(scene_stats(scene.pool).pages_frozen >= 16);
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_free(pinned.at));

    hoard_take(&hoard, scene.pool, 4 * MIB, scene.stream[B]);
    EXPECT(hoard.bytes <= CARD - 32 * MIB);
    EXPECT(hoard.bytes >= CARD - 32 * MIB - 4 * MIB);
    held_expect(&pinned, scene.stream[C]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    held_expect(&pinned, scene.stream[C]);
    hoard_give(&hoard);
    hoard_take(&hoard, scene.pool, 3 * MIB, scene.stream[A]); /* its own stream may use it again, where it is */
    EXPECT(hoard.bytes > CARD - 32 * MIB);
    DONE(sim_launch_touch(scene.stream[C], device_address(pinned.at), pinned.bytes));
    hoard_give(&hoard);
    scene_judge(&scene);

    DONE(cenote_unpin(pinned.at, pinned.bytes));
    EXPECT(!held_take(&other, scene.pool, CARD + 1, scene.stream[B]));
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);
    scene_close(&scene);
}

void hazard_pins_nest(void)
{
    struct scene scene;
    struct held pinned, other;
    hazard_open(&scene, CARD);
    REQUIRE(held_take(&pinned, scene.pool, CARD / 2, scene.stream[A]));
    DONE(cenote_pin(pinned.at, pinned.bytes));
    DONE(cenote_pin(pinned.at, MIB)); /* the first page once more */
    held_give(&pinned);
    DONE(cenote_unpin(pinned.at, pinned.bytes));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 1);
    EXPECT(!held_take(&other, scene.pool, CARD, scene.stream[B]));
    REQUIRE(held_take(&other, scene.pool, CARD / 4 * 3, scene.stream[B]));
    held_give(&other);
    DONE(cenote_unpin(pinned.at, MIB));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);
    EXPECT(cenote_unpin(pinned.at, MIB) != CENOTE_OK); /* once too often */
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}

/* The page that a live pinned block shares with its neighbours stays too when they go. */
void hazard_pinned_live_block_keeps_its_pages(void)
{
    struct scene scene;
    struct held held[12];
    hazard_open(&scene, CARD);
    for (int i = 0; i < 12; i++)
        REQUIRE(held_take(&held[i], scene.pool, 3 * MIB, scene.stream[A]));
    for (int i = 0; i < 12; i += 4)
        DONE(cenote_pin(held[i].at, held[i].bytes));
    for (int i = 0; i < 12; i++)
        if (i % 4)
            held_give(&held[i]);
    struct held wide;
    REQUIRE(held_take(&wide, scene.pool, CARD / 2, scene.stream[B]));
    held_give(&wide);
    for (int i = 0; i < 12; i += 4) {
        held_expect(&held[i], scene.stream[A]);
        DONE(cenote_unpin(held[i].at, held[i].bytes));
        held_give(&held[i]);
    }
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}

/*
 * A pinned range is free, and the memory under it is in use at another place that had it before: the pinned addresses still lead there,
 * and a request of that size gets another range. The network card writes through the pinned addresses.
 */
void hazard_pinned_slots_are_not_remapped(void)
{
    struct scene scene;
    struct aliases aliases;
    struct held pinned, more;
    hazard_open(&scene, CARD);
    aliases_make(&aliases, scene.pool, scene.stream[A]);
    held_give(&aliases.wide);
    REQUIRE(held_take(&pinned, scene.pool, 6 * MIB, scene.stream[A]));
    EXPECT_EQ(pinned.at, aliases.hole.at);
    DONE(cenote_pin(pinned.at, pinned.bytes));
    held_give(&pinned);
    REQUIRE(held_take(&aliases.wide, scene.pool, 10 * MIB, scene.stream[A]));
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_pool_trim(scene.pool, CARD, CENOTE_TRIM_WAIT));

    DONE(sim_launch_fill(scene.stream[A], device_address(pinned.at), 4711, pinned.bytes));
    REQUIRE(held_take(&more, scene.pool, 6 * MIB, scene.stream[A]));
    DONE(sim_launch_expect(scene.stream[A], device_address(pinned.at), 4711, pinned.bytes));
    EXPECT(!held_overlap(&more, &pinned));
    held_give(&more);
    DONE(cenote_unpin(pinned.at, pinned.bytes));
    DONE(cenote_free(aliases.wide.at)); /* the network card wrote there */
    held_give(&aliases.kept);
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}

/* -------------------------------------------------------------------------------------------------------------- aliases */

/* All of it free, the hole and what lies behind are one range, in which three pages are mapped twice. */
void hazard_no_page_lies_under_one_block_twice(void)
{
    struct scene scene;
    struct aliases aliases;
    struct held all;
    hazard_open(&scene, CARD);
    aliases_make(&aliases, scene.pool, scene.stream[A]);
    held_give(&aliases.wide);
    held_give(&aliases.kept);
    DONE(cenote_pool_trim(scene.pool, CARD, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&all, scene.pool, 18 * MIB, scene.stream[A]));
    held_give(&all);
    scene_judge(&scene);
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}


/* Small blocks fill the card, every other one goes, large ones need the pages from under the holes; then the other way round. */
static void two_sizes_in_turn(struct scene *scene, CUstream stream)
{
    enum { SMALL = 24, LARGE = 4 };
    struct held small[SMALL], large[LARGE];
    for (int i = 0; i < SMALL; i++)
        REQUIRE(held_take(&small[i], scene->pool, 2560 * KIB, stream));
    for (int i = 0; i < SMALL; i += 2)
        held_give(&small[i]);
    for (int i = 0; i < LARGE; i++)
        REQUIRE(held_take(&large[i], scene->pool, 6 * MIB, stream));
    for (int i = 1; i < SMALL; i += 2)
        held_expect(&small[i], stream);
    for (int i = 0; i < LARGE; i++)
        held_give(&large[i]);
    for (int i = 1; i < SMALL; i += 2)
        held_give(&small[i]);
}

/* The driver's books count everything; what the library says about itself has to agree. */
static uint64_t mapping_calls(cenote_pool *pool)
{
    cenote_stats stats = scene_stats(pool);
    return stats.pages_created + stats.pages_harvested + stats.pages_unmapped + stats.pages_released;
}

void hazard_two_sizes_in_turn_converge(void)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    uint64_t calls[12];
    scene_open_with(&scene, &shape, &options);
    for (int round = 0; round < 12; round++) {
        uint64_t before = mapping_calls(scene.pool);
        two_sizes_in_turn(&scene, scene.stream[A]);
        calls[round] = mapping_calls(scene.pool) - before;
    }
    EXPECT(calls[0] > 0);
    EXPECT(scene_stats(scene.pool).pages_aliased > 0);
    EXPECT_EQ(calls[10], 0);
    EXPECT_EQ(calls[11], 0);
    scene_close(&scene);
}

void hazard_aliases_with_the_device_behind(void)
{
    struct scene scene;
    hazard_open(&scene, CARD);
    for (int round = 0; round < 10; round++) {
        two_sizes_in_turn(&scene, scene.stream[A]);
        two_sizes_in_turn(&scene, scene.stream[round % SCENE_STREAMS]);
        sim_advance(round * MSEC / 4);
    }
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}
