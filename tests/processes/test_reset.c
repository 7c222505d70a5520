/*
 * test_reset.c: the context goes from under live pools: the device is reset, the context is lost, or a context of the program's own ends. The
 * books of the simulated card judge: nothing of the old context is named to the driver, and what is left is given back.
 */
#include <pthread.h>

#include "tests/processes/process.h"

#include "driver/driver.h"

static const unsigned providers[] = {CENOTE_VMM, CENOTE_PLAIN, CENOTE_ASYNC, CENOTE_GUARD};

#define PROVIDERS (sizeof providers / sizeof providers[0])

static struct scene scene;
static struct held  live[3];

static void open_provider(unsigned provider)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.provider = provider;
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 3; i++)
        live[i] = take_one(&scene, (size_t)(i + 1) * 900 * KIB);
    struct held freed = take_one(&scene, 30 * MIB), used = take_one(&scene, 3 * MIB);
    held_give(&freed);
    DONE(cenote_use(used.at, scene.stream[B]));
    held_give(&used); /* waits for the other stream */
    DONE(cenote_pool_trim(scene.pool, 0, 0)); /* there is a fence */
    DONE(cuCtxSynchronize());
}

/* Its streams go with it; the program lets go of its context, too. */
static void reset(void)
{
    DONE(cuDevicePrimaryCtxReset(0));
    for (int i = 0; i < SCENE_STREAMS; i++)
        scene.stream[i] = NULL;
}

/* The answer to all that wants something of the device; what is bookkeeping goes on. */
static void expect_lost(const char *words)
{
    void *block = NULL;
    cenote_stats stats = scene_stats(scene.pool);
    EXPECT_EQ(cenote_alloc(scene.pool, 90 * MIB, scene.stream[A], &block), CENOTE_DEVICE_LOST);
    EXPECT(strstr(cenote_message(), words));
    EXPECT(!block);
    EXPECT_EQ(cenote_alloc(scene.pool, 512, scene.stream[A], &block), CENOTE_DEVICE_LOST); /* lost is lost, also where the driver is not needed */
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_DEVICE_LOST);
    EXPECT_EQ(scene_stats(scene.pool).requested.current, stats.requested.current);
    DONE(cenote_pool_check(scene.pool));
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(live[i].at));
    EXPECT(cenote_free(live[0].at) != CENOTE_OK);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).requested.current, 0);
    DONE(cenote_pool_check(scene.pool));
}

/* Pool and context go, and with new ones the device serves: nothing of the old is in the way. */
static void begin_anew(void)
{
    struct sim_books books;
    CUcontext popped;
    scene_destroy_pool(&scene);
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuDevicePrimaryCtxRelease(0));
    sim_books(&books);
    EXPECT_EQ(books.used + books.reserved + books.handles + books.mappings + books.reservations + books.allocations + books.pools, 0);
    EXPECT_EQ(books.events + books.streams + books.contexts, 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");

    cenote_options options = scene_options();
    DONE(cuDevicePrimaryCtxRetain(&scene.context, 0));
    DONE(cuCtxPushCurrent(scene.context));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cuStreamCreate(&scene.stream[i], CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create(0, &options, &scene.pool));
    struct held next = take_one(&scene, 200 * MIB);
    held_give(&next);
    scene_close(&scene);
}

ENDS_WITH(a_reset_under_live_pools, 0)
{
    for (size_t i = 0; i < PROVIDERS; i++) {
        open_provider(providers[i]);
        reset();
        expect_lost("has reset the device");
        begin_anew();
    }
}

/* The program has made the context live again, under its old handle, before cenote looks. */
ENDS_WITH(a_reset_and_a_new_context_under_live_pools, 0)
{
    for (size_t i = 0; i < PROVIDERS; i++) {
        CUcontext again;
        CUdeviceptr theirs;
        open_provider(providers[i]);
        reset();
        DONE(cuDevicePrimaryCtxRetain(&again, 0));
        EXPECT_EQ(again, scene.context);
        DONE(cuStreamCreate(&scene.stream[A], CU_STREAM_NON_BLOCKING));
        DONE(cuMemAlloc(&theirs, 3 * MIB)); /* it may lie where a segment of ours did */
        expect_lost("has reset the device");
        DONE(sim_launch_touch(scene.stream[A], theirs, 3 * MIB));
        DONE(cuCtxSynchronize());
        DONE(cuStreamDestroy(scene.stream[A]));
        DONE(cuMemFree(theirs));
        DONE(cuDevicePrimaryCtxRelease(0));
        begin_anew();
    }
}

