/*
 * test_pools.c: pools as wholes: options, several pools and devices, the default pool, limits.
 * Not: what happens when a limit is reached (test_shortage.c).
 */
#include "tests/api/scene.h"

#include "driver/driver.h"
#include "pool/life/pools.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define CARD (64 * MIB)

static void create_and_destroy(const cenote_options *options, uint64_t page_bytes)
{
    cenote_pool *pool = NULL;
    DONE(cenote_pool_create(0, options, &pool));
    REQUIRE(pool != NULL);
    EXPECT_EQ(cenote_pool_device(pool), 0);
    EXPECT_EQ(scene_stats(pool).page_bytes, page_bytes);
    DONE(cenote_pool_destroy(pool));
}

CASE(page_sizes)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_pool *pool;
    scene_open_card(&scene, &shape);
    for (options.page_mib = 2; options.page_mib <= 32; options.page_mib *= 2)
        create_and_destroy(&options, options.page_mib * MIB);
    static const uint32_t wrong[] = {1, 3, 5, 12, 31, 33, 64, 1000, UINT32_MAX}; /* 1 is below the granularity */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options.page_mib = wrong[i];
        pool = (cenote_pool *)&scene;
        EXPECT_EQ(cenote_pool_create(0, &options, &pool) == CENOTE_OK, false);
        EXPECT(strstr(cenote_message(), "page_mib"));
        EXPECT_EQ(pool, (cenote_pool *)&scene);
    }
    scene_close(&scene);
}

CASE(page_size_follows_the_card)
{
    static const struct {
        uint64_t capacity;
        uint64_t page;
    } cards[] = {{64 * MIB, 2 * MIB}, {8 * GIB, 2 * MIB}, {16 * GIB, 4 * MIB}, {32 * GIB, 8 * MIB}, {80 * GIB, 16 * MIB}, {141 * GIB, 32 * MIB},
                 {700 * GIB, 32 * MIB}};
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        struct scene scene;
        struct sim_shape shape = scene_card(cards[i].capacity);
        scene_open_card(&scene, &shape);
        create_and_destroy(NULL, cards[i].page);
        scene_close(&scene);
    }
}

/* A limit says how much there will be, unless there is less anyway. */
CASE(page_size_follows_the_limit)
{
    struct scene scene;
    struct sim_shape shape = scene_card(32 * GIB);
    cenote_options options;
    scene_open_card(&scene, &shape);
    DONE(cenote_options_default(&options));
    options.limit = (double)(16 * GIB);
    create_and_destroy(&options, 4 * MIB);
    options.limit = (double)(80 * GIB);
    create_and_destroy(&options, 8 * MIB);
    scene_close(&scene);
}

CASE(options_out_of_range)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool;
    scene_open_card(&scene, &shape);
    struct {
        const char *name;
        cenote_options options;
    } wrong[6];
    for (int i = 0; i < 6; i++)
        wrong[i].options = scene_options();
    wrong[0].name = "provider", wrong[0].options.provider = CENOTE_GUARD + 1;
    wrong[1].name = "harvest_budget", wrong[1].options.harvest_budget = 1.5;
    wrong[2].name = "address_ratio", wrong[2].options.address_ratio = 0;
    wrong[3].name = "address_ratio", wrong[3].options.address_ratio = 65;
    wrong[4].name = "limit", wrong[4].options.limit = -1;
    wrong[5].name = "limit", wrong[5].options.limit = (double)NAN;
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ(cenote_pool_create(0, &wrong[i].options, &pool) == CENOTE_OK, false);
        EXPECT(strstr(cenote_message(), wrong[i].name));
    }
    scene_close(&scene);
}

CASE(options_from_the_environment)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options;
    cenote_pool *pool;
    scene_open_card(&scene, &shape);
    setenv("CENOTE_CONF", "page_mib:4,limit:50%", 1);
    DONE(cenote_options_default(&options));
    EXPECT_EQ(options.page_mib, 4);
    DONE(cenote_pool_create(0, NULL, &pool));
    EXPECT_EQ(scene_stats(pool).page_bytes, 4 * MIB);
    EXPECT_EQ(scene_stats(pool).limit, CARD / 2);
    DONE(cenote_pool_destroy(pool));

    setenv("CENOTE_CONF", "page_mb:4", 1);
    EXPECT_EQ(cenote_options_default(&options), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_message(), "page_mb") && strstr(cenote_message(), "page_mib"));
    EXPECT_EQ(cenote_pool_create(0, NULL, &pool), CENOTE_BAD_OPTION);
    unsetenv("CENOTE_CONF");
    create_and_destroy(NULL, 2 * MIB);
    scene_close(&scene);
}

