/*
 * test_sums.c: what is added up before a request climbs and before it waits (pool/shortage/sums.c, rule 12 of docs/design.md). Where memory may come
 * back the answer must not be no; where none can, no thread waits for the device.
 *
 * The clock of the card stands still unless something synchronises, so the time that has passed is the time that was waited.
 */
#include "tests/api/scene.h"

#define HOUR    (3600 * 1000 * MSEC)

static void *take_host(size_t bytes, cenote_stream stream, void *arg)
{
    void *at = NULL;
    (void)stream, (void)arg;
    DONE(cuMemHostAlloc(&at, bytes, 0));
    return at;
}

static void give_host(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    DONE(cuMemFreeHost(memory));
}

static const cenote_source host_memory = {take_host, give_host, NULL}, card_memory = {take_source, give_source, NULL};

static cenote_group *make_group(struct scene *scene, unsigned flags, const cenote_source *source)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene->pool, "g", flags, source, &group));
    REQUIRE(group);
    return group;
}

/* A source may have any memory: what it gave is not counted against the card, nor what is asked of it. */
CASE(memory_that_is_not_of_the_card_leaves_the_card_free)
{
    struct scene scene;
    void *elsewhere = NULL, *here = NULL;
    scene_open(&scene, 256 * MIB);
    cenote_group *group = make_group(&scene, 0, &host_memory);
    REQUIRE(!group_alloc(group, 200 * MIB, 512, scene.stream[A], &elsewhere));
    EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &here), CENOTE_OK);
    DONE(cenote_free(here));
    DONE(cenote_free(elsewhere));
    EXPECT_EQ(group_alloc(group, 300 * MIB, 512, scene.stream[A], &elsewhere), CENOTE_OK);
    DONE(cenote_free(elsewhere));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

static int take(struct scene *scene, cenote_group *group, size_t bytes, void **block)
{
    return group ? group_alloc(group, bytes, 512, scene->stream[A], block) : cenote_alloc(scene->pool, bytes, scene->stream[A], block);
}

