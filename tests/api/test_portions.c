/*
 * test_portions.c: work that lets go of the pool's lock in the middle, while other threads allocate and free: plans of large places, trims, the
 * emptying of regions, old aliases, freed blocks that come back. And what is found in other ways where there is much of it: uses, slabs. Not: how
 * long the lock is held (bench/scale).
 */
#include <pthread.h>

#include "pool/pool.h"
#include "tests/api/scene.h"
#include "tests/patience.h"

#define CARD    (24 * GIB)
#define LARGE   (10 * GIB)          /* more slots than are planned at once */
#define HAMMERS 3
#define ROUNDS  60
#define KEPT    24

struct hammer {
    pthread_t    thread;
    struct scene *scene;
    CUstream     stream, other;
    uint64_t     random;
    unsigned     failures, calls;
};

static _Atomic bool over;

static uint64_t draw(struct hammer *h)
{
    h->random = h->random * 6364136223846793005u + 1442695040888963407u;
    return h->random >> 33;
}

/* Blocks from 512 bytes to 64 MiB; what has no room fails, and nothing else does. */
static void *hammer(void *arg)
{
    struct hammer *h = arg;
    void *block[KEPT] = {NULL};
    h->failures += cuCtxPushCurrent(h->scene->context) != 0;
    while (!atomic_load(&over)) {
        void **b = &block[draw(h) % KEPT];
        if (*b && draw(h) % 3 == 0)
            h->failures += cenote_use(*b, h->other) != 0;
        h->failures += cenote_free(*b) != 0;
        int error = cenote_alloc(h->scene->pool, 512 + draw(h) % (draw(h) % 4 ? 8 * MIB : 64 * MIB), h->stream, b);
        *b = error ? NULL : *b;
        h->failures += error && error != CENOTE_OUT_OF_MEMORY;
        if (*b)
            h->failures += sim_launch_touch(h->stream, device_address(*b), 512) != 0;
        h->failures += draw(h) % 200 == 0 && cenote_pool_trim(h->scene->pool, draw(h) % 2 ? 0 : 4 * GIB, draw(h) % 2 ? CENOTE_TRIM_WAIT : 0);
        h->calls++;
    }
    for (int i = 0; i < KEPT; i++)
        h->failures += cenote_free(block[i]) != 0;
    h->failures += cuCtxPopCurrent(NULL) != 0;
    return NULL;
}