/* The driver has refused once to say which context it is, when the pool first entered it. */
ENDS_WITH(a_reset_of_a_context_that_was_not_told_at_once, 0)
{
    CUcontext again;
    fault_arm("cuCtxGetId", 1, CUDA_ERROR_UNKNOWN, false);
    open_provider(CENOTE_VMM);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    reset();
    DONE(cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT_EQ(again, scene.context);
    expect_lost("has reset the device");
    DONE(cuDevicePrimaryCtxRelease(0));
    begin_anew();
}

/* Blocks of all kinds, uses and pins are over with the context: the program need not know of them any more. */
static void leave_everything(void)
{
    cenote_group *group = NULL;
    void *block;
    DONE(cenote_group_create(scene.pool, "private", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 3 * MIB, 512, scene.stream[A], &block));
    for (size_t bytes = 1; bytes < 2 * MIB; bytes = 3 * bytes)
        take_one(&scene, bytes);
    take_one(&scene, 40 * MIB);
    DONE(cenote_pin(live[1].at, live[1].bytes));
    DONE(cenote_use(live[2].at, scene.stream[B]));
    DONE(cenote_use(block, scene.stream[B]));
    reset();
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY); /* a group has a name in the program */
    EXPECT(strstr(cenote_message(), "private"));
    DONE(cenote_group_destroy(group));
}

ENDS_WITH(a_pool_of_a_reset_device_ends_with_its_blocks, 0)
{
    for (size_t i = 0; i < PROVIDERS; i++) {
        open_provider(providers[i]);
        leave_everything();
        begin_anew();
    }
}

#define THEIRS 24

static unsigned told_unmapped; /* that a block is, of a pool that has lost it */
static unsigned told_ended;    /* its blocks */

static void watch(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)arg;
    const char *at = notice->address;
    told_unmapped += notice->change == CENOTE_UNMAPPING && at <= (char *)live[0].at && (char *)live[0].at < at + notice->bytes;
    told_ended += notice->change == CENOTE_ENDED;
}

/*
 * The driver gives the addresses of segments to the other device. They are its pool's then, whatever lay there before: live blocks, cached ones, and
 * blocks that wait for a stream of that device.
 */
static void lose_addresses_to(cenote_pool *pool, cenote_group *group, CUstream stream)
{
    struct held theirs[THEIRS];
    cenote_block found = {.pool = NULL};
    void *more = NULL;
    int count = 0;
    while (count < THEIRS && found.pool != pool) {
        void *block;
        DONE(group_alloc(group, 8 * MIB, 512, stream, &block));
        theirs[count++] = held_of(block, 8 * MIB, stream);
        if (cenote_find(live[0].at, &found))
            found.pool = NULL;
    }
    EXPECT_EQ(found.pool, pool);
    EXPECT_EQ(cenote_alloc(scene.pool, 900 * KIB, NULL, &more), CENOTE_DEVICE_LOST); /* though it has cached memory, and has not noticed the reset */
    EXPECT(cenote_free(live[0].at + 512) != CENOTE_OK);
    scene_destroy_pool(&scene);
    EXPECT(told_ended > 0);
    EXPECT_EQ(told_unmapped, 0); /* the addresses are mapped, for another */
    for (int i = 0; i < count; i++) {
        DONE(cenote_find(theirs[i].at, &found));
        EXPECT(found.pool == pool && found.start == theirs[i].at);
        held_give(&theirs[i]);
    }
    DONE(cuStreamSynchronize(stream));
    DONE(cenote_pool_check(pool));
}