CASE(two_pools_on_one_card)
{
    struct scene scene;
    struct held held[2];
    cenote_options options = scene_options();
    cenote_pool *second;
    cenote_block found;
    scene_open(&scene, CARD);
    DONE(cenote_pool_create(0, &options, &second));
    REQUIRE(held_take(&held[0], scene.pool, 5 * MIB, scene.stream[A]));
    REQUIRE(held_take(&held[1], second, 7 * MIB, scene.stream[A]));
    EXPECT(!held_overlap(&held[0], &held[1]));
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 5 * MIB);
    EXPECT_EQ(scene_stats(second).allocated.current, 7 * MIB);
    DONE(cenote_find(held[1].at + 1, &found));
    EXPECT_EQ(found.pool, second);
    held_give(&held[0]);
    EXPECT_EQ(cenote_pool_destroy(second), CENOTE_BUSY);
    held_give(&held[1]);
    DONE(cenote_pool_check(second));
    DONE(cenote_pool_destroy(second));
    scene_close(&scene);
}

CASE(two_cards)
{
    struct scene scene;
    struct held held[2], again;
    CUcontext other;
    CUstream other_stream;
    cenote_pool *second;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(1, &options, &second));
    EXPECT_EQ(cenote_pool_device(second), 1);
    EXPECT_EQ(cenote_pool_create(2, &options, &(cenote_pool *){NULL}), CENOTE_NO_DEVICE);
    DONE(cuDevicePrimaryCtxRetain(&other, 1));
    DONE(cuCtxPushCurrent(other));
    DONE(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));

    REQUIRE(held_take(&held[1], second, CARD, other_stream)); /* each has its whole card */
    EXPECT(!held_take(&again, second, 512, other_stream));
    held_expect(&held[1], other_stream);
    DONE(cuCtxPopCurrent(NULL));
    REQUIRE(held_take(&held[0], scene.pool, CARD, scene.stream[A]));
    DONE(cenote_free(held[1].at)); /* with the other card current */
    held_give(&held[0]);
    EXPECT_EQ(scene_stats(second).allocated.current, 0);
    DONE(cenote_pool_check(second));
    DONE(cenote_pool_destroy(second));

    DONE(cuCtxPushCurrent(other));
    DONE(cuCtxSynchronize());
    DONE(cuStreamDestroy(other_stream));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&scene);
}

static bool has_context(int device)
{
    unsigned flags;
    int active = -1;
    DONE(cuDevicePrimaryCtxGetState(device, &flags, &active));
    return active;
}

/* A program that sees eight devices and works on one has a context on one. */
CASE(a_context_comes_with_the_first_allocation)
{
    struct scene scene;
    cenote_pool *second;
    void *block;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    options.trim_every = 1;
    scene_open_with(&scene, &shape, &options);
    for (int round = 0; round < 2; round++) {
        DONE(cenote_pool_create(1, &options, &second));
        DONE(cenote_pool_set_limit(second, CARD / 2));
        DONE(cenote_pool_trim(second, 0, CENOTE_TRIM_WAIT));
        DONE(cenote_pool_step(second));
        EXPECT_EQ(scene_stats(second).reserved.current, 0);
        DONE(cenote_pool_check(second));
        EXPECT(!has_context(1));
        if (round) {
            DONE(cenote_alloc(second, 512, NULL, &block));
            EXPECT(has_context(1));
            DONE(cenote_free(block));
        }
        DONE(cenote_pool_destroy(second));
        EXPECT(!has_context(1));
    }
    scene_close(&scene);
}

/* The device is full, say: the pool is there, and the allocation says what is wrong. */
CASE(a_context_that_cannot_be_made)
{
    struct scene scene;
    cenote_pool *second;
    void *block = NULL;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(1, &options, &second));
    fault_arm("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
    EXPECT(cenote_alloc(second, 512, NULL, &block) != 0);
    EXPECT(strstr(cenote_message(), "the context of device 1 could not be made: CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    fault_disarm();
    DONE(cenote_alloc(second, 512, NULL, &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(second));
    scene_close(&scene);
}

CASE(no_context_of_ones_own)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool = NULL;
    void *block;
    CUcontext current;
    sim_reset(&shape);
    DONE(cuInit(0)); /* once per process: the library has done so for the card of an earlier case */
    DONE(cenote_pool_create(0, NULL, &pool)); /* retains the context itself */
    REQUIRE(pool != NULL);
    DONE(cenote_alloc(pool, 3 * MIB, NULL, &block));
    DONE(cuCtxGetCurrent(&current));
    EXPECT(!current);
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuCtxGetCurrent(&current));
    EXPECT(!current);
    DONE(cenote_pool_destroy(pool));
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.contexts, 0);
    EXPECT_EQ(books.violations, 0);
}

