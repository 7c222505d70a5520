/*
 * test_careful.c: pools with the option announced:0 in programs of several threads, and beside captures that are announced: what one thread has
 * noted stays true while another changes it, and what could not be had during a capture is made good. test_unannounced.c has what each piece of
 * memory waits for.
 */
#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/strict.h"

static uint64_t cached(struct scene *scene)
{
    return scene_stats(scene->pool).cached.current;
}

/* ------------------------------------------------------------------------------------------------------------------ a driver with moments */

static const struct driver *below;
static CUstream watched;            /* what happens while an event is recorded there */
static void *(*meanwhile)(void *);  /* in another thread, once */

static void do_elsewhere(void *(*what)(void *), void *arg)
{
    pthread_t thread;
    DONE(pthread_create(&thread, NULL, what, arg));
    DONE(pthread_join(thread, NULL));
}

static CUresult record(CUevent event, CUstream stream)
{
    void *(*now)(void *) = stream == watched ? meanwhile : NULL;
    if (now) {
        meanwhile = NULL;
        do_elsewhere(now, NULL);
    }
    return below->cuEventRecord(event, stream);
}

static const struct driver *with_moments(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuEventRecord = record;
    return &table;
}

static void open_moments(struct scene *scene, bool mortal)
{
    open_strict(scene, mortal);
    if (!below)
        driver_interpose(with_moments);
}

/* -------------------------------------------------------------------------------------------------------------- other threads meanwhile */

static struct scene moment;
static void *taken;

/* C takes over the last arena of A, and B gets its own back, which has a new lane. */
static void *take_over(void *unused)
{
    void *block;
    (void)unused;
    DONE(cenote_alloc(moment.pool, 4 * MIB, moment.stream[C], &block));
    DONE(cenote_alloc(moment.pool, 4 * MIB, moment.stream[B], &taken));
    DONE(cenote_free(block));
    return NULL;
}

/* The fence has noted A's lane. A's last arena goes to another stream before the event is recorded: the event says nothing of any other stream. */
CASE(arena_that_is_taken_over_while_a_fence_is_recorded)
{
    cenote_group *group;
    void *small, *at, *none;
    open_moments(&moment, true);
    struct held block;
    DONE(cenote_stream_set_immortal(moment.pool, moment.stream[A]));
    DONE(cenote_alloc(moment.pool, 512, NULL, &small));
    REQUIRE(held_take(&block, moment.pool, 40 * MIB, moment.stream[B]));
    DONE(sim_launch_wait(moment.stream[B], 1000 * MSEC));
    held_expect(&block, moment.stream[B]);
    DONE(cenote_free(block.at));
    DONE(cenote_group_create(moment.pool, "short", 0, NULL, &group));
    DONE(cenote_group_alloc(group, 8 * MIB, 512, moment.stream[A], &at));
    DONE(cenote_free(at));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(moment.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_stream_retire(moment.pool, moment.stream[B]));
    DONE(cenote_free(small));
    watched = moment.stream[A];
    meanwhile = take_over;
    DONE(cenote_pool_trim(moment.pool, UINT64_MAX, 0));
    EXPECT(!meanwhile);
    DONE(cuStreamSynchronize(moment.stream[A]));
    EXPECT_EQ(cenote_alloc(moment.pool, 50 * MIB, moment.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT(cached(&moment) >= 32 * MIB);
    DONE(cenote_free(taken));
    close_strict(&moment);
}

SCENES_MAIN("careful")
