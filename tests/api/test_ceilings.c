/*
 * test_ceilings.c: devices that take only so many mappings, of all pages or of one: old aliases go before memory is said to be short. What the
 * driver does then is in sim/quirks.def. Not: which page moves (test_streams.c), and addresses (test_addresses.c).
 */
#include "tests/api/scene.h"

#define CARD (64 * MIB)
#define PAGE (2 * MIB)
#define MOST 40

static void open_with(struct scene *scene, uint64_t quirk, uint64_t most, const char *conf)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.quirks = quirk;
    shape.mapping_ceiling = shape.handle_ceiling = most;
    DONE(cenote_options_parse(&options, conf));
    scene_open_with(scene, &shape, &options);
}

/* The streams take nearly all of the card in turns: its pages move, and leave aliases behind. Returns the most mappings there were. */
static uint64_t take_turns(struct scene *scene, size_t bytes, int turns)
{
    uint64_t most = 0;
    for (int i = 0; i < turns; i++) {
        struct held held;
        struct sim_books books;
        CUstream stream = scene->stream[i % SCENE_STREAMS];
        REQUIRE(held_take(&held, scene->pool, bytes, stream));
        sim_books(&books);
        most = books.mappings > most ? books.mappings : most;
        held_give(&held);
        DONE(cuStreamSynchronize(stream));
    }
    return most;
}

CASE(all_mappings_together)
{
    struct scene scene;
    open_with(&scene, SIM_QUIRK(MAPPING_CEILING), MOST, "");
    EXPECT(take_turns(&scene, 24 * PAGE, 12) <= MOST);
    EXPECT_EQ(scene_stats(scene.pool).ooms, 0);
    scene_close(&scene);
}

CASE(mappings_of_one_page)
{
    struct scene scene;
    open_with(&scene, SIM_QUIRK(HANDLE_CEILING), 2, "limit:2MiB");
    take_turns(&scene, PAGE, 12);
    EXPECT_EQ(scene_stats(scene.pool).ooms, 0);
    scene_close(&scene);
}

/* Without the quirk: the bound holds as long as aliases can go, and a device without one keeps them. */
CASE(the_bound)
{
    struct scene scene;
    open_with(&scene, 0, 1, "mappings:40");
    EXPECT(take_turns(&scene, 24 * PAGE, 12) <= MOST);
    scene_close(&scene);
    open_with(&scene, 0, 1, "mappings:0");
    EXPECT(take_turns(&scene, 24 * PAGE, 12) > MOST);
    scene_close(&scene);
    open_with(&scene, 0, 1, "mappings:1");
    take_turns(&scene, 24 * PAGE, 12);
    scene_close(&scene);
}

/* Mappings of a graph's pages stay, also those at other places; and segments are none. */
CASE(beside_memory_that_stays)
{
    struct scene scene;
    struct held held;
    cenote_group *graph, *plain;
    void *fixed, *segment;
    CUstream early;
    open_with(&scene, SIM_QUIRK(MAPPING_CEILING), MOST, "");
    DONE(cuStreamCreate(&early, CU_STREAM_NON_BLOCKING));
    REQUIRE(held_take(&held, scene.pool, 24 * PAGE, early));
    held_give(&held);
    DONE(cuStreamSynchronize(early));
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &graph));
    DONE(cenote_group_create(scene.pool, "plain", CENOTE_GROUP_PLAIN, NULL, &plain));
    DONE(group_alloc(graph, 4 * PAGE, 512, scene.stream[B], &fixed));
    DONE(group_alloc(plain, PAGE, 512, scene.stream[B], &segment));
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, 4);
    EXPECT(take_turns(&scene, 18 * PAGE, 12) <= MOST);
    EXPECT_EQ(scene_stats(scene.pool).ooms, 0);
    DONE(cenote_free(fixed));
    DONE(cenote_free(segment));
    DONE(cenote_group_destroy(graph));
    DONE(cenote_group_destroy(plain));
    DONE(cuStreamDestroy(early));
    scene_close(&scene);
}

/* While a capture is open nothing is unmapped: memory is short, and nothing else happens. */
CASE(during_a_capture)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    open_with(&scene, SIM_QUIRK(MAPPING_CEILING), MOST, "");
    take_turns(&scene, 24 * PAGE, 1);
    DONE(cenote_group_create(scene.pool, "captured", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
    EXPECT_EQ(cenote_alloc(scene.pool, 24 * PAGE, scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
    DONE(cenote_group_destroy(group));
    take_turns(&scene, 24 * PAGE, 4);
    scene_close(&scene);
}

/* The aliases of another pool's live pages go, too: the device counts them all. */
CASE(aliases_of_another_pool)
{
    struct scene scene;
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    struct held held, more;
    open_with(&scene, SIM_QUIRK(MAPPING_CEILING), MOST, "limit:32MiB");
    DONE(cenote_pool_create(0, &options, &other));
    EXPECT(take_turns(&scene, 16 * PAGE, 6) > 26);
    REQUIRE(held_take(&held, scene.pool, 16 * PAGE, scene.stream[A]));
    EXPECT(held_take(&more, other, 14 * PAGE, scene.stream[B]));
    EXPECT_EQ(scene_stats(other).ooms, 0);
    held_give(&held);
    if (more.at)
        held_give(&more);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

SCENES_MAIN("api: ceilings")