/* Free memory of a source, or of the pool itself, goes back before the other fails for want of the same card or limit. */
static void make_room(bool of_source, bool limited)
{
    struct scene scene;
    struct sim_shape shape = scene_card(limited ? 1 * GIB : 256 * MIB);
    cenote_options options = scene_options();
    void *first = NULL, *second = NULL;
    options.limit = limited ? (double)(256 * MIB) : 0;
    scene_open_with(&scene, &shape, &options);
    cenote_group *group = make_group(&scene, 0, &card_memory);
    REQUIRE(!take(&scene, of_source ? group : NULL, 200 * MIB, &first));
    DONE(cenote_free(first));
    EXPECT_EQ(take(&scene, of_source ? NULL : group, 100 * MIB, &second), CENOTE_OK);
    DONE(cenote_free(second));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(free_memory_of_a_source_makes_room)
{
    make_room(true, false);
    make_room(true, true);
}

CASE(free_pages_make_room_for_a_source)
{
    make_room(false, false);
    make_room(false, true);
}

/* Free bytes beside live ones on a page are no memory that moves: with what is in flight there is still too little. */
CASE(crumbs_are_not_worth_a_wait)
{
    struct scene scene;
    void *block[200], *late = NULL, *none = NULL;
    scene_open(&scene, 256 * MIB);
    for (int i = 0; i < 200; i++)
        REQUIRE(!cenote_alloc(scene.pool, MIB, scene.stream[A], &block[i]));
    for (int i = 0; i < 200; i += 2)
        DONE(cenote_free(block[i]));
    REQUIRE(!cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &late));
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    DONE(cenote_free(late));
    EXPECT_EQ(cenote_alloc(scene.pool, 90 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(sim_now(), 0);
    for (int i = 1; i < 200; i += 2)
        DONE(cenote_free(block[i]));
    scene_close(&scene);
}

/* What a group lends may still wait for another stream. */
CASE(a_group_lends_what_comes_back)
{
    for (int private = 0; private < 2; private++) {
        struct scene scene;
        void *first = NULL, *second = NULL;
        scene_open(&scene, 256 * MIB);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
        cenote_group *group = make_group(&scene, private ? CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND : CENOTE_GROUP_LEND, NULL);
        REQUIRE(!group_alloc(group, 200 * MIB, 512, scene.stream[A], &first));
        DONE(sim_launch_wait(scene.stream[B], MSEC));
        DONE(cenote_use(first, scene.stream[B]));
        DONE(cenote_free(first));
        EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &second), CENOTE_OK);
        DONE(cenote_free(second));
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* It is taken when it is back, whatever else is in flight that may help: work of an hour on another stream. */
CASE(what_a_group_lends_is_taken_when_it_is_back)
{
    for (int private = 0; private < 2; private++) {
        struct scene scene;
        void *first = NULL, *late = NULL, *second = NULL;
        struct sim_shape shape = scene_card(256 * MIB);
        cenote_options options = scene_options();
        options.order = 0; /* or the stream waits for the other one on the device */
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
        cenote_group *group = make_group(&scene, private ? CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND : CENOTE_GROUP_LEND, NULL);
        REQUIRE(!group_alloc(group, 150 * MIB, 512, scene.stream[A], &first));
        REQUIRE(!cenote_alloc(scene.pool, 60 * MIB, scene.stream[C], &late));
        DONE(sim_launch_wait(scene.stream[B], MSEC));
        DONE(sim_launch_wait(scene.stream[C], HOUR));
        DONE(cenote_use(first, scene.stream[B]));
        DONE(cenote_free(first));
        DONE(cenote_free(late));
        EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &second), CENOTE_OK);
        EXPECT(sim_now() < HOUR);
        DONE(cenote_free(second));
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* A free range: 20 MiB of it are pinned where they lie, the pages of the other 80 are in flight elsewhere, and may come back. */
CASE(pinned_memory_of_the_same_arena_counts)
{
    struct scene scene;
    void *first = NULL, *other = NULL, *rest = NULL;
    scene_open(&scene, 256 * MIB);
    REQUIRE(!cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &first));
    REQUIRE(!cenote_alloc(scene.pool, 150 * MIB, scene.stream[C], &rest));
    DONE(cenote_pin(first, 20 * MIB));
    DONE(cenote_free(first));
    DONE(cuCtxSynchronize());
    REQUIRE(!cenote_alloc(scene.pool, 86 * MIB, scene.stream[B], &other)); /* 80 moved, 6 new */
    DONE(sim_launch_wait(scene.stream[B], MSEC));
    DONE(cenote_free(other));
    EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &other), CENOTE_OK);
    DONE(cenote_unpin(first, 20 * MIB));
    DONE(cenote_free(other));
    DONE(cenote_free(rest));
    scene_close(&scene);
}

/* Nor is what another private group keeps of any use to this one. */
CASE(what_another_private_group_keeps_is_not_waited_for)
{
    struct scene scene;
    void *keep = NULL, *late = NULL, *none = NULL;
    scene_open(&scene, 256 * MIB);
    cenote_group *g1 = make_group(&scene, CENOTE_GROUP_PRIVATE, NULL), *g2 = make_group(&scene, CENOTE_GROUP_PRIVATE, NULL);
    REQUIRE(!group_alloc(g1, 200 * MIB, 512, scene.stream[A], &keep));
    DONE(cenote_free(keep));
    REQUIRE(!cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &late));
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    DONE(cenote_free(late));
    EXPECT_EQ(group_alloc(g2, 100 * MIB, 512, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(sim_now(), 0);
    DONE(cenote_group_destroy(g1));
    DONE(cenote_group_destroy(g2));
    scene_close(&scene);
}

/* A driver that records no fences: the context is waited for last, because a stream of it may wait for this thread. */
CASE(without_fences_an_event_comes_first)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    void *block = NULL;
    sim_reset(&shape);
    scene_open_card(&scene, &shape);
    sim_hide("cuCtxRecordEvent");
    DONE(cenote_pool_create(0, &options, &scene.pool));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[i]));
    REQUIRE(!cenote_alloc(scene.pool, 200 * MIB, scene.stream[A], &block));
    DONE(sim_launch_wait(scene.stream[B], HOUR));
    DONE(sim_launch_wait(scene.stream[C], MSEC));
    DONE(cenote_use(block, scene.stream[C]));
    DONE(cenote_free(block));
    EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &block), CENOTE_OK);
    EXPECT(sim_now() <= MSEC);
    DONE(cenote_free(block));
    scene_close(&scene);
}

SCENES_MAIN("sums")
