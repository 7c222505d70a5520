/*
 * test_captured_streams.c: a driver ends a capture if it is asked for the id of a stream that is in it, so cenote knows such streams by other means:
 * the one on which an announced capture began, those that joined it, and those whose capture was announced late. Memory is served, used and freed on
 * all of them, and the graph comes to be. What the graph's memory does between replays is in tests/hazard/capture.c.
 */
#include "tests/api/scene.h"

#define CARD (64 * MIB)

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
#define MODES (sizeof modes / sizeof modes[0])

static cenote_group *private_group(struct scene *scene)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene->pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    REQUIRE(group);
    return group;
}

static struct held take(cenote_group *group, size_t bytes, CUstream stream)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, 512, stream, &block));
    REQUIRE(block);
    return held_of(block, bytes, stream);
}

/* The capture was not disturbed: there is a graph, and it runs. */
static void end_and_run(CUstream stream, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    DONE(cuStreamEndCapture(stream, &graph));
    REQUIRE(graph);
    DONE(cuGraphInstantiate(exec, graph, 0));
    DONE(cuGraphDestroy(graph));
    DONE(cuGraphLaunch(*exec, stream));
    DONE(cuStreamSynchronize(stream));
}

/* Blocks on a stream that joined: taken, used by the other one, freed, and taken again. */
static void work_on_both(cenote_group *group, CUstream first, CUstream joined)
{
    struct held mine = take(group, 3 * MIB, first), theirs;
    order(first, joined);
    theirs = take(group, 2 * MIB, joined);
    DONE(cenote_use(mine.at, joined));
    held_expect(&mine, joined);
    char *at = theirs.at;
    held_give(&theirs);
    theirs = take(group, 2 * MIB, joined);
    EXPECT(theirs.at == at); /* in the order of one stream, so it is known for the same */
    held_give(&theirs);
    order(joined, first);
    held_give(&mine);
}

static void end_scene(struct scene *scene, cenote_group *group, CUgraphExec exec)
{
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    scene_close(scene);
}

CASE(a_stream_that_is_new_to_the_pool_joins_a_capture)
{
    for (size_t mode = 0; mode < MODES; mode++) {
        struct scene scene;
        CUgraphExec exec;
        cenote_block found;
        void *block;
        scene_open(&scene, CARD);
        cenote_group *group = private_group(&scene);
        DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
        DONE(cuStreamBeginCapture(scene.stream[A], modes[mode]));
        DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block)); /* the capture decides the group */
        DONE(cenote_find(block, &found));
        EXPECT(found.group == group);
        DONE(cenote_free(block));
        work_on_both(group, scene.stream[A], scene.stream[B]);
        end_and_run(scene.stream[A], &exec);
        DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
        end_scene(&scene, group, exec);
    }
}

/* In and out of a capture the stream has two keys: what it freed under one is another stream's under the other, and contents stay right. */
CASE(a_stream_that_the_pool_knows_joins_a_capture)
{
    struct scene scene;
    CUgraphExec exec;
    struct held before, after, kept;
    scene_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    before = take(group, 4 * MIB, scene.stream[B]);
    held_linger(&before, scene.stream[B]);
    held_give(&before);
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    work_on_both(group, scene.stream[A], scene.stream[B]);
    order(scene.stream[A], scene.stream[B]);
    kept = take(group, MIB, scene.stream[B]); /* outlives the capture */
    order(scene.stream[B], scene.stream[A]);
    end_and_run(scene.stream[A], &exec);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    held_expect(&kept, scene.stream[B]);
    DONE(cenote_free_on(kept.at, scene.stream[B]));
    REQUIRE(held_take(&after, scene.pool, 4 * MIB, scene.stream[B]));
    held_give(&after);
    DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
    end_scene(&scene, group, exec);
}

/* The driver's capture begins first, or ends first: cenote_capture_end finds its capture by the stream's handle then. */
CASE(a_capture_is_announced_late)
{
    for (int ends_first = 0; ends_first < 2; ends_first++) {
        struct scene scene;
        CUgraphExec exec;
        scene_open(&scene, CARD);
        cenote_group *group = private_group(&scene);
        DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_capture_begin(scene.pool, group, scene.stream[C])); /* from here on the pool looks before it asks */
        DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
        work_on_both(group, scene.stream[A], scene.stream[B]);
        if (!ends_first)
            DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
        end_and_run(scene.stream[A], &exec);
        if (ends_first)
            DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
        EXPECT_EQ(cenote_capture_end(scene.pool, group, scene.stream[A]), CENOTE_CAPTURE);
        DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
        EXPECT_EQ(scene_stats(scene.pool).captures, 0);
        end_scene(&scene, group, exec);
    }
}

/* A stream is declared immortal while it is captured: by its handle, for good. */
CASE(a_captured_stream_is_declared_immortal)
{
    struct scene scene;
    CUgraphExec exec;
    struct held held;
    scene_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(scene.stream[A], scene.stream[B]);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    order(scene.stream[B], scene.stream[A]);
    work_on_both(group, scene.stream[A], scene.stream[B]);
    end_and_run(scene.stream[A], &exec);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    for (int i = 0; i < 3; i++) {
        REQUIRE(held_take(&held, scene.pool, 5 * MIB, scene.stream[B]));
        held_linger(&held, scene.stream[B]);
        held_give(&held);
    }
    EXPECT_EQ(cenote_stream_retire(scene.pool, scene.stream[B]), CENOTE_INVALID);
    end_scene(&scene, group, exec);
}

/*
 * Without the promise that captures are announced, none has to be: the pool looks at each call. What a stream left in a capture that it had joined
 * comes back when it is retired. If it ends without a word that stays, until the program says that it has waited for the context: its handle is
 * nothing any more, and is not given to the driver.
 */
CASE(a_capture_that_is_not_announced)
{
    for (int retired = 0; retired < 2; retired++) {
        struct scene scene;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        CUgraphExec exec;
        uint64_t sync;
        struct held kept, used;
        options.announced = 0;
        scene_open_with(&scene, &shape, &options);
        cenote_group *group = private_group(&scene);
        REQUIRE(held_take(&used, scene.pool, 4 * MIB, scene.stream[A]));
        DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
        work_on_both(group, scene.stream[A], scene.stream[B]);
        order(scene.stream[A], scene.stream[B]);
        kept = take(group, MIB, scene.stream[B]);
        DONE(cenote_use(used.at, scene.stream[B]));
        order(scene.stream[B], scene.stream[A]);
        end_and_run(scene.stream[A], &exec);
        DONE(cuGraphExecDestroy(exec));
        DONE(cenote_group_destroy(group));
        if (retired)
            DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
        DONE(cuStreamDestroy(scene.stream[B]));
        scene.stream[B] = NULL;
        DONE(cenote_free(kept.at)); /* fences would like an event on B */
        held_give(&used);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, retired ? 0 : 2);
        DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
        DONE(cenote_pool_sync_begin(scene.pool, &sync));
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_sync_end(scene.pool, sync));
        scene_close(&scene);
    }
}

SCENES_MAIN("api: captured streams")