static void on_the_other_device(unsigned provider, const cenote_source *source)
{
    CUcontext other;
    CUstream stream;
    cenote_pool *pool = NULL;
    cenote_group *group = NULL;
    cenote_options options = scene_options();
    void *block;
    options.provider = provider;
    DONE(cenote_alloc(scene.pool, 900 * KIB, NULL, &block));
    DONE(cenote_free(block)); /* cached */
    DONE(cenote_pool_watch(scene.pool, CENOTE_UNMAPPING | CENOTE_ENDED, watch, NULL));
    DONE(cuDevicePrimaryCtxRetain(&other, 1));
    DONE(cuCtxSetCurrent(other));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create(1, &options, &pool));
    DONE(cenote_group_create(pool, "theirs", 0, source, &group));
    DONE(sim_launch_wait(stream, MSEC));
    DONE(cenote_use_on_device(live[2].at, 1, stream));
    held_give(&live[2]);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    DONE(cenote_alloc(pool, MIB, stream, &block)); /* the group gets other arenas than ours had */
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    reset();
    told_unmapped = told_ended = 0;
    lose_addresses_to(pool, group, stream);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(pool));
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxSetCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    DONE(cuDevicePrimaryCtxRelease(0));
    EXPECT_EQ(sim_mismatches(), 0);
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.used + books.allocations + books.pools + books.events + books.contexts + books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    scene_is_open = false;
}

ENDS_WITH(addresses_that_a_reset_has_freed_are_of_the_next_pool, 0)
{
    const cenote_source source = {take_source, give_source, NULL};
    const unsigned segments[] = {CENOTE_PLAIN, CENOTE_ASYNC};
    for (int i = 0; i < 4; i++) {
        open_provider(segments[i / 2]);
        on_the_other_device(segments[i / 2], i % 2 ? &source : NULL);
    }
}

/* An error that nothing follows; after it CUDA allows a reset, and the process goes on. */
ENDS_WITH(a_lost_context_and_then_a_reset, 0)
{
    for (size_t i = 0; i < PROVIDERS; i++) {
        open_provider(providers[i]);
        sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
        expect_lost("CUDA_ERROR_ILLEGAL_ADDRESS");
        reset();
        begin_anew();
    }
}

/* Without a reset the memory stays until the process ends; frees and the destruction succeed all the same. */
ENDS_WITH(a_lost_context, 0)
{
    for (size_t i = 0; i < PROVIDERS; i++) {
        open_provider(providers[i]);
        sim_lose_context(0, CUDA_ERROR_LAUNCH_FAILED);
        EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY); /* the device is not reset, and the blocks are live */
        expect_lost("CUDA_ERROR_LAUNCH_FAILED");
        scene_destroy_pool(&scene);
        scene_is_open = false;
    }
}

/* All pools of the device have to go before one can be made: the first of the new ones says so. */
ENDS_WITH(two_pools_of_a_reset_device, 0)
{
    cenote_pool *second = NULL, *third = NULL;
    cenote_options options = scene_options();
    void *block;
    open_provider(CENOTE_VMM);
    DONE(cenote_pool_create(0, &options, &second));
    reset();
    expect_lost("destroy all pools of the device");
    EXPECT_EQ(cenote_pool_create(0, &options, &third), CENOTE_OK); /* no driver call yet */
    EXPECT_EQ(cenote_alloc(third, MIB, NULL, &block), CENOTE_DEVICE_LOST);
    DONE(cenote_pool_destroy(third));
    DONE(cenote_pool_destroy(second));
    begin_anew();
}

/* It goes as all pools of that device have to, with a block that is left, and the next call makes another. */
ENDS_WITH(the_default_pool_of_a_reset_device, 0)
{
    struct sim_shape shape = scene_card(CARD);
    void *block, *left, *more;
    scene_open_card(&scene, &shape);
    DONE(cenote_pool_default(0, &scene.pool));
    DONE(cenote_alloc(scene.pool, MIB, NULL, &block));
    DONE(cenote_alloc(scene.pool, MIB, NULL, &left));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_INVALID);
    reset();
    EXPECT_EQ(cenote_alloc(scene.pool, 80 * MIB, NULL, &more), CENOTE_DEVICE_LOST);
    DONE(cenote_free(block));
    cenote_pool *before = scene.pool;
    DONE(cenote_pool_default(0, &scene.pool));
    EXPECT_EQ(scene.pool, before);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, NULL, &block), CENOTE_DEVICE_LOST);
    begin_anew(); /* which destroys it */
    DONE(cenote_pool_default(0, &scene.pool));
    DONE(cenote_alloc(scene.pool, MIB, NULL, &block));
    DONE(cenote_free(block));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_INVALID);
    scene_is_open = false;
}

