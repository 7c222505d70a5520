/*
 * test_siblings.c: several pools on one device. One that is short of memory has what the others have free as soon as the device is done with
 * it (pool/shortage/siblings.c, rule 12 of docs/design.md).
 *
 * The clock of the card stands still unless a thread synchronises or asks again and again, so the time that has passed is the time that was
 * waited.
 */
#include "tests/api/scene.h"

#include <pthread.h>

#define HOUR    (3600 * 1000 * MSEC)
#define MANY    20          /* pools: more than are waited for */
#define THREADS 4
#define STEPS   1500
#define SHARE   (50 * MIB)  /* of a card of 256 MiB for each thread */

static cenote_pool *make_pool(void)
{
    cenote_options options = scene_options();
    cenote_pool *pool = NULL;
    DONE(cenote_pool_create(0, &options, &pool));
    REQUIRE(pool);
    return pool;
}

/* A block is freed that its stream needs for so long. */
static void leave_behind(cenote_pool *pool, size_t bytes, CUstream stream, uint64_t ns)
{
    void *block = NULL;
    REQUIRE(!cenote_alloc(pool, bytes, stream, &block));
    DONE(sim_launch_wait(stream, ns));
    DONE(cenote_free(block));
}

static void expect_served(cenote_pool *pool, size_t bytes, CUstream stream, uint64_t within)
{
    void *block = NULL;
    EXPECT_EQ(cenote_alloc(pool, bytes, stream, &block), CENOTE_OK);
    EXPECT(sim_now() <= within);
    DONE(cuStreamSynchronize(stream)); /* nor did the stream get more to wait for */
    EXPECT(sim_now() <= within);
    DONE(cenote_free(block));
}

/* What helps comes in another pool while this one has something that takes an hour, the other one too, and the other way round. */
CASE(of_several_pools_the_first_that_comes_serves)
{
    for (int asks = 0; asks < 2; asks++) {
        struct scene scene;
        scene_open(&scene, 256 * MIB);
        cenote_pool *pool[2] = {scene.pool, make_pool()};
        leave_behind(pool[1], 200 * MIB, scene.stream[C], MSEC);
        DONE(cenote_pool_trim(pool[1], 0, 0)); /* a fence, before what takes an hour */
        leave_behind(pool[0], 8 * MIB, scene.stream[B], HOUR);
        leave_behind(pool[1], 8 * MIB, scene.stream[B], HOUR);
        expect_served(pool[asks], 100 * MIB, scene.stream[A], MSEC);
        EXPECT_EQ(scene_stats(pool[asks]).waits, asks == 0);  /* for the other pool; */
        EXPECT_EQ(scene_stats(pool[asks]).orders, asks == 1); /* of its own its stream waits for what comes first */
        DONE(cenote_pool_destroy(pool[1]));
        scene_close(&scene);
    }
}

/* A pending block of another pool comes back by the event of the stream that used it. */
CASE(a_pending_block_of_another_pool)
{
    struct scene scene;
    void *block = NULL;
    scene_open(&scene, 256 * MIB);
    cenote_pool *other = make_pool();
    DONE(cenote_stream_set_immortal(other, scene.stream[C]));
    REQUIRE(!cenote_alloc(other, 200 * MIB, scene.stream[A], &block));
    DONE(sim_launch_wait(scene.stream[C], MSEC));
    DONE(cenote_use(block, scene.stream[C]));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(other, 0, 0));
    leave_behind(other, 8 * MIB, scene.stream[B], HOUR);
    expect_served(scene.pool, 100 * MIB, scene.stream[A], MSEC);
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

/* A driver without fences: the context is waited for, in the name of the pool that needs it. */
CASE(another_pool_without_fences)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    sim_reset(&shape);
    scene_open_card(&scene, &shape);
    sim_hide("cuCtxRecordEvent");
    scene.pool = make_pool();
    cenote_pool *other = make_pool();
    leave_behind(other, 200 * MIB, scene.stream[C], MSEC);
    expect_served(scene.pool, 100 * MIB, scene.stream[A], MSEC);
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

