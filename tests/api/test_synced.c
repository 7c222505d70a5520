/*
 * test_synced.c: what is held for good because a stream ended without a word to cenote, in pools with the option announced:0, and how it comes back
 * when the program says that it has waited for the context (rule 5). test_lanes.c has the streams that are retired.
 */
#include <pthread.h>

#include "driver/driver.h"
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/strict.h"

static uint64_t cached(struct scene *scene)
{
    return scene_stats(scene->pool).cached.current;
}

/* Without a word. What it was given is still running. */
static void stream_dies(CUstream *stream)
{
    DONE(cuStreamDestroy(*stream));
    *stream = NULL;
}

static void trim_with_waits(struct scene *scene)
{
    for (int i = 0; i < 3; i++)
        DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
}

/* The program waits for the context, and says so. */
static void sync_context(cenote_pool *pool)
{
    uint64_t sync;
    DONE(cenote_pool_sync_begin(pool, &sync));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_sync_end(pool, sync));
}

/* The program knows that the context has nothing to do with the pool's memory any more. */
static void sync_end_alone(cenote_pool *pool)
{
    uint64_t sync;
    DONE(cenote_pool_sync_begin(pool, &sync));
    DONE(cenote_pool_sync_end(pool, sync));
}

/* -------------------------------------------------------------------------------------------------- what was held, and comes back */

CASE(memory_of_a_stream_that_died)
{
    struct scene scene;
    void *none;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    stream_dies(&scene.stream[A]);
    trim_with_waits(&scene);
    EXPECT(cached(&scene) >= 48 * MIB); /* nothing covers it */
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT(strstr(cenote_message(), "48.00 MiB that was freed waits for streams; with announced:0") != NULL);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    sync_context(scene.pool);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* An allocation has it without a trim, and judges the contents: the stream was at work with it. */
CASE(memory_that_the_next_stream_takes)
{
    struct scene scene;
    struct held next;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    stream_dies(&scene.stream[A]);
    sync_context(scene.pool);
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[B]));
    held_give(&next);
    close_strict(&scene);
}

CASE(block_that_a_dead_stream_used)
{
    struct scene scene;
    struct held used;
    open_strict(&scene, true);
    REQUIRE(held_take(&used, scene.pool, 48 * MIB, scene.stream[B]));
    order(scene.stream[B], scene.stream[A]);
    held_linger(&used, scene.stream[A]);
    DONE(cenote_use(used.at, scene.stream[A]));
    DONE(cenote_free(used.at));
    stream_dies(&scene.stream[A]);
    trim_with_waits(&scene);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    sync_context(scene.pool);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* While a green context is current, its default stream has no handle that cenote could use, dead or alive. */
CASE(default_stream_of_a_green_context)
{
    struct scene scene;
    CUdevResource whole;
    CUdevResourceDesc described;
    CUgreenCtx green;
    CUcontext part;
    uint64_t sync;
    open_strict(&scene, true);
    DONE(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevResourceGenerateDesc(&described, &whole, 1));
    DONE(cuGreenCtxCreate(&green, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    DONE(cuCtxFromGreenCtx(&part, green));
    DONE(cuCtxPushCurrent(part));
    leave_card(&scene, NULL);
    DONE(cenote_pool_sync_begin(scene.pool, &sync));
    DONE(cuCtxSynchronize()); /* of that part */
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, sync), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "primary") != NULL);
    DONE(cuCtxPopCurrent(NULL));
    trim_with_waits(&scene);
    EXPECT(cached(&scene) >= 48 * MIB);
    sync_context(scene.pool);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(cached(&scene), 0);
    DONE(cuGreenCtxDestroy(green));
    close_strict(&scene);
}

static struct scene *of_thread;

