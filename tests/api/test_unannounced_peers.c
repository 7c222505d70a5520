/*
 * test_unannounced_peers.c: pools with the option announced:0, and blocks that streams of another device use: what the driver refuses there, and
 * what other threads do meanwhile. test_unannounced.c has the ordinary road.
 */
#include "pool/pool.h"
#include "tests/api/caller.h"
#include "tests/api/peers.h"

#undef CARD /* strict.h has its own */
#include "tests/api/whims.h"
#include "tests/patience.h"

#include <pthread.h>
#include <unistd.h>

static struct peers p; /* other threads look at it, too */
static struct held  used, second;
static void        *small;

static uint32_t pending(void)
{
    return (uint32_t)scene_stats(p.scene.pool).pending_blocks;
}

static void look(void)
{
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
}

static void trim(void)
{
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
}

static void open_devices(cenote_options options)
{
    struct sim_shape shape = scene_card(2 * CARD);
    memset(&p, 0, sizeof p);
    shape.devices = 2;
    scene_open_with(&p.scene, &shape, &options);
    whims_begin();
    DONE(cenote_stream_set_immortal(p.scene.pool, p.scene.stream[A]));
    DONE(cuDevicePrimaryCtxRetain(&p.other, 1));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static void take_used(struct held *block)
{
    REQUIRE(held_take(block, p.scene.pool, 4 * MIB, p.scene.stream[A]));
    DONE(cenote_use(block->at, p.stream));
}

/* A block that the other device's stream used is pending: the stream may be dead. `small` serves to name it. */
static void open_pending(void)
{
    open_devices(strict());
    take_used(&used);
    DONE(cenote_free(used.at));
    DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
    EXPECT_EQ(pending(), 1);
}

static void name(void)
{
    DONE(cenote_use(small, p.stream));
}

static void close_pending(void)
{
    DONE(cenote_free(small));
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
    trim();
    EXPECT_EQ(pending(), 0);
    close_peers(&p);
}

/* ------------------------------------------------------------------------------------------------------------------ a call that names it */

/* The driver refuses something, and the block goes on waiting until the next call names the stream. */
CASE(name_that_brings_no_event)
{
    static const struct { const char *call; int nth; } refusals[] = {{"cuThreadExchangeStreamCaptureMode", 1}, {"cuCtxPushCurrent", 4},
                                                                     {"cuEventCreate", 1}, {"cuEventRecord", 1}};
    for (int i = 0; i < 4; i++) {
        open_pending();
        fault_arm(refusals[i].call, (uint64_t)refusals[i].nth, CUDA_ERROR_NOT_PERMITTED, false);
        name();
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        trim();
        EXPECT_EQ(pending(), 1);
        DONE(cenote_free(small)); /* one more that waits for it */
        DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
        name();
        trim();
        EXPECT_EQ(pending(), 0);
        close_pending();
    }
}

/* While an announced capture is open there nothing is recorded. */
CASE(name_while_a_capture_is_open_there)
{
    cenote_options options = strict();
    cenote_pool *there;
    cenote_group *group;
    open_pending();
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(NULL, group, p.stream));
    DONE(cuCtxPopCurrent(NULL));
    name();
    look();
    EXPECT_EQ(pending(), 1);
    DONE(cenote_capture_end(NULL, group, p.stream));
    look();
    EXPECT_EQ(pending(), 1); /* no call has named it since */
    DONE(cenote_free(small));
    DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
    name();
    trim();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(there));
    close_pending();
}

