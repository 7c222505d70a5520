/*
 * test_ends_between.c: a pool is destroyed by another thread while a call is between two looks at it: while it asks the driver, waits, has a function
 * of the program run, or is at the pool for another one that is short of memory. Either the pool ends and the call is told so, or the pool is busy.
 * No call does its work on tables that have gone, and no memory is lost.
 *
 * Not: calls that wait for the turn from their beginning (test_ends.c).
 */
#include "tests/api/caller.h"
#include "tests/api/scene.h"
#include "tests/patience.h"
#include "tests/rounds.h"

#include "base/memory.h"
#include "driver/driver.h"
#include "pool/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static struct scene scene;
static void *block;

/* ------------------------------------------------------------------------------------------- the pool ends while the driver is asked */

enum question { NONE, STREAM_ID, STREAM_CONTEXT, CONTEXT, EVENT_RECORD };

static const struct driver *below;
static _Thread_local bool asks;     /* this thread makes the call that is looked at */
static enum question at;            /* when this question comes from that thread, another one destroys the pool, once */
static int told;                    /* what that was told */

static void *destroy(void *unused)
{
    DONE(cuCtxSetCurrent(scene.context));
    told = cenote_pool_destroy(scene.pool);
    return unused;
}

static void comes(enum question question)
{
    pthread_t thread;
    if (!asks || at != question)
        return;
    at = NONE;
    REQUIRE(!pthread_create(&thread, NULL, destroy, NULL));
    pthread_join(thread, NULL);
}

static CUresult stream_id(CUstream stream, unsigned long long *id)
{
    comes(STREAM_ID);
    return below->cuStreamGetId(stream, id);
}

static CUresult stream_context(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    comes(STREAM_CONTEXT);
    return below->cuStreamGetCtx_v2(stream, context, green);
}

static CUresult current(CUcontext *context)
{
    comes(CONTEXT);
    return below->cuCtxGetCurrent(context);
}

static CUresult event_record(CUevent event, CUstream stream)
{
    comes(EVENT_RECORD);
    return below->cuEventRecord(event, stream);
}

static const struct driver *between(const struct driver *driver)
{
    static struct driver table;
    below = driver;
    table = *driver;
    table.cuStreamGetId = stream_id;
    table.cuStreamGetCtx_v2 = stream_context;
    table.cuCtxGetCurrent = current;
    table.cuEventRecord = event_record;
    return &table;
}

/* Of the call; the pool ended meanwhile, or was busy. */
static int ask(enum question question, int (*call)(void), int expected)
{
    if (!below)
        driver_interpose(between);
    at = question;
    told = -1;
    asks = true;
    int error = call();
    asks = false;
    REQUIRE_EQ(at, NONE); /* the question was asked */
    EXPECT_EQ(told, expected);
    at = NONE;
    return error;
}

static int allocate(void) { return cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block); }
static int use(void) { return cenote_use(block, scene.stream[B]); }
static int give(void) { return cenote_free(block); }
static int retire(void) { return cenote_stream_retire(scene.pool, scene.stream[A]); }
static int immortal(void) { return cenote_stream_set_immortal(scene.pool, scene.stream[A]); }
static int capture(void) { return cenote_capture_begin(scene.pool, NULL, scene.stream[A]); }

/* Another pool keeps the device open, and has the scene's place once that has ended. */
static void open_two(cenote_pool **other)
{
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(0, &options, other));
}

/* A call that has no block yet: the pool goes, and the call is told so. */
CASE(a_pool_ends_before_a_call_has_its_answer)
{
    static const struct { enum question question; int (*call)(void); } calls[] = {
        {STREAM_ID, allocate}, {STREAM_CONTEXT, allocate}, {STREAM_ID, retire}, {STREAM_ID, immortal},
        {STREAM_ID, capture},  {STREAM_CONTEXT, capture}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cenote_pool *other;
        open_two(&other);
        EXPECT_EQ(ask(calls[i].question, calls[i].call, CENOTE_OK), CENOTE_INVALID);
        scene.pool = other;
        scene_close(&scene);
    }
}