/* Ends without an event on its own default stream, and may have replayed there. */
static void *end_a_group(void *unused)
{
    cenote_group *group = unused;
    DONE(cuCtxPushCurrent(of_thread->context));
    fault_arm("cuEventCreate", 1, CUDA_ERROR_UNKNOWN, true);
    DONE(cenote_group_destroy(group));
    fault_disarm();
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

/* The thread that destroyed a private group had no event on its default stream, and has ended. It holds back no later group either. */
CASE(private_group_and_a_thread_that_died)
{
    struct scene scene;
    cenote_group *group;
    pthread_t thread;
    void *at;
    open_strict(&scene, false);
    of_thread = &scene;
    for (int round = 0; round < 2; round++) {
        DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
        DONE(group_alloc(group, 40 * MIB, 512, scene.stream[A], &at));
        DONE(cenote_free(at));
        if (round)
            DONE(cenote_group_destroy(group));
        else
            DONE(pthread_create(&thread, NULL, end_a_group, group));
        if (!round)
            pthread_join(thread, NULL);
        trim_with_waits(&scene);
        EXPECT_EQ(cached(&scene) >= 40 * MIB, round == 0);
        if (!round)
            sync_context(scene.pool);
    }
    close_strict(&scene);
}

/* --------------------------------------------------------------------------------------------------------- what a sync does not cover */

/* The stream is given more, and frees more, while the program waits for what came before. */
CASE(what_is_freed_after_the_sync_began)
{
    struct scene scene;
    struct held block;
    uint64_t sync;
    void *none;
    open_strict(&scene, true);
    REQUIRE(held_take(&block, scene.pool, 48 * MIB, scene.stream[A]));
    DONE(cenote_pool_sync_begin(scene.pool, &sync));
    DONE(cuCtxSynchronize());
    held_linger(&block, scene.stream[A]);
    DONE(cenote_free(block.at));
    stream_dies(&scene.stream[A]);
    DONE(cenote_pool_sync_end(scene.pool, sync));
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &none), CENOTE_OUT_OF_MEMORY);
    sync_context(scene.pool);
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

static void open_other(struct peers *p, const cenote_options *options)
{
    struct sim_shape shape = scene_card(CARD);
    memset(p, 0, sizeof *p);
    shape.devices = 2;
    shape.lag = MSEC;
    scene_open_with(&p->scene, &shape, options);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static void close_other_card(struct peers *p)
{
    if (p->stream) {
        DONE(cuCtxPushCurrent(p->other));
        DONE(cuStreamDestroy(p->stream));
        DONE(cuCtxPopCurrent(NULL));
    }
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&p->scene);
}

static void close_other(struct peers *p)
{
    for (int i = 0; i < SCENE_STREAMS; i++)
        cenote_stream_retire(p->scene.pool, p->scene.stream[i]);
    scene_destroy_pool(&p->scene);
    close_other_card(p);
}

/* Each device's context stands for that device alone. */
CASE(dead_stream_of_another_device)
{
    struct peers p;
    struct held used;
    cenote_options options = strict();
    open_other(&p, &options);
    DONE(cenote_stream_set_immortal(p.scene.pool, p.scene.stream[A]));
    REQUIRE(held_take(&used, p.scene.pool, 8 * MIB, p.scene.stream[A]));
    DONE(cenote_use(used.at, p.stream));
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cenote_free(used.at));
    stream_dies(&p.stream);
    DONE(cuCtxPopCurrent(NULL));
    sync_context(p.scene.pool); /* of the pool's own device */
    trim_with_waits(&p.scene);
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 1);
    leave_card(&p.scene, p.scene.stream[B]); /* waits for the pool's own device */
    DONE(cuCtxPushCurrent(p.other));
    sync_context(p.scene.pool);
    DONE(cuCtxPopCurrent(NULL));
    trim_with_waits(&p.scene);
    EXPECT_EQ(scene_stats(p.scene.pool).pending_blocks, 0);
    EXPECT(cached(&p.scene) >= 48 * MIB);
    sync_context(p.scene.pool);
    trim_with_waits(&p.scene);
    EXPECT_EQ(cached(&p.scene), 0);
    close_other(&p);
}

/* Captures are announced, and a kernel of a granted device reads what the pool's own device is done with (rule 14). */
CASE(granted_device_is_waited_for)
{
    struct peers p;
    cenote_options options = scene_options();
    void *block;
    open_other(&p, &options);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    DONE(cuCtxPushCurrent(p.other));
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_alloc(p.scene.pool, 8 * MIB, p.scene.stream[A], &block));
    DONE(cenote_free(block));
    sync_context(p.scene.pool);
    DONE(cenote_pool_trim(p.scene.pool, 0, 0));
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 8 * MIB);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    close_other(&p);
}