/* More pools than are waited for: what the last has free still goes. */
CASE(more_pools_than_are_waited_for)
{
    struct scene scene;
    cenote_pool *pool[MANY];
    scene_open(&scene, 256 * MIB);
    for (int i = 0; i < MANY; i++) {
        pool[i] = make_pool();
        leave_behind(pool[i], 10 * MIB, scene.stream[C], i < MANY / 2 ? MSEC : 0);
    }
    expect_served(scene.pool, 200 * MIB, scene.stream[A], MANY * MSEC);
    for (int i = 0; i < MANY; i++)
        DONE(cenote_pool_destroy(pool[i]));
    scene_close(&scene);
}

struct worker {
    cenote_pool *pool;
    CUcontext context;
    CUstream stream, other;     /* that of the next thread */
    uint64_t random;
    int refused;
    size_t share;               /* live bytes, at most */
    atomic_bool *stop;          /* NULL: so many steps */
    pthread_t thread;
};

static uint64_t next_random(struct worker *w)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return w->random >> 33;
}

/* Whole pages at random, never more than the thread's share. */
static void *work(void *arg)
{
    struct worker *w = arg;
    struct { void *at; size_t bytes; } held[SHARE / (2 * MIB)];
    size_t live = 0;
    int count = 0;
    cuCtxPushCurrent(w->context);
    for (int step = 0; w->stop ? !atomic_load(w->stop) : step < STEPS; step++) {
        size_t bytes = (1 + next_random(w) % (w->share / (6 * MIB))) * 2 * MIB;
        while (live + bytes > w->share) {
            int i = (int)(next_random(w) % (unsigned)count);
            sim_launch_touch(w->stream, device_address(held[i].at), held[i].bytes);
            if (next_random(w) % 2)
                cenote_use(held[i].at, w->other);
            cenote_free(held[i].at);
            live -= held[i].bytes;
            held[i] = held[--count];
        }
        if (alloc_aligned(w->pool, bytes, 2 * MIB, w->stream, &held[count].at)) {
            w->refused++;
            continue;
        }
        held[count++].bytes = bytes;
        live += bytes;
    }
    while (count)
        cenote_free(held[--count].at);
    cuCtxPopCurrent(NULL);
    return NULL;
}

/* The device runs a little behind, by the clock of the host. */
static void open_busy(struct scene *scene, bool has_fences)
{
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    shape.manual_clock = false;
    shape.lag = MSEC / 5;
    options.clock = NULL;
    sim_reset(&shape);
    scene_open_card(scene, &shape);
    if (!has_fences)
        sim_hide("cuCtxRecordEvent");
    DONE(cenote_pool_create(0, &options, &scene->pool));
    REQUIRE(scene->pool);
}

/* What comes back may go to another thread, of this pool or another, which frees again: as long as all have room together none is refused. */
static void run_threads(int pools, bool has_fences)
{
    struct scene scene;
    struct worker worker[THREADS];
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    open_busy(&scene, has_fences);
    options.clock = NULL;
    if (pools > 1)
        DONE(cenote_pool_create(0, &options, &other));
    for (int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.pool = other && i % 2 ? other : scene.pool, .context = scene.context, .random = (uint64_t)i + 1, .share = SHARE};
        DONE(cuStreamCreate(&worker[i].stream, CU_STREAM_NON_BLOCKING));
    }
    for (int i = 0; i < THREADS; i++)
        worker[i].other = worker[(i + 1) % THREADS].stream;
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&worker[i].thread, NULL, work, &worker[i]));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(worker[i].thread, NULL);
        EXPECT_EQ(worker[i].refused, 0);
    }
    if (other)
        DONE(cenote_pool_destroy(other));
    for (int i = 0; i < THREADS; i++)
        DONE(cuStreamDestroy(worker[i].stream));
    scene_close(&scene);
}