/* The last one of its device goes: the call makes no context again, which would stay, or be that of a next pool in another one. */
CASE(the_last_pool_ends_before_a_call_has_its_answer)
{
    static const struct { enum question question; int (*call)(void); } calls[] = {
        {STREAM_ID, allocate}, {STREAM_CONTEXT, allocate}, {STREAM_ID, retire}, {STREAM_ID, immortal}, {STREAM_ID, capture},
        {STREAM_CONTEXT, capture}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct sim_books before, after;
        cenote_options options = scene_options();
        struct sim_shape shape = scene_card(256 * MIB);
        scene_open_card(&scene, &shape);
        sim_books(&before);
        DONE(cenote_pool_create(0, &options, &scene.pool));
        EXPECT_EQ(ask(calls[i].question, calls[i].call, CENOTE_OK), CENOTE_INVALID);
        sim_books(&after);
        EXPECT_EQ(after.contexts, before.contexts);
        scene.pool = NULL;
        scene_close(&scene);
    }
}

/* The block is live, or counted otherwise, while the driver is asked: the pool stays. */
CASE(a_pool_stays_for_a_block_that_is_on_its_way)
{
    scene_open(&scene, 256 * MIB);
    DONE(allocate());
    DONE(ask(STREAM_ID, use, CENOTE_BUSY));
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B])); /* it may have an event */
    DONE(ask(EVENT_RECORD, give, CENOTE_BUSY));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------ a thread is away from the turn */

static pthread_t destroyer;
static atomic_int  destroyer_id;
static atomic_bool destroyer_is_back, function_ran;
static bool ended_meanwhile;

static void *destroy_while_away(void *unused)
{
    DONE(cuCtxSetCurrent(scene.context));
    atomic_store(&destroyer_id, gettid());
    told = cenote_pool_destroy(scene.pool);
    atomic_store(&destroyer_is_back, true);
    return unused;
}

/* Another thread destroys the pool, and has come as far as it gets, when this returns. */
static void have_it_destroyed(void)
{
    struct wait wait = {0};
    int looks = 0;
    if (atomic_exchange(&function_ran, true))
        return;
    REQUIRE(!pthread_create(&destroyer, NULL, destroy_while_away, NULL));
    while (looks < 20 && !atomic_load(&destroyer_is_back) && wait_on(&wait))
        looks = is_asleep(atomic_load(&destroyer_id)) ? looks + 1 : 0;
    ended_meanwhile = atomic_load(&destroyer_is_back) && !told;
}

static void give_late(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    have_it_destroyed();
    give_source(memory, bytes, stream, arg);
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    if (asks)
        have_it_destroyed();
    return below->cuThreadExchangeStreamCaptureMode(mode);
}

static const struct driver *entered(const struct driver *driver)
{
    static struct driver table;
    table = *between(driver);
    table.cuThreadExchangeStreamCaptureMode = exchange_mode;
    return &table;
}

/* A call that comes too late is inside the device already. The caller of the end may end the context after it, so the end waits for that call. */
CASE(the_last_pool_ends_after_calls_that_are_inside)
{
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    CUcontext own;
    scene_open_card(&scene, &shape);
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    options.clock = NULL;
    DONE(cenote_pool_create_in(own, &options, &scene.pool));
    driver_interpose(entered);
    atomic_store(&function_ran, false);
    atomic_store(&destroyer_is_back, false);
    asks = true;
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_INVALID);
    asks = false;
    driver_interpose(between);
    REQUIRE(atomic_load(&function_ran));
    pthread_join(destroyer, NULL);
    EXPECT(!ended_meanwhile);
    DONE(told);
    DONE(cuCtxDestroy(own));
    scene.pool = NULL;
    DONE(cuCtxSetCurrent(scene.context));
    scene_close(&scene);
}

static atomic_bool closes, call_is_back;

/* The call has seen that the context lives, and does not go on before the device is being closed. */
static CUresult context_id(CUcontext context, unsigned long long *id)
{
    struct wait wait = {0};
    if (asks && !atomic_exchange(&function_ran, true)) {
        REQUIRE(!pthread_create(&destroyer, NULL, destroy_while_away, NULL));
        while (!atomic_load(&closes) && wait_on(&wait))
            ;
    }
    return below->cuCtxGetId(context, id);
}

