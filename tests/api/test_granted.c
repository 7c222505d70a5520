/*
 * test_granted.c: memory that kernels of another device may touch (cenote_pool_grant) leaves its place when that device is done, too.
 * Not: who has access when (test_peers.c), nor uses that the program has told (tests/hazard/).
 */
#include <pthread.h>

#include "driver/device.h"
#include "driver/driver.h"
#include "tests/api/peers.h"

/* Device 1 reads a block for a long time, and the program says nothing of it: it will have the block's stream wait for device 1. */
static void read_and_free(struct peers *p, size_t bytes)
{
    struct held held;
    REQUIRE(held_take(&held, p->scene.pool, bytes, p->scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPushCurrent(p->other));
    held_linger(&held, p->stream);
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_free(held.at));
}

static void judge_both(struct peers *p)
{
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
    scene_judge(&p->scene);
}

/* For another stream, for the driver, and with the pool. */
CASE(memory_leaves_when_granted_devices_are_done)
{
    for (int i = 0; i < 3; i++) {
        struct peers p;
        struct held next;
        open_peers(&p, providers[i], 2);
        sim_set_lag(MSEC);
        DONE(cenote_pool_grant(p.scene.pool, 1));
        read_and_free(&p, CARD - 32 * MIB);
        REQUIRE(held_take(&next, p.scene.pool, CARD - 32 * MIB, p.scene.stream[B]));
        held_give(&next);
        judge_both(&p);
        read_and_free(&p, 40 * MIB);
        DONE(cenote_pool_trim(p.scene.pool, 0, 0)); /* does not wait: nothing of it goes */
        judge_both(&p);
        read_and_free(&p, 40 * MIB);
        DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
        judge_both(&p);
        read_and_free(&p, 40 * MIB);
        scene_destroy_pool(&p.scene);
        judge_both(&p);
        DONE(cenote_pool_create(0, NULL, &p.scene.pool));
        close_peers(&p);
    }
}

/* A driver that records no event over a context: the devices are waited for. */
CASE(granted_devices_of_an_old_driver)
{
    struct peers p;
    struct held next;
    int error;
    open_peers(&p, CENOTE_VMM, 2);
    sim_set_lag(MSEC);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    struct device *device[2] = {device_open(0, &error), device_open(1, &error)};
    REQUIRE(device[0] && device[1]);
    const struct driver *real = device[0]->driver;
    struct driver old = *real;
    old.cuCtxRecordEvent = NULL;
    device[0]->driver = device[1]->driver = &old;
    read_and_free(&p, CARD - 32 * MIB);
    REQUIRE(held_take(&next, p.scene.pool, CARD - 32 * MIB, p.scene.stream[B]));
    held_give(&next);
    judge_both(&p);
    device[0]->driver = device[1]->driver = real;
    device_close(device[0]);
    device_close(device[1]);
    close_peers(&p);
}

/* While a capture is open there, nothing that was freed leaves, and no thread waits for it. */
CASE(captures_of_granted_devices)
{
    struct peers p;
    struct held held, next;
    cenote_pool *there;
    cenote_group *group;
    cenote_options options = scene_options();
    void *block;
    open_peers(&p, CENOTE_VMM, 2);
    sim_set_lag(MSEC);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    DONE(cenote_capture_begin(NULL, group, p.stream));
    REQUIRE(held_take(&held, p.scene.pool, CARD - 32 * MIB, p.scene.stream[A]));
    held_give(&held);
    EXPECT_EQ(cenote_alloc(p.scene.pool, CARD - 32 * MIB, p.scene.stream[B], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(scene_stats(p.scene.pool).reserved.current >= CARD - 32 * MIB);
    EXPECT_EQ(cenote_pool_destroy(p.scene.pool), CENOTE_BUSY);
    DONE(cenote_capture_end(NULL, group, p.stream));
    REQUIRE(held_take(&next, p.scene.pool, CARD - 32 * MIB, p.scene.stream[B]));
    held_give(&next);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(there));
    close_peers(&p);
}

/* A device on which the program does nothing gets no context for the asking. */
CASE(granted_devices_that_are_not_used)
{
    struct scene scene;
    struct held held, next;
    struct sim_books books;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_grant(scene.pool, 1));
    sim_books(&books);
    uint64_t contexts = books.contexts;
    REQUIRE(held_take(&held, scene.pool, CARD - 32 * MIB, scene.stream[A]));
    held_give(&held);
    REQUIRE(held_take(&next, scene.pool, CARD - 32 * MIB, scene.stream[B]));
    held_give(&next);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    sim_books(&books);
    EXPECT_EQ(books.contexts, contexts);
    scene_close(&scene);
}

static const struct driver *below;
static cenote_pool *to_end; /* while the driver is asked for the reach of a device; another one takes its structure then */

static void *end_and_begin(void *unused)
{
    cenote_options options = scene_options();
    cenote_pool *next = NULL;
    DONE(cenote_pool_destroy(to_end));
    DONE(cenote_pool_create(0, &options, &next));
    EXPECT(next == to_end);
    return unused;
}

static CUresult ask_and_end(int *can, CUdevice device, CUdevice peer)
{
    pthread_t thread;
    if (to_end) {
        DONE(pthread_create(&thread, NULL, end_and_begin, NULL));
        DONE(pthread_join(thread, NULL));
    }
    return below->cuDeviceCanAccessPeer(can, device, peer);
}

static const struct driver *with_an_end(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuDeviceCanAccessPeer = ask_and_end;
    return &table;
}

/* The grant of a pool that ends in the middle is not the next pool's, which has not opened that device. */
CASE(a_grant_that_comes_too_late)
{
    struct peers p;
    struct held held;
    open_peers(&p, CENOTE_VMM, 2);
    driver_interpose(with_an_end);
    to_end = p.scene.pool;
    EXPECT_EQ(cenote_pool_grant(p.scene.pool, 1), CENOTE_INVALID);
    to_end = NULL;
    REQUIRE(held_take(&held, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    held_give(&held);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    close_peers(&p);
}

SCENES_MAIN("granted devices")
