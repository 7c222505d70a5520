/*
 * test_unannounced_old.c: pools with the option announced:0 on a driver without cuCtxRecordEvent and cuStreamGetId. There a stream that was not
 * retired is known to be alive, and for lack of a last fence over the context that is waited for. The names are hidden as in
 * tests/hazard/test_old_driver.c.
 */
#include "driver/driver.h"
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/strict.h"

__attribute__((constructor)) static void load_an_old_driver(void)
{
    int error;
    sim_hide("cuCtxRecordEvent");
    sim_hide("cuStreamGetId");
    driver_table(&error);
}

static void open_devices(struct peers *p, const cenote_options *options)
{
    struct sim_shape shape = scene_card(2 * CARD);
    memset(p, 0, sizeof *p);
    shape.devices = 2;
    shape.lag = MSEC;
    scene_open_with(&p->scene, &shape, options);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

/* Streams of both devices, not one of which is immortal: none has to be named. */
CASE(streams_of_two_devices)
{
    struct peers p;
    struct held used;
    const cenote_options options = strict();
    open_devices(&p, &options);
    REQUIRE(held_take(&used, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_use_on_device(used.at, 1, p.stream));
    DONE(cenote_free(used.at));
    leave_block(&p.scene, p.scene.stream[B], 8 * MIB);
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    EXPECT(scene_stats(p.scene.pool).cached.current >= 8 * MIB);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
    close_peers(&p);
}

/* A stream that is captured has the key that it has outside: what it used and freed in a capture needs no call that names it. */
CASE(what_a_captured_stream_used_and_took)
{
    struct scene scene;
    struct held used, next;
    CUgraph graph;
    void *taken;
    open_strict(&scene, true);
    REQUIRE(held_take(&used, scene.pool, 20 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&used, scene.stream[B]);
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_use(used.at, scene.stream[B]));
    DONE(cenote_free(used.at));
    REQUIRE(!cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &taken));
    DONE(cenote_free(taken));
    DONE(cuStreamEndCapture(scene.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[C]));
    held_give(&next);
    close_strict(&scene);
}

/*
 * Streams of both devices were retired while captures were announced: what the pool's own device had left was waited for; what the other one's stream
 * uses waits until the last careful pool is gone.
 */
CASE(streams_that_ended_before_the_first_careful_pool)
{
    struct peers p;
    struct held used;
    cenote_pool *careful;
    const cenote_options options = scene_options(), without = strict();
    open_devices(&p, &options);
    REQUIRE(held_take(&used, p.scene.pool, 4 * MIB, p.scene.stream[B]));
    DONE(cenote_use_on_device(used.at, 1, p.stream));
    leave_block(&p.scene, p.scene.stream[A], 8 * MIB);
    DONE(cenote_stream_retire(p.scene.pool, p.scene.stream[A]));
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
    DONE(cenote_pool_create(0, &without, &careful));
    DONE(cenote_free(used.at));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    EXPECT(scene_stats(p.scene.pool).reserved.current < 8 * MIB);
    DONE(cenote_pool_destroy(careful));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    close_peers(&p);
}

/* A block that the other device's stream used is back, and then that stream ends, with work that lasts: an event of its end is due. */
static void leave_an_end(struct peers *p)
{
    struct held used;
    const cenote_options options = strict();
    open_devices(p, &options);
    REQUIRE(held_take(&used, p->scene.pool, 8 * MIB, p->scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cenote_use_on_device(used.at, 1, p->stream));
    DONE(cenote_free(used.at));
    DONE(cuCtxPushCurrent(p->other));
    DONE(sim_launch_wait(p->stream, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_stream_retire(p->scene.pool, p->stream));
    sim_advance(2 * MSEC);
    DONE(cenote_pool_trim(p->scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(scene_stats(p->scene.pool).pending_blocks, 0);
}

static unsigned events(void)
{
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.violations, 0);
    return (unsigned)books.events;
}

/* The pool does not wait for it, and ends it. */
CASE(end_that_is_due_when_the_pool_goes)
{
    struct peers p;
    leave_an_end(&p);
    EXPECT(events() > 0);
    scene_destroy_pool(&p.scene);
    EXPECT_EQ(events(), 0);
    EXPECT_EQ(cuStreamQuery(p.stream), CUDA_ERROR_NOT_READY);
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamDestroy(p.stream));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&p.scene);
}

/* Both devices are reset before, and their events have gone with them: the driver is given none of those. */
CASE(end_that_goes_with_its_device)
{
    struct peers p;
    void *block;
    cenote_pool *there;
    const cenote_options options = strict();
    leave_an_end(&p);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cuDevicePrimaryCtxReset(1));
    EXPECT_EQ(cenote_alloc(there, MIB, NULL, &block), CENOTE_DEVICE_LOST); /* so cenote has seen it */
    DONE(cenote_pool_destroy(p.scene.pool));
    DONE(cenote_pool_destroy(there));
    EXPECT_EQ(events(), 0);
    sim_reset(NULL);
    scene_is_open = false;
}

SCENES_MAIN("unannounced: old driver")