static CUresult release_context(CUdevice device)
{
    struct wait wait = {0};
    atomic_store(&closes, true);
    while (!atomic_load(&call_is_back) && wait_on(&wait))
        ;
    return below->cuDevicePrimaryCtxRelease(device);
}

static const struct driver *closing(const struct driver *driver)
{
    static struct driver table;
    table = *between(driver);
    table.cuCtxGetId = context_id;
    table.cuDevicePrimaryCtxRelease = release_context;
    return &table;
}

/* A call that comes too late makes no context current that the device has no more. */
CASE(the_last_pool_ends_while_a_call_enters)
{
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    scene_open_card(&scene, &shape);
    options.clock = NULL;
    DONE(cenote_pool_create(0, &options, &scene.pool));
    DONE(cenote_alloc(scene.pool, MIB, NULL, &block));
    DONE(cenote_free(block));
    driver_interpose(closing);
    atomic_store(&function_ran, false);
    asks = true;
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_INVALID);
    asks = false;
    atomic_store(&call_is_back, true);
    REQUIRE(atomic_load(&function_ran));
    pthread_join(destroyer, NULL);
    driver_interpose(between);
    DONE(told);
    EXPECT(atomic_load(&closes));
    scene.pool = NULL;
    scene_close(&scene);
}

/* A trim has let go of the turn while the program takes its memory back. */
CASE(a_pool_ends_after_a_trim_that_is_away)
{
    cenote_source source = {.take = take_source, .give = give_late};
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_group *group;
    cenote_pool *other;
    options.clock = NULL; /* the thread that waits may sleep */
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_group_create(scene.pool, "of the program", 0, &source, &group));
    DONE(group_alloc(group, 3 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    atomic_store(&function_ran, false);
    atomic_store(&destroyer_is_back, false);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(atomic_load(&function_ran));
    pthread_join(destroyer, NULL);
    EXPECT(!ended_meanwhile);
    DONE(told);
    scene.pool = other;
    scene_close(&scene);
}

/* ---------------------------------------------------------------------------------------------------- another pool is short of memory */

static cenote_pool *other;
static atomic_bool holds, may_go;

static void hold(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)notice;
    struct wait wait = {0};
    (void)pool, (void)arg;
    atomic_store(&holds, true);
    while (!atomic_load(&may_go) && wait_on(&wait))
        ;
}

static void *trim(void *unused)
{
    DONE(cuCtxSetCurrent(scene.context));
    DONE(cenote_pool_trim(scene.pool, 0, 0));
    return unused;
}

static int destroy_pool(void) { return cenote_pool_destroy(scene.pool); }

/* As much as it gets when the pool that ends has given back what it has free. */
static int take_more(void)
{
    void *more;
    int error = cenote_alloc(other, 100 * MIB, scene.stream[B], &more);
    return error ? error : cenote_free(more);
}

/* Both sleep on the turn of the pool that ends. It has memory in so many arenas. */
static void end_beside_shortage(uint32_t provider, int arenas, int (*first)(void), int (*second)(void))
{
    struct caller callers[2];
    struct wait wait = {0};
    pthread_t holder;
    void *large;
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(256 * MIB);
    options.provider = provider;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_alloc(other, 100 * MIB, scene.stream[B], &large));
    for (int i = 0; i < arenas; i++) {
        cenote_group *group;
        DONE(cenote_group_create(scene.pool, "one of many", CENOTE_GROUP_PRIVATE, NULL, &group));
        DONE(group_alloc(group, 512, 512, scene.stream[A], &block));
        DONE(cenote_free(block));
        DONE(cenote_group_destroy(group));
    }
    DONE(cenote_alloc(scene.pool, 120 * MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    atomic_store(&holds, false);
    atomic_store(&may_go, false);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, hold, NULL));
    REQUIRE(!pthread_create(&holder, NULL, trim, NULL));
    while (!atomic_load(&holds) && wait_on(&wait))
        ;
    EXPECT(atomic_load(&holds));
    caller_start(&callers[0], first, scene.context);
    caller_start(&callers[1], second, scene.context);
    for (int i = 0; i < 2; i++)
        EXPECT(!atomic_load(&callers[i].is_back)); /* they wait for the turn, which `hold` keeps */
    atomic_store(&may_go, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(callers[i].thread, NULL);
        DONE(callers[i].error);
    }
    pthread_join(holder, NULL);
    DONE(cenote_free(large));
    scene.pool = other;
    scene_close(&scene);
}

