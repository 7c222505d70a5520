/*
 * test_recycle.c: addresses have a bound although no allocation waits for them: regions that nothing uses are emptied, and their pages kept.
 *
 * Sizes at random never settle, and the device is behind: each block takes further addresses, and maps pages of its arena there.
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD   (256 * MIB)
#define BOUND  CARD   /* of addresses */
#define STEPS  1000
#define BLOCKS 8

struct churn {
    struct scene scene;
    void *block[BLOCKS];
    uint64_t random;
};

/* Sizes at random on a stream, which is idle afterwards. */
static void churn(struct churn *c, enum scene_stream stream)
{
    for (int step = 0; step < STEPS; step++) {
        c->random = c->random * 6364136223846793005u + 1442695040888963407u;
        void **b = &c->block[c->random >> 61];
        DONE(cenote_free(*b));
        *b = NULL;
        REQUIRE(!cenote_alloc(c->scene.pool, (c->random >> 33) % (12 * MIB) + MIB, c->scene.stream[stream], b));
        sim_advance(MSEC);
    }
    for (int i = 0; i < BLOCKS; i++) {
        DONE(cenote_free(c->block[i]));
        c->block[i] = NULL;
    }
    sim_advance(1000 * MSEC);
}

/* `ratio` bounds the addresses of the pool, `addresses` those of the device. */
static void judge_churn(uint32_t ratio, uint64_t addresses, uint64_t most)
{
    struct churn c = {.random = 1};
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = 5 * MSEC;
    shape.address_space = addresses;
    options.address_ratio = ratio;
    scene_open_with(&c.scene, &shape, &options);
    for (int turn = 0; turn < 2 * SCENE_STREAMS; turn++) {
        churn(&c, turn % SCENE_STREAMS);
        DONE(cenote_pool_check(c.scene.pool));
    }
    EXPECT(scene_stats(c.scene.pool).address_space <= most);
    EXPECT_EQ(scene_stats(c.scene.pool).pages_released, 0);
    EXPECT_EQ(scene_stats(c.scene.pool).waits, 0);
    scene_close(&c.scene);
}

CASE(without_a_bound_each_stream_keeps_its_addresses)
{
    struct churn c = {.random = 1};
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = 5 * MSEC;
    scene_open_with(&c.scene, &shape, &options);
    for (int stream = 0; stream < SCENE_STREAMS; stream++)
        churn(&c, stream);
    EXPECT(scene_stats(c.scene.pool).address_space > BOUND);
    scene_close(&c.scene);
}

/* The ratio of addresses to memory is kept, and nothing given back to the driver for it. */
CASE(addresses_keep_their_ratio)
{
    judge_churn(1, 0, BOUND);
}

/* Where the device has no more addresses those of unused regions are had again, before memory is given up. */
CASE(a_device_without_addresses)
{
    judge_churn(64, BOUND, BOUND);
}

/* All addresses of the device are in flight: there a wait is better than an error. */
CASE(no_address_but_those_in_flight)
{
    struct churn c = {.random = 4};
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = 100 * MSEC;
    shape.address_space = CARD;
    scene_open_with(&c.scene, &shape, &options);
    churn(&c, A);
    EXPECT(scene_stats(c.scene.pool).waits > 0);
    scene_close(&c.scene);
}

/* A driver that refuses to unmap, at any call: what it refuses stays as it is. */
CASE(a_driver_that_refuses)
{
    struct churn c = {.random = 3};
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = 5 * MSEC;
    options.address_ratio = 1;
    scene_open_with(&c.scene, &shape, &options);
    for (int n = 1; n < 40; n++) {
        fault_arm("cuMemUnmap", (uint64_t)n, CUDA_ERROR_INVALID_VALUE, false);
        for (int i = 0; i < 50; i++) {
            void *block = NULL;
            c.random = c.random * 6364136223846793005u + 1442695040888963407u;
            int error = cenote_alloc(c.scene.pool, (c.random >> 33) % (12 * MIB) + MIB, c.scene.stream[i / 10 % SCENE_STREAMS], &block);
            EXPECT(!error || error == CENOTE_DRIVER);
            DONE(cenote_free(block));
            sim_advance(MSEC);
        }
        fault_disarm();
        DONE(cenote_pool_check(c.scene.pool));
    }
    scene_close(&c.scene);
}

SCENES_MAIN("api: recycle")
