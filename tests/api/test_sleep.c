/*
 * test_sleep.c: memory sleeps and wakes at its addresses, with its contents, and what is awake meanwhile is served as ever. Threads beside each
 * other, thousands of cycles and steps at random are in test_sleep_long.c.
 */
#include <cenote/share.h>

#include "tests/api/sleeps.h"

static void take_many(struct held *held, const struct scene *scene)
{
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(held_take(&held[i], scene->pool, sizes[i], scene->stream[i % 2]));
}

/* The device still writes when the pause begins. */
CASE(contents_come_back)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct scene scene;
    struct held held[BLOCKS];
    cenote_sleep slept, woken;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    take_many(held, &scene);
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    uint64_t before = used();
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    DONE(cenote_pool_check(scene.pool));
    EXPECT_EQ(used(), 0);
    EXPECT(before > 0);
    EXPECT_EQ(slept.pages, before);
    EXPECT_EQ(slept.awake, 0);
    EXPECT_EQ(slept.discarded, 0);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    DONE(resume_of(scene.pool, NULL, &woken));
    EXPECT_EQ(woken.pages, slept.pages);
    EXPECT_EQ(woken.kept, slept.kept);
    EXPECT_EQ(used(), before);
    for (int i = 0; i < BLOCKS; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* ---------------------------------------------------------------------------------------------- work that comes after a wait */

static const struct driver *below;
static struct scene *waited_for; /* until the next wait is over */

/* As another thread does that was quick: it takes a block beside those that are to sleep, uses it and frees it. */
static CUresult wait_and_work(CUevent event)
{
    CUresult result = below->cuEventSynchronize(event);
    struct scene *scene = waited_for;
    struct held late;
    waited_for = NULL;
    if (!scene)
        return result;
    REQUIRE(held_take(&late, scene->pool, MIB, scene->stream[A]));
    held_linger(&late, scene->stream[A]);
    DONE(cenote_free(late.at));
    return result;
}

static const struct driver *with_work(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuEventSynchronize = wait_and_work;
    return &table;
}

/* Its page does not go before that work is done, which no wait before the doze knew of. */
CASE(work_after_a_wait_is_waited_for)
{
    struct scene scene;
    struct held held, beside;
    scene_open(&scene, CARD);
    driver_interpose(with_work);
    REQUIRE(held_take(&held, scene.pool, MIB, scene.stream[A]));
    REQUIRE(held_take(&beside, scene.pool, MIB, scene.stream[A]));
    held_give(&beside);
    waited_for = &scene;
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    EXPECT(!waited_for);
    EXPECT_EQ(used(), 0);
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* Blocks that are freed in their sleep go, and so does their memory, which never comes back. */
CASE(freed_asleep)
{
    struct scene scene;
    struct held held[BLOCKS];
    cenote_sleep slept, woken;
    scene_open(&scene, CARD);
    take_many(held, &scene);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    for (int i = 0; i < BLOCKS; i += 2)
        DONE(cenote_free(held[i].at));
    DONE(cenote_pool_check(scene.pool));
    DONE(resume_of(scene.pool, NULL, &woken));
    EXPECT(woken.pages < slept.pages);
    for (int i = 1; i < BLOCKS; i += 2)
        held_give(&held[i]);
    scene_close(&scene);
}

CASE(all_freed_asleep)
{
    struct scene scene;
    struct held held[BLOCKS];
    cenote_sleep slept;
    scene_open(&scene, CARD);
    take_many(held, &scene);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    for (int i = 0; i < BLOCKS; i++)
        DONE(cenote_free(held[i].at));
    DONE(resume_of(scene.pool, NULL, &slept));
    EXPECT_EQ(slept.pages, 0);
    EXPECT_EQ(used(), 0);
    scene_close(&scene);
}

/* What is asked for meanwhile gets all of the card, and none of the addresses; the sleepers have no room until it is freed. */
CASE(the_card_is_anothers_meanwhile)
{
    struct scene scene;
    struct held held[BLOCKS];
    static struct hoard hoard;
    cenote_sleep slept, woken;
    scene_open(&scene, CARD);
    take_many(held, &scene);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    hoard_take(&hoard, scene.pool, 2 * MIB, scene.stream[A]);
    EXPECT_EQ(hoard.bytes, CARD);
    for (int i = 0; i < hoard.count; i++)
        for (int j = 0; j < BLOCKS; j++)
            EXPECT(!held_overlap(&hoard.held[i], &held[j]));
    EXPECT_EQ(resume_of(scene.pool, NULL, &woken), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(woken.pages, 0);
    DONE(cenote_pool_check(scene.pool));
    hoard_give(&hoard);
    DONE(resume_of(scene.pool, NULL, &woken));
    EXPECT_EQ(woken.pages, slept.pages);
    for (int i = 0; i < BLOCKS; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* Free ranges between blocks that sleep serve no request, and none waits for them, although the device is busy. */
CASE(holes_sleep_with_their_blocks)
{
    struct scene scene;
    struct held held[16], later[8];
    scene_open(&scene, CARD);
    for (int i = 0; i < 16; i++)
        REQUIRE(held_take(&held[i], scene.pool, MIB, scene.stream[A]));
    for (int i = 0; i < 16; i += 2)
        held_give(&held[i]);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    EXPECT_EQ(used(), 0);
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    uint64_t waits = scene_stats(scene.pool).waits;
    for (int i = 0; i < 8; i++) {
        REQUIRE(held_take(&later[i], scene.pool, i % 2 ? MIB : 3000, scene.stream[A]));
        for (int j = 0; j < 16; j++)
            EXPECT(!held_overlap(&later[i], &held[j]));
    }
    EXPECT_EQ(scene_stats(scene.pool).waits, waits);
    DONE(resume_of(scene.pool, NULL, NULL));
    for (int i = 0; i < 8; i++)
        held_give(&later[i]);
    for (int i = 1; i < 16; i += 2)
        held_give(&held[i]);
    scene_close(&scene);
}

/* One group sleeps; the rest of the pool does not. */
CASE(a_group_sleeps_alone)
{
    struct scene scene;
    struct held held[BLOCKS], own;
    cenote_group *group;
    void *block;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    take_many(held, &scene);
    DONE(cenote_group_create(scene.pool, "engine", 0, NULL, &group));
    DONE(group_alloc(group, 10 * MIB, 1, scene.stream[A], &block));
    own = held_of(block, 10 * MIB, scene.stream[A]);
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.kept, 10 * MIB);
    for (int i = 0; i < BLOCKS; i++)
        held_give(&held[i]);
    DONE(resume_of(scene.pool, group, &slept));
    EXPECT_EQ(slept.kept, 10 * MIB);
    held_give(&own);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Small blocks come back all the same. */
CASE(discarded)
{
    struct scene scene;
    struct held small, large;
    cenote_sleep slept, woken;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&small, scene.pool, 300 * KIB, scene.stream[A]));
    REQUIRE(held_take(&large, scene.pool, 9 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_DISCARD, &slept));
    EXPECT_EQ(slept.kept, 300 * KIB);
    EXPECT_EQ(slept.discarded, 9 * MIB);
    DONE(resume_of(scene.pool, NULL, &woken));
    EXPECT_EQ(woken.kept, 300 * KIB);
    held_expect(&small, scene.stream[A]);
    DONE(pause_of(scene.pool, NULL, CENOTE_DISCARD_ALL, &slept));
    EXPECT_EQ(slept.kept, 0);
    EXPECT_EQ(slept.discarded, 300 * KIB + 9 * MIB);
    DONE(resume_of(scene.pool, NULL, &woken));
    DONE(cenote_free(small.at));
    DONE(cenote_free(large.at));
    scene_close(&scene);
}

/* What never changes is copied once, and comes back each time; a block that comes, or another word, ends that. */
CASE(constant_contents_are_copied_once)
{
    struct scene scene;
    struct held held[3];
    cenote_sleep slept, woken;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held[0], scene.pool, 9 * MIB, scene.stream[A]));
    REQUIRE(held_take(&held[1], scene.pool, 3000, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    uint64_t kept = slept.kept;
    EXPECT(kept >= 9 * MIB + 3000);
    for (int i = 0; i < 3; i++) {
        DONE(resume_of(scene.pool, NULL, &woken));
        EXPECT_EQ(woken.kept, kept);
        for (int b = 0; b < 2; b++)
            held_expect(&held[b], scene.stream[A]);
        DONE(cenote_pool_check(scene.pool));
        DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
        EXPECT_EQ(slept.kept, 0);
        EXPECT_EQ(slept.pages, woken.pages);
    }
    DONE(resume_of(scene.pool, NULL, &woken));
    held_give(&held[1]);
    REQUIRE(held_take(&held[1], scene.pool, 3000, scene.stream[A])); /* at the same address, as like as not */
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    EXPECT_EQ(slept.kept, kept);
    DONE(resume_of(scene.pool, NULL, &woken));
    held[0].pattern++;
    held_launch(&held[0], sim_launch_fill, scene.stream[A]);
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.kept, kept);
    DONE(resume_of(scene.pool, NULL, &woken));
    DONE(pause_of(scene.pool, NULL, CENOTE_CONSTANT, &slept));
    DONE(resume_of(scene.pool, NULL, &woken));
    for (int b = 0; b < 2; b++)
        held_give(&held[b]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* its pages go, and their copies */
    scene_close(&scene);
}

CASE(not_while_a_capture_is_open)
{
    struct scene scene;
    struct held held;
    cenote_sleep slept;
    cenote_group *group;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[B]));
    EXPECT_EQ(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept), CENOTE_CAPTURE);
    EXPECT(strstr(cenote_message(), "before it begins, or after it ends") != NULL); /* the call did not wait for one that began meanwhile */
    DONE(cenote_capture_end(scene.pool, group, scene.stream[B]));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[B]));
    EXPECT_EQ(resume_of(scene.pool, NULL, &slept), CENOTE_CAPTURE);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[B]));
    DONE(resume_of(scene.pool, NULL, &slept));
    held_give(&held);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Pinned memory is known to others by its pages: it stays, and the answer says how much. */