/* What was named is not recorded again; nor is a stream named by a call for a block that is free. */
CASE(name_without_need)
{
    open_pending();
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    name();
    fault_arm("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, true);
    name();
    EXPECT_EQ(cenote_use(used.at, p.stream), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(fault_calls(), 0);
    fault_disarm();
    EXPECT_EQ(pending(), 1);
    trim();
    EXPECT_EQ(pending(), 0);
    close_pending();
}

static void retire_it(void)
{
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
}

static void name_it(void)
{
    DONE(cenote_use(small, p.stream));
}

/* Another thread names the stream, and the block comes back. Another block takes its place in the books, with a use that has not ended. */
static void name_it_and_go_on(void)
{
    name_it();
    DONE(cuCtxPushCurrent(p.scene.context));
    trim();
    EXPECT_EQ(pending(), 0);
    take_used(&second);
    DONE(cuCtxPopCurrent(NULL));
}

/* The same, and the use is one on another stream. */
static void name_it_and_use_another(void)
{
    name_it();
    DONE(cuCtxPushCurrent(p.scene.context));
    trim();
    EXPECT_EQ(pending(), 0);
    REQUIRE(held_take(&second, p.scene.pool, 4 * MIB, p.scene.stream[A]));
    DONE(cenote_use(second.at, p.scene.stream[B]));
    DONE(cuCtxPopCurrent(NULL));
}

/* Two threads name the stream at one time, or one retires it: the later event is one too many. */
CASE(event_that_comes_second)
{
    static void (*const meanwhile[])(void) = {name_it, retire_it, name_it_and_go_on, name_it_and_use_another};
    for (int i = 0; i < 4; i++) {
        open_pending();
        second.at = NULL;
        DONE(sim_launch_wait(p.stream, 10 * MSEC));
        whims_at(WHIM_RECORD, 0, meanwhile[i]);
        name();
        EXPECT(whims_came());
        if (second.at) {
            DONE(cuStreamSynchronize(p.stream));
            EXPECT_EQ(pending(), 0);
            DONE(cenote_free(second.at));
            look();
            EXPECT_EQ(pending(), 1); /* the event was not its own */
            DONE(cenote_stream_retire(p.scene.pool, p.scene.stream[B]));
        }
        close_pending();
    }
}

/* The driver does not say which context is current, and so not which default stream is meant. */
CASE(default_stream_that_is_not_told)
{
    open_devices(strict());
    REQUIRE(held_take(&used, p.scene.pool, 4 * MIB, p.scene.stream[A]));
    fault_arm("cuCtxGetCurrent", 1, CUDA_ERROR_NOT_PERMITTED, false);
    EXPECT_EQ(cenote_use_on_device(used.at, 1, NULL), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    DONE(cenote_use_on_device(used.at, 1, NULL));
    DONE(cenote_free(used.at));
    trim();
    EXPECT_EQ(pending(), 0);
    close_peers(&p);
}

/* ----------------------------------------------------------------------------------------------------------------------- streams that end */

static void retire_there(void)
{
    DONE(cenote_stream_retire(p.scene.pool, p.stream));
}

/* A block that the other device's stream used, busy for a while, waits for the end of that stream, for which an event is due. */
static void open_end(void)
{
    open_devices(strict());
    take_used(&used);
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    retire_there();
    DONE(cenote_free(used.at));
    look();
    EXPECT_EQ(pending(), 1);
}

static void close_end(void)
{
    trim();
    EXPECT_EQ(pending(), 0);
    close_peers(&p);
}

/* The other device's context cannot be entered for a moment. */
CASE(end_that_cannot_be_asked_after)
{
    open_end();
    DONE(cuStreamSynchronize(p.stream));
    fault_arm("cuCtxPushCurrent", 2, CUDA_ERROR_NOT_PERMITTED, true);
    look();
    EXPECT(fault_fired() > 0);
    fault_disarm();
    EXPECT_EQ(pending(), 1);
    close_end();
}

static cenote_pool *beside[2]; /* pools of the other device */
static atomic_bool is_inside, may_leave;

static void stay_inside(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)notice;
    struct wait wait = {0};
    (void)pool, (void)arg;
    atomic_store(&is_inside, true);
    while (!atomic_load(&may_leave) && wait_on(&wait))
        ;
}

static int trim_there(void) { return cenote_pool_trim(beside[0], 0, 0); }
static int announce_there(void) { return cenote_capture_begin(beside[1], NULL, p.stream); }
static int retire_from_here(void) { return cenote_stream_retire(p.scene.pool, p.stream); }

/* A capture is being announced on the other device, and waits for a thread that is inside. A stream that ends there waits, too, not refused. */
CASE(end_while_a_capture_is_being_announced_there)
{
    struct caller inside, announces, retires;
    cenote_options options = scene_options();
    open_devices(strict());
    take_used(&used);
    for (int i = 0; i < 2; i++)
        DONE(cenote_pool_create(1, &options, &beside[i]));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_alloc(beside[0], MIB, NULL, &small));
    DONE(cenote_free(small));
    DONE(cuCtxSynchronize());
    DONE(cuCtxPopCurrent(NULL));
    DONE(cenote_pool_watch(beside[0], CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, stay_inside, NULL));
    caller_start(&inside, trim_there, NULL);
    EXPECT(atomic_load(&is_inside));
    caller_start(&announces, announce_there, NULL);
    EXPECT(!atomic_load(&announces.is_back));
    caller_start(&retires, retire_from_here, NULL);
    atomic_store(&may_leave, true);
    pthread_join(inside.thread, NULL);
    pthread_join(announces.thread, NULL);
    pthread_join(retires.thread, NULL);
    DONE(inside.error);
    DONE(announces.error);
    DONE(retires.error);
    DONE(cenote_pool_watch(beside[0], 0, stay_inside, NULL));
    DONE(cenote_free(used.at));
    look();
    EXPECT_EQ(pending(), 1); /* while the capture is open the driver is not asked */
    DONE(cenote_capture_end(beside[1], NULL, p.stream));
    for (int i = 0; i < 2; i++)
        DONE(cenote_pool_destroy(beside[i]));
    close_end();
}

/* While an announced capture is open there, the driver is not asked. */
CASE(end_while_a_capture_is_open_there)
{
    cenote_options options = strict();
    cenote_pool *there;
    cenote_group *group;
    CUstream stream;
    open_end();
    DONE(cenote_pool_create(1, &options, &there));
    DONE(cuCtxPushCurrent(p.other));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_group_create(there, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(NULL, group, stream));
    DONE(cuStreamSynchronize(p.stream));
    DONE(cuCtxPopCurrent(NULL));
    look();
    EXPECT_EQ(pending(), 1);
    DONE(cuCtxPushCurrent(p.other));
    DONE(cenote_capture_end(NULL, group, stream));
    DONE(cenote_group_destroy(group));
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxPopCurrent(NULL));
    look();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_pool_destroy(there));
    close_end();
}

