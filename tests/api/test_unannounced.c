/*
 * test_unannounced.c: pools with the option announced:0, and what each piece of their memory waits for: graphs that are replayed on streams that
 * cenote must not touch at the moment, streams that stall, streams of other devices, streams that ended before. test_lanes.c has the rest.
 */
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
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

/* --------------------------------------------------------------------------------------------------------------------------- replays */

struct replayed {
    cenote_group *group;
    CUgraph       graph;
    CUgraphExec   exec;
    void         *at;
};

/* A graph whose replay fills 40 MiB and looks at them 10 ms later. */
static struct replayed capture(struct scene *scene)
{
    struct replayed r;
    DONE(cenote_group_create(scene->pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &r.group));
    DONE(cenote_capture_begin(scene->pool, r.group, scene->stream[A]));
    DONE(cuStreamBeginCapture(scene->stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(group_alloc(r.group, 40 * MIB, 512, scene->stream[A], &r.at));
    struct held block = {r.at, 40 * MIB, 0x1234567, scene->stream[A]};
    held_launch(&block, sim_launch_fill, scene->stream[A]);
    held_linger(&block, scene->stream[A]);
    DONE(cuStreamEndCapture(scene->stream[A], &r.graph));
    DONE(cenote_capture_end(scene->pool, r.group, scene->stream[A]));
    DONE(cuGraphInstantiate(&r.exec, r.graph, 0));
    return r;
}

static void end_group(struct replayed *r)
{
    DONE(cenote_free(r->at));
    DONE(cenote_group_destroy(r->group));
}

/* Any stream can have the whole card, when the replay is done. */
static void end_replayed(struct scene *scene, struct replayed *r)
{
    struct held next;
    REQUIRE(held_take(&next, scene->pool, 60 * MIB, scene->stream[C]));
    held_give(&next);
    DONE(cuCtxSynchronize());
    DONE(cuGraphExecDestroy(r->exec));
    DONE(cuGraphDestroy(r->graph));
    close_strict(scene);
}

/* Without a word to cenote, B reads what A frees. That B has no event does not mean that it is done. */
CASE(kernel_on_a_stream_that_gets_no_event)
{
    struct scene scene;
    struct held block, next;
    void *none;
    open_whims(&scene, false);
    REQUIRE(held_take(&block, scene.pool, 40 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cenote_free(block.at));
    whims.refused = scene.stream[B];
    EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    whims.refused = NULL;
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[C]));
    held_give(&next);
    close_strict(&scene);
}

/* Neither an allocation nor a use has told of the default stream. */
CASE(replay_on_the_default_stream)
{
    struct scene scene;
    open_whims(&scene, false);
    struct replayed r = capture(&scene);
    DONE(cuGraphLaunch(r.exec, NULL));
    end_group(&r);
    end_replayed(&scene, &r);
}

CASE(replay_on_a_stream_that_is_captured_when_the_group_ends)
{
    struct scene scene;
    CUgraph graph;
    void *none;
    open_whims(&scene, false);
    struct replayed r = capture(&scene);
    DONE(cuGraphLaunch(r.exec, scene.stream[B]));
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED));
    end_group(&r);
    EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    DONE(cuStreamEndCapture(scene.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    end_replayed(&scene, &r);
}

/* The pool records events again and again, so the simulated GPU does not see that it waits. */
static void a_moment_passes(void)
{
    sim_advance(MSEC);
}

CASE(replay_on_a_stream_that_gets_no_event)
{
    struct scene scene;
    void *none;
    open_whims(&scene, false);
    struct replayed r = capture(&scene);
    DONE(cuGraphLaunch(r.exec, scene.stream[B]));
    whims.refused = scene.stream[B];
    end_group(&r);
    whims.at_record = a_moment_passes;
    EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    whims.at_record = NULL;
    whims.refused = NULL;
    end_replayed(&scene, &r);
}

/* The pool knows that stream by an allocation of before. */
CASE(replay_on_the_default_stream_of_the_thread)
{
    struct scene scene;
    void *small;
    open_whims(&scene, false);
    struct replayed r = capture(&scene);
    DONE(cenote_alloc(scene.pool, 512, CU_STREAM_PER_THREAD, &small));
    DONE(cenote_free(small));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* nothing waits for that stream any more */
    DONE(cuGraphLaunch(r.exec, CU_STREAM_PER_THREAD));
    end_group(&r);
    end_replayed(&scene, &r);
}

/* The stream of the group has ended, which says nothing of the replays. */
CASE(replay_of_a_graph_whose_stream_has_ended)
{
    struct scene scene;
    CUgraph graph;
    void *none;
    open_whims(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    struct replayed r = capture(&scene);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cuStreamSynchronize(scene.stream[A]));
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    DONE(cuGraphLaunch(r.exec, scene.stream[B]));
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED));
    end_group(&r);
    EXPECT_EQ(cenote_alloc(scene.pool, 60 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    DONE(cuStreamEndCapture(scene.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    end_replayed(&scene, &r);
}

/* ------------------------------------------------------------------------------------------------------------- streams that hold others back */

static void use_and_free(struct scene *scene, size_t bytes, CUstream stream, CUstream used_on)
{
    struct held block;
    REQUIRE(held_take(&block, scene->pool, bytes, stream));
    order(stream, used_on);
    held_linger(&block, used_on);
    DONE(cenote_use(block.at, used_on));
    DONE(cenote_free(block.at));
}

/* A block waits for the stream that used it, and for no other. */
CASE(stalled_stream_holds_back_no_other)
{
    struct scene scene;
    struct held small;
    open_whims(&scene, true);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[C]));
    DONE(sim_launch_wait(scene.stream[C], 1000 * MSEC));
    leave_block(&scene, scene.stream[C], 8 * MIB);
    use_and_free(&scene, 16 * MIB, scene.stream[A], scene.stream[B]);
    REQUIRE(held_take(&small, scene.pool, 512, scene.stream[B])); /* the call names it */
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    use_and_free(&scene, 16 * MIB, scene.stream[A], scene.stream[B]);
    held_give(&small);
    REQUIRE(held_take(&small, scene.pool, 9 * MIB, scene.stream[B]));
    DONE(cuStreamSynchronize(scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(cuStreamQuery(scene.stream[C]), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    held_give(&small);
    close_strict(&scene);
}

/* The same where the stream could have no event at the free, because it was being captured. */
CASE(stalled_stream_and_a_capture_at_the_free)
{
    struct scene scene;
    struct held block;
    CUgraph graph;
    open_whims(&scene, false);
    DONE(sim_launch_wait(scene.stream[C], 1000 * MSEC));
    leave_block(&scene, scene.stream[C], 8 * MIB);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    REQUIRE(held_take(&block, scene.pool, 16 * MIB, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&block, scene.stream[B]);
    DONE(cenote_use(block.at, scene.stream[B]));
    DONE(cuStreamBeginCapture(scene.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cenote_free(block.at));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    DONE(cuStreamEndCapture(scene.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0)); /* has an event now */
    DONE(cuStreamSynchronize(scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(cuStreamQuery(scene.stream[C]), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    close_strict(&scene);
}

#define ENDED 100

static void open_ended(struct scene *scene, CUstream *stream)
{
    open_whims(scene, true);
    for (int i = 0; i < ENDED; i++) {
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        use_and_free(scene, 4096, scene->stream[A], stream[i]);
        if (i != ENDED / 2)
            DONE(sim_launch_wait(stream[i], 1000 * MSEC));
        DONE(cenote_stream_retire(scene->pool, stream[i]));
    }
    DONE(cuStreamSynchronize(stream[ENDED / 2]));
    EXPECT_EQ(cuStreamQuery(stream[0]), CUDA_ERROR_NOT_READY);
}

static void close_ended(struct scene *scene, CUstream *stream)
{
    DONE(cenote_pool_trim(scene->pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene->pool).pending_blocks, 0);
    for (int i = 0; i < ENDED; i++)
        DONE(cuStreamDestroy(stream[i]));
    close_strict(scene);
}

/* A look asks after a few of the streams that have ended. */
CASE(streams_that_ended_and_stall)
{
    struct scene scene;
    CUstream stream[ENDED];
    open_ended(&scene, stream);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    whims.queries = 0;
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    EXPECT(whims.queries <= 20);
    close_ended(&scene, stream);
}

/* All but one of them stall: that one is found though no look asks after all. */
CASE(streams_that_ended_in_turn)
{
    struct scene scene;
    CUstream stream[ENDED];
    open_ended(&scene, stream);
    for (int i = 0; i < ENDED; i++)
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(cuStreamQuery(stream[0]), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, ENDED - 1);
    close_ended(&scene, stream);
}

#define LATER 300

static void *later[LATER];
static int laters;

static void free_one(void)
{
    if (laters)
        DONE(cenote_free(later[--laters]));
}

static void free_one_and_go_on(void)
{
    free_one();
    sim_advance(MSEC);
}

/* Another thread frees all the time: a wait ends when the device is done with what was freed before it. */
CASE(wait_beside_a_thread_that_frees)
{
    struct scene scene;
    open_whims(&scene, false);
    for (laters = 0; laters < LATER; laters++)
        DONE(cenote_alloc(scene.pool, 512, scene.stream[laters % 2 ? A : B], &later[laters]));
    leave_block(&scene, scene.stream[A], 8 * MIB);
    whims.at_record = free_one_and_go_on;
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    whims.at_record = NULL;
    EXPECT(laters > LATER / 2);
    while (laters)
        free_one();
    close_strict(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------- streams that ended */

/* The end of the stream is recorded in a capture of a moment: it is recorded again. */
CASE(end_in_a_capture_of_a_moment)
{
    struct scene scene;
    open_whims(&scene, true);
    leave_card(&scene, scene.stream[A]);
    whims.brief = scene.stream[A];
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    EXPECT(!whims.brief);
    DONE(cuStreamDestroy(scene.stream[A]));
    scene.stream[A] = NULL;
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* Streams end while all captures are announced; then a pool without the promise is opened. What they left can be had, early or late. */
CASE(streams_that_ended_before_the_first_careful_pool)
{
    for (int is_retired = 0; is_retired < 2; is_retired++) {
        struct scene scene;
        struct held late, next;
        cenote_options options = scene_options(), careful = strict();
        struct sim_shape shape = scene_card(CARD);
        cenote_pool *other;
        void *in_use;
        shape.lag = MSEC;
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
        DONE(cenote_alloc(scene.pool, 4 * MIB, scene.stream[B], &in_use));
        DONE(cenote_use(in_use, scene.stream[A]));
        REQUIRE(held_take(&late, scene.pool, 8 * MIB, scene.stream[A]));
        leave_block(&scene, scene.stream[A], 40 * MIB);
        if (is_retired)
            DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
        DONE(cuStreamDestroy(scene.stream[A]));
        scene.stream[A] = NULL;
        if (!is_retired)
            DONE(cenote_free(late.at));
        DONE(cenote_pool_create(0, &careful, &other));
        if (is_retired) {
            DONE(cenote_free(late.at)); /* it is known that the stream has ended */
            DONE(cenote_free(in_use));
        }
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(cached(&scene), 0);
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
        if (!is_retired)
            DONE(cenote_free(in_use));
        DONE(cenote_pool_destroy(other));
        REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[B]));
        held_give(&next);
        scene_close(&scene);
    }
}

/* A trim that has something to ask the device finds that its context is lost. */
CASE(context_that_is_lost)
{
    struct scene scene;
    void *block;
    open_strict(&scene, false);
    DONE(cenote_alloc(scene.pool, 3 * MIB, NULL, &block));
    DONE(cenote_free(block));
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    sim_set_quiet(false);
    DONE(cenote_pool_destroy(scene.pool));
    sim_reset(NULL); /* what is left there went with the context */
    scene_is_open = false;
}

/* --------------------------------------------------------------------------------------------------------------------- other devices */

static void open_other(struct peers *p)
{
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

/* Two blocks that a stream of another device used, which is neither immortal nor retired: a call that names it is enough for both. */
CASE(use_on_a_mortal_stream_of_another_device)
{
    struct peers p = {0};
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = strict();
    struct held block[2];
    void *small;
    shape.devices = 2;
    scene_open_with(&p.scene, &shape, &options);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.scene.stream[A]));
    open_other(&p);
    for (int i = 0; i < 2; i++) {
        REQUIRE(held_take(&block[i], p.scene.pool, 16 * MIB, p.scene.stream[A]));
        DONE(cenote_use(block[i].at, p.stream));
    }
    DONE(cenote_free(block[0].at));
    DONE(cenote_free(block[1].at));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 2); /* its handle may be dead */
    DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
    DONE(cenote_use(small, p.stream));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 2); /* it is at work still */
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_free(small));
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
    close_peers(&p);
}

/* The stream ends while all captures are announced, and the block is freed when they are not. */
CASE(use_on_a_stream_of_another_device_that_ended_before)
{
    struct peers p = {0};
    struct sim_shape shape = scene_card(2 * CARD);
    cenote_options options = scene_options(), careful = strict();
    cenote_pool *strict_pool;
    struct held block;
    shape.devices = 2;
    scene_open_with(&p.scene, &shape, &options);
    open_other(&p);
    REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block.at, p.stream));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamDestroy(p.stream));
    DONE(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_create(0, &careful, &strict_pool));
    DONE(cenote_free(block.at));
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1); /* it is at work still */
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    DONE(cenote_pool_destroy(strict_pool));
    close_peers(&p);
}

SCENES_MAIN("unannounced")