/* Nothing was freed since the program has waited there: the pool goes while a capture is open on the granted device, which has a pool or not. */
static void destroy_beside_a_capture(bool is_served)
{
    struct peers p;
    cenote_options options = scene_options();
    cenote_pool *there = NULL;
    CUgraph graph = NULL;
    void *block;
    open_other(&p, &options);
    DONE(cenote_pool_grant(p.scene.pool, 1));
    if (is_served)
        DONE(cenote_pool_create(1, &options, &there));
    for (int i = 0; i < 2; i++) {
        DONE(cenote_alloc(p.scene.pool, 8 * MIB, p.scene.stream[A], &block));
        DONE(cenote_free(block));
        if (i == 0) {
            DONE(cuCtxPushCurrent(p.other));
            sync_context(p.scene.pool);
            if (is_served)
                DONE(cenote_capture_begin(there, NULL, p.stream));
            DONE(cuStreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            DONE(cuCtxPopCurrent(NULL));
        } else if (is_served) {
            EXPECT_EQ(cenote_pool_destroy(p.scene.pool), CENOTE_BUSY); /* that block was freed later */
        }
    }
    DONE(cuCtxPushCurrent(p.other));
    sync_end_alone(p.scene.pool);
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_destroy(p.scene.pool));
    DONE(cuStreamEndCapture(p.stream, &graph));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
    if (is_served) {
        DONE(cenote_capture_end(there, NULL, p.stream));
        DONE(cenote_pool_destroy(there));
    }
    p.scene.pool = NULL;
    close_other_card(&p);
}

CASE(a_pool_goes_beside_a_capture_of_a_granted_device)
{
    destroy_beside_a_capture(true);
    destroy_beside_a_capture(false);
}

/* ------------------------------------------------------------------------------------------------------------------------- captures */

/* The end of a sync comes while a stream is captured, announced or not, in each mode: the capture goes on. */
CASE(capture_that_began_after_the_sync)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int i = 0; i < 6; i++) {
        struct scene scene;
        cenote_group *group;
        CUgraph graph;
        uint64_t sync;
        bool announced = i >= 3;
        open_strict(&scene, true);
        DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
        leave_card(&scene, scene.stream[A]);
        stream_dies(&scene.stream[A]);
        DONE(cenote_pool_sync_begin(scene.pool, &sync));
        DONE(cuCtxSynchronize());
        if (announced)
            DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
        DONE(cuStreamBeginCapture(scene.stream[C], modes[i % 3]));
        DONE(cenote_pool_sync_end(scene.pool, sync));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(cached(&scene) >= 48 * MIB, announced); /* nothing is unmapped while an announced one is open */
        DONE(cuStreamEndCapture(scene.stream[C], &graph));
        if (announced)
            DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
        DONE(cuGraphDestroy(graph));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(cached(&scene), 0);
        DONE(cenote_group_destroy(group));
        close_strict(&scene);
    }
}