static void leave_lost(void)
{
    DONE(cenote_pool_destroy(p.scene.pool));
    sim_set_quiet(false);
    sim_reset(NULL);
    scene_is_open = false;
}

/* The other device's context is lost, or reset: it does no work any more. */
CASE(end_on_a_device_that_is_lost)
{
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        open_end();
        sim_set_quiet(true);
        if (is_reset)
            DONE(cuDevicePrimaryCtxReset(1));
        else
            sim_lose_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
        look();
        look();
        EXPECT_EQ(pending(), 0);
        EXPECT_EQ(p.scene.pool->clock.lanes.asking, 0); /* the driver is asked no more */
        leave_lost();
    }
}

/* -------------------------------------------------------------------------------------- streams that ended before the first careful pool */

/* The stream ended while captures were announced; a block that is live still was used on it. */
static void open_ended(void)
{
    open_devices(scene_options());
    take_used(&used);
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
    retire_there();
}

static cenote_pool *open_careful(int error)
{
    cenote_options careful = strict();
    cenote_pool *pool = NULL;
    EXPECT_EQ(cenote_pool_create(0, &careful, &pool), error);
    return pool;
}

static void close_ended(cenote_pool *careful)
{
    DONE(cenote_free(used.at));
    trim();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_pool_destroy(careful));
    close_peers(&p);
}

/* The driver refuses what the end of that stream needs: the careful pool does not open. The next one does. */
CASE(last_fence_of_the_other_device_that_is_refused)
{
    static const char *const calls[] = {"cuCtxPushCurrent", "cuEventCreate", "cuCtxRecordEvent"};
    for (int i = 0; i < 3; i++) {
        open_ended();
        fault_arm(calls[i], 2, CUDA_ERROR_NOT_PERMITTED, false);
        EXPECT_EQ(open_careful(CENOTE_DRIVER), NULL);
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        EXPECT(strstr(cenote_message(), "again") != NULL);
        close_ended(open_careful(CENOTE_OK));
    }
}

/* Careful pools come and go, and the stream's end needs no second event: one is due, and then done. */
CASE(end_that_is_covered_already)
{
    open_ended();
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            trim();
        fault_arm("cuCtxRecordEvent", UINT64_MAX, CUDA_ERROR_UNKNOWN, false);
        cenote_pool *careful = open_careful(CENOTE_OK);
        EXPECT_EQ(fault_calls(), i ? 1 : 2); /* one is the fence over the pool's own device */
        fault_disarm();
        if (i == 1)
            DONE(cuStreamSynchronize(p.stream));
        if (i < 2)
            DONE(cenote_pool_destroy(careful));
        else
            close_ended(careful);
    }
}