/* One thread has most of the card in one block, on one stream after another, while others take pages that were picked for it. */
static void crowd(const char *conf)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    struct hammer hammers[HAMMERS] = {{0}};
    int served = 0, failures = 0;
    shape.manual_clock = false;
    shape.lag = 20000;
    DONE(cenote_options_parse(&options, conf));
    scene_open_with(&scene, &shape, &options);
    atomic_store(&over, false);
    for (int i = 0; i < HAMMERS; i++) {
        hammers[i] = (struct hammer){.scene = &scene, .stream = scene.stream[i], .other = scene.stream[(i + 1) % HAMMERS], .random = (uint64_t)i + 1};
        DONE(pthread_create(&hammers[i].thread, NULL, hammer, &hammers[i]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        void *block;
        int error = cenote_alloc(scene.pool, LARGE + (size_t)round * 64 * MIB, scene.stream[round % 3], &block);
        failures += error && error != CENOTE_OUT_OF_MEMORY;
        served += !error;
        if (error)
            continue;
        DONE(sim_launch_touch(scene.stream[round % 3], device_address(block), LARGE));
        DONE(cenote_free(block));
        DONE(round % 8 ? 0 : cenote_pool_check(scene.pool));
    }
    atomic_store(&over, true);
    for (int i = 0; i < HAMMERS; i++) {
        DONE(pthread_join(hammers[i].thread, NULL));
        EXPECT_EQ(hammers[i].failures, 0);
        EXPECT(hammers[i].calls > 0);
    }
    EXPECT_EQ(failures, 0);
    EXPECT(served > ROUNDS / 4);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

CASE(large_plans_beside_small_ones) { crowd(""); }
CASE(large_plans_of_pages_of_all_sizes) { crowd("page_mib:0"); }
CASE(large_plans_with_each_page_mapped_once) { crowd("aliases:off"); }
CASE(large_plans_at_a_bound_of_addresses) { crowd("address_ratio:2,mappings:9000"); }
CASE(large_plans_at_a_limit) { crowd("limit:14GiB,order:2"); }

/* The plan of a large place is undone when it turns out that too much is missing: everything is as before. */
CASE(a_large_plan_that_is_undone)
{
    struct scene scene;
    void *small, *large;
    scene_open(&scene, CARD);
    DONE(cenote_alloc(scene.pool, 6 * GIB, scene.stream[A], &large));
    DONE(cenote_alloc(scene.pool, 9 * GIB, scene.stream[A], &small));
    DONE(cenote_free(small));
    DONE(cuCtxSynchronize());
    uint64_t reserved = scene_stats(scene.pool).reserved.current;
    EXPECT_EQ(cenote_alloc(scene.pool, 20 * GIB, scene.stream[B], &small), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_pool_check(scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 1);
    EXPECT(scene_stats(scene.pool).reserved.current <= reserved);
    DONE(cenote_alloc(scene.pool, 17 * GIB, scene.stream[B], &small)); /* what is free moves, and the rest is created */
    DONE(cenote_pool_check(scene.pool));
    EXPECT(scene_stats(scene.pool).reserved.current <= CARD);
    DONE(cenote_free(small));
    DONE(cenote_free(large));
    scene_close(&scene);
}

/* The first allocation of a pool is a large one, and host memory is lacking at any moment: the place is given back, and the next attempt succeeds. */
CASE(a_large_plan_without_host_memory)
{
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        struct scene scene;
        void *large = NULL;
        scene_open(&scene, CARD);
        memory_fail(nth, false);
        int error = cenote_alloc(scene.pool, LARGE, scene.stream[A], &large);
        failed = memory_failed() != 0;
        memory_fail(0, false);
        EXPECT(!error || error == CENOTE_OUT_OF_HOST_MEMORY);
        DONE(cenote_pool_check(scene.pool));
        if (error)
            DONE(cenote_alloc(scene.pool, LARGE, scene.stream[A], &large));
        DONE(cenote_free(large));
        scene_close(&scene);
    }
}

/* Each stream counts once, however many there are, and the block comes back after the last. */
CASE(a_block_with_many_uses)
{
    enum { MANY = 3 * USES_WALKED };
    struct scene scene;
    CUstream stream[MANY];
    void *block[2];
    cenote_block found;
    scene_open(&scene, 64 * MIB);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (int n = 0; n < 2; n++) {
        DONE(cenote_alloc(scene.pool, n ? 4 * KIB : MIB, scene.stream[A], &block[n]));
        for (int again = 0; again < 2; again++)
            for (int i = 0; i < MANY; i++) {
                DONE(cenote_use(block[n], stream[(i * 5 + n) % MANY]));
                DONE(cenote_use(block[n], scene.stream[A])); /* its own stream is none */
                DONE(cenote_find(block[n], &found));
                REQUIRE_EQ(found.used, again ? MANY : i + 1);
            }
    }
    EXPECT_EQ(scene.pool->clock.uses.by_lane.count, 2 * (MANY - USES_WALKED));
    DONE(sim_launch_wait(stream[MANY - 1], 10 * MSEC));
    DONE(cenote_free(block[0]));
    DONE(cenote_free(block[1]));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 2);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene.pool->clock.uses.by_lane.count, 0);
    EXPECT_EQ(scene.pool->clock.uses.table.free_count, scene.pool->clock.uses.table.used - 1);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamDestroy(stream[i]));
    scene_close(&scene);
}

/* A group that ends looks at some of its slabs for empty ones; a trim finds the others, of that group or of all. */
CASE(empty_slabs_among_many)
{
    enum { SLABS = 700, ITEMS = 8 };
    struct scene scene;
    static void *block[SLABS * ITEMS];
    cenote_group *group;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "group", 0, NULL, &group));
    for (int i = 0; i < SLABS * ITEMS; i++)
        DONE(group_alloc(group, 8 * KIB, 512, scene.stream[A], &block[i]));
    for (int i = 0; i < ITEMS; i++) /* one slab is empty, and comes last of those with a free item */
        DONE(cenote_free(block[i]));
    for (int i = ITEMS; i < SLABS * ITEMS; i += ITEMS)
        DONE(cenote_free(block[i]));
    struct arena *a = arena_of(scene.pool, group->first_arena);
    EXPECT_EQ(a->slabs.empty, 1);
    EXPECT_EQ(cenote_group_trim(group, 0), 0);
    EXPECT_EQ(a->slabs.empty, 0);
    for (int i = SLABS * ITEMS - ITEMS + 1; i < SLABS * ITEMS; i++)
        DONE(cenote_free(block[i]));
    EXPECT_EQ(a->slabs.empty, 1);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(a->slabs.empty, 0);
    for (int i = ITEMS; i < SLABS * ITEMS - ITEMS; i++)
        DONE(i % ITEMS ? cenote_free(block[i]) : 0);
    DONE(cenote_group_destroy(group));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* Random programs have small pools. They come through plans in portions as well, because a test can make portions small. */
CASE(small_plans_in_portions_of_a_test)
{
    for (uint32_t most = 0; most < 3 && CENOTE_DEBUG; most++) {
        struct scene scene;
        lock_set_portions(most);
        scene_open(&scene, 64 * MIB);
        struct held block;
        REQUIRE(held_take(&block, scene.pool, 9 * MIB, scene.stream[A]));
        EXPECT_EQ(scene.pool->remap.fill.is_held, most != 0);
        held_give(&block);
        scene_close(&scene);
        lock_set_portions(0);
    }
}

SCENES_MAIN("portions")