CASE(a_pool_ends_while_another_one_is_short)
{
    for (int i = 0; i < 4; i++) {
        end_beside_shortage(CENOTE_ASYNC, 0, destroy_pool, take_more);
        end_beside_shortage(CENOTE_ASYNC, 0, take_more, destroy_pool);
        end_beside_shortage(CENOTE_VMM, 0, destroy_pool, take_more);
    }
}

CASE(a_pool_with_many_arenas_ends_while_another_one_is_short)
{
    for (int i = 0; i < 4; i++)
        end_beside_shortage(CENOTE_VMM, 20, destroy_pool, take_more);
}

/* ------------------------------------------------------------------------------------------- what was reserved before the driver ran */

static struct caller taker;
static bool takes;

static uint32_t slabs_left(void)
{
    const struct table *t = &scene.pool->store.slabs;
    return t->committed + t->free_count - t->used;
}

/* In pages in place, as the turn is another thread's. Then there is no more host memory. */
static int take_the_last_slab(void)
{
    void *taken;
    int error = cenote_alloc(scene.pool, 4 * KIB, scene.stream[B], &taken);
    EXPECT_EQ(slabs_left(), 0);
    memory_fail(1, true);
    DONE(cenote_free(taken));
    return error;
}

static void take_meanwhile(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
    if (!takes)
        return;
    takes = false;
    caller_start(&taker, take_the_last_slab, scene.context);
    pthread_join(taker.thread, NULL);
}

/* While the driver maps the page of a slab, another thread takes the last slab that has host memory. */
CASE(what_was_reserved_is_gone_after_the_driver_ran)
{
    static void *taken[1024];
    int count = 0;
    scene_open(&scene, 256 * MIB);
    do
        DONE(cenote_alloc(scene.pool, 8 * KIB, scene.stream[B], &taken[count++]));
    while (slabs_left() != 1 && count < 1024);
    REQUIRE_EQ(slabs_left(), 1);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, take_meanwhile, NULL));
    takes = true;
    int error = cenote_alloc(scene.pool, 4 * KIB, scene.stream[A], &block);
    memory_fail(0, false);
    EXPECT(!takes);
    DONE(taker.error);
    EXPECT_EQ(error, CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_alloc(scene.pool, 4 * KIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_watch(scene.pool, 0, take_meanwhile, NULL));
    while (count)
        DONE(cenote_free(taken[--count]));
    scene_close(&scene);
}

static atomic_int captures;

/* Captures that take no memory begin and end on the pool until it has ended, and groups come and go. */
static void *capture_until_it_ends(void *unused)
{
    cenote_group *group;
    int error = CENOTE_OK;
    DONE(cuCtxSetCurrent(scene.context));
    while (error != CENOTE_INVALID) {
        if (!(error = cenote_capture_begin(scene.pool, NULL, scene.stream[C])))
            DONE(cenote_capture_end(scene.pool, NULL, scene.stream[C]));
        atomic_fetch_add(&captures, !error);
        if (!cenote_group_create(scene.pool, "group", 0, NULL, &group))
            DONE(cenote_group_destroy(group));
    }
    return unused;
}

/* A capture that was announced is open on a pool that lives: none stays open for ever because the pool ended under the announcement. */
CASE(captures_begin_while_the_pool_ends)
{
    cenote_options options = scene_options();
    scene_open(&scene, 64 * MIB);
    for (int round = 0; round < rounds(200); round++) {
        pthread_t thread;
        DONE(pthread_create(&thread, NULL, capture_until_it_ends, NULL));
        for (int before = atomic_load(&captures); atomic_load(&captures) == before;)
            sched_yield();
        struct wait wait = {0};
        int error;
        while ((error = cenote_pool_destroy(scene.pool)) == CENOTE_BUSY && wait_on(&wait))
            ;
        REQUIRE(!error);
        DONE(pthread_join(thread, NULL));
        DONE(cenote_pool_create(0, &options, &scene.pool));
        DONE(cenote_pool_destroy(scene.pool));
        DONE(cenote_pool_create(0, &options, &scene.pool));
    }
    scene_close(&scene);
}

SCENES_MAIN("ends between")
