/*
 * test_scale.c: what there is a lot of: streams, groups that come and go. Counts and addresses stay flat.
 * Not: what it costs in time (bench/scale).
 */
#include "tests/api/scene.h"

#ifdef __SANITIZE_THREAD__ /* it leaves a program less than 1 TiB of addresses, and the first regions are of 24 GiB */
#define STREAMS_MANY 20
#elif CENOTE_DEBUG >= 2      /* after each mapping it walks all regions */
#define STREAMS_MANY 500
#else
#define STREAMS_MANY 20000
#endif

/* A page of 8 MiB each fits the card, and what else a stream takes must not be the limit: the simulated machine has 47 bits of addresses. */
CASE(twenty_thousand_streams_side_by_side)
{
    enum { MANY = STREAMS_MANY };
    static CUstream streams[MANY];
    static void *blocks[MANY];
    struct scene scene;
    struct sim_shape shape = scene_card(192 * GIB);
    cenote_options options = scene_options();
    shape.address_space = 1ull << 47;
    options.page_mib = 8;
    scene_open_with(&scene, &shape, &options);
    int error = 0, count = 0;
    while (count < MANY && !(error = cuStreamCreate(&streams[count], CU_STREAM_NON_BLOCKING)) &&
           !(error = cenote_alloc(scene.pool, 4 * KIB, streams[count], &blocks[count])))
        count++;
    EXPECT_EQ(error, 0);
    EXPECT_EQ(count, MANY);
    EXPECT_EQ(scene_stats(scene.pool).arenas, count);
    DONE(cenote_pool_check(scene.pool));
    while (count-- > 0) {
        DONE(cenote_free(blocks[count]));
        DONE(cuStreamDestroy(streams[count]));
    }
    scene_close(&scene);
}

/* What must not grow while groups come and go. */
struct extent {
    uint64_t metadata, addresses, reserved, driver_calls;
};

static struct extent extent_of(cenote_pool *pool)
{
    cenote_stats s = scene_stats(pool);
    return (struct extent){s.metadata, s.address_space, s.reserved.current, s.driver_calls};
}

/* One group, with a block that was used and freed, comes and goes. */
static void round_of(struct scene *scene, unsigned flags, const cenote_source *source, enum scene_stream stream)
{
    cenote_group *group = NULL;
    void *block[2];
    DONE(cenote_group_create(scene->pool, "round", flags, source, &group));
    DONE(group_alloc(group, 3 * MIB, 512, scene->stream[stream], &block[0]));
    DONE(group_alloc(group, 700, 512, scene->stream[stream], &block[1]));
    DONE(cenote_free(block[0]));
    DONE(cenote_free(block[1]));
    DONE(cenote_group_destroy(group));
}

/* More rounds than there may be groups or arenas at one time, and no trim. The same number of driver calls in each. */
static void rounds_are_flat(enum cenote_provider provider, unsigned flags, const cenote_source *source, enum scene_stream streams, int rounds)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    options.provider = provider;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 100; i++)
        round_of(&scene, flags, source, i % streams);
    struct extent before = extent_of(scene.pool);
    for (int i = 0; i < 100; i++)
        round_of(&scene, flags, source, i % streams);
    struct extent after = extent_of(scene.pool);
    uint64_t calls = after.driver_calls - before.driver_calls;
    REQUIRE_EQ(after.addresses, before.addresses); /* or more rounds take for ever */
    for (int i = 0; i < rounds; i++)
        round_of(&scene, flags, source, i % streams);
    struct extent last = extent_of(scene.pool);
    EXPECT_EQ(after.metadata, before.metadata);
    EXPECT_EQ(last.metadata, before.metadata);
    EXPECT_EQ(last.addresses, before.addresses);
    EXPECT_EQ(last.reserved, before.reserved);
    EXPECT(last.driver_calls - after.driver_calls <= calls * ((uint64_t)rounds / 100 + 1));
    DONE(cenote_pool_check(scene.pool));
    scene_close(&scene);
}

CASE(groups_come_and_go_without_a_trim)
{
    rounds_are_flat(CENOTE_VMM, 0, NULL, A + 1, 70000);
    rounds_are_flat(CENOTE_VMM, 0, NULL, SCENE_STREAMS, 1000);
    rounds_are_flat(CENOTE_VMM, CENOTE_GROUP_WHOLE, NULL, SCENE_STREAMS, 1000);
}

CASE(private_groups_come_and_go_without_a_trim)
{
    rounds_are_flat(CENOTE_VMM, CENOTE_GROUP_PRIVATE, NULL, A + 1, 70000);
    rounds_are_flat(CENOTE_VMM, CENOTE_GROUP_PRIVATE, NULL, SCENE_STREAMS, 1000);
}

CASE(groups_come_and_go_where_pages_do_not_move)
{
    rounds_are_flat(CENOTE_PLAIN, 0, NULL, SCENE_STREAMS, 1000);
    rounds_are_flat(CENOTE_PLAIN, CENOTE_GROUP_PRIVATE, NULL, SCENE_STREAMS, 1000);
    rounds_are_flat(CENOTE_ASYNC, CENOTE_GROUP_PRIVATE, NULL, SCENE_STREAMS, 1000);
    rounds_are_flat(CENOTE_ASYNC, 0, NULL, SCENE_STREAMS, 1000);
}

