/*
 * test_unannounced_kinds.c: pools with the option announced:0 beside pools without it, whose programs announce their captures: what each of them does
 * when the first opens, what happens if the driver refuses that, and what they do after the last has gone. And streams of every kind: immortal for
 * another pool alone, those of green contexts, default streams of threads that replay graphs, more than fences can have.
 */
#include <stdlib.h>

#include "driver/touch.h"
#include "pool/clock/fence.h"
#include "tests/api/whims.h"

static uint64_t cached(cenote_pool *pool)
{
    return scene_stats(pool).cached.current;
}

static void look(cenote_pool *pool)
{
    DONE(cenote_pool_trim(pool, UINT64_MAX, 0));
}

static void trim(cenote_pool *pool)
{
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

static void take_and_give(cenote_pool *pool, CUstream stream, size_t bytes)
{
    void *block;
    DONE(cenote_alloc(pool, bytes, stream, &block));
    DONE(cenote_free(block));
}

/* The scene's own pool keeps the promise. The device is a moment behind. */
static void open_kept(struct scene *scene)
{
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    shape.devices = 2;
    scene_open_with(scene, &shape, &options);
    whims_begin();
    EXPECT(touch_captures_are_announced());
}

static cenote_pool *open_careful(void)
{
    cenote_options careful = strict();
    cenote_pool *pool = NULL;
    DONE(cenote_pool_create(0, &careful, &pool));
    REQUIRE(pool);
    EXPECT(!touch_captures_are_announced());
    return pool;
}

/* ------------------------------------------------------------------------------------------------------------- the first careful pool */

/* A pool that cannot be opened takes nothing from the promise of the others; and a second one finds done what the first has done. */
CASE(careful_pools_come_and_go)
{
    struct scene scene;
    cenote_options careful = strict();
    cenote_pool *first, *second = NULL;
    open_kept(&scene);
    EXPECT_EQ(cenote_pool_create(7, &careful, &second), CENOTE_NO_DEVICE);
    EXPECT(touch_captures_are_announced());
    take_and_give(scene.pool, scene.stream[A], 8 * MIB);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    take_and_give(scene.pool, scene.stream[B], 8 * MIB);
    trim(scene.pool); /* forgets what A had */
    first = open_careful();
    fault_arm("cuCtxRecordEvent", 1, CUDA_ERROR_UNKNOWN, true);
    second = open_careful();
    EXPECT_EQ(fault_calls(), 0); /* no last fence over the context any more */
    fault_disarm();
    DONE(cenote_pool_destroy(first));
    EXPECT(!touch_captures_are_announced());
    DONE(cenote_pool_destroy(second));
    EXPECT(touch_captures_are_announced());
    scene_close(&scene);
}

/* Fences over the context are due, the last one recorded when the careful pool opened. Streams ended before and after, and one is forgotten. */
CASE(streams_that_end_around_the_last_fence)
{
    struct scene scene;
    CUstream brief;
    struct held block, used;
    open_kept(&scene);
    DONE(cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING));
    take_and_give(scene.pool, scene.stream[B], 512);
    REQUIRE(held_take(&used, scene.pool, 4 * MIB, scene.stream[C]));
    DONE(cenote_use(used.at, brief)); /* the stream has no memory: it is forgotten with the block */
    REQUIRE(held_take(&block, scene.pool, 8 * MIB, scene.stream[A])); /* known later than the one that is forgotten */
    DONE(cenote_free(used.at));
    trim(scene.pool);
    leave_block_in(scene.pool, scene.stream[A], 8 * MIB);
    look(scene.pool);
    DONE(cenote_free(block.at));
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    cenote_pool *careful = open_careful();
    leave_block_in(scene.pool, scene.stream[B], 8 * MIB);
    DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
    DONE(sim_launch_wait(scene.stream[C], 1000 * MSEC));
    sim_advance(5 * MSEC);
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* A is not done, and nor is B */
    EXPECT(cached(scene.pool) >= 16 * MIB);
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    DONE(cenote_pool_destroy(careful));
    DONE(cuStreamDestroy(brief));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------- a last fence that is refused */

/* What a stream leaves that ends while all captures are announced. */
static void leave_ended(struct scene *scene)
{
    leave_block_in(scene->pool, scene->stream[A], 8 * MIB);
    DONE(cenote_stream_retire(scene->pool, scene->stream[A]));
}

static void expect_refused(void)
{
    cenote_options careful = strict();
    cenote_pool *pool = NULL;
    EXPECT_EQ(cenote_pool_create(0, &careful, &pool), CENOTE_DRIVER);
    EXPECT(strstr(cenote_message(), "device 0") != NULL);
    EXPECT(touch_captures_are_announced());
}

/* The next try works, and what the stream has left comes back. */
static void expect_next_opens(struct scene *scene)
{
    cenote_pool *careful = open_careful();
    trim(scene->pool);
    EXPECT_EQ(cached(scene->pool), 0);
    DONE(cenote_pool_destroy(careful));
}

/* The driver refuses something that the fence needs: the pool does not open, and the others keep their promise. */
CASE(last_fence_that_is_refused)
{
    static const struct { const char *call; CUresult error; } refusals[] = {{"cuThreadExchangeStreamCaptureMode", CUDA_ERROR_NOT_PERMITTED},
                                                                            {"cuCtxPushCurrent", CUDA_ERROR_NOT_PERMITTED},
                                                                            {"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY},
                                                                            {"cuCtxRecordEvent", CUDA_ERROR_UNKNOWN}};
    for (int i = 0; i < 4; i++) {
        struct scene scene;
        open_kept(&scene);
        leave_ended(&scene);
        fault_arm(refusals[i].call, 1, refusals[i].error, false);
        expect_refused();
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        expect_next_opens(&scene);
        scene_close(&scene);
    }
}

/* As many fences on streams are due as there can be, or as many events of fences. Once the device is done with some there is room. */
CASE(last_fence_without_room)
{
    enum { MORE = 20 };
    static const struct { int streams, fences; } full[] = {{0, FENCES_DUE_MAX + 2}, {MORE, FENCE_PARTS_MAX / MORE + 2}};
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        CUstream more[MORE];
        open_kept(&scene);
        cenote_pool *careful = open_careful();
        for (int s = 0; s < full[i].streams; s++) {
            DONE(cuStreamCreate(&more[s], CU_STREAM_NON_BLOCKING));
            DONE(cenote_stream_set_immortal(scene.pool, more[s]));
        }
        DONE(sim_launch_wait(NULL, 1000 * MSEC));
        for (int fence = 0; fence < full[i].fences; fence++) {
            take_and_give(scene.pool, scene.stream[B], 512);
            look(scene.pool);
        }
        DONE(cenote_pool_destroy(careful));
        leave_ended(&scene);
        expect_refused();
        EXPECT(strstr(cenote_message(), "again") != NULL);
        DONE(cuCtxSynchronize());
        expect_next_opens(&scene);
        scene_destroy_pool(&scene);
        for (int s = 0; s < full[i].streams; s++)
            DONE(cuStreamDestroy(more[s]));
        scene_close(&scene);
    }
}

/* A default pool is one like any other. */
CASE(last_fence_for_a_default_pool)
{
    struct scene scene;
    cenote_pool *pool = NULL;
    open_kept(&scene);
    leave_ended(&scene);
    setenv("CENOTE_CONF", "announced:0", 1);
    fault_arm("cuCtxRecordEvent", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_pool_default(0, &pool), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    unsetenv("CENOTE_CONF");
    EXPECT(touch_captures_are_announced());
    expect_next_opens(&scene);
    scene_close(&scene);
}

enum loss { KNOWN, NOT_KNOWN, SEEN_IN_A_QUESTION, RESET };

/* The context of a pool is lost, which the pool knows or not: the pool needs no fence any more, and a careful one opens on the other device. */
CASE(last_fence_of_a_pool_whose_context_is_lost)
{
    for (enum loss loss = KNOWN; loss <= RESET; loss++) {
        struct scene scene;
        cenote_options careful = strict();
        cenote_pool *there = NULL;
        open_kept(&scene);
        leave_ended(&scene);
        if (loss == SEEN_IN_A_QUESTION)
            look(scene.pool); /* a fence is due */
        sim_set_quiet(true);
        if (loss == RESET)
            DONE(cuDevicePrimaryCtxReset(0));
        else
            sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
        if (loss == KNOWN)
            EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
        DONE(cenote_pool_create(1, &careful, &there));
        DONE(cenote_pool_destroy(there));
        DONE(cenote_pool_destroy(scene.pool));
        sim_set_quiet(false);
        sim_reset(NULL);
        scene_is_open = false;
    }
}

/* -------------------------------------------------------------------------------------------------------------------- streams of all kinds */

/* The stream is immortal for one pool, so that fences of both have events on it. For the other it ends, seen before the older fence is done. */
CASE(immortal_stream_that_another_pool_retires)
{
    struct scene scene;
    open_strict(&scene, true);
    whims_begin();
    cenote_pool *other = open_careful();
    DONE(cenote_stream_set_immortal(other, scene.stream[B]));
    take_and_give(scene.pool, scene.stream[B], 8 * MIB);
    DONE(sim_launch_wait(NULL, 100 * MSEC));
    look(scene.pool);
    DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
    sim_advance(2 * MSEC);
    look(scene.pool); /* sees the end; the fence waits for the default stream */
    DONE(cuCtxSynchronize());
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    DONE(cenote_pool_destroy(other));
    close_strict(&scene);
}

/* The arena of a group that has gone comes back to its stream at once, with its memory: the order of the stream is enough. */
CASE(arena_that_a_group_leaves_to_the_next)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    uint64_t created = 0;
    open_strict(&scene, false);
    for (int i = 0; i < 2; i++) {
        DONE(cenote_group_create(scene.pool, "short", 0, NULL, &group));
        DONE(group_alloc(group, 8 * MIB, 512, scene.stream[A], &block));
        struct held held = held_of(block, 8 * MIB, scene.stream[A]);
        held_linger(&held, scene.stream[A]);
        DONE(cenote_free(block));
        DONE(cenote_group_destroy(group));
        EXPECT(!i || scene_stats(scene.pool).pages_created == created);
        created = scene_stats(scene.pool).pages_created;
        if (!i)
            look(scene.pool);
    }
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    close_strict(&scene);
}

static void end_group(cenote_pool *pool, CUstream stream, size_t bytes)
{
    cenote_group *group;
    void *block;
    DONE(cenote_group_create(pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, bytes, 512, stream, &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
}

/* Two groups end while this thread's own default stream is at work: what they leave waits for it, and for the latest event on it. */
CASE(groups_that_end_behind_the_default_stream_of_the_thread)
{
    struct scene scene;
    open_strict(&scene, false);
    take_and_give(scene.pool, CU_STREAM_PER_THREAD, 512);
    trim(scene.pool); /* the stream is known, and nothing waits for it */
    take_and_give(scene.pool, CU_STREAM_PER_THREAD, 512);
    DONE(sim_launch_wait(CU_STREAM_PER_THREAD, 20 * MSEC));
    look(scene.pool);
    end_group(scene.pool, scene.stream[A], 8 * MIB);
    DONE(sim_launch_wait(CU_STREAM_PER_THREAD, 20 * MSEC));
    end_group(scene.pool, scene.stream[B], 8 * MIB);
    sim_advance(22 * MSEC); /* the oldest event is done */
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT(cached(scene.pool) >= 16 * MIB);
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    close_strict(&scene);
}

/* The thread does not get into the context when it ends the group: a later call of the thread makes that good. */
CASE(group_that_ends_when_the_driver_refuses)
{
    struct scene scene;
    open_strict(&scene, false);
    whims_begin();
    take_and_give(scene.pool, scene.stream[A], 8 * MIB);
    cenote_group *group;
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(sim_launch_wait(CU_STREAM_PER_THREAD, 20 * MSEC));
    fault_arm("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_NOT_PERMITTED, false);
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    close_strict(&scene);
}

/* The event of that shows that the context is lost. The group has ended all the same, and the next call says so. */
CASE(group_that_ends_with_the_context)
{
    struct scene scene;
    cenote_group *group;
    open_strict(&scene, false);
    whims_begin();
    take_and_give(scene.pool, scene.stream[A], 8 * MIB);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    fault_arm("cuEventRecord", 1, CUDA_ERROR_ILLEGAL_ADDRESS, true);
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(fault_fired(), 1);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    fault_disarm();
    DONE(cenote_pool_destroy(scene.pool));
    sim_reset(NULL);
    scene_is_open = false;
}

/* The same in a pool that keeps the promise, and after the careful pool has gone: then the end of a group asks the device nothing. */
CASE(group_that_ends_after_the_last_careful_pool)
{
    struct scene scene;
    open_kept(&scene);
    cenote_pool *careful = open_careful();
    take_and_give(scene.pool, CU_STREAM_PER_THREAD, 512);
    trim(scene.pool);
    DONE(sim_launch_wait(CU_STREAM_PER_THREAD, 20 * MSEC));
    end_group(scene.pool, scene.stream[A], 8 * MIB);
    DONE(cenote_pool_destroy(careful));
    fault_arm(NULL, UINT64_MAX, CUDA_ERROR_UNKNOWN, false);
    cenote_group *group;
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(fault_calls(), 0);
    fault_disarm();
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    scene_close(&scene);
}

/* Nothing says that the device is done with the memory, as long as the context lives. */
static void end_with_the_context(struct scene *scene)
{
    scene_judge(scene);
    EXPECT_EQ(cenote_pool_destroy(scene->pool), CENOTE_BUSY);
    EXPECT(strstr(cenote_message(), "announced:0") != NULL);
    DONE(cuDevicePrimaryCtxReset(0));
    DONE(cenote_pool_destroy(scene->pool));
    sim_reset(NULL);
    scene_is_open = false;
}

/* The default stream of a green context has no handle that means it everywhere: it gets no event, also if a call names it. */
CASE(default_stream_of_a_green_context)
{
    struct scene scene;
    CUdevResource whole, group, rest;
    CUdevResourceDesc described;
    CUgreenCtx green;
    CUcontext context;
    CUstream made;
    unsigned count = 1;
    open_strict(&scene, false);
    DONE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevSmResourceSplitByCount(&group, &count, &whole, &rest, 0, 16));
    DONE(cuDevResourceGenerateDesc(&described, &group, 1));
    DONE(cuGreenCtxCreate(&green, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DONE(cuCtxFromGreenCtx(&context, green));
    DONE(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0));
    DONE(cuCtxPushCurrent(context));
    take_and_give(scene.pool, NULL, 8 * MIB);
    look(scene.pool);
    take_and_give(scene.pool, NULL, 512); /* names it */
    DONE(cuCtxPopCurrent(NULL));
    trim(scene.pool);
    EXPECT(cached(scene.pool) >= 8 * MIB);
    DONE(cuStreamDestroy(made));
    DONE(cuGreenCtxDestroy(green));
    end_with_the_context(&scene);
}

#define TOO_MANY (TOUCH_STREAMS_MAX + 1)

/* More streams live as long as the program than a fence can have events: what a private group leaves stays with its arena. */
CASE(more_streams_than_a_fence_can_have_events)
{
    struct scene scene;
    static CUstream stream[TOO_MANY];
    open_strict(&scene, true);
    for (int i = 0; i < TOO_MANY; i++) {
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_stream_set_immortal(scene.pool, stream[i]));
    }
    leave_block(&scene, stream[0], 8 * MIB);
    trim(scene.pool);
    EXPECT_EQ(cached(scene.pool), 0);
    end_group(scene.pool, stream[0], 8 * MIB);
    trim(scene.pool);
    trim(scene.pool);
    EXPECT(cached(scene.pool) >= 8 * MIB);
    end_with_the_context(&scene);
}

/* Memory of a driver's pool would become a node of the graph, or end captures of blocking streams if it is taken on the default stream. */
CASE(async_memory_while_streams_are_captured)
{
    for (int announced = 0; announced < 2; announced++) {
        struct scene scene;
        struct sim_shape shape = scene_card(8 * CARD);
        cenote_options options = scene_options(), careful = strict();
        cenote_pool *other;
        CUgraph graph;
        CUstream blocking;
        void *block[2];
        size_t nodes;
        options.provider = CENOTE_ASYNC;
        options.announced = announced;
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_pool_create(0, &careful, &other));
        DONE(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
        DONE(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_alloc(scene.pool, 48 * MIB, NULL, &block[0]));
        DONE(cenote_alloc(scene.pool, 48 * MIB, blocking, &block[1]));
        DONE(cuStreamEndCapture(blocking, &graph));
        DONE(cuGraphGetNodes(graph, NULL, &nodes));
        EXPECT_EQ(nodes, 0);
        DONE(cuGraphDestroy(graph));
        DONE(cenote_free(block[0]));
        DONE(cenote_free(block[1]));
        DONE(cenote_stream_retire(scene.pool, blocking));
        DONE(cuStreamDestroy(blocking));
        scene_destroy_pool(&scene);
        DONE(cenote_pool_destroy(other));
        scene_close(&scene);
    }
}

SCENES_MAIN("unannounced: kinds")
