/*
 * capture.c: graphs and their private memory. A graph writes to its old addresses whenever it is replayed, so what lies under them must
 * stay, and while a stream captures the driver forbids most of what an allocator likes to do.
 * Not: fences without captures (fences.c), pages that move (pages.c).
 */
#include "tests/hazard/hazards.h"

#define CARD (64 * MIB)

static void capture_begin(cenote_group *group, CUstream stream)
{
    DONE(cenote_capture_begin(NULL, group, stream));
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* The capture was not disturbed by anything: there is a graph, ready to run. */
static CUgraphExec capture_end(cenote_group *group, CUstream stream)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cenote_capture_end(NULL, group, stream));
    REQUIRE(graph != NULL);
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphDestroy(graph));
    return exec;
}

static cenote_group *private_group(struct scene *scene)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene->pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &group));
    REQUIRE(group != NULL);
    return group;
}

static bool group_take(struct held *held, cenote_group *group, size_t bytes, CUstream stream)
{
    void *block = NULL;
    int error = group_alloc(group, bytes, 512, stream, &block);
    if (error)
        return false;
    *held = held_of(block, bytes, stream);
    return true;
}

/* A graph that works on temporaries of `bytes` and of half of that, and leaves a result behind. */
static CUgraphExec capture_work(struct scene *scene, cenote_group *group, size_t bytes, struct held *result)
{
    struct held temporary, second;
    capture_begin(group, scene->stream[A]);
    REQUIRE(held_take(&temporary, scene->pool, bytes, scene->stream[A]));
    REQUIRE(held_take(result, scene->pool, MIB + 512, scene->stream[A]));
    held_linger(&temporary, scene->stream[A]);
    held_give(&temporary);
    REQUIRE(held_take(&second, scene->pool, bytes / 2, scene->stream[A]));
    held_give(&second);
    return capture_end(group, scene->stream[A]);
}

void hazard_two_graphs_share_a_group_and_replay_in_turn(void)
{
    struct scene scene;
    struct hoard others;
    struct held result[2];
    CUgraphExec exec[2];
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    exec[0] = capture_work(&scene, group, 5 * MIB, &result[0]);
    exec[1] = capture_work(&scene, group, 9 * MIB + 512, &result[1]);

    hoard_take(&others, scene.pool, 3 * MIB, scene.stream[B]);
    EXPECT(others.count > 0);
    for (int i = 0; i < 6; i++) {
        DONE(cuGraphLaunch(exec[i % 2], scene.stream[A]));
        held_expect(&result[i % 2], scene.stream[A]);
    }
    hoard_give(&others);
    scene_judge(&scene);

    for (int i = 0; i < 2; i++) {
        DONE(cuGraphExecDestroy(exec[i]));
        DONE(cenote_free(result[i].at));
    }
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[B]);
    scene_close(&scene);
}

/* What a capture allocated and freed goes to no other stream: the replay will write there. */
void hazard_captured_temporary_that_another_stream_wants(void)
{
    struct scene scene;
    struct held result;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    CUgraphExec exec = capture_work(&scene, group, 20 * MIB, &result);

    for (int i = 0; i < 3; i++) {
        struct hoard others;
        hoard_take(&others, scene.pool, (size_t)(i + 1) * MIB, scene.stream[i % 2 ? B : A]);
        EXPECT(others.bytes > 0 && others.bytes <= CARD - 20 * MIB);
        DONE(cuGraphLaunch(exec, scene.stream[A]));
        held_expect(&result, scene.stream[A]);
        DONE(cuStreamSynchronize(scene.stream[A]));
        hoard_give(&others);
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* nor can a trim have it */
    }
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    held_expect(&result, scene.stream[A]);
    scene_judge(&scene);
    EXPECT(scene_stats(scene.pool).pages_frozen >= 10);

    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_free(result.at));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/* The replay still runs on a stream that the memory never saw when the group goes and a third stream takes everything. */
static void replay_on_another_stream_then_release(bool moved)
{
    struct scene scene;
    struct held result;
    hazard_open(&scene, CARD);
    if (moved) { /* the graph's pages come from where others lived: their old places have them, too */
        hazard_whole_card(&scene, CARD, scene.stream[C]);
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* nothing goes, but it is known that the device is done */
    }
    cenote_group *group = private_group(&scene);
    CUgraphExec exec = capture_work(&scene, group, 24 * MIB, &result);

    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* what was freed in the capture is done with, but for replays */
    DONE(cuGraphLaunch(exec, scene.stream[B]));
    held_linger(&result, scene.stream[B]);
    order(scene.stream[B], scene.stream[A]);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_free(result.at));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