/* A trim and an allocation that is short of memory make no call over the context for what dead streams hold, in whatever mode others capture. */
CASE(dead_stream_and_a_capture_of_another)
{
    struct scene scene;
    CUgraph graph;
    void *none;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    stream_dies(&scene.stream[A]);
    DONE(cuStreamBeginCapture(scene.stream[C], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    trim_with_waits(&scene);
    EXPECT_EQ(cenote_alloc(scene.pool, 48 * MIB, scene.stream[B], &none), CENOTE_OUT_OF_MEMORY);
    DONE(cuStreamEndCapture(scene.stream[C], &graph));
    DONE(cuGraphDestroy(graph));
    sync_context(scene.pool);
    close_strict(&scene);
}

/* --------------------------------------------------------------------------------------------------------- functions of the program */

static int sync_when_short(cenote_pool *pool, size_t bytes, void *called)
{
    (void)bytes;
    ++*(int *)called;
    sync_context(pool);
    return 1;
}

/* The program waits for its context when memory runs out: the allocation that was about to fail has what a dead stream held. */
CASE(sync_in_a_shortage_function)
{
    struct scene scene;
    struct held next;
    int called = 0;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    stream_dies(&scene.stream[A]);
    DONE(cenote_pool_on_shortage(scene.pool, sync_when_short, &called));
    REQUIRE(held_take(&next, scene.pool, 60 * MIB, scene.stream[B]));
    EXPECT_EQ(called, 1);
    held_give(&next);
    DONE(cenote_pool_on_shortage(scene.pool, NULL, NULL));
    close_strict(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------- several threads */

#define ROUNDS 200

static _Atomic(bool) over;

static void *sync_again_and_again(void *unused)
{
    (void)unused;
    DONE(cuCtxPushCurrent(of_thread->context));
    while (!atomic_load(&over))
        sync_context(of_thread->pool);
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

/* One thread waits for the context, another allocates, frees, and ends streams: contents are judged. */
CASE(thread_that_waits_beside_one_that_frees)
{
    struct scene scene;
    struct held block;
    pthread_t thread;
    open_strict(&scene, true);
    of_thread = &scene;
    atomic_store(&over, false);
    DONE(pthread_create(&thread, NULL, sync_again_and_again, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        CUstream mortal;
        DONE(cuStreamCreate(&mortal, CU_STREAM_NON_BLOCKING));
        if (held_take(&block, scene.pool, 24 * MIB, mortal)) {
            held_linger(&block, mortal);
            DONE(cenote_free(block.at));
        }
        DONE(cuStreamDestroy(mortal));
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    sync_context(scene.pool);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(cached(&scene), 0);
    close_strict(&scene);
}

/* --------------------------------------------------------------------------------------------------------------------------- mistakes */

CASE(numbers_of_no_sync)
{
    struct scene scene;
    cenote_options options = strict();
    cenote_pool *second;
    uint64_t sync, of_second;
    CUcontext popped;
    open_strict(&scene, true);
    leave_card(&scene, scene.stream[A]);
    DONE(cenote_pool_create(0, &options, &second));
    DONE(cenote_pool_sync_begin(scene.pool, &sync));
    DONE(cenote_pool_sync_begin(second, &of_second));
    EXPECT_EQ(cenote_pool_sync_begin(scene.pool, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_sync_begin(NULL, &sync), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_sync_end(NULL, sync), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, of_second), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, 0), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, sync + 1), CENOTE_INVALID);
    DONE(cuCtxPopCurrent(&popped));
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, sync), CENOTE_INVALID); /* no context is current: none was waited for */
    DONE(cuCtxPushCurrent(popped));
    EXPECT(cached(&scene) >= 48 * MIB);
    DONE(cenote_pool_destroy(second));
    close_strict(&scene);
}

static void use_ticks(struct scene *scene, int count)
{
    for (void *block; count--;) {
        DONE(cenote_alloc(scene->pool, 512, scene->stream[A], &block));
        DONE(cenote_free(block));
    }
}

/* A later pool has the structure of the first, and more frees behind it. */
CASE(number_of_a_pool_that_was_destroyed)
{
    struct scene scene;
    cenote_options options = strict();
    uint64_t sync;
    open_strict(&scene, true);
    const cenote_pool *first = scene.pool;
    use_ticks(&scene, 50);
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cenote_pool_sync_begin(scene.pool, &sync));
    DONE(cenote_pool_destroy(scene.pool));
    DONE(cenote_pool_create(0, &options, &scene.pool));
    EXPECT(scene.pool == first);
    use_ticks(&scene, 100);
    EXPECT_EQ(cenote_pool_sync_end(scene.pool, sync), CENOTE_INVALID);
    close_strict(&scene);
}

/* What has done nothing on its device yet has nothing to be told. */
CASE(pool_that_was_not_used)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = strict();
    struct sim_books books;
    scene_open_with(&scene, &shape, &options);
    sync_context(scene.pool);
    sim_books(&books);
    EXPECT_EQ(books.contexts, 1); /* that of the test */
    scene_close(&scene);
}

/* The pool has nothing to do with that device: nothing is covered, and it is no mistake. */
CASE(context_of_a_device_that_is_strange_to_the_pool)
{
    struct peers p;
    cenote_options options = strict();
    uint64_t sync;
    open_other(&p, &options);
    leave_card(&p.scene, p.scene.stream[A]);
    DONE(cuCtxPushCurrent(p.other));
    sync_context(p.scene.pool);
    DONE(cenote_pool_sync_begin(p.scene.pool, &sync));
    fault_arm("cuCtxGetDevice", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_pool_sync_end(p.scene.pool, sync), CENOTE_DRIVER);
    DONE(cuCtxPopCurrent(NULL));
    fault_arm("cuCtxGetCurrent", 1, CUDA_ERROR_UNKNOWN, false);
    EXPECT_EQ(cenote_pool_sync_end(p.scene.pool, sync), CENOTE_DRIVER);
    fault_disarm();
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(cached(&p.scene) >= 48 * MIB);
    close_other(&p);
}

SCENES_MAIN("synced")