static void *take_from_driver(size_t bytes, cenote_stream stream, void *taken)
{
    CUdeviceptr at = 0;
    (void)stream;
    *(int *)taken += cuMemAlloc(&at, bytes) == CUDA_SUCCESS;
    return (void *)(uintptr_t)at;
}

static void give_to_driver(void *memory, size_t bytes, cenote_stream stream, void *taken)
{
    (void)bytes;
    (void)stream;
    *(int *)taken -= cuMemFree((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS;
}

/* What a source gave comes back when its group is gone, without a trim: no other group has a use for it. */
CASE(groups_with_a_source_come_and_go_without_a_trim)
{
    int taken = 0;
    cenote_source source = {.take = take_from_driver, .give = give_to_driver, .arg = &taken};
    rounds_are_flat(CENOTE_VMM, 0, &source, SCENE_STREAMS, 40000);
    rounds_are_flat(CENOTE_PLAIN, CENOTE_GROUP_PRIVATE, &source, SCENE_STREAMS, 1000);
    EXPECT_EQ(taken, 0);
}

/* A private group that takes over what another left freezes what it uses of it, and no more. */
CASE(a_private_group_freezes_what_it_uses)
{
    struct scene scene;
    cenote_group *first = NULL, *second = NULL;
    struct held other;
    void *block;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "first", CENOTE_GROUP_PRIVATE, NULL, &first));
    DONE(group_alloc(first, 40 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 20);
    DONE(cenote_group_destroy(first));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);
    REQUIRE(held_take(&other, scene.pool, 30 * MIB, scene.stream[B])); /* some of its pages go, and leave aliases */
    held_give(&other);
    DONE(cenote_group_create(scene.pool, "second", CENOTE_GROUP_PRIVATE, NULL, &second));
    DONE(group_alloc(second, 10 * MIB, 512, scene.stream[C], &block));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 5);
    DONE(cenote_free(block));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 5);
    REQUIRE(held_take(&other, scene.pool, 54 * MIB, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 5);
    held_give(&other);
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 10 * MIB);
    DONE(cenote_group_destroy(second));
    scene_close(&scene);
}

/* The second group finds its page as an alias of what another stream used last, and goes before its block. */
CASE(what_a_private_group_found_in_place_is_ordinary_after_it)
{
    struct scene scene;
    cenote_group *first = NULL, *second = NULL;
    struct held other;
    void *block;
    scene_open(&scene, 32 * MIB);
    DONE(cenote_group_create(scene.pool, "first", CENOTE_GROUP_PRIVATE, NULL, &first));
    DONE(group_alloc(first, 8 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(first));
    REQUIRE(held_take(&other, scene.pool, 32 * MIB, scene.stream[B])); /* all of its pages go, and leave aliases */
    held_give(&other);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_group_create(scene.pool, "second", CENOTE_GROUP_PRIVATE, NULL, &second));
    DONE(group_alloc(second, 8 * MIB, 512, scene.stream[C], &block));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 4);
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_group_destroy(second));
    DONE(cenote_free(block));
    DONE(cenote_pool_check(scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).pages_frozen, 0);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* A graph's replay may run on any stream, and cenote is told of none. The block holds until then what was written on its own stream. */
static void replay_elsewhere(const struct held *held, CUstream own, CUstream other)
{
    CUevent event;
    DONE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DONE(cuEventRecord(event, own));
    DONE(cuStreamWaitEvent(other, event, 0));
    held_linger(held, other);
    DONE(cuEventDestroy(event));
}

/*
 * The device is behind: what a group left is another's only when the last work on it is done, on any stream for private ones; the next group
 * of the same stream need not wait for others.
 */
CASE(groups_come_and_go_on_a_device_that_is_behind)
{
    for (unsigned flags = 0; flags <= CENOTE_GROUP_PRIVATE; flags++) {
        struct scene scene;
        scene_open(&scene, 64 * MIB);
        sim_set_lag(MSEC / 10);
        for (int i = 0; i < 400; i++) {
            cenote_group *group = NULL;
            CUstream stream = scene.stream[i % 7 % SCENE_STREAMS];
            void *block;
            DONE(cenote_group_create(scene.pool, "round", flags, NULL, &group));
            DONE(group_alloc(group, (size_t)(i % 5 + 1) * MIB, 512, stream, &block));
            struct held held = held_of(block, (size_t)(i % 5 + 1) * MIB, stream);
            if (flags & CENOTE_GROUP_PRIVATE)
                replay_elsewhere(&held, stream, scene.stream[(i + 1) % SCENE_STREAMS]);
            else
                held_linger(&held, stream);
            held_give(&held);
            DONE(cenote_group_destroy(group));
        }
        scene_judge(&scene);
        scene_close(&scene);
    }
}

SCENES_MAIN("scale")
