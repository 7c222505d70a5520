/*
 * test_providers.c: one battery for every place memory can come from, and which one AUTO takes. Only vmm pages move; everything a program
 * can see of a block is the same on all of them.
 */
#include "tests/api/scene.h"

#define CARD (128 * MIB)

static void open_with(struct scene *scene, enum cenote_provider provider, enum cenote_graphs graphs)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.provider = provider;
    options.graphs = graphs;
    scene_open_with(scene, &shape, &options);
}

static void open_on(struct scene *scene, enum cenote_provider provider)
{
    open_with(scene, provider, CENOTE_GRAPHS_AUTO);
}

static void battery_sizes_and_misuse(struct scene *scene)
{
    static const size_t sizes[] = {1, 512, 513, 32 * KIB, 100000, MIB, 2 * MIB + 1, 5 * MIB, 12 * MIB};
    struct held held[9];
    for (int i = 0; i < 9; i++) {
        REQUIRE(held_take(&held[i], scene->pool, sizes[i], scene->stream[i % 2]));
        EXPECT_EQ((uintptr_t)held[i].at % 512, 0);
        for (int j = 0; j < i; j++)
            EXPECT(!held_overlap(&held[i], &held[j]));
    }
    for (int i = 0; i < 9; i++) {
        cenote_block found;
        DONE(cenote_find(held[i].at + sizes[i] - 1, &found));
        EXPECT_EQ(found.start, held[i].at);
        EXPECT_EQ(cenote_free_sized(held[i].at, sizes[i] + 1), CENOTE_WRONG_SIZE);
        if (sizes[i] > 1)
            EXPECT_EQ(cenote_free(held[i].at + sizes[i] / 2), CENOTE_INTERIOR);
    }
    for (int i = 0; i < 9; i += 2) {
        char *freed = held[i].at;
        held_give(&held[i]);
        int error = cenote_free(freed);
        EXPECT(error == CENOTE_DOUBLE_FREE || error == CENOTE_NOT_OURS);
    }
    for (int i = 1; i < 9; i += 2)
        held_give(&held[i]);
    scene_judge(scene);
}

static void battery_alignments(struct scene *scene)
{
    for (size_t alignment = 512; alignment <= 2 * MIB; alignment *= 2) {
        void *small = NULL, *large = NULL;
        DONE(alloc_aligned(scene->pool, 700, alignment, scene->stream[A], &small));
        DONE(alloc_aligned(scene->pool, 3 * MIB, alignment, scene->stream[A], &large));
        EXPECT_EQ((uintptr_t)small % alignment, 0);
        EXPECT_EQ((uintptr_t)large % alignment, 0);
        struct held held[2] = {held_of(small, 700, scene->stream[A]), held_of(large, 3 * MIB, scene->stream[A])};
        held_give(&held[0]);
        held_give(&held[1]);
    }
    scene_judge(scene);
}

/* The device runs behind; memory goes from stream to stream, with a word to cenote and without. */
static void battery_streams(struct scene *scene)
{
    sim_set_lag(MSEC);
    for (int round = 0; round < 6; round++) {
        struct held first, second, used;
        CUstream one = scene->stream[round % 3], two = scene->stream[(round + 1) % 3];
        REQUIRE(held_take(&first, scene->pool, 20 * MIB, one));
        REQUIRE(held_take(&used, scene->pool, 4 * MIB, one));
        order(one, two);
        held_linger(&used, two);
        DONE(cenote_use(used.at, two));
        DONE(cenote_free(used.at));
        held_linger(&first, one);
        held_give(&first);
        REQUIRE(held_take(&second, scene->pool, 20 * MIB, two));
        REQUIRE(held_take(&first, scene->pool, 10 * MIB, one));
        held_give(&second);
        held_give(&first);
    }
    sim_set_lag(0);
    scene_judge(scene);
}

/* Full, the answer is clear; what is full stays usable; another stream and another size can have all of it in the end. */
static void battery_full_card(struct scene *scene)
{
    static const size_t sizes[] = {8 * MIB, 3 * MIB, 16 * MIB};
    for (int i = 0; i < 3; i++) {
        struct hoard hoard;
        void *block;
        hoard_take(&hoard, scene->pool, sizes[i], scene->stream[i]);
        EXPECT(hoard.bytes >= CARD / 4 * 3);
        EXPECT_EQ(cenote_alloc(scene->pool, CARD, scene->stream[i], &block), CENOTE_OUT_OF_MEMORY);
        EXPECT(strstr(cenote_message(), " out of memory."));
        hoard_give(&hoard);
        scene_judge(scene);
    }
}

