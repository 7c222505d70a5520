/*
 * test_careful.c: pools with the option announced:0 in programs of several threads, and beside captures that are announced: what one thread has
 * noted stays true while another changes it, and what could not be had during a capture is made good. test_unannounced.c has what each piece of
 * memory waits for.
 */
#include "driver/device.h"
#include "pool/clock/fence.h"
#include "tests/api/moments.h"

static uint64_t cached(struct scene *scene)
{
    return scene_stats(scene->pool).cached.current;
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
    DONE(group_alloc(group, 8 * MIB, 512, moment.stream[A], &at));
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

/* ------------------------------------------------------------------------------------------------------------------- captures of a moment */

/* As often as an allocation records events, the stream is captured just then: it waits for the next event, and does not fail. */
CASE(allocation_during_captures_of_a_moment)
{
    for (int times = 1; times <= 6; times++) {
        struct scene scene;
        struct held next;
        open_moments(&scene, false);
        leave_card(&scene, scene.stream[A]);
        brief = scene.stream[A];
        brief_times = times;
        bool taken_at_once = held_take(&next, scene.pool, 60 * MIB, scene.stream[B]);
        EXPECT(taken_at_once);
        brief_times = 0;
        if (taken_at_once)
            held_give(&next);
        close_strict(&scene);
    }
}

CASE(free_during_a_capture_of_a_moment_on_another_device)
{
    struct peers p = {0};
    cenote_options options = strict();
    open_two(&p, &options);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream));
    free_in_a_capture(&p);
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    close_two(&p);
}

/* The key of a stream is gone with the device's last pool: the stream that has its place next is not taken for it. */
CASE(keys_of_streams_that_are_gone)
{
    struct scene scene;
    int error;
    open_strict(&scene, false);
    struct device *d = device_open(0, &error);
    REQUIRE(d);
    EXPECT(atomic_load(&d->touch.stream[0].key) != 0);
    device_close(d);
    close_strict(&scene);
    EXPECT_EQ(atomic_load(&d->touch.stream[0].key), 0);
}

/* ------------------------------------------------------------------------------------------------------------ captures that are announced */

static struct announced {
    cenote_group *group;
    CUgraph       graph;
} open_capture;

static void begin_capture(cenote_pool *pool, CUstream stream)
{
    DONE(cenote_group_create(pool, "announced", CENOTE_GROUP_PRIVATE, NULL, &open_capture.group));
    DONE(cenote_capture_begin(NULL, open_capture.group, stream));
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void end_capture(CUstream stream)
{
    DONE(cuStreamEndCapture(stream, &open_capture.graph));
    DONE(cenote_capture_end(NULL, open_capture.group, stream));
    DONE(cuGraphDestroy(open_capture.graph));
    DONE(cenote_group_destroy(open_capture.group));
}

static CUgraphExec replayed;
static cenote_group *replayed_group;
static void *replayed_block;

/* The last replay is on the thread's own default stream, of which the pool knows nothing; and the thread makes no call after this one. */
static void *replay_and_destroy(void *unused)
{
    (void)unused;
    DONE(cuCtxPushCurrent(moment.context));
    DONE(cuGraphLaunch(replayed, CU_STREAM_PER_THREAD));
    DONE(cenote_free(replayed_block));
    DONE(cenote_group_destroy(replayed_group));
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static void destroy_group(bool during_a_capture)
{
    struct held next;
    CUgraph graph;
    open_moments(&moment, false);
    DONE(cenote_group_create(moment.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &replayed_group));
    DONE(cenote_capture_begin(NULL, replayed_group, moment.stream[A]));
    DONE(cuStreamBeginCapture(moment.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(group_alloc(replayed_group, 40 * MIB, 512, moment.stream[A], &replayed_block));
    struct held block = {replayed_block, 40 * MIB, 0x1234567, moment.stream[A]};
    held_launch(&block, sim_launch_fill, moment.stream[A]);
    held_linger(&block, moment.stream[A]);
    DONE(cuStreamEndCapture(moment.stream[A], &graph));
    DONE(cenote_capture_end(NULL, replayed_group, moment.stream[A]));
    DONE(cuGraphInstantiate(&replayed, graph, 0));
    if (during_a_capture)
        begin_capture(moment.pool, moment.stream[C]);
    do_elsewhere(replay_and_destroy, NULL);
    if (during_a_capture)
        end_capture(moment.stream[C]);
    bool is_back = held_take(&next, moment.pool, 60 * MIB, moment.stream[B]);
    EXPECT(is_back);
    if (is_back)
        held_give(&next);
    DONE(cuCtxSynchronize());
    DONE(cuGraphExecDestroy(replayed));
    DONE(cuGraphDestroy(graph));
    close_strict(&moment);
}

CASE(group_that_another_thread_destroys)
{
    destroy_group(false);
}

CASE(group_that_another_thread_destroys_during_a_capture)
{
    destroy_group(true);
}

/* What a stream has left that ended while all captures were announced. */
static void leave_ended(struct scene *scene)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    scene_open_with(scene, &shape, &options);
    leave_card(scene, scene->stream[A]);
    DONE(cenote_stream_retire(scene->pool, scene->stream[A]));
    DONE(cuStreamDestroy(scene->stream[A]));
    scene->stream[A] = NULL;
}

static void close_ended(struct scene *scene)
{
    cenote_options careful = strict();
    cenote_pool *other;
    DONE(cenote_pool_create(0, &careful, &other));
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(scene), 0);
    DONE(cenote_pool_destroy(other));
    scene_close(scene);
}

static void expect_no_careful_pool(int error)
{
    cenote_options careful = strict();
    cenote_pool *other;
    EXPECT_EQ(cenote_pool_create(0, &careful, &other), error);
}

CASE(first_careful_pool_during_a_capture)
{
    struct scene scene;
    leave_ended(&scene);
    begin_capture(scene.pool, scene.stream[C]);
    expect_no_careful_pool(CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "capture") != NULL);
    end_capture(scene.stream[C]);
    close_ended(&scene);
}

CASE(first_careful_pool_that_the_driver_gives_no_event)
{
    struct scene scene;
    leave_ended(&scene);
    fault_arm("cuCtxRecordEvent", 1, CUDA_ERROR_UNKNOWN, false);
    expect_no_careful_pool(CENOTE_DRIVER);
    fault_disarm();
    close_ended(&scene);
}

CASE(first_careful_pool_behind_as_many_fences_as_there_can_be)
{
    struct scene scene;
    struct held block;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    DONE(sim_launch_wait(scene.stream[C], 500 * MSEC));
    for (int i = 0; i < FENCES_DUE_MAX + 10; i++) {
        REQUIRE(held_take(&block, scene.pool, 4 * MIB, scene.stream[C]));
        held_give(&block);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* with a fence, which is not waited for */
    }
    leave_card(&scene, scene.stream[A]);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamDestroy(scene.stream[A]));
    scene.stream[A] = NULL;
    close_ended(&scene);
}

