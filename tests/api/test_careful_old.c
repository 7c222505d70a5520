/*
 * test_careful_old.c: test_careful.c on a driver without stream ids (before CUDA 12.0), where each stream that was not retired is known to live, and
 * without an event over a context. The library asks the driver for its entry points once per process, so the names are hidden, and the driver loaded,
 * before anything else.
 */
#include "tests/api/moments.h"
#include "tests/patience.h"

__attribute__((constructor)) static void load_an_old_driver(void)
{
    int error;
    sim_hide("cuStreamGetId");
    sim_hide("cuCtxRecordEvent");
    driver_table(&error);
}

/* The stream ends before any thread has asked after that event. */
CASE(stream_of_another_device_that_ends_with_an_event_that_says_nothing)
{
    struct peers p = {0};
    cenote_options options = strict();
    open_two(&p, &options);
    free_in_a_capture(&p);
    end_other_stream(&p);
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    make_other_stream(&p);
    close_two(&p);
}

/* -------------------------------------------------------------------------------------------------------------------- handles that die */

static struct peers two;
static pthread_t ending;
static atomic_int ending_id;
static atomic_bool is_ended;

static void *end_stream_of_two(void *unused)
{
    (void)unused;
    atomic_store(&ending_id, gettid());
    end_other_stream(&two);
    atomic_store(&is_ended, true);
    return NULL;
}

/* The thread that ends the stream has come as far as it can. */
static void *begin_to_end(void *unused)
{
    struct wait wait = {0};
    int looks = 0;
    (void)unused;
    DONE(pthread_create(&ending, NULL, end_stream_of_two, NULL));
    while (looks < 20 && !atomic_load(&is_ended) && wait_on(&wait))
        looks = is_asleep(atomic_load(&ending_id)) ? looks + 1 : 0;
    return NULL;
}

/* A stream of another device is retired, and destroyed, while a free records an event there. */
CASE(stream_of_another_device_that_ends_while_an_event_is_recorded)
{
    cenote_options options = strict();
    void *block;
    open_two(&two, &options);
    DONE(cenote_alloc(two.scene.pool, 16 * MIB, two.scene.stream[A], &block));
    DONE(cenote_use(block, two.stream));
    watched = two.stream;
    meanwhile = begin_to_end;
    DONE(cenote_free(block));
    EXPECT(!meanwhile);
    DONE(pthread_join(ending, NULL));
    DONE(cenote_pool_trim(two.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(two.scene.pool).pending_blocks, 0);
    make_other_stream(&two);
    close_two(&two);
}

/* ------------------------------------------------------------------------------------- captures cease to be announced, and are again */

/*
 * A graph is replayed on a stream that cenote knows nothing of, and its group ends: what the graph writes to is the next one's when the whole context
 * is done with it. The first pool opens that has captures unannounced, and no event says so later: that call waits.
 */
CASE(replay_that_runs_when_captures_cease_to_be_announced)
{
    struct scene scene;
    struct held held[2];
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options(), careful = strict();
    cenote_group *group;
    cenote_pool *pool;
    CUgraphExec exec;
    CUgraph graph;
    void *block;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cenote_alloc(scene.pool, 40 * MIB, scene.stream[A], &block));
    DONE(sim_launch_fill(scene.stream[A], device_address(block), 7, 40 * MIB));
    DONE(cenote_free(block));
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(sim_launch_wait(scene.stream[B], 100 * MSEC));
    DONE(cuGraphLaunch(exec, scene.stream[B]));
    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_create(0, &careful, &pool));
    for (int i = 0; i < 2; i++) {
        DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
        REQUIRE(held_take(&held[i], scene.pool, 25 * MIB, scene.stream[C])); /* the second one has pages of the graph */
    }
    DONE(cuCtxSynchronize());
    for (int i = 0; i < 2; i++)
        held_give(&held[i]);
    DONE(cenote_pool_destroy(pool));
    scene_close(&scene);
}

/*
 * A fence is due that has an event on each stream, and the last pool ends that has captures unannounced. Now the granted device has to be done, too,
 * and no event says so: the memory comes back when the devices are waited for.
 */
CASE(fence_that_is_due_when_captures_are_announced_again)
{
    struct peers p = {0};
    struct held block;
    cenote_options options = scene_options(), careful = strict();
    cenote_pool *pool;
    open_two(&p, &options);
    DONE(cenote_pool_create(0, &careful, &pool));
    DONE(cenote_pool_grant(p.scene.pool, 1));
    REQUIRE(held_take(&block, p.scene.pool, 16 * MIB, NULL));
    held_linger(&block, NULL);
    DONE(cenote_free(block.at));
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT(scene_stats(p.scene.pool).reserved.current > 0);
    DONE(cenote_pool_destroy(pool));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(p.scene.pool, 0, 0)); /* the event is done */
    EXPECT(scene_stats(p.scene.pool).reserved.current > 0);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    close_two(&p);
}

SCENES_MAIN("careful, old driver")