static void battery_giving_back(struct scene *scene)
{
    struct held kept, gone;
    REQUIRE(held_take(&kept, scene->pool, 3 * MIB, scene->stream[A]));
    REQUIRE(held_take(&gone, scene->pool, 40 * MIB, scene->stream[B]));
    held_give(&gone);
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(scene_stats(scene->pool).reserved.current < 40 * MIB);
    held_give(&kept);
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene->pool).reserved.current, 0);
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.used, 0);
    REQUIRE(held_take(&kept, scene->pool, 3 * MIB, scene->stream[A]));
    cenote_stats s = scene_stats(scene->pool);
    EXPECT_EQ(s.reserved.current, s.allocated.current + s.cached.current);
    held_give(&kept);
}

static void battery_groups_and_captures(struct scene *scene)
{
    cenote_group *group = NULL;
    struct held temporary, large;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    struct hoard hoard;
    DONE(cenote_group_create(scene->pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene->pool, group, scene->stream[A]));
    DONE(cuStreamBeginCapture(scene->stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(held_take(&temporary, scene->pool, 6 * MIB, scene->stream[A]));
    held_give(&temporary);
    REQUIRE(held_take(&large, scene->pool, 40 * MIB, scene->stream[A])); /* as much as a driver's pool would have */
    held_give(&large);
    DONE(cuStreamEndCapture(scene->stream[A], &graph));
    DONE(cenote_capture_end(scene->pool, group, scene->stream[A]));
    REQUIRE(graph != NULL);
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT)); /* nothing of it: replays come */
    EXPECT(scene_stats(scene->pool).reserved.current >= 40 * MIB);
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphDestroy(graph));

    hoard_take(&hoard, scene->pool, 4 * MIB, scene->stream[B]);
    DONE(cuGraphLaunch(exec, scene->stream[A]));
    hoard_give(&hoard);
    scene_judge(scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene->pool).reserved.current, 0);
}

static void battery_with(enum cenote_provider provider, enum cenote_graphs graphs)
{
    struct scene scene;
    open_with(&scene, provider, graphs);
    battery_sizes_and_misuse(&scene);
    battery_alignments(&scene);
    battery_streams(&scene);
    battery_full_card(&scene);
    battery_giving_back(&scene);
    battery_groups_and_captures(&scene);
    scene_close(&scene);
}

static void battery(enum cenote_provider provider)
{
    battery_with(provider, CENOTE_GRAPHS_AUTO);
}

/* What comes and goes counts against the limit as long as it is there. */
static void limited(enum cenote_provider provider)
{
    struct scene scene;
    struct held held;
    open_on(&scene, provider);
    DONE(cenote_pool_set_limit(scene.pool, 64 * MIB));
    for (int i = 0; i < 4; i++) {
        REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A]));
        EXPECT(scene_stats(scene.pool).reserved.current <= 64 * MIB);
        held_give(&held);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    }
    EXPECT(!held_take(&held, scene.pool, 65 * MIB, scene.stream[A]));
    scene_close(&scene);
}

CASE(limits_on_all_of_them)
{
    limited(CENOTE_VMM);
    limited(CENOTE_ASYNC);
    limited(CENOTE_PLAIN);
    limited(CENOTE_GUARD);
}

CASE(battery_on_vmm)
{
    battery(CENOTE_VMM);
}

CASE(battery_on_vmm_with_plain_graphs)
{
    battery_with(CENOTE_VMM, CENOTE_GRAPHS_PLAIN);
}

CASE(battery_on_async)
{
    battery(CENOTE_ASYNC);
}

CASE(battery_on_plain)
{
    battery(CENOTE_PLAIN);
}

CASE(battery_on_guard)
{
    battery(CENOTE_GUARD);
}

