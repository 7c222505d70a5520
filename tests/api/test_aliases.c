/*
 * test_aliases.c: with aliases:off no page is mapped at two addresses at any time, and rule 3 holds all the same: a page that the device may
 * still use at its old place does not leave it. Not: mappings that go because there are too many (test_ceilings.c).
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)
#define PAGE (2 * MIB)

static void open_with(struct scene *scene, const char *conf)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    DONE(cenote_options_parse(&options, conf));
    scene_open_with(scene, &shape, &options);
}

/* The streams take most of the card in turns. Returns how many pages moved. */
static uint64_t take_turns(struct scene *scene, int turns)
{
    for (int i = 0; i < turns; i++) {
        struct held held, small;
        CUstream stream = scene->stream[i % SCENE_STREAMS];
        REQUIRE(held_take(&held, scene->pool, (size_t)(16 + i % 5) * PAGE, stream));
        REQUIRE(held_take(&small, scene->pool, PAGE / 4, stream));
        held_give(&held);
        DONE(cuStreamSynchronize(stream));
        held_give(&small);
    }
    return scene_stats(scene->pool).pages_harvested;
}

CASE(pages_move_from_stream_to_stream)
{
    struct scene scene;
    open_with(&scene, "aliases:on");
    EXPECT(take_turns(&scene, 15) > 0);
    EXPECT(sim_mappings_of_one() > 1);
    scene_close(&scene);

    open_with(&scene, "aliases:off");
    EXPECT(take_turns(&scene, 15) > 0);
    EXPECT_EQ(sim_mappings_of_one(), 1);
    EXPECT_EQ(scene_stats(scene.pool).pages_aliased, 0);
    scene_close(&scene);
}

/* Freed in stream order and still in use: pages of the stream itself move at once with aliases, and without wait for the device. */
CASE(in_flight)
{
    for (int off = 0; off < 2; off++) {
        struct scene scene;
        struct held first, second, wall;
        open_with(&scene, off ? "aliases:off" : "aliases:on");
        REQUIRE(held_take(&first, scene.pool, 12 * PAGE, scene.stream[A]));
        REQUIRE(held_take(&wall, scene.pool, PAGE, scene.stream[A]));
        held_linger(&first, scene.stream[A]);
        held_give(&first);
        REQUIRE(held_take(&second, scene.pool, 24 * PAGE, scene.stream[A]));
        EXPECT_EQ(scene_stats(scene.pool).waits, off);
        EXPECT_EQ(sim_mappings_of_one(), off ? 1 : 2);
        held_give(&second);
        held_give(&wall);
        scene_close(&scene);
    }
}

/*
 * A grid that is resident before its predecessor wrote, as dependent launch and persistent kernels are, finds a write only at the address at which it
 * was made. cenote gives pages in flight to the stream's next block, at another address: each block is read where it was written, the early reader
 * finds it, and only a reader of the old address, whose block is freed, would not.
 */
CASE(a_grid_that_was_resident_early)
{
    struct scene scene;
    struct held first, wall;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    void *second;
    shape.quirks = SIM_QUIRK(STALE_ALIASES);
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&first, scene.pool, 12 * PAGE, scene.stream[A]));
    REQUIRE(held_take(&wall, scene.pool, PAGE, scene.stream[A]));
    CUdeviceptr old = device_address(first.at);
    held_linger(&first, scene.stream[A]);
    held_give(&first);
    REQUIRE(cenote_alloc(scene.pool, 24 * PAGE, scene.stream[A], &second) == CENOTE_OK);
    EXPECT_EQ(scene_stats(scene.pool).waits, 0);
    EXPECT_EQ(sim_mappings_of_one(), 2);
    DONE(sim_launch_fill(scene.stream[A], device_address(second), 7, 24 * PAGE));
    DONE(sim_launch_expect(scene.stream[A], device_address(second), 7, 24 * PAGE));
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);

    DONE(sim_launch_expect(scene.stream[A], old, 7, 12 * PAGE));
    DONE(cuCtxSynchronize());
    EXPECT(sim_mismatches() > 0);
    DONE(cenote_free(second));
    held_give(&wall);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_pool_destroy(scene.pool));
    scene_is_open = false;
}