/* A block waits for a stream of another device that has ended, and a capture is open there. */
CASE(first_careful_pool_during_a_capture_on_another_device)
{
    struct peers p = {0};
    cenote_options options = scene_options(), careful = strict();
    cenote_pool *there, *other;
    void *block;
    open_two(&p, &options);
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cenote_alloc(p.scene.pool, 16 * MIB, p.scene.stream[A], &block));
    DONE(cenote_use(block, p.stream));
    end_other_stream(&p);
    make_other_stream(&p);
    begin_capture(there, p.stream);
    expect_no_careful_pool(CENOTE_BUSY);
    end_capture(p.stream);
    DONE(cenote_pool_create(0, &careful, &other));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_pool_destroy(other));
    DONE(cenote_pool_destroy(there));
    close_two(&p);
}

/* ------------------------------------------------------------------------------------------------------------------------- many streams */

#define MANY TOUCH_STREAMS_MAX

/* How many driver calls a look makes after a free. */
static uint64_t look(struct scene *scene, CUstream stream)
{
    struct sim_books before, after;
    sim_books(&before);
    leave_block(scene, stream, 8 * MIB);
    DONE(cenote_pool_trim(scene->pool, UINT64_MAX, 0));
    sim_books(&after);
    return after.calls - before.calls;
}

/* As many events are due as there is room for, because one stream stalls: a look makes no calls for events that have no room. */
CASE(look_behind_as_many_events_as_there_can_be)
{
    static CUstream many[MANY];
    struct scene scene;
    open_moments(&scene, true);
    for (int i = 0; i < MANY; i++) {
        DONE(cuStreamCreate(&many[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_stream_set_immortal(scene.pool, many[i]));
    }
    DONE(sim_launch_wait(many[0], 1000 * MSEC));
    for (int i = 0; i < FENCE_PARTS_MAX / MANY; i++)
        look(&scene, many[0]);
    EXPECT(look(&scene, many[0]) <= 4 * (FENCE_PARTS_MAX % MANY) + 60);
    EXPECT(look(&scene, many[0]) <= 60);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    for (int i = 0; i < SCENE_STREAMS; i++)
        cenote_stream_retire(scene.pool, scene.stream[i]);
    scene_destroy_pool(&scene);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamDestroy(many[i]));
    scene_close(&scene);
}

SCENES_MAIN("careful")