/* `provider` begins, serves and, where it can, ends beside a capture of this thread: announced, or none is. */
static void begin_in_a_capture(enum cenote_provider provider, CUstreamCaptureMode mode, bool announced)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_pool *begun;
    CUgraph graph = NULL;
    void *block;
    options.announced = announced;
    scene_open_with(&scene, &shape, &options);
    if (announced)
        DONE(cenote_capture_begin(scene.pool, NULL, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], mode));
    options.provider = provider;
    DONE(cenote_pool_create(0, &options, &begun));
    DONE(cenote_alloc(begun, 40 * MIB, scene.stream[B], &block));
    DONE(cenote_free(block));
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    EXPECT(graph != NULL);
    if (announced)
        DONE(cenote_capture_end(scene.pool, NULL, scene.stream[A]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_stream_retire(begun, scene.stream[B]));
    DONE(cenote_pool_destroy(begun));
    scene_close(&scene);
}

CASE(a_pool_that_begins_ends_no_capture)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
    for (enum cenote_provider provider = CENOTE_VMM; provider <= CENOTE_GUARD; provider++)
        for (int i = 0; i < 3; i++) {
            begin_in_a_capture(provider, modes[i], true);
            begin_in_a_capture(provider, modes[i], false);
        }
}

/* What a device can do decides: `vmm` before `pools` before nothing special. */
static void automatic(bool vmm, bool pools)
{
    struct scene scene;
    struct sim_books books;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_pool *none = NULL;
    struct held held;
    shape.vmm = vmm;
    shape.pools = pools;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 40 * MIB, scene.stream[A])); /* in less a driver's pool has no part */
    sim_books(&books);
    EXPECT_EQ(books.handles > 0, vmm);
    EXPECT_EQ(books.allocations > 0, !vmm);
    EXPECT_EQ(books.pools > 0, !vmm && pools);
    held_give(&held);
    scene_judge(&scene);

    options.provider = CENOTE_VMM;
    EXPECT_EQ(cenote_pool_create(0, &options, &none), vmm ? CENOTE_OK : CENOTE_NOT_SUPPORTED);
    if (none)
        DONE(cenote_pool_destroy(none));
    none = NULL;
    options.provider = CENOTE_ASYNC;
    EXPECT_EQ(cenote_pool_create(0, &options, &none), pools ? CENOTE_OK : CENOTE_NOT_SUPPORTED);
    if (none)
        DONE(cenote_pool_destroy(none));
    else
        EXPECT(cenote_message()[0] != 0);
    scene_close(&scene);
}

CASE(automatic_choice)
{
    automatic(true, true);
    automatic(true, false);
    automatic(false, true);
    automatic(false, false);
}

/* What the pool holds after one more block, in MiB; the driver's own books say the same. */
static uint64_t held_with(struct scene *scene, struct held *held, size_t bytes)
{
    struct sim_books books;
    EXPECT(held_take(held, scene->pool, bytes, scene->stream[A]));
    sim_books(&books);
    EXPECT_EQ(books.used, scene_stats(scene->pool).reserved.current);
    return books.used / MIB;
}

/* A driver's pool grows by 32 MiB: an arena of little takes less from elsewhere, and what a block leaves of a segment is of use to another. */
CASE(segments_of_async)
{
    struct scene scene;
    struct held held[8];
    struct sim_shape shape = scene_card(2048 * MIB);
    cenote_options options = scene_options();
    options.provider = CENOTE_ASYNC;
    scene_open_with(&scene, &shape, &options);
    EXPECT_EQ(held_with(&scene, &held[0], KIB), 2);
    EXPECT_EQ(held_with(&scene, &held[1], 9 * MIB), 2 + 20);
    EXPECT_EQ(held_with(&scene, &held[2], 17 * MIB), 22 + 34);  /* 32 MiB would lose 15 of them */
    EXPECT_EQ(held_with(&scene, &held[3], 17 * MIB), 56);
    EXPECT_EQ(held_with(&scene, &held[4], 15 * MIB), 56 + 32);  /* two, and 2 MiB left over */
    EXPECT_EQ(held_with(&scene, &held[5], 600 * MIB), 88 + 600);
    EXPECT_EQ(held_with(&scene, &held[6], 20 * MIB), 688 + 64); /* an arena of much takes more at once: three, and 4 MiB */
    EXPECT_EQ(held_with(&scene, &held[7], 40 * MIB), 752);
    for (int i = 0; i < 8; i++)
        held_give(&held[i]);
    scene_close(&scene);
}

SCENES_MAIN("api: providers")