/* The other device is lost, or was reset: the careful pool opens, and the block comes back. */
CASE(last_fence_of_a_device_that_is_lost)
{
    for (int is_reset = 0; is_reset < 3; is_reset++) {
        cenote_options options = scene_options();
        cenote_pool *there;
        void *none;
        open_ended();
        DONE(cenote_pool_create(1, &options, &there));
        sim_set_quiet(true);
        if (is_reset)
            DONE(cuDevicePrimaryCtxReset(1));
        else
            sim_lose_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
        if (is_reset == 2)
            EXPECT_EQ(cenote_alloc(there, MIB, NULL, &none), CENOTE_DEVICE_LOST); /* so cenote has seen it */
        cenote_pool *careful = open_careful(CENOTE_OK);
        DONE(cenote_pool_destroy(careful));
        DONE(cenote_free(used.at));
        trim();
        EXPECT_EQ(pending(), 0);
        DONE(cenote_pool_destroy(there));
        leave_lost();
    }
}


/* One use has its event already, the other gets one: what the driver refuses is said, and the call works when it is made again. */
CASE(end_that_is_refused)
{
    static const char *const refusals[] = {"cuCtxPushCurrent", "cuEventCreate", "cuEventRecord"};
    for (int i = 0; i < 3; i++) {
        open_pending();
        name();
        DONE(sim_launch_wait(p.stream, 10 * MSEC));
        DONE(cenote_free(small));
        DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
        fault_arm(refusals[i], 1, CUDA_ERROR_NOT_PERMITTED, false);
        EXPECT_EQ(cenote_stream_retire(p.scene.pool, p.stream), CENOTE_DRIVER);
        EXPECT_EQ(fault_fired(), 1);
        fault_disarm();
        EXPECT(strstr(cenote_message(), "again") != NULL);
        EXPECT_EQ(pending(), 2);
        close_pending();
    }
}

/* Two threads retire the stream: the slower one's event is one too many. */
CASE(stream_that_two_threads_retire)
{
    open_pending();
    whims_at(WHIM_RECORD, 0, retire_it);
    retire_there();
    EXPECT(whims_came());
    DONE(cenote_free(small));
    close_end();
}

/* The driver refuses once to destroy an event: it is asked again, and none is lost. */
CASE(event_that_is_not_destroyed_at_once)
{
    open_end();
    DONE(cuStreamSynchronize(p.stream));
    fault_arm("cuEventDestroy", 1, CUDA_ERROR_NOT_PERMITTED, false);
    look();
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    close_end();
}

static void open_immortal(void)
{
    open_devices(strict());
    DONE(cenote_alloc(p.scene.pool, 512, p.scene.stream[A], &small));
    DONE(cenote_stream_set_immortal(p.scene.pool, p.stream));
    take_used(&used);
    DONE(sim_launch_wait(p.stream, 10 * MSEC));
}

/* A look makes good that the free got no event; meanwhile another thread names the stream. One event is enough. */
CASE(event_that_another_thread_has_made)
{
    struct sim_books before, after;
    open_immortal();
    fault_arm("cuEventRecord", 1, CUDA_ERROR_NOT_PERMITTED, false);
    DONE(cenote_free(used.at));
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    look();
    DONE(cenote_pool_trim(p.scene.pool, UINT64_MAX, 0));
    sim_books(&before);
    EXPECT_EQ(pending(), 1);
    DONE(cenote_use(small, p.stream));
    sim_books(&after);
    EXPECT_EQ(after.events, before.events);
    trim();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_free(small));
    trim();
    close_peers(&p);
}

CASE(event_that_two_threads_make)
{
    struct sim_books before, after;
    open_immortal();
    fault_arm("cuEventRecord", 1, CUDA_ERROR_NOT_PERMITTED, false);
    DONE(cenote_free(used.at));
    fault_disarm();
    sim_books(&before);
    whims_at(WHIM_RECORD, 2, name_it); /* behind those of the fence */
    look();
    EXPECT(whims_came());
    sim_books(&after);
    EXPECT_EQ(after.events, before.events + 3); /* its own, and two of the fence */
    EXPECT_EQ(pending(), 1);
    trim();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_free(small));
    trim();
    close_peers(&p);
}

/* The use is done and its event has ended. Before the look has the lock again, another thread names the stream, and gives the use one more. */
CASE(event_that_comes_too_late)
{
    open_immortal();
    DONE(cenote_free(used.at));
    look();
    EXPECT_EQ(pending(), 1);
    DONE(cuStreamSynchronize(p.stream));
    whims_at(WHIM_DESTROY, 0, name_it);
    look();
    EXPECT(whims_came());
    EXPECT_EQ(pending(), 1);
    look();
    EXPECT_EQ(pending(), 0);
    DONE(cenote_free(small));
    trim();
    close_peers(&p);
}

SCENES_MAIN("unannounced: other devices")