void hazard_capture_on_one_stream_replay_on_another_then_release(void)
{
    replay_on_another_stream_then_release(false);
    replay_on_another_stream_then_release(true);
}

/* The graph's pages were once those of another group, ordinary or private. That one ends, and its old places say nothing about whose they are now. */
static void pages_went_to_a_graph(bool is_private)
{
    struct scene scene;
    struct held old, result;
    cenote_group *group = NULL;
    hazard_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "before", is_private ? CENOTE_GROUP_PRIVATE : 0, NULL, &group));
    REQUIRE(group_take(&old, group, 40 * MIB, scene.stream[A]));
    held_give(&old);
    if (is_private) { /* the next one takes over what this one mapped, and uses little of it */
        DONE(cenote_group_destroy(group));
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
        group = private_group(&scene);
        REQUIRE(group_take(&old, group, 2 * MIB, scene.stream[A]));
        held_give(&old);
    }
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT)); /* nothing goes, but it is known that the device is done */
    cenote_group *graphs = private_group(&scene);
    CUgraphExec exec = capture_work(&scene, graphs, 24 * MIB, &result);
    EXPECT(scene_stats(scene.pool).pages_harvested >= 12);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    held_expect(&result, scene.stream[A]);
    scene_judge(&scene);

    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_free(result.at));
    DONE(cenote_group_destroy(graphs));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

void hazard_group_whose_pages_went_to_a_graph(void)
{
    pages_went_to_a_graph(false);
    pages_went_to_a_graph(true);
}

