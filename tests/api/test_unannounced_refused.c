/*
 * test_unannounced_refused.c: pools with the option announced:0 and a driver that refuses: events of streams that end, questions about them, and
 * fences that lack some. What the driver refuses waits, and comes back as soon as the driver answers.
 */
#include "tests/api/whims.h"

static uint64_t cached(struct scene *scene)
{
    return scene_stats(scene->pool).cached.current;
}

static void open_whims(struct scene *scene, bool mortal)
{
    open_strict(scene, mortal);
    whims_begin();
}

/* The call names the stream, for which something waits. */
static void name(struct scene *scene, CUstream stream)
{
    void *block;
    DONE(cenote_alloc(scene->pool, 512, stream, &block));
    DONE(cenote_free(block));
}

/* A fence is wanted, and nothing goes back. */
static void look(struct scene *scene)
{
    DONE(cenote_pool_trim(scene->pool, UINT64_MAX, 0));
}

static void trim(struct scene *scene)
{
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
}

static void end_lost(struct scene *scene)
{
    cenote_pool_destroy(scene->pool);
    sim_set_quiet(false);
    sim_reset(NULL);
    scene_is_open = false;
}

/* --------------------------------------------------------------------------------------------------------------- events of one stream */

/* A stream that may be dead is named, and gets no event: the next call that names it makes that good. */
CASE(event_of_a_named_stream_is_refused)
{
    static const struct { const char *call; CUresult error; } refusals[] = {{"cuEventRecord", CUDA_ERROR_UNKNOWN},
                                                                            {"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY}};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        open_whims(&scene, true);
        leave_block(&scene, scene.stream[A], 8 * MIB);
        fault_arm("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, true);
        look(&scene); /* no event is spare then, but one */
        fault_arm(refusals[i].call, 1, refusals[i].error, true);
        leave_block(&scene, NULL, 2 * MIB);
        name(&scene, scene.stream[A]);
        EXPECT(fault_fired() > 0);
        fault_disarm();
        trim(&scene);
        EXPECT(cached(&scene) >= 8 * MIB);
        name(&scene, scene.stream[A]);
        trim(&scene);
        EXPECT(cached(&scene) < 8 * MIB);
        close_strict(&scene);
    }
}

/* The same in a capture of a moment: the event says nothing. */
CASE(event_of_a_named_stream_in_a_capture_of_a_moment)
{
    struct scene scene;
    open_whims(&scene, true);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    look(&scene);
    whims.brief = scene.stream[A];
    name(&scene, scene.stream[A]);
    EXPECT(!whims.brief);
    trim(&scene);
    EXPECT(cached(&scene) >= 8 * MIB);
    name(&scene, scene.stream[A]);
    trim(&scene);
    EXPECT(cached(&scene) < 8 * MIB);
    close_strict(&scene);
}

/* Of the event behind a stream that has ended the driver says for a time what it says of captured events. There can be no other. */
CASE(end_that_is_not_told_for_a_time)
{
    struct scene scene;
    open_whims(&scene, true);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    whims.captured = whims.newest;
    look(&scene);
    DONE(cuCtxSynchronize());
    look(&scene);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT(cached(&scene) >= 8 * MIB);
    whims.captured = NULL;
    trim(&scene);
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* A context that is lost shows in the first event that is recorded on a stream alone. */
CASE(context_that_is_lost_at_an_event)
{
    struct scene scene;
    open_whims(&scene, true);
    leave_block(&scene, CU_STREAM_PER_THREAD, 8 * MIB);
    fault_arm("cuEventRecord", 1, CUDA_ERROR_ILLEGAL_ADDRESS, false);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    EXPECT_EQ(fault_calls(), 1); /* no fence follows */
    fault_disarm();
    end_lost(&scene);
}

/* Or in the question about one, though another stream is at work still. The streams behind it are not asked after. */
CASE(context_that_is_lost_at_a_question)
{
    struct scene scene;
    open_whims(&scene, true);
    for (int i = 0; i < SCENE_STREAMS; i++) {
        leave_block(&scene, scene.stream[i], 8 * MIB);
        DONE(cenote_stream_retire(scene.pool, scene.stream[i]));
    }
    fault_arm("cuEventQuery", 2, CUDA_ERROR_ILLEGAL_ADDRESS, false);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    EXPECT_EQ(fault_calls(), 2);
    fault_disarm();
    end_lost(&scene);
}

/* --------------------------------------------------------------------------------------------------------------------- events of fences */

/* A stream of which the pool has nothing is captured for a moment: the fence lacks it, and the next one does not. */
CASE(capture_of_a_moment_on_a_stream_without_memory)
{
    struct scene scene;
    open_whims(&scene, false);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    whims.brief = scene.stream[C];
    trim(&scene);
    EXPECT(!whims.brief);
    trim(&scene);
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* Of two fences that are due the first turns out to have no event on A: the second has one. */
CASE(older_event_that_says_nothing)
{
    struct scene scene;
    open_whims(&scene, false);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    DONE(sim_launch_wait(NULL, 100 * MSEC)); /* the default stream's event is the first that is asked after */
    whims.brief = scene.stream[A];
    look(&scene);
    EXPECT(!whims.brief);
    CUevent nothing = whims.captured;
    leave_block(&scene, scene.stream[A], 8 * MIB);
    look(&scene);
    EXPECT_EQ(whims.captured, nothing);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* without another fence */
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* The fence is short of an event. An allocation that polls wants no more than what is done already, and records none; the next trim does. */
CASE(fence_that_is_short_when_an_allocation_polls)
{
    struct scene scene;
    struct held used;
    void *small[64];
    CUstream mortal;
    open_whims(&scene, false);
    DONE(cuStreamCreate(&mortal, CU_STREAM_NON_BLOCKING));
    DONE(cenote_alloc(scene.pool, 512, scene.stream[B], &small[0])); /* the next ones lack nothing */
    REQUIRE(held_take(&used, scene.pool, 4 * MIB, scene.stream[B]));
    DONE(cenote_use(used.at, mortal));
    DONE(cenote_free(used.at));
    trim(&scene); /* covers that free; the block waits for a stream that may be dead */
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    whims.brief = scene.stream[C];
    look(&scene);
    DONE(cuCtxSynchronize());
    look(&scene);
    fault_arm("cuEventRecord", UINT64_MAX, CUDA_ERROR_UNKNOWN, false);
    for (int i = 1; i < 64; i++)
        DONE(cenote_alloc(scene.pool, 512, scene.stream[B], &small[i]));
    EXPECT_EQ(fault_calls(), 0);
    fault_disarm();
    look(&scene);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT(cached(&scene) < 8 * MIB);
    for (int i = 0; i < 64; i++)
        DONE(cenote_free(small[i]));
    DONE(cenote_stream_retire(scene.pool, mortal));
    trim(&scene);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    DONE(cuStreamDestroy(mortal));
    close_strict(&scene);
}

/* The event of a used block says nothing, when a later block waits for a stream that may be dead: each waits for its own. */
CASE(event_of_a_use_that_says_nothing)
{
    struct scene scene;
    struct held used[2];
    open_whims(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    for (int i = 0; i < 2; i++) {
        REQUIRE(held_take(&used[i], scene.pool, 4 * MIB, scene.stream[A]));
        DONE(cenote_use(used[i].at, scene.stream[i ? C : B]));
    }
    whims.brief = scene.stream[B];
    for (int i = 0; i < 2; i++)
        DONE(cenote_free(used[i].at));
    EXPECT(!whims.brief);
    look(&scene);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 2);
    trim(&scene);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    DONE(cenote_stream_retire(scene.pool, scene.stream[C]));
    trim(&scene);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    close_strict(&scene);
}

#define STREAMS 20

/* More events are due than there is room for: the fence that finds none lacks some, and what it lacks comes later. */
CASE(as_many_events_as_there_can_be)
{
    struct scene scene;
    CUstream more[STREAMS];
    open_whims(&scene, false);
    for (int i = 0; i < STREAMS; i++) {
        DONE(cuStreamCreate(&more[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_stream_set_immortal(scene.pool, more[i]));
    }
    DONE(sim_launch_wait(scene.stream[C], 1000 * MSEC));
    for (int i = 0; i < 2500 / STREAMS; i++) {
        name(&scene, scene.stream[A]);
        look(&scene);
    }
    leave_block(&scene, scene.stream[A], 8 * MIB);
    look(&scene);
    EXPECT_EQ(cuStreamQuery(scene.stream[C]), CUDA_ERROR_NOT_READY);
    DONE(cuCtxSynchronize());
    trim(&scene);
    EXPECT(cached(&scene) < 8 * MIB);
    trim(&scene);
    scene_destroy_pool(&scene);
    for (int i = 0; i < STREAMS; i++)
        DONE(cuStreamDestroy(more[i]));
    scene_close(&scene);
}

/* A fence is due when the context is lost: the pool goes without it. */
CASE(fence_that_is_due_when_the_pool_goes)
{
    struct scene scene;
    open_whims(&scene, false);
    leave_block(&scene, scene.stream[A], 8 * MIB);
    look(&scene);
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    DONE(cenote_pool_destroy(scene.pool));
    end_lost(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- streams that are retired */

/* The driver refuses what the end of a stream needs: the call says so, and works when it is made again. */
CASE(end_that_is_refused)
{
    static const char *const calls[] = {"cuThreadExchangeStreamCaptureMode", "cuEventCreate", "cuEventRecord"};
    for (int i = 0; i < 3; i++) {
        struct scene scene;
        open_whims(&scene, true);
        leave_block(&scene, scene.stream[A], 8 * MIB);
        fault_arm(calls[i], 1, i == 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN, false);
        EXPECT_EQ(cenote_stream_retire(scene.pool, scene.stream[A]), CENOTE_DRIVER);
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        EXPECT(strstr(cenote_message(), "again") != NULL);
        trim(&scene);
        EXPECT(cached(&scene) >= 8 * MIB);
        DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
        trim(&scene);
        EXPECT_EQ(cached(&scene), 0);
        close_strict(&scene);
    }
}

static struct scene shared;

static void *next;

/* The stream goes on, as one that the pool does not know yet. */
static void retire_elsewhere(void)
{
    DONE(cenote_stream_retire(shared.pool, shared.stream[A]));
    DONE(cenote_alloc(shared.pool, 8 * MIB, shared.stream[A], &next));
}

/* Two threads retire one stream: the slower one is not heard. */
CASE(stream_that_two_threads_retire)
{
    open_whims(&shared, true);
    leave_block(&shared, shared.stream[A], 8 * MIB);
    whims_at(WHIM_RECORD, 0, retire_elsewhere);
    DONE(cenote_stream_retire(shared.pool, shared.stream[A]));
    EXPECT(whims_came());
    DONE(cenote_free(next));
    DONE(cenote_stream_retire(shared.pool, shared.stream[A]));
    trim(&shared);
    EXPECT_EQ(cached(&shared), 0);
    close_strict(&shared);
}

#define GROUPS 40

/* More arenas than a look ends at a time. */
CASE(stream_with_many_arenas)
{
    struct scene scene;
    cenote_group *group[GROUPS];
    void *block;
    open_whims(&scene, true);
    for (int i = 0; i < GROUPS; i++) {
        DONE(cenote_group_create(scene.pool, "one of many", 0, NULL, &group[i]));
        DONE(group_alloc(group[i], 512, 512, scene.stream[A], &block));
        DONE(cenote_free(block));
    }
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    trim(&scene);
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    for (int i = 0; i < GROUPS; i++)
        DONE(cenote_group_destroy(group[i]));
    close_strict(&scene);
}

/* A freed block waits for a stream that may be dead: the pool stays until that stream is retired. */
CASE(pool_with_a_block_that_waits)
{
    struct scene scene;
    struct held used;
    open_whims(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
    REQUIRE(held_take(&used, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(cenote_use(used.at, scene.stream[B]));
    DONE(cenote_free(used.at));
    EXPECT_EQ(cenote_use(used.at, scene.stream[B]), CENOTE_DOUBLE_FREE); /* names the stream in vain */
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "1 freed blocks wait") != NULL);
    close_strict(&scene);
}

SCENES_MAIN("unannounced: refusals")
