/*
 * test_contexts.c: pools in contexts that the caller keeps: one that it has made itself, and the primary one. Pools in several contexts of one device
 * have one memory, and a capture in one context holds off what may not be done meanwhile in the others.
 */
#include "tests/api/scene.h"

#include "driver/driver.h"

#include <pthread.h>

static struct sim_books books_now(void)
{
    struct sim_books books;
    sim_books(&books);
    return books;
}

/* A scene in a context of the program's own; the primary one is not made. */
static void open_beside(struct scene *scene)
{
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    memset(scene, 0, sizeof *scene);
    scene_is_open = true;
    sim_reset(&shape);
    DONE(cuInit(0));
    DONE(cuCtxCreate(&scene->context, NULL, 0, 0));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cuStreamCreate(&scene->stream[i], CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create_in(scene->context, &options, &scene->pool));
    REQUIRE(scene->pool);
}

static void close_beside(struct scene *scene)
{
    scene_judge(scene);
    scene_destroy_pool(scene);
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cuCtxDestroy(scene->context));
    EXPECT_EQ(books_now().contexts, 0);
    EXPECT_EQ(books_now().violations, 0);
    scene_is_open = false;
}

/* Each call of the driver fails once while a pool is made in a context. The primary one, which is looked at, stays as often retained as it was. */
CASE(a_refusal_while_a_pool_is_made_in_a_context)
{
    struct scene s;
    cenote_options options = scene_options();
    CUcontext primary;
    bool fires = true;
    open_beside(&s);
    DONE(cuDevicePrimaryCtxRetain(&primary, 0));
    for (uint64_t nth = 1; fires; nth++) {
        cenote_pool *pool = NULL;
        fault_arm(NULL, nth, CUDA_ERROR_UNKNOWN, false);
        int error = cenote_pool_create_in(s.context, &options, &pool);
        fires = fault_fired();
        fault_disarm();
        EXPECT(!error || fires);
        if (!error)
            DONE(cenote_pool_destroy(pool));
        EXPECT_EQ(books_now().contexts, 2);
    }
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&s);
}

CASE(a_pool_in_a_context_of_the_program)
{
    struct scene s;
    int active = 1;
    unsigned flags;
    open_beside(&s);
    EXPECT_EQ(cenote_pool_device(s.pool), 0);
    for (int i = 0; i < 20; i++) {
        struct held one = {0}, other = {0};
        REQUIRE(held_take(&one, s.pool, 9 * MIB, s.stream[A]) && held_take(&other, s.pool, 300 * KIB, s.stream[B]));
        held_expect(&one, s.stream[A]);
        DONE(cenote_use(other.at, s.stream[C]));
        held_expect(&other, s.stream[C]);
        DONE(cenote_free(one.at));
        DONE(cenote_free(other.at));
    }
    DONE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(!active);
    EXPECT_EQ(books_now().contexts, 1); /* cenote retains nothing */
    close_beside(&s);
}

/* What is wrong is said of the pool's context: a stream of the primary one is no mistake elsewhere. */
static void expect_advice(void)
{
    EXPECT(strstr(cenote_message(), "cenote_pool_create_in was given") && !strstr(cenote_message(), "primary"));
}

/* A default stream is that of the current context, which has to be the pool's. */
CASE(default_streams)
{
    struct scene s;
    CUcontext primary, popped;
    void *block = NULL;
    open_beside(&s);
    DONE(cenote_alloc(s.pool, MIB, NULL, &block));
    DONE(cenote_free(block));
    DONE(cuDevicePrimaryCtxRetain(&primary, 0));
    DONE(cuCtxPushCurrent(primary));
    EXPECT_EQ(cenote_alloc(s.pool, MIB, NULL, &block), CENOTE_INVALID);
    expect_advice();
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&s);
}

/* Streams of the device's other contexts are none of the pool's. */
CASE(two_contexts_of_a_device)
{
    struct scene s;
    cenote_pool *other;
    CUcontext primary, popped;
    CUstream there;
    void *block = NULL, *far = NULL;
    open_beside(&s);
    DONE(cuDevicePrimaryCtxRetain(&primary, 0));
    DONE(cuCtxPushCurrent(primary));
    DONE(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create(0, NULL, &other));
    EXPECT_EQ(cenote_alloc(s.pool, MIB, there, &block), CENOTE_INVALID);
    expect_advice();
    EXPECT_EQ(cenote_alloc(other, MIB, s.stream[A], &block), CENOTE_INVALID);
    DONE(cenote_alloc(other, 3 * MIB, there, &far));
    DONE(cenote_alloc(s.pool, 3 * MIB, s.stream[A], &block));
    EXPECT_EQ(cenote_use(block, there), CENOTE_INVALID);
    expect_advice();
    DONE(cenote_free(block));
    DONE(cenote_free(far));
    DONE(cenote_pool_destroy(other));
    DONE(cuStreamDestroy(there));
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&s);
}