CASE(pinned_memory_stays)
{
    struct scene scene;
    struct held held;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(cenote_pin(held.at, held.bytes));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 0);
    EXPECT_EQ(slept.awake, 4 * MIB);
    held_expect(&held, scene.stream[A]);
    DONE(cenote_unpin(held.at, held.bytes));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 4 * MIB);
    EXPECT(cenote_pin(held.at, held.bytes) != CENOTE_OK);
    DONE(resume_of(scene.pool, NULL, &slept));
    held_give(&held);
    scene_close(&scene);
}

/* A graph knows the addresses of what was free when its capture ended: its pages sleep with the group, and are there again when it replays. */
CASE(a_graph_replays_after_waking)
{
    struct scene scene;
    struct held inner;
    cenote_group *group;
    cenote_sleep slept, woken;
    CUgraph graph;
    CUgraphExec exec;
    void *at;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(group_alloc(group, 6 * MIB, 512, scene.stream[A], &at));
    inner = held_of(at, 6 * MIB, scene.stream[A]);
    held_give(&inner);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 6 * MIB);
    EXPECT_EQ(used(), 0);
    DONE(cenote_pool_check(scene.pool));
    DONE(resume_of(scene.pool, group, &woken));
    EXPECT_EQ(woken.pages, 6 * MIB);
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, &slept));
    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group)); /* no replay comes any more: what sleeps is gone */
    EXPECT_EQ(scene_stats(scene.pool).asleep, 0);
    scene_close(&scene);
}