CASE(limits)
{
    struct scene scene;
    struct held held, more;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.limit = 0.25;
    scene_open_with(&scene, &shape, &options);
    EXPECT_EQ(scene_stats(scene.pool).limit, CARD / 4);
    EXPECT_EQ(scene_stats(scene.pool).capacity, CARD);
    REQUIRE(held_take(&held, scene.pool, CARD / 4, scene.stream[A]));
    EXPECT(!held_take(&more, scene.pool, 512, scene.stream[A]));
    EXPECT(!held_take(&more, scene.pool, 512, scene.stream[B]));
    EXPECT(strstr(cenote_message(), "limit"));

    DONE(cenote_pool_set_limit(scene.pool, CARD / 2));
    REQUIRE(held_take(&more, scene.pool, CARD / 4, scene.stream[B]));
    held_give(&more);
    held_give(&held);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_set_limit(scene.pool, 6 * MIB)); /* what is above goes back as far as it is free */
    EXPECT(scene_stats(scene.pool).reserved.current <= 6 * MIB);
    REQUIRE(held_take(&held, scene.pool, 6 * MIB, scene.stream[A]));
    DONE(cenote_pool_set_limit(scene.pool, 2 * MIB)); /* live memory stays, of course */
    held_expect(&held, scene.stream[A]);
    EXPECT(!held_take(&more, scene.pool, 2 * MIB, scene.stream[A]));
    held_give(&held);
    DONE(cenote_pool_set_limit(scene.pool, 0));
    REQUIRE(held_take(&held, scene.pool, CARD, scene.stream[A]));
    held_give(&held);
    scene_close(&scene);
}

CASE(limit_in_bytes)
{
    struct scene scene;
    struct held held, more;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.limit = 11.0 * (double)MIB; /* not a multiple of the page: never more than that */
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 10 * MIB, scene.stream[A]));
    EXPECT(!held_take(&more, scene.pool, MIB / 2, scene.stream[A]));
    EXPECT(scene_stats(scene.pool).reserved.current <= 11 * MIB);
    held_give(&held);
    scene_close(&scene);
}

/* A thread that goes through all pools, out of memory or to explain, may be at one that is destroyed: no other pool takes that one's place. */
CASE(a_pool_that_goes_while_somebody_is_at_it)
{
    struct scene scene;
    cenote_pool *other, *next;
    cenote_options options = scene_options();
    scene_open(&scene, CARD);
    DONE(cenote_pool_create(0, &options, &other));
    cenote_pool *at = pool_next_on_device(scene.pool, NULL);
    while (at && at != other)
        at = pool_next_on_device(scene.pool, at);
    REQUIRE_EQ(at, other);
    DONE(cenote_pool_destroy(other));
    for (int i = 0; i < 2 * POOLS_KEPT; i++) {
        DONE(cenote_pool_create(0, &options, &next));
        EXPECT(next != other);
        DONE(cenote_pool_destroy(next));
    }
    while (at)
        at = pool_next_on_device(scene.pool, at);
    for (int i = 0; at != other && i < 2 * POOLS_KEPT; i++) { /* now it is free again */
        DONE(cenote_pool_create(0, &options, &at));
        DONE(cenote_pool_destroy(at));
    }
    EXPECT(at == other);
    scene_close(&scene);
}

/* Last: the default pool lives as long as the program. */
CASE(the_default_pool)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool = NULL, *same = NULL;
    void *block;
    sim_reset(&shape);
    DONE(cuInit(0));
    setenv("CENOTE_CONF", "nonsense:1", 1);
    pool = (cenote_pool *)&shape;
    EXPECT_EQ(cenote_pool_default(0, &pool), CENOTE_BAD_OPTION);
    EXPECT_EQ(pool, (cenote_pool *)&shape); /* a call that fails sets nothing */
    unsetenv("CENOTE_CONF");
    DONE(cenote_pool_default(0, &pool));
    DONE(cenote_pool_default(0, &same));
    REQUIRE(pool != NULL);
    EXPECT_EQ(pool, same);
    DONE(cenote_alloc(pool, 1000, NULL, &block));
    DONE(cenote_free(block));
    EXPECT(cenote_pool_destroy(pool) != CENOTE_OK);
    DONE(cenote_pool_check(pool));
    EXPECT_EQ(cenote_pool_default(1, &same), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_default(-1, &same), CENOTE_NO_DEVICE);
    EXPECT_EQ(pool, same); /* a call that fails sets nothing */
}

SCENES_MAIN("api: pools")