/* The primary context that the caller keeps is not retained, until a pool needs it whose caller does not. */
CASE(the_primary_context)
{
    struct scene s;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_pool *other;
    void *block;
    scene_open_card(&s, &shape);
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cenote_pool_create_in(s.context, &options, &s.pool));
    DONE(cenote_alloc(s.pool, 3 * MIB, s.stream[A], &block));
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cenote_pool_create(0, &options, &other));
    EXPECT_EQ(books_now().contexts, 2);
    DONE(cenote_free(block));
    scene_judge(&s);
    scene_destroy_pool(&s);
    EXPECT_EQ(books_now().contexts, 2);
    DONE(cenote_pool_destroy(other));
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cuDevicePrimaryCtxRelease(0));
    scene_is_open = false;
}

/* The caller has ended the primary context before the pool in it: another pool gets no memory, and no context is made for it. */
CASE(a_primary_context_that_ended_is_not_made_again)
{
    struct scene s;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    void *none;
    unsigned flags;
    int active = 1;
    scene_open_card(&s, &shape);
    DONE(cenote_pool_create_in(s.context, &options, &s.pool));
    DONE(cuDevicePrimaryCtxRelease(0));
    DONE(cenote_pool_create(0, &options, &other));
    EXPECT_EQ(cenote_alloc(other, MIB, NULL, &none), CENOTE_DEVICE_LOST);
    DONE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(!active);
    EXPECT_EQ(books_now().contexts, 0);
    DONE(cenote_pool_destroy(other));
    DONE(cenote_pool_destroy(s.pool));
    scene_is_open = false;
}

CASE(no_context)
{
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_pool *pool = NULL;
    CUcontext gone;
    sim_reset(&shape);
    DONE(cuInit(0));
    EXPECT_EQ(cenote_pool_create_in(NULL, NULL, &pool), CENOTE_INVALID);
    DONE(cuCtxCreate(&gone, NULL, 0, 0));
    DONE(cuCtxDestroy(gone));
    sim_set_quiet(true);
    EXPECT_EQ(cenote_pool_create_in(gone, NULL, &pool), CENOTE_INVALID);
    sim_set_quiet(false);
    EXPECT(!pool);
}

/* ------------------------------------------------------------------------------------------------------- several contexts of one device */

/* One pool in a context of the program's own, and one in the primary one, each with a stream. The context of the first is current. */
struct two {
    struct scene scene;
    cenote_pool *pool[2];
    CUcontext    context[2];
    CUstream     stream[2];
};

static void open_two(struct two *t, const cenote_options *options)
{
    open_beside(&t->scene);
    t->pool[0] = t->scene.pool;
    t->context[0] = t->scene.context;
    t->stream[0] = t->scene.stream[A];
    DONE(cuDevicePrimaryCtxRetain(&t->context[1], 0));
    DONE(cuCtxPushCurrent(t->context[1]));
    DONE(cuStreamCreate(&t->stream[1], CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_create(0, options, &t->pool[1]));
    REQUIRE(t->pool[1]);
}

static void close_two(struct two *t)
{
    DONE(cenote_pool_check(t->pool[1]));
    DONE(cenote_pool_destroy(t->pool[1]));
    DONE(cuCtxPushCurrent(t->context[1]));
    DONE(cuStreamDestroy(t->stream[1]));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&t->scene);
}

/* A block is freed that its stream needs for so long. */
static void leave_behind(struct two *t, int which, size_t bytes, uint64_t ns)
{
    struct held held;
    DONE(cuCtxPushCurrent(t->context[which]));
    REQUIRE(held_take(&held, t->pool[which], bytes, t->stream[which]));
    DONE(sim_launch_wait(t->stream[which], ns));
    held_give(&held);
    DONE(cuCtxPopCurrent(NULL));
}

/* What one pool has free serves the other, at once or when the device is done with it. */
CASE(memory_that_another_context_has_free)
{
    for (int round = 0; round < 8; round++) {
        struct two t;
        struct held held;
        int asks = round & 1, late = round & 2;
        cenote_options options = scene_options();
        options.provider = round & 4 ? CENOTE_PLAIN : CENOTE_VMM;
        open_two(&t, &options);
        leave_behind(&t, !asks, 200 * MIB, late ? MSEC : 0);
        DONE(cuCtxPushCurrent(t.context[asks]));
        EXPECT(held_take(&held, t.pool[asks], 150 * MIB, t.stream[asks]));
        held_give(&held);
        DONE(cuCtxSynchronize());
        DONE(cuCtxPopCurrent(NULL));
        EXPECT(scene_stats(t.pool[!asks]).pages_released > 0);
        close_two(&t);
    }
}