/* A private group is no reason to forget that streams are not ordered among themselves. */
void hazard_two_streams_of_one_private_group(void)
{
    struct scene scene;
    struct held first, second, third;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    REQUIRE(group_take(&first, group, 6 * MIB, scene.stream[A]));
    held_linger(&first, scene.stream[A]);
    held_give(&first);
    REQUIRE(group_take(&second, group, 6 * MIB, scene.stream[B]));
    REQUIRE(group_take(&third, group, 3 * MIB, scene.stream[B]));
    held_give(&second);
    held_give(&third);
    scene_judge(&scene);
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/* The same inside one capture: the two branches of the graph run side by side at every replay. */
void hazard_two_streams_of_one_capture(void)
{
    struct scene scene;
    struct held first, second;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    capture_begin(group, scene.stream[A]);
    order(scene.stream[A], scene.stream[B]);
    REQUIRE(group_take(&first, group, 6 * MIB, scene.stream[A]));
    held_linger(&first, scene.stream[A]);
    held_give(&first);
    REQUIRE(group_take(&second, group, 6 * MIB, scene.stream[B]));
    EXPECT(!held_overlap(&first, &second));
    held_give(&second);
    order(scene.stream[B], scene.stream[A]);
    CUgraphExec exec = capture_end(group, scene.stream[A]);

    for (int i = 0; i < 3; i++)
        DONE(cuGraphLaunch(exec, scene.stream[C]));
    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/*
 * Memory freed on a stream that now captures is wanted elsewhere. No fence can be recorded until the capture ends: the other stream may get
 * less, but what it gets must be right, and the capture must live.
 */
static void want_during_capture(bool join_unannounced)
{
    struct scene scene;
    struct held freed, temporary;
    struct hoard others;
    hazard_open(&scene, CARD);
    CUstream owner = scene.stream[join_unannounced ? B : A];
    cenote_group *group = private_group(&scene);
    REQUIRE(held_take(&freed, scene.pool, 24 * MIB, owner));
    held_linger(&freed, owner);
    held_give(&freed);

    capture_begin(group, scene.stream[A]);
    if (join_unannounced)
        order(scene.stream[A], scene.stream[B]);
    REQUIRE(held_take(&temporary, scene.pool, 4 * MIB, scene.stream[A]));
    hoard_take(&others, scene.pool, 2 * MIB, scene.stream[C]);
    EXPECT(others.bytes >= CARD - 24 * MIB - 4 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).captures, 1);
    held_give(&temporary);
    if (join_unannounced)
        order(scene.stream[B], scene.stream[A]);
    CUgraphExec exec = capture_end(group, scene.stream[A]);

    DONE(cuGraphLaunch(exec, scene.stream[A]));
    hoard_give(&others);
    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

void hazard_fence_due_on_a_capturing_stream(void)
{
    want_during_capture(false);
}

void hazard_fence_due_on_a_stream_that_joined_a_capture_unannounced(void)
{
    want_during_capture(true);
}

/* Everything that needs the driver, from a thread that captures nothing itself. Counts what went wrong: checks are for the main thread. */
struct grower {
    cenote_pool *pool;
    CUcontext    context;
    CUstream     stream;
    int          failures;
};

static void *grow_and_shrink(void *arg)
{
    struct grower *grower = arg;
    grower->failures += cuCtxPushCurrent(grower->context) != CUDA_SUCCESS;
    for (size_t size = MIB; size <= 16 * MIB; size *= 2) {
        void *block[2] = {NULL, NULL};
        grower->failures += cenote_alloc(grower->pool, size, grower->stream, &block[0]) != CENOTE_OK;
        grower->failures += cenote_alloc(grower->pool, size / 2, grower->stream, &block[1]) != CENOTE_OK;
        grower->failures += sim_launch_fill(grower->stream, device_address(block[0]), size, size) != CUDA_SUCCESS;
        grower->failures += sim_launch_expect(grower->stream, device_address(block[0]), size, size) != CUDA_SUCCESS;
        grower->failures += cenote_free(block[0]) != CENOTE_OK;
        grower->failures += cenote_free(block[1]) != CENOTE_OK;
        grower->failures += cenote_pool_step(grower->pool) != CENOTE_OK;
    }
    int trimmed = cenote_pool_trim(grower->pool, 0, 0);
    grower->failures += trimmed != CENOTE_OK && trimmed != CENOTE_CAPTURE;
    grower->failures += cuCtxPopCurrent(NULL) != CUDA_SUCCESS;
    return NULL;
}

void hazard_slow_path_while_another_thread_captures_globally(void)
{
    struct scene scene;
    struct held temporary;
    pthread_t thread;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    struct grower grower = {scene.pool, scene.context, scene.stream[B], 0};

    capture_begin(group, scene.stream[A]);
    REQUIRE(held_take(&temporary, scene.pool, 4 * MIB, scene.stream[A]));
    DONE(pthread_create(&thread, NULL, grow_and_shrink, &grower));
    DONE(pthread_join(thread, NULL));
    EXPECT_EQ(grower.failures, 0);
    held_give(&temporary);
    CUgraphExec exec = capture_end(group, scene.stream[A]);

    DONE(cuGraphLaunch(exec, scene.stream[A]));
    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/* Blocks that wait for other streams go on waiting while a capture is open, and are found when it is over. */
void hazard_pending_blocks_during_a_capture(void)
{
    struct scene scene;
    struct held before, during, temporary;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    REQUIRE(held_take(&before, scene.pool, 6 * MIB, scene.stream[B]));
    REQUIRE(held_take(&during, scene.pool, 6 * MIB, scene.stream[B]));
    order(scene.stream[B], scene.stream[C]);
    held_linger(&before, scene.stream[C]);
    DONE(cenote_use(before.at, scene.stream[C]));
    DONE(cenote_free(before.at));

    capture_begin(group, scene.stream[A]);
    REQUIRE(held_take(&temporary, scene.pool, 4 * MIB, scene.stream[A]));
    held_linger(&during, scene.stream[C]);
    DONE(cenote_use(during.at, scene.stream[C]));
    DONE(cenote_free(during.at));
    struct held next;
    REQUIRE(held_take(&next, scene.pool, 6 * MIB, scene.stream[B]));
    EXPECT(scene_stats(scene.pool).pending_blocks >= 1);
    held_give(&temporary);
    CUgraphExec exec = capture_end(group, scene.stream[A]);
    held_give(&next);

    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[A]);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

/*
 * An ordinary stream wants a range of which one slot would have to be unmapped first, and no other place lacks so few pages: while a
 * capture is open it goes elsewhere.
 */
void hazard_nothing_is_unmapped_during_a_capture(void)
{
    struct scene scene;
    struct held held[4], wide, temporary, more;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    for (int i = 0; i < 4; i++)
        REQUIRE(held_take(&held[i], scene.pool, i % 2 ? 2 * MIB : 4 * MIB, scene.stream[B]));
    held_give(&held[0]);
    held_give(&held[2]);
    REQUIRE(held_take(&wide, scene.pool, 6 * MIB, scene.stream[B])); /* takes the pages of one hole and half of the other */
    DONE(cuStreamSynchronize(scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, CARD, CENOTE_TRIM_WAIT));

    capture_begin(group, scene.stream[A]);
    uint64_t unmapped = scene_stats(scene.pool).pages_unmapped;
    REQUIRE(held_take(&temporary, scene.pool, 4 * MIB, scene.stream[A]));
    REQUIRE(held_take(&more, scene.pool, 4 * MIB, scene.stream[B]));
    EXPECT_EQ(scene_stats(scene.pool).pages_unmapped, unmapped);
    held_give(&temporary);
    CUgraphExec exec = capture_end(group, scene.stream[A]);

    DONE(cuGraphLaunch(exec, scene.stream[A]));
    held_give(&more);
    held_give(&wide);
    held_give(&held[1]);
    held_give(&held[3]);
    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/*
 * The same inside the private group, with a replay under way that touches the old addresses: cenote never hears of replays, so the last
 * free there says nothing about the last use.
 */
void hazard_slots_of_a_graph_are_not_remapped(void)
{
    struct scene scene;
    struct aliases aliases;
    struct held more;
    hazard_open(&scene, CARD);
    cenote_group *group = private_group(&scene);
    capture_begin(group, scene.stream[A]);
    void *hole = NULL;
    DONE(cenote_alloc(scene.pool, 6 * MIB, scene.stream[A], &hole));
    REQUIRE(held_take(&aliases.kept, scene.pool, 2 * MIB, scene.stream[A]));
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    DONE(sim_launch_touch(scene.stream[A], device_address(hole), 6 * MIB));
    DONE(cenote_free(hole));
    CUgraphExec exec = capture_end(group, scene.stream[A]);
    REQUIRE(group_take(&aliases.wide, group, 10 * MIB, scene.stream[A]));
    EXPECT(scene_stats(scene.pool).pages_aliased >= 3);
    DONE(cenote_pool_trim(scene.pool, CARD, CENOTE_TRIM_WAIT)); /* every fence that cenote may ask for is done */

    DONE(cuGraphLaunch(exec, scene.stream[B]));
    REQUIRE(group_take(&more, group, 6 * MIB, scene.stream[A]));
    held_give(&more);
    held_give(&aliases.wide);
    scene_judge(&scene);
    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_free(aliases.kept.at));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/*
 * The group lends what is free in it, but nothing that a graph may write to: not on the stream that captured, nor on one that had memory of the
 * group while the capture was open, because it may have joined.
 */
void hazard_graph_whose_group_lends(void)
{
    struct scene scene;
    struct held result, joined, apart, lent;
    struct hoard others[2];
    cenote_group *group = NULL;
    hazard_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "lender", CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND, NULL, &group));
    REQUIRE(group_take(&apart, group, 8 * MIB, scene.stream[C])); /* before any capture: this may be lent */
    held_give(&apart);

    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    REQUIRE(group_take(&joined, group, 6 * MIB, scene.stream[B]));
    held_give(&joined);
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    CUgraphExec exec = capture_work(&scene, group, 20 * MIB, &result);

    for (int i = 0; i < 2; i++) {
        hoard_take(&others[i], scene.pool, 2 * MIB, scene.stream[i ? B : A]);
        for (int k = 0; k < others[i].count; k++)
            EXPECT(!held_overlap(&others[i].held[k], &joined));
    }
    REQUIRE(held_take(&lent, scene.pool, 8 * MIB, scene.stream[C]));
    EXPECT(held_overlap(&lent, &apart));
    DONE(cuCtxSynchronize());
    DONE(cuGraphLaunch(exec, scene.stream[A]));
    held_expect(&result, scene.stream[A]);
    DONE(cuCtxSynchronize());
    for (int i = 0; i < 2; i++)
        hoard_give(&others[i]);
    held_give(&lent);
    scene_judge(&scene);

    DONE(cuGraphExecDestroy(exec));
    DONE(cenote_free(result.at));
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}

/* A new stream has the handle of one that was retired, whose work goes on: what that left in a group that lends is not the new one's. */
void hazard_retired_stream_of_a_group_that_lends(void)
{
    struct scene scene;
    struct held last;
    struct hoard next;
    cenote_group *group = NULL;
    hazard_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "lender", CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND, NULL, &group));
    CUstream old = scene.stream[A];
    REQUIRE(group_take(&last, group, 20 * MIB, old));
    held_linger(&last, old);
    DONE(cenote_free(last.at));
    DONE(cenote_stream_retire(scene.pool, old));
    DONE(cuStreamDestroy(old));
    DONE(cuStreamCreate(&scene.stream[A], CU_STREAM_NON_BLOCKING));
    REQUIRE_EQ(scene.stream[A], old);

    hoard_take(&next, scene.pool, 2 * MIB, scene.stream[A]);
    EXPECT(next.bytes > 0);
    for (int i = 0; i < next.count; i++)
        EXPECT(!held_overlap(&next.held[i], &last));
    hoard_give(&next);
    scene_judge(&scene);
    DONE(cenote_group_destroy(group));
    hazard_whole_card(&scene, CARD, scene.stream[C]);
    scene_close(&scene);
}
