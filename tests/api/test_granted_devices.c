/*
 * test_granted_devices.c: memory that kernels of two other devices may touch: the first that is not done, captures, or was reset by the program
 * decides, and the other is not asked. test_granted.c has one granted device.
 */
#include "driver/device.h"
#include "tests/api/peers.h"

#define DEVICES 3

static struct peers p;
static cenote_pool *there;      /* a pool of device 1, which announces captures */
static cenote_group *graph;
static CUcontext third;

static void open_granted(void)
{
    const cenote_options options = scene_options();
    open_peers(&p, CENOTE_VMM, DEVICES);
    DONE(cuDevicePrimaryCtxRetain(&third, 2));
    for (int device = 1; device < DEVICES; device++)
        DONE(cenote_pool_grant(p.scene.pool, device));
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &graph));
}

static void close_granted(void)
{
    DONE(cenote_group_destroy(graph));
    DONE(cenote_pool_destroy(there));
    DONE(cuDevicePrimaryCtxRelease(2));
    close_peers(&p);
}

static void begin_capture(void)
{
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_capture_begin(NULL, graph, p.stream));
    DONE(cuCtxPopCurrent(NULL));
}

static void leave(void)
{
    void *block;
    DONE(cenote_alloc(p.scene.pool, 8 * MIB, p.scene.stream[A], &block));
    DONE(cenote_free(block));
}

static uint64_t reserved(void)
{
    return scene_stats(p.scene.pool).reserved.current;
}

CASE(first_device_is_not_done)
{
    open_granted();
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    leave();
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT_EQ(reserved(), 8 * MIB);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(), 0);
    close_granted();
}

/* Neither a trim nor the end of the pool waits for it. */
CASE(first_device_captures)
{
    open_granted();
    leave();
    begin_capture();
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(), 8 * MIB);
    EXPECT_EQ(cenote_pool_destroy(p.scene.pool), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "a device with access") != NULL);
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_capture_end(NULL, graph, p.stream));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(), 0);
    close_granted();
}

/* The driver does not let the thread wait there: the pool stays, and can be destroyed later. */
CASE(first_device_cannot_be_entered)
{
    open_granted();
    leave();
    fault_arm("cuCtxPushCurrent", 1, CUDA_ERROR_NOT_PERMITTED, false);
    EXPECT_EQ(cenote_pool_destroy(p.scene.pool), CENOTE_BUSY);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    close_granted();
}

/* A driver that records no event over a context, and that refuses one call of a wait for the devices: the next trim makes it good. */
CASE(old_driver_that_refuses_one_call)
{
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        int error;
        open_granted();
        struct device *device[2] = {device_open(0, &error), device_open(1, &error)};
        REQUIRE(device[0] && device[1]);
        const struct driver *real = device[0]->driver;
        struct driver old = *real;
        old.cuCtxRecordEvent = NULL;
        device[0]->driver = device[1]->driver = &old;
        leave();
        fault_arm("cuCtxPushCurrent", nth, CUDA_ERROR_NOT_PERMITTED, false);
        int result = cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT);
        fired = fault_fired() > 0;
        fault_disarm();
        EXPECT(!result || (fired && result == CENOTE_DRIVER));
        DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(reserved(), 0);
        device[0]->driver = device[1]->driver = real;
        device_close(device[0]);
        device_close(device[1]);
        close_granted();
    }
}

/* The program resets a granted device: nothing runs there any more, and the events there have ended with it. */
CASE(first_device_is_reset)
{
    open_granted();
    leave();
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT)); /* has an event on each */
    DONE(cenote_group_destroy(graph));
    DONE(cenote_pool_destroy(there));
    leave();
    DONE(cuDevicePrimaryCtxReset(1));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(reserved(), 0);
    scene_judge(&p.scene);
    DONE(cenote_pool_destroy(p.scene.pool));
    scene_judge(&(struct scene){0}); /* no event was given to the driver twice */
    sim_reset(NULL);
    scene_is_open = false;
}

SCENES_MAIN("granted devices")