/* What the driver gave as a whole has no pages. */
CASE(segments_stay)
{
    struct scene scene;
    struct held held;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_sleep slept;
    options.provider = CENOTE_PLAIN;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 6 * MIB, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 0);
    held_give(&held);
    scene_close(&scene);
}

/* Another process may have the block, by its pages. A block that sleeps has none to show. */
CASE(exported_memory_stays)
{
    struct scene scene;
    struct held held[2];
    cenote_share share;
    cenote_sleep slept;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held[0], scene.pool, 4 * MIB, scene.stream[A]));
    REQUIRE(held_take(&held[1], scene.pool, 8 * MIB, scene.stream[A]));
    DONE(cenote_export(held[0].at, &share));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, &slept));
    EXPECT_EQ(slept.pages, 8 * MIB);
    EXPECT_EQ(slept.awake, 4 * MIB);
    held_expect(&held[0], scene.stream[A]);
    EXPECT_EQ(cenote_export(held[1].at, &share), CENOTE_BUSY);
    DONE(resume_of(scene.pool, NULL, &slept));
    DONE(cenote_export(held[1].at, &share));
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* A page sleeps if all that lies there was named. */
CASE(blocks_by_name)
{
    struct scene scene;
    struct held held[6];
    const void *names[6];
    cenote_sleep sleep = {.blocks = names, .count = 2};
    scene_open(&scene, CARD);
    for (int i = 0; i < 6; i++)
        REQUIRE(held_take(&held[i], scene.pool, i < 2 ? 2 * MIB : i < 4 ? MIB : 5000, scene.stream[A]));
    names[0] = held[1].at;
    names[1] = held[2].at; /* half of a page; the other half is awake */
    DONE(cenote_pool_pause(scene.pool, &sleep));
    EXPECT_EQ(sleep.pages, 2 * MIB);
    EXPECT_EQ(sleep.awake, 2 * MIB);
    held_expect(&held[0], scene.stream[A]);
    held_expect(&held[2], scene.stream[A]);
    names[0] = held[3].at;
    DONE(cenote_pool_pause(scene.pool, &sleep));
    EXPECT_EQ(sleep.pages, 2 * MIB);
    names[0] = held[5].at;
    names[1] = held[4].at; /* items of one slab */
    DONE(cenote_pool_pause(scene.pool, &sleep));
    EXPECT_EQ(sleep.pages, 2 * MIB);
    EXPECT(sleep.kept >= 2 * 5000);
    names[0] = held[2].at; /* one of them is enough to wake the page */
    sleep.count = 1;
    DONE(cenote_pool_resume(scene.pool, &sleep));
    EXPECT_EQ(sleep.pages, 2 * MIB);
    held_expect(&held[3], scene.stream[A]);
    DONE(resume_of(scene.pool, NULL, &sleep));
    EXPECT_EQ(sleep.pages, 4 * MIB);
    for (int i = 0; i < 6; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

CASE(names_that_are_none)
{
    struct scene scene;
    struct held held[2];
    const void *names[2];
    cenote_sleep sleep = {.blocks = names, .count = 2};
    scene_open(&scene, CARD);
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&held[i], scene.pool, 2 * MIB, scene.stream[A]));
    names[0] = held[0].at;
    names[1] = (char *)held[1].at + 512;
    EXPECT_EQ(cenote_pool_pause(scene.pool, &sleep), CENOTE_NOT_OURS);
    names[1] = &scene;
    EXPECT_EQ(cenote_pool_pause(scene.pool, &sleep), CENOTE_NOT_OURS);
    EXPECT_EQ(used(), 4 * MIB);
    sleep.count = 0; /* a list of none names nothing */
    DONE(cenote_pool_pause(scene.pool, &sleep));
    EXPECT_EQ(sleep.pages, 0);
    sleep.blocks = NULL;
    sleep.count = 2;
    EXPECT_EQ(cenote_pool_pause(scene.pool, &sleep), CENOTE_INVALID);
    sleep = (cenote_sleep){.contents = 17};
    EXPECT_EQ(cenote_pool_pause(scene.pool, &sleep), CENOTE_INVALID);
    EXPECT_EQ(used(), 4 * MIB);
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

/* What the caller has to know of: whom the card's memory belongs to. */
CASE(no_room_says_who_has_it)
{
    struct scene scene;
    struct held held;
    CUdeviceptr others;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&held, scene.pool, CARD / 2, scene.stream[A]));
    DONE(pause_of(scene.pool, NULL, CENOTE_KEEP, NULL));
    DONE(cuMemAlloc(&others, CARD / 2 + 2 * MIB));
    EXPECT_EQ(resume_of(scene.pool, NULL, NULL), CENOTE_OUT_OF_MEMORY);
    EXPECT(strstr(cenote_message(), "32.00 MiB") != NULL);
    DONE(cuMemFree(others));
    DONE(resume_of(scene.pool, NULL, NULL));
    held_give(&held);
    scene_close(&scene);
}

/* A limit holds for what wakes, too. */
CASE(a_limit_holds)
{
    struct scene scene;
    struct held held[2];
    cenote_group *group;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "engine", 0, NULL, &group));
    DONE(cenote_pool_set_limit(scene.pool, 20 * MIB));
    DONE(group_alloc(group, 16 * MIB, 1, scene.stream[A], &block));
    held[0] = held_of(block, 16 * MIB, scene.stream[A]);
    DONE(pause_of(scene.pool, group, CENOTE_KEEP, NULL));
    REQUIRE(held_take(&held[1], scene.pool, 10 * MIB, scene.stream[A]));
    EXPECT_EQ(resume_of(scene.pool, group, NULL), CENOTE_OUT_OF_MEMORY);
    held_give(&held[1]);
    DONE(resume_of(scene.pool, group, NULL));
    held_give(&held[0]);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

SCENES_MAIN("sleep")