CASE(threads_that_fit_together_are_not_refused) { run_threads(1, true); }
CASE(threads_of_two_pools_that_fit_together) { run_threads(2, true); }
CASE(threads_of_two_pools_without_fences) { run_threads(2, false); }

/* Threads of another pool that never rest are not waited for without end: what that pool has free is pinned, and never comes. */
CASE(a_pool_that_never_rests)
{
    struct scene scene;
    atomic_bool stop = false;
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    void *live = NULL, *pinned = NULL, *none = NULL;
    open_busy(&scene, true);
    options.clock = NULL;
    DONE(cenote_pool_create(0, &options, &other));
    struct worker worker = {.pool = other, .context = scene.context, .random = 1, .share = 12 * MIB, .stop = &stop,
                            .stream = scene.stream[B], .other = scene.stream[C]};
    REQUIRE(!cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &live));
    REQUIRE(!cenote_alloc(other, 80 * MIB, scene.stream[A], &pinned));
    DONE(cenote_pin(pinned, 80 * MIB));
    DONE(cenote_free(pinned));
    REQUIRE(!pthread_create(&worker.thread, NULL, work, &worker));
    while (!scene_stats(other).allocated.current) {} /* until it is at work */
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &none), CENOTE_OUT_OF_MEMORY);
    atomic_store(&stop, true);
    pthread_join(worker.thread, NULL);
    EXPECT_EQ(worker.refused, 0);
    DONE(cenote_unpin(pinned, 80 * MIB));
    DONE(cenote_free(live));
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

/* A pool of 64 MiB at most whose 40 MiB are free, and stay where they are: another stream has no use for them. */
static void *fill_limit(struct scene *scene)
{
    void *pinned = NULL;
    DONE(cenote_pool_set_limit(scene->pool, 64 * MIB));
    REQUIRE(!cenote_alloc(scene->pool, 40 * MIB, scene->stream[A], &pinned));
    DONE(cenote_pin(pinned, 40 * MIB));
    DONE(cenote_free(pinned));
    return pinned;
}

/* Memory of others is of no use to a request that the pool's own limit refuses, whether the device has enough left or not. */
CASE(a_limit_that_refuses_empties_no_other_pool)
{
    for (int full = 0; full < 2; full++) {
        struct scene scene;
        void *none, *block;
        scene_open(&scene, 256 * MIB);
        cenote_pool *other = make_pool();
        void *pinned = fill_limit(&scene);
        leave_behind(other, (full ? 210 : 100) * MIB, scene.stream[B], 0);
        DONE(cuCtxSynchronize());
        EXPECT_EQ(cenote_alloc(scene.pool, 40 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);  /* beside the pages that stay */
        EXPECT_EQ(cenote_alloc(scene.pool, 100 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY); /* alone */
        EXPECT_EQ(scene_stats(other).pages_released, 0);
        EXPECT_EQ(cenote_alloc(scene.pool, 22 * MIB, scene.stream[C], &block), CENOTE_OK); /* the limit allows it */
        EXPECT_EQ(scene_stats(other).pages_released != 0, full);
        DONE(cenote_free(block));
        DONE(cenote_unpin(pinned, 40 * MIB));
        DONE(cenote_pool_destroy(other));
        scene_close(&scene);
    }
}

/* Nor is it to one for which too much is live, here and there. */
CASE(what_is_live_leaves_no_room)
{
    struct scene scene;
    void *none, *live[2];
    scene_open(&scene, 256 * MIB);
    cenote_pool *other = make_pool();
    DONE(cenote_alloc(scene.pool, 60 * MIB, scene.stream[A], &live[0]));
    DONE(cenote_alloc(other, 60 * MIB, scene.stream[A], &live[1]));
    leave_behind(other, 100 * MIB, scene.stream[B], 0);
    DONE(cuCtxSynchronize());
    EXPECT_EQ(cenote_alloc(scene.pool, 140 * MIB, scene.stream[C], &none), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(scene_stats(other).pages_released, 0);
    DONE(cenote_free(live[0]));
    DONE(cenote_free(live[1]));
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

SCENES_MAIN("siblings")