#define RACES 60

static pthread_barrier_t both;

static void *destroy_default(void *told)
{
    pthread_barrier_wait(&both);
    *(int *)told = cenote_pool_destroy(scene.pool);
    return NULL;
}

/* One of two threads ends it. The other is told that it is being destroyed, or was. */
ENDS_WITH(two_threads_end_the_default_pool, 0)
{
    struct sim_shape shape = scene_card(CARD);
    scene_open_card(&scene, &shape);
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < RACES; i++) {
        pthread_t thread;
        void *block;
        int told[2];
        CUcontext again;
        DONE(cenote_pool_default(0, &scene.pool));
        DONE(cenote_alloc(scene.pool, MIB, NULL, &block));
        DONE(cuDevicePrimaryCtxReset(0));
        DONE(cuDevicePrimaryCtxRetain(&again, 0));
        REQUIRE(!pthread_create(&thread, NULL, destroy_default, &told[0]));
        destroy_default(&told[1]);
        pthread_join(thread, NULL);
        int other = told[0] ? told[0] : told[1];
        EXPECT(!told[0] || !told[1]);
        EXPECT(other == CENOTE_BUSY || other == CENOTE_INVALID);
        DONE(cuDevicePrimaryCtxRelease(0));
    }
    scene_is_open = false;
}

/* Kernels of a granted device cannot be waited for during a capture there. What a reset has ended is over for the pool as well, before it can end. */
ENDS_WITH(blocks_end_before_a_pool_that_another_device_keeps, 0)
{
    CUcontext context;
    CUstream stream;
    cenote_pool *other;
    cenote_options options = scene_options();
    open_provider(CENOTE_VMM);
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_create(1, &options, &other));
    DONE(cenote_pool_grant(scene.pool, 1));
    held_give(&live[0]);
    DONE(cenote_capture_begin(other, NULL, stream));
    reset();
    DONE(cuCtxSetCurrent(context));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    EXPECT_EQ(scene_stats(scene.pool).blocks.current, 0);
    EXPECT_EQ(cenote_free(live[1].at), CENOTE_DOUBLE_FREE);
    DONE(cenote_capture_end(other, NULL, stream));
    DONE(cenote_pool_destroy(scene.pool));
    DONE(cenote_pool_destroy(other));
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    scene_is_open = false;
}