/* Streams take each other's pages while grids of both are on the card: no block is read at an address at which it was not written. */
CASE(pages_move_although_aliases_are_stale)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.quirks = SIM_QUIRK(STALE_ALIASES);
    shape.lag = 3 * MSEC;
    scene_open_with(&scene, &shape, &options);
    EXPECT(take_turns(&scene, 30) > 0);
    EXPECT(sim_mappings_of_one() > 1);
    scene_close(&scene); /* judges what was read */
}

/* While a capture is open no page can leave its place: memory may be short that would not be otherwise. */
CASE(during_a_capture)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    open_with(&scene, "aliases:off");
    take_turns(&scene, 4);
    DONE(cenote_group_create(scene.pool, "captured", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
    EXPECT_EQ(cenote_alloc(scene.pool, 24 * PAGE, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
    DONE(cenote_alloc(scene.pool, 24 * PAGE, scene.stream[B], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(sim_mappings_of_one(), 1);
    scene_close(&scene);
}

/* What a graph has drawn lies where it lies, also for the group's own next block (rule 4). */
CASE(private_group)
{
    struct scene scene;
    cenote_group *group;
    void *first, *wall, *second;
    open_with(&scene, "aliases:off");
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 4 * PAGE, 512, scene.stream[A], &first));
    DONE(group_alloc(group, PAGE, 512, scene.stream[A], &wall));
    DONE(cenote_free(first));
    DONE(cuCtxSynchronize());
    DONE(group_alloc(group, 8 * PAGE, 512, scene.stream[A], &second));
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, 0);
    DONE(sim_launch_fill(scene.stream[A], device_address(first), 1, 4 * PAGE));
    DONE(cenote_free(second));
    DONE(cenote_free(wall));
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(sim_mappings_of_one(), 1);
    scene_close(&scene);
}

/* A program that remembers what lies under an address is told before a page leaves it. */
#define SLOTS_MAX 4096

struct memory_map {
    uint64_t first;
    bool     is_mapped[SLOTS_MAX];
    int      faults, left;
};

static void remember(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    struct memory_map *map = arg;
    (void)pool;
    if (notice->change != CENOTE_MAPPED && notice->change != CENOTE_UNMAPPING)
        return;
    map->first = map->first ? map->first : (uint64_t)(uintptr_t)notice->address - SLOTS_MAX / 2 * PAGE;
    uint64_t slot = ((uint64_t)(uintptr_t)notice->address - map->first) / PAGE;
    for (uint64_t end = slot + notice->bytes / PAGE; slot < end; slot++) {
        REQUIRE(slot < SLOTS_MAX);
        map->faults += map->is_mapped[slot] == (notice->change == CENOTE_MAPPED);
        map->left += notice->change == CENOTE_UNMAPPING;
        map->is_mapped[slot] = notice->change == CENOTE_MAPPED;
    }
}

CASE(notices)
{
    static struct memory_map map;
    struct scene scene;
    struct sim_books books;
    uint64_t mapped = 0;
    memset(&map, 0, sizeof map);
    open_with(&scene, "aliases:off");
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, remember, &map));
    take_turns(&scene, 9);
    sim_books(&books);
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        mapped += map.is_mapped[slot];
    EXPECT(map.left > 0);
    EXPECT_EQ(map.faults, 0);
    EXPECT_EQ(mapped, books.mappings);
    DONE(cenote_pool_watch(scene.pool, 0, remember, &map));
    scene_close(&scene);
}

/*
 * The driver would not map a page, nor unmap those that it had mapped before. They have to leave their slots before another stream has them: under
 * shortage the driver is asked again.
 */
CASE(pages_that_would_not_leave_their_slots)
{
    for (uint64_t call = 1; call < 64; call++) {
        struct scene scene;
        void *block = NULL;
        open_with(&scene, "aliases:off,limit:16MiB");
        REQUIRE(!cenote_alloc(scene.pool, PAGE, scene.stream[A], &block));
        DONE(cenote_free(block));
        fault_arm(NULL, call, CUDA_ERROR_UNKNOWN, true); /* no call works from this one on */
        int error = cenote_alloc(scene.pool, 8 * PAGE, scene.stream[A], &block);
        fault_disarm();
        if (!error)
            DONE(cenote_free(block));
        EXPECT_EQ(cenote_alloc(scene.pool, 8 * PAGE, scene.stream[B], &block), CENOTE_OK);
        DONE(cenote_free(block));
        scene_close(&scene);
    }
}

SCENES_MAIN("api: aliases")
