/*
 * test_lanes.c: what a pool with the option announced:0 knows of each stream: memory of a stream that no fence can cover, streams that are retired,
 * handles that come back, and pools of both kinds in one process. test_foreign.c has the captures themselves.
 */

#include "driver/driver.h"
#include "pool/clock/fence.h"
#include "tests/api/strict.h"

static uint64_t cached(struct scene *scene)
{
    return scene_stats(scene->pool).cached.current;
}

/* A stream of the scene ends; what it was given is still running. */
static void end_stream(struct scene *scene, int stream)
{
    DONE(cenote_stream_retire(scene->pool, scene->stream[stream]));
    DONE(cuStreamDestroy(scene->stream[stream]));
    scene->stream[stream] = NULL;
}

/* --------------------------------------------------------------------------------------------------------------- what is never covered */

CASE(handle_of_a_stream_that_may_be_dead)
{
    struct scene scene;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    for (int i = 0; i < 3; i++) /* it comes to an end although nothing will ever cover that memory */
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(cached(&scene) >= 48 * MIB);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "cenote_stream_retire") != NULL);
    close_strict(&scene); /* which retires the stream */
}

/* The driver takes no event for the stream, call after call: the trim ends all the same, and the next one finds the memory. */
CASE(event_that_is_refused)
{
    struct scene scene;
    open_strict(&scene, false);
    leave_card(&scene, scene.stream[A]);
    fault_arm("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, true);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    fault_disarm();
    EXPECT(cached(&scene) >= 48 * MIB);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- streams that are retired */

/* As many fences are due as there is room for: the end of a stream needs none. */
CASE(retired_behind_as_many_fences_as_there_can_be)
{
    struct scene scene;
    struct held block, next;
    open_strict(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    DONE(sim_launch_wait(scene.stream[C], 500 * MSEC));
    for (int i = 0; i < FENCES_DUE_MAX + 10; i++) {
        REQUIRE(held_take(&block, scene.pool, 4 * MIB, scene.stream[C]));
        held_give(&block);
        DONE(cenote_pool_trim(scene.pool, 0, 0)); /* with a fence, which is not waited for */
    }
    leave_card(&scene, scene.stream[A]);
    end_stream(&scene, A);
    if (held_take(&next, scene.pool, 50 * MIB, scene.stream[B])) /* its contents are judged: the stream that ended still reads there */
        held_give(&next);
    close_strict(&scene);
}

CASE(retired_while_an_announced_capture_is_open)
{
    struct scene scene;
    struct held used, next;
    cenote_group *group;
    CUgraph graph;
    open_strict(&scene, true);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    REQUIRE(held_take(&used, scene.pool, 24 * MIB, scene.stream[B]));
    order(scene.stream[B], scene.stream[A]);
    held_linger(&used, scene.stream[A]);
    DONE(cenote_use(used.at, scene.stream[A]));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
    DONE(cuStreamBeginCapture(scene.stream[C], CU_STREAM_CAPTURE_MODE_GLOBAL));
    leave_block(&scene, scene.stream[A], 20 * MIB);
    end_stream(&scene, A);
    DONE(cenote_free(used.at));
    DONE(cuStreamEndCapture(scene.stream[C], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[B]));
    held_give(&next);
    close_strict(&scene);
}

CASE(captured_stream_is_not_retired)
{
    struct scene scene;
    CUgraph graph;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cenote_stream_retire(scene.pool, scene.stream[A]), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "being captured") != NULL);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cuGraphDestroy(graph));
    end_stream(&scene, A);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The driver has no event for the end of a stream: the call says so, and works when it has one. */
CASE(end_that_has_no_event)
{
    struct scene scene;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    fault_arm("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_stream_retire(scene.pool, scene.stream[A]), CENOTE_DRIVER);
    fault_disarm();
    EXPECT(strstr(cenote_message(), "again") != NULL);
    end_stream(&scene, A);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The group is gone before the stream, and a block of it outlives both. */
CASE(block_of_a_group_and_a_stream_that_are_gone)
{
    struct scene scene;
    struct held block;
    cenote_group *group;
    void *at;
    open_strict(&scene, true);
    DONE(cenote_group_create(scene.pool, "short", 0, NULL, &group));
    DONE(group_alloc(group, 30 * MIB, 512, scene.stream[A], &at));
    block = held_of(at, 30 * MIB, scene.stream[A]);
    held_linger(&block, scene.stream[A]);
    DONE(cenote_group_destroy(group));
    end_stream(&scene, A);
    DONE(cenote_free(block.at));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* What a stream left behind goes to the next one, which is not known to be done because that one has ended. */
CASE(arena_that_is_taken_over)
{
    struct scene scene;
    struct held next;
    void *none;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    end_stream(&scene, A);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* the end is seen, and the memory stays */
    leave_card(&scene, scene.stream[B]);
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    end_stream(&scene, B);
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[C]));
    held_give(&next);
    close_strict(&scene);
}

/* A stream goes on although it was retired. Its arena comes back to it, and what it frees now is not behind the end that was seen. */
CASE(arena_that_comes_back_to_its_stream)
{
    struct scene scene;
    struct held again;
    void *none;
    open_strict(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    DONE(sim_launch_wait(scene.stream[C], 100 * MSEC));
    leave_card(&scene, scene.stream[A]);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* sees the end, and no fence is done */
    REQUIRE(held_take(&again, scene.pool, 48 * MIB, scene.stream[A]));
    DONE(sim_launch_wait(scene.stream[A], 1000 * MSEC));
    held_expect(&again, scene.stream[A]);
    DONE(cenote_free(again.at));
    DONE(cuStreamSynchronize(scene.stream[C]));
    EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[B], &none), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The fence lacks an event on a stream that nothing waits for: the next look makes it good, without another free. */
CASE(fence_that_is_short_of_an_event)
{
    struct scene scene;
    open_strict(&scene, false);
    leave_card(&scene, scene.stream[A]);
    fault_arm("cuEventCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    fault_disarm();
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* Streams that are named in turn do not ask for fences in turn: an allocation that lacks nothing calls for an event once for each fence. */
CASE(streams_in_turn)
{
    struct scene scene;
    struct sim_books before, after;
    void *at;
    open_strict(&scene, true);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    leave_block(&scene, scene.stream[B], 8 * MIB);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    sim_books(&before);
    for (int i = 0; i < 100; i++) {
        DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[i % 2], &at));
        DONE(cenote_free(at));
    }
    sim_books(&after);
    EXPECT(after.calls - before.calls <= 250); /* each asks whether the stream is captured, and which it is */
    close_strict(&scene);
}

/* --------------------------------------------------------------------------------------------------------------- pools of both kinds */

/* A fence over the context covers what it covers, also when the next fence finds no stream to have an event on. */
CASE(pool_with_the_promise_and_pool_without)
{
    struct scene scene;
    struct held block, next;
    cenote_options options = scene_options(), careful = strict();
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_pool *other;
    shape.lag = MSEC;
    scene_open_with(&scene, &shape, &options);
    for (int round = 0; round < 3; round++) {
        REQUIRE(held_take(&block, scene.pool, 100 * MIB, scene.stream[A]));
        order(scene.stream[A], scene.stream[B]);
        held_linger(&block, scene.stream[B]);
        DONE(cenote_use(block.at, scene.stream[B]));
        DONE(cenote_free(block.at)); /* waits for a fence over the context */
        DONE(cenote_pool_create(0, &careful, &other));
        leave_block_in(other, scene.stream[C], 8 * MIB);
        DONE(cenote_stream_retire(other, scene.stream[C]));
        DONE(cenote_pool_trim(other, 0, CENOTE_TRIM_WAIT));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* ends, although B cannot have an event */
        DONE(cenote_pool_destroy(other));
        REQUIRE(held_take(&next, scene.pool, 110 * MIB, scene.stream[A])); /* the context can be asked again */
        held_give(&next);
    }
    scene_close(&scene);
}

/* A pool whose program keeps the promise pays nothing for a pool without, once that one is gone. */
CASE(pool_without_the_promise_leaves_no_price)
{
    struct scene scene;
    struct held block;
    struct sim_books before, after;
    cenote_options options = scene_options(), careful = strict();
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_pool *other;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(0, &careful, &other));
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_pool_destroy(other));
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], (void **)&block.at));
    DONE(cenote_free(block.at));
    sim_books(&before);
    for (int i = 0; i < 100; i++) {
        DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], (void **)&block.at));
        DONE(cenote_free(block.at));
    }
    sim_books(&after);
    EXPECT(after.calls - before.calls <= 100); /* one question for the id of the stream each */
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------------------- graphs */