/* Blocks wait for streams of another device, which is reset: nothing runs there any more. */
ENDS_WITH(another_device_is_reset, 0)
{
    CUcontext context;
    CUstream stream;
    open_provider(CENOTE_VMM);
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(sim_launch_wait(stream, 1000 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_use_on_device(live[0].at, 1, stream));
    held_give(&live[0]);
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    DONE(cuDevicePrimaryCtxReset(1));
    DONE(cuDevicePrimaryCtxRelease(1));
    struct held more = take_one(&scene, 20 * MIB); /* this device serves on */
    held_give(&more);
    held_give(&live[1]);
    held_give(&live[2]);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

/* A stream of the other device, under the handle that the one of its context before had. */
static CUstream stream_of_other(CUcontext *context)
{
    CUstream stream;
    DONE(cuDevicePrimaryCtxRetain(context, 1));
    DONE(cuCtxPushCurrent(*context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    return stream;
}

/* A stream that was declared immortal has ended with its context, and the driver gives its handle to one of the next. With announced:0, too. */
ENDS_WITH(an_immortal_stream_of_another_device_that_is_reset, 0)
{
    for (int i = 0; i < 4; i++) {
        CUcontext context;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        bool again = i & 1; /* it is declared once more */
        options.announced = i / 2;
        shape.devices = 2;
        scene_open_with(&scene, &shape, &options);
        DONE(cenote_stream_set_immortal(scene.pool, scene.stream[A]));
        CUstream stream = stream_of_other(&context);
        DONE(cenote_stream_set_immortal(scene.pool, stream));
        DONE(cuCtxPushCurrent(context));
        DONE(cuStreamDestroy(stream)); /* the simulated driver gives its handle to the next stream, as drivers do */
        DONE(cuCtxPopCurrent(NULL));
        DONE(cuDevicePrimaryCtxReset(1));
        DONE(cuDevicePrimaryCtxRelease(1));
        EXPECT_EQ(stream_of_other(&context), stream);
        if (again)
            DONE(cenote_stream_set_immortal(scene.pool, stream));
        DONE(cenote_pool_grant(scene.pool, 1));
        struct held block = take_one(&scene, 20 * MIB), next;
        DONE(cuStreamSynchronize(scene.stream[A]));
        DONE(cuCtxPushCurrent(context));
        held_linger(&block, stream);
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_use(block.at, stream));
        DONE(cenote_free(block.at));
        next = take_one(&scene, 20 * MIB);
        held_give(&next);
        if (!again)
            DONE(cenote_stream_retire(scene.pool, stream));
        DONE(cuCtxPushCurrent(context));
        DONE(cuStreamSynchronize(stream));
        DONE(cuStreamDestroy(stream));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
        DONE(cuDevicePrimaryCtxRelease(1));
        scene_close(&scene);
    }
}

#define HANDLES 20 /* more than the table has places for one handle */

/* However often the device is reset: a stream that is declared immortal has the place of the one that had its handle before. */
ENDS_WITH(an_immortal_stream_after_many_resets, 0)
{
    CUcontext context;
    CUstream before = NULL;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < HANDLES; i++) {
        CUstream stream = stream_of_other(&context);
        EXPECT(!before || stream == before);
        before = stream;
        DONE(cenote_stream_set_immortal(scene.pool, stream));
        EXPECT_EQ(cenote_stream_retire(scene.pool, stream), CENOTE_INVALID);
        DONE(cuCtxPushCurrent(context));
        DONE(cuStreamDestroy(stream));
        DONE(cuCtxPopCurrent(NULL));
        DONE(cuDevicePrimaryCtxReset(1));
        DONE(cuDevicePrimaryCtxRelease(1));
    }
    scene_close(&scene);
}

/* Pools are of the primary context, whichever was current. Streams of another are refused, also when it has ended. */
ENDS_WITH(a_context_of_the_program_ends, 0)
{
    CUcontext own;
    CUstream theirs;
    void *block = NULL;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    scene_open_card(&scene, &shape);
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create(0, &options, &scene.pool)); /* while `own` is current */
    live[0] = take_one(&scene, 3 * MIB);
    DONE(cuCtxDestroy(own));
    CUcontext current = NULL;
    DONE(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, scene.context);
    live[1] = take_one(&scene, 30 * MIB);
    sim_set_quiet(true);
    EXPECT(cenote_alloc(scene.pool, MIB, theirs, &block) != CENOTE_OK && cenote_message()[0]); /* a stream that is gone */
    held_give(&live[0]);
    held_give(&live[1]);
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_pool_destroy(scene.pool));
    scene_is_open = false;
}

/* --------------------------------------------------------------------------------------------------------------------- in the middle */

static void *come_and_go(void *number)
{
    for (unsigned i = 0; i < 150; i++) {
        void *block = NULL;
        cuCtxSetCurrent(scene.context);
        int error = cenote_alloc(scene.pool, (1 + i % 61) * 300 * KIB, CU_STREAM_PER_THREAD, &block);
        if (!error && cenote_free(block))
            return number;
        if (i % 9 == 0)
            cenote_pool_trim(scene.pool, 0, 0);
        if (error && error != CENOTE_DEVICE_LOST && error != CENOTE_DRIVER && error != CENOTE_OUT_OF_MEMORY)
            return number;
    }
    return NULL;
}

/* CUDA forbids it; nothing crashes or hangs, and the pool can be destroyed. */
static void in_the_middle(void)
{
    pthread_t threads[3];
    void *failed;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.decay_ms = 1;
    options.background = 1;
    scene_open_with(&scene, &shape, &options);
    sim_set_quiet(true);
    for (uintptr_t i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, (void *)(i + 1)));
    usleep(2000);
    DONE(cuDevicePrimaryCtxReset(0));
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &failed);
        EXPECT(!failed);
    }
    DONE(cenote_pool_check(scene.pool));
    DONE(cenote_pool_destroy(scene.pool));
    scene_is_open = false;
}

CASE(a_reset_in_the_middle_of_everything)
{
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(status_of(in_the_middle), 0);
}

PROCESSES_MAIN("resets")