/* What is live there counts here: the request climbs no further than to the program, and the message says where the memory is. */
CASE(memory_that_another_context_uses)
{
    struct two t;
    void *live = NULL, *none = NULL;
    cenote_options options = scene_options();
    open_two(&t, &options);
    DONE(cenote_alloc(t.pool[1], 200 * MIB, t.stream[1], &live));
    leave_behind(&t, 0, 20 * MIB, 0);
    EXPECT_EQ(cenote_alloc(t.pool[0], 100 * MIB, t.stream[0], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT(strstr(cenote_message(), "200.00 MiB  1 other pool of this process"));
    EXPECT(!strstr(cenote_message(), "container"));
    DONE(cenote_free(live));
    close_two(&t);
}

/* A pool in a context that has done nothing is looked at, and no context is made for that. */
CASE(a_context_that_is_not_there_is_not_made)
{
    struct scene s;
    cenote_pool *other;
    cenote_options options = scene_options();
    void *none = NULL;
    open_beside(&s);
    DONE(cenote_pool_create(0, &options, &other));
    EXPECT_EQ(cenote_alloc(s.pool, 300 * MIB, s.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_alloc(s.pool, 200 * MIB, s.stream[A], &none));
    DONE(cenote_pin(none, 200 * MIB));
    DONE(cenote_free(none));
    EXPECT_EQ(cenote_alloc(s.pool, 100 * MIB, s.stream[B], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cenote_pool_trim(s.pool, 0, 0));
    REQUIRE(none);
    DONE(cenote_unpin(none, 200 * MIB));
    DONE(cenote_pool_destroy(other));
    close_beside(&s);
}

/* While a capture is open in one context, nothing is given back, unmapped or waited for in the others. */
CASE(a_capture_in_another_context)
{
    for (int captures = 0; captures < 2; captures++) {
        struct two t;
        CUgraph graph;
        void *none = NULL;
        int other = !captures;
        cenote_options options = scene_options();
        open_two(&t, &options);
        leave_behind(&t, other, 150 * MIB, 0);
        DONE(cuCtxPushCurrent(t.context[captures]));
        DONE(cenote_capture_begin(t.pool[captures], NULL, t.stream[captures]));
        DONE(cuStreamBeginCapture(t.stream[captures], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cenote_pool_trim(t.pool[other], 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(t.pool[other]).pages_released, 0);
        if (other) /* its context is cenote's, and does not end */
            EXPECT_EQ(cenote_pool_destroy(t.pool[other]), CENOTE_BUSY);
        EXPECT_EQ(cenote_alloc(t.pool[captures], 200 * MIB, captures ? t.stream[1] : t.scene.stream[B], &none),
                  captures ? CENOTE_CAPTURE : CENOTE_OUT_OF_MEMORY);
        EXPECT_EQ(scene_stats(t.pool[other]).pages_released, 0);
        DONE(cuStreamEndCapture(t.stream[captures], &graph));
        DONE(cuGraphDestroy(graph));
        DONE(cenote_capture_end(t.pool[captures], NULL, t.stream[captures]));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_pool_trim(t.pool[other], 0, CENOTE_TRIM_WAIT));
        EXPECT(scene_stats(t.pool[other]).pages_released > 0);
        close_two(&t);
    }
}

/* A context of the program's own may have to end while a capture is open in another one: its pool does, and nothing of it is left. */
CASE(a_context_that_ends_during_a_capture_elsewhere)
{
    for (int announced = 0; announced < 2; announced++) {
        struct scene s;
        struct held held;
        CUcontext primary;
        CUstream captured;
        CUgraph graph;
        cenote_pool *other;
        cenote_options options = scene_options();
        options.announced = (unsigned)announced;
        open_beside(&s);
        DONE(cuDevicePrimaryCtxRetain(&primary, 0));
        DONE(cuCtxPushCurrent(primary));
        DONE(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
        DONE(cenote_pool_create(0, &options, &other));
        DONE(cuCtxPopCurrent(NULL));
        REQUIRE(held_take(&held, s.pool, 40 * MIB, s.stream[A]));
        held_linger(&held, s.stream[A]);
        held_give(&held);
        DONE(cuCtxPushCurrent(primary));
        DONE(cenote_capture_begin(other, NULL, captured));
        DONE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_pool_trim(s.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT(books_now().used >= 40 * MIB);
        if (!announced)
            DONE(cenote_stream_retire(s.pool, s.stream[A]));
        DONE(cenote_pool_destroy(s.pool));
        s.pool = NULL;
        EXPECT_EQ(books_now().used, 0);
        EXPECT_EQ(sim_mismatches(), 0);
        DONE(cuCtxPushCurrent(primary));
        DONE(cuStreamEndCapture(captured, &graph)); /* it has not minded */
        DONE(cuGraphDestroy(graph));
        DONE(cenote_capture_end(other, NULL, captured));
        DONE(cuStreamDestroy(captured));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_pool_destroy(other));
        DONE(cuDevicePrimaryCtxRelease(0));
        DONE(cuCtxDestroy(s.context));
        EXPECT_EQ(books_now().violations, 0);
        scene_is_open = false;
    }
}

/* A context in which a pool is opened while a capture is open in another one. */
CASE(a_context_that_comes_during_a_capture)
{
    struct scene s;
    CUgraph graph;
    cenote_pool *other;
    void *block;
    cenote_options options = scene_options();
    open_beside(&s);
    DONE(cenote_capture_begin(s.pool, NULL, s.stream[A]));
    DONE(cuStreamBeginCapture(s.stream[A], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_alloc(other, MIB, CU_STREAM_PER_THREAD, &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(other, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(other).pages_released, 0);
    EXPECT_EQ(cenote_pool_destroy(other), CENOTE_BUSY);
    DONE(cuStreamEndCapture(s.stream[A], &graph));
    DONE(cuGraphDestroy(graph));
    DONE(cenote_capture_end(s.pool, NULL, s.stream[A]));
    DONE(cenote_pool_destroy(other));
    close_beside(&s);
}

#define STEPS 100

struct worker {
    cenote_pool *pool;
    CUcontext    context;
    CUstream     stream;
    int          refused;
};

/* Up to half of the card for a moment, again and again. */
static void *work(void *arg)
{
    struct worker *w = arg;
    DONE(cuCtxPushCurrent(w->context));
    for (int step = 0; step < STEPS; step++) {
        void *block;
        if (cenote_alloc(w->pool, (size_t)(2 + step * 7 % 60) * 2 * MIB, w->stream, &block)) {
            w->refused++;
            continue;
        }
        DONE(sim_launch_touch(w->stream, device_address(block), MIB));
        DONE(cenote_free(block));
    }
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static void start(const struct two *t, struct worker *worker, pthread_t *thread)
{
    for (int i = 0; i < 2; i++) {
        worker[i] = (struct worker){t->pool[i], t->context[i], t->stream[i], 0};
        REQUIRE(!pthread_create(&thread[i], NULL, work, &worker[i]));
    }
}

/* Threads of two contexts take each other's memory. Each has room for what it asks, and none is refused. */
CASE(threads_of_two_contexts_that_fit_together)
{
    struct two t;
    struct worker worker[2];
    pthread_t thread[2];
    cenote_options options = scene_options();
    open_two(&t, &options);
    start(&t, worker, thread);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        EXPECT_EQ(worker[i].refused, 0);
    }
    close_two(&t);
}

/* The same beside captures in one of the contexts: some are refused then, for nothing is given back, and no capture is disturbed. */
CASE(threads_of_two_contexts_beside_captures)
{
    struct two t;
    struct worker worker[2];
    pthread_t thread[2];
    cenote_options options = scene_options();
    open_two(&t, &options);
    start(&t, worker, thread);
    for (int i = 0; i < STEPS; i++) {
        CUgraph graph = NULL;
        DONE(cenote_capture_begin(t.pool[0], NULL, t.scene.stream[B]));
        uint64_t before = scene_stats(t.pool[1]).pages_released;
        DONE(cuStreamBeginCapture(t.scene.stream[B], CU_STREAM_CAPTURE_MODE_GLOBAL));
        DONE(sim_launch_wait(t.scene.stream[B], 1));
        DONE(cenote_pool_trim(t.pool[1], 0, CENOTE_TRIM_WAIT));
        DONE(cuStreamEndCapture(t.scene.stream[B], &graph));
        EXPECT_EQ(scene_stats(t.pool[1]).pages_released, before);
        DONE(cenote_capture_end(t.pool[0], NULL, t.scene.stream[B]));
        if (graph)
            DONE(cuGraphDestroy(graph));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    close_two(&t);
}

SUITE_MAIN("api: contexts")