/* A replay on a stream that cenote knows is under way when the group is destroyed. */
CASE(replay_on_another_stream_when_the_group_ends)
{
    struct scene scene;
    struct held block, next;
    cenote_group *group;
    CUgraph graph;
    CUgraphExec exec;
    void *at;
    open_strict(&scene, false);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(group_alloc(group, 40 * MIB, 512, scene.stream[A], &at));
    block = (struct held){at, 40 * MIB, 0x1234567, scene.stream[A]};
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    held_launch(&block, sim_launch_fill, scene.stream[A]);
    held_expect(&block, scene.stream[A]);
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphLaunch(exec, scene.stream[B]));
    DONE(cenote_free(at));
    DONE(cenote_group_destroy(group));
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[C]));
    held_give(&next);
    DONE(cuCtxSynchronize());
    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
    close_strict(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------- captures of a moment */

static const struct driver *below;
static CUstream brief;          /* is captured for the moment in which the next event is recorded on it; NULL: no more */
static CUstream refused;        /* gets no event; NULL: none is */
static CUstream untold;         /* of its newest event the driver does not say whether it is done */
static CUevent mute;            /* that event */
static CUevent captured;        /* the event of the capture, until it is recorded anew */

static CUresult record_in_a_capture(CUevent event, CUstream stream)
{
    if (stream == refused)
        return CUDA_ERROR_NOT_SUPPORTED;
    captured = captured == event ? NULL : captured;
    mute = stream == untold ? event : mute;
    if (!brief || stream != brief)
        return below->cuEventRecord(event, stream);
    brief = NULL;
    captured = event;
    return record_in_a_capture_of_a_moment(below, event, stream);
}

/* As the driver answers; the simulated one counts the question among the mistakes. */
static CUresult query(CUevent event)
{
    return event == captured ? CUDA_ERROR_CAPTURED_EVENT : event == mute ? CUDA_ERROR_NOT_SUPPORTED : below->cuEventQuery(event);
}

static const struct driver *with_a_capture(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuEventRecord = record_in_a_capture;
    table.cuEventQuery = query;
    return &table;
}

/* A capture that begins and ends while an event is recorded: the driver refuses to say what became of the event, and the fences go on. */
CASE(capture_of_a_moment)
{
    struct scene scene;
    open_strict(&scene, false);
    if (!below)
        driver_interpose(with_a_capture);
    leave_card(&scene, scene.stream[A]);
    brief = scene.stream[A];
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(!brief);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The same with the event of a block that another stream used. */
CASE(capture_of_a_moment_at_a_free)
{
    struct scene scene;
    struct held block;
    open_strict(&scene, false);
    if (!below)
        driver_interpose(with_a_capture);
    REQUIRE(held_take(&block, scene.pool, 48 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    brief = scene.stream[B];
    DONE(cenote_free(block.at));
    EXPECT(!brief);
    for (int i = 0; i < 2; i++)
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The wait of the destruction has a fence of its own, because an immortal stream was captured at the last one: it is no free of another thread. */
CASE(pool_destroyed_after_a_capture)
{
    struct scene scene;
    CUgraph graph;
    open_strict(&scene, false);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cuGraphDestroy(graph));
    scene_destroy_pool(&scene); /* at the first try */
    scene_close(&scene);
}

/* The end of a stream is never told, and each fence lacks an event: a trim comes to an end all the same. */
CASE(end_that_is_never_told)
{
    struct scene scene;
    void *at;
    open_strict(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    if (!below)
        driver_interpose(with_a_capture);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    leave_block(&scene, scene.stream[C], 8 * MIB);
    untold = scene.stream[A];
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    untold = NULL;
    refused = scene.stream[C];
    DONE(cenote_alloc(scene.pool, 8 * MIB, NULL, &at));
    DONE(cenote_free(at));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    refused = NULL;
    mute = NULL;
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

SCENES_MAIN("lanes")
